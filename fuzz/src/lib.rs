//! The fuzz targets of the workspace, as functions of a byte string, and their common parts.
//!
//! `fuzz_targets/` wraps each target for libFuzzer; `tests/corpus.rs` runs the committed corpora
//! without libFuzzer. See `README.md`.

#[cfg(not(debug_assertions))]
compile_error!("the targets need debug assertions");

pub mod channel;
pub mod frames;
pub mod headers;
pub mod segments;
pub mod sockets;

mod far;
mod input;
mod packets;
mod stack;
pub mod tally;
pub mod tls;

/// For every fourth seed, appends up to some thousand bytes of random operations and returns the
/// new length, so that an input is worth the cost of creating a stack. Otherwise returns `None`.
pub fn longer(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> Option<usize> {
    let most = max_size.min(data.len());
    if !seed.is_multiple_of(4) || size >= most {
        return None;
    }
    let mut state = u64::from(seed) << 32 | size as u64;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 29
    };
    let end = most.min(size + 64 + (next() % 4096) as usize);
    data[size..end].fill_with(|| (next() >> 24) as u8);
    Some(end)
}
