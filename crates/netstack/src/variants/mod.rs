//! Several ways to run one protocol: they differ in where they call prepare, apply and perform.
//!
//! | variant | how it works | use |
//! |---|---|---|
//! | [`single`] | one thread, no log, direct calls | one core is enough; the oracle of the tests |
//! | `locked` (a feature) | one state, one, two or six locks around it, any thread processes any packet | a comparison: the cost of a lock |
//! | `pipelined` (a feature) | a stage for frames, some for payload, one for headers | a comparison: division by function |
//! | [`ReplicatedGroup`](crate::group::ReplicatedGroup) | one log, a copy of the state per thread, costly work by primaries | one connection on several cores; threads that may fail |
//!
//! For all of them:
//!
//! - No variant contains a protocol rule: given the same requests in the same order, all reach the
//!   same state and send the same frames. All except `locked` apply requests in the order of the
//!   receive pump. Workers of `locked` may overtake each other on the way to the lock, so TCP may
//!   see segments out of order that the network did not reorder.
//! - `single`, `locked` and `pipelined` have one copy of the state. It is lost when its thread
//!   ends, or when a thread fails while it holds the lock or some payload. A
//!   [`ReplicatedGroup`](crate::group::ReplicatedGroup) replaces replicas that fail or diverge, and
//!   replicas may join and leave.
//! - No step waits for another thread, except in `locked`, where a step may wait for the lock.
//! - With several [`groups`], each group is `single` or a
//!   [`ReplicatedGroup`](crate::group::ReplicatedGroup). With several [`interfaces`], each is any
//!   variant.
//!
//! A variant runs either [by hand](ByHand), where time is an argument and every step is a call, or
//! on threads: [`Stack`](crate::Stack) starts the one that a [`VariantKind`] names. There is one
//! call through the trait [`Worker`] per turn; within a turn every call is direct.

mod coalescing;
pub mod groups;
pub mod interfaces;
mod kind;
#[cfg(feature = "locked")]
pub mod locked;
#[cfg(feature = "pipelined")]
pub mod pipelined;
pub mod single;

/// Whether a variant with one state can have so many requests in flight.
fn is_window(requests: usize) -> bool {
    requests.is_power_of_two() && (64..=1 << 16).contains(&requests)
}

pub use crate::drive::{ByHand, Handle, Joining, TurnStep, Worker};
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
