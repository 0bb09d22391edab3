#![no_main]

use dominoes_fuzz::{longer, tls};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| tls::run(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    longer(data, size, max_size, seed).unwrap_or_else(|| fuzzer_mutate(data, size, max_size))
});
