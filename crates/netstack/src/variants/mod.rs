//! Several ways to run one protocol: they differ in where they call prepare, apply and perform.
//!
//! [`VariantKind`] compares them. A variant runs either [by hand](ByHand) or on threads, which
//! [`Stack`](crate::Stack) starts. There is one call through the trait [`Worker`] per turn; within
//! a turn every call is direct.

pub mod groups;
pub mod interfaces;
mod kind;
#[cfg(feature = "locked")]
pub mod locked;
#[cfg(feature = "pipelined")]
pub mod pipelined;
pub mod single;

use core::ops::RangeInclusive;

use crate::config::PowersOfTwo;

/// How many requests a variant with one state can have in flight.
const WINDOWS: PowersOfTwo<RangeInclusive<u32>> = PowersOfTwo(6..=16);

pub use crate::drive::{ByHand, CoreTime, Handle, Joining, TurnStep, Worker};
pub use crate::io::setup::Setup;
pub use kind::VariantKind;

/// The costly steps of every variant, one function each, for benchmarks.
#[cfg(feature = "testkit")]
#[doc(hidden)]
pub mod kernel {
    use dominoes_drivers::Frame;

    use crate::io::{perform, prefetch, prepare};

    /// Asks the processor to fetch `bytes` into its nearest cache; waits for nothing.
    #[inline]
    pub fn prefetch(bytes: &[u8]) {
        prefetch::prefetch(bytes);
    }

    /// Whether the TCP checksum of a frame (Ethernet, IPv4) is right.
    #[inline]
    pub fn verify(frame: &[u8]) -> bool {
        prepare::is_good(frame)
    }

    /// Copies the payload at the end of a frame (Ethernet, IPv4, TCP) to `to` while its TCP
    /// checksum is verified. Returns whether the checksum is right; false if the frame is shorter
    /// than its headers say.
    #[inline]
    pub fn verify_and_copy(frame: &[u8], to: &mut [u8]) -> bool {
        prepare::verify_and_copy(frame, to) == Some(true)
    }

    /// How many of these frames (Ethernet, IPv4) of one run have a correct TCP checksum. Prefetches
    /// each frame while it sums the one before.
    #[inline]
    pub fn verify_all(frames: &[Frame]) -> usize {
        prepare::verdict(frames.iter()).count_ones() as usize
    }

    /// Copies `payload` after the headers of a frame (Ethernet, IPv4, TCP, none with options; the
    /// TCP checksum field is zero), and stores the TCP checksum.
    ///
    /// # Panics
    /// If the frame is not as long as headers and payload together.
    #[inline]
    pub fn fill(frame: &mut [u8], payload: &[u8]) {
        perform::fill(frame, payload);
    }

    /// Whether the UDP checksum of a frame (Ethernet, IPv4) is right, or its sender computed none.
    #[inline]
    pub fn verify_datagram(frame: &[u8]) -> bool {
        prepare::datagram_is_good(frame)
    }

    /// Copies `payload` after the headers of a frame (Ethernet, IPv4 without options, UDP), and
    /// stores the UDP checksum.
    ///
    /// # Panics
    /// If the frame is not as long as headers and payload together.
    #[inline]
    pub fn fill_datagram(frame: &mut [u8], payload: &[u8]) {
        perform::fill_datagram(frame, payload);
    }
}
