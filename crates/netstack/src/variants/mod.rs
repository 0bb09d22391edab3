//! Several ways to run one protocol: where prepare, apply and perform are called.
//!
//! | variant | what it is | for whom |
//! |---|---|---|
//! | [`single`] | one thread, no log, direct calls | one core is enough; the oracle of the tests |
//! | `locked` (a feature) | one state, one, two or six locks around it, any thread processes any packet | a comparison: what a lock costs |
//! | `pipelined` (a feature) | a stage for frames, some for payload, one for headers | a comparison: division by function |
//! | [`ReplicatedGroup`](crate::group::ReplicatedGroup) | one log, a copy of the state per thread, costly work by primaries | one connection on several cores; threads that may fail |
//!
//! What is true of each:
//!
//! - None of them contains a protocol rule: given the same requests in the same order, all have the
//!   same state and send the same frames. All but `locked` apply requests in the order of the
//!   receive pump. Workers of `locked` may overtake each other on the
//!   way to the lock, so that TCP sees segments out of order that the network did not reorder.
//! - `single`, `locked` and `pipelined` have one copy of the state: it ends with its thread, or
//!   with one that fails while it has the lock or some payload. A [`ReplicatedGroup`](crate::group::ReplicatedGroup)
//!   replaces replicas that fail or differ, and replicas may join and leave.
//! - No step waits for another thread, but those of `locked` for the lock.
//! - With several groups side by side ([`groups`]) each is `single` or a
//!   [`ReplicatedGroup`](crate::group::ReplicatedGroup). With several [`interfaces`] each is any variant.
//!
//! Each is driven [by hand](ByHand), where time is an argument and every step is a call, or on
//! threads: [`Stack`](crate::Stack) starts whichever a [`VariantKind`] names. Calls through the
//! trait [`Worker`] are one per turn; within a turn every call is direct.

mod coalescing;
pub mod groups;
pub mod interfaces;
mod kind;
#[cfg(feature = "locked")]
pub mod locked;
#[cfg(feature = "pipelined")]
pub mod pipelined;
pub mod single;

pub use crate::drive::{ByHand, Handle, Joining, TurnStep, Worker};
pub use crate::io::setup::Setup;
pub use kind::VariantKind;

/// The costly steps of every variant, each by itself, so that it can be measured.
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

    /// How many of these frames (Ethernet, IPv4), one run, have a right TCP checksum. While one is
    /// summed, the next one is fetched from memory.
    #[inline]
    pub fn verify_all(frames: &[Frame]) -> usize {
        prepare::verdict(frames.iter()).count_ones() as usize
    }

    /// Copies `payload` behind the headers of a frame (Ethernet, IPv4, TCP, none with options; the
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

    /// Copies `payload` behind the headers of a frame (Ethernet, IPv4 without options, UDP), and
    /// stores the UDP checksum.
    ///
    /// # Panics
    /// If the frame is not as long as headers and payload together.
    #[inline]
    pub fn fill_datagram(frame: &mut [u8], payload: &[u8]) {
        perform::fill_datagram(frame, payload);
    }
}
