//! A synthetic workload: requests with a part that updates shared state and a part that does not,
//! under different ways of keeping the state consistent (Sizemore 2011, section 5.2).

pub(crate) mod report;
pub(crate) mod strategies;

use std::{hint::black_box, time::Instant};

/// Words of the state; 4 KiB, so that it stays in a core's nearest cache where it is not shared.
pub(crate) const WORDS: usize = 512;

/// Parallelizable to sequential work.
pub(crate) const RATIOS: [(u32, u32); 4] = [(100, 1), (10, 1), (2, 1), (1, 2)];

/// One step of a chain in which each depends on the one before.
#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// The sequential part: updates words of the state, which depend on the request alone. So the final
/// state does not depend on the order of requests.
#[inline(never)]
pub(crate) fn sequential(request: u64, steps: u32, mut update: impl FnMut(usize, u64)) {
    let mut x = request;
    for _ in 0..steps {
        x = mix(x);
        update(x as usize % WORDS, x);
    }
}

/// The parallelizable part: reads private memory and returns a result.
#[inline(never)]
pub(crate) fn parallel(request: u64, steps: u32, table: &[u64; WORDS]) -> u64 {
    let mut x = request;
    for _ in 0..steps {
        x = mix(x ^ table[x as usize % WORDS]);
    }
    x
}

/// Private memory for [`parallel`], equal in every thread.
pub(crate) fn table() -> Box<[u64; WORDS]> {
    let mut x = 0x9e37_79b9_7f4a_7c15;
    Box::new(std::array::from_fn(|_| {
        x = mix(x + 1);
        x
    }))
}

/// Request number `n`; another seed gives other requests.
#[inline]
pub(crate) fn request(seed: u64, n: u64) -> u64 {
    mix(n.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1 << 63)
}

/// The amount of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// Steps of [`sequential`] per request.
    pub(crate) sequential: u32,
    /// Steps of [`parallel`] per request.
    pub(crate) parallel: u32,
    /// Requests.
    pub(crate) requests: u64,
    /// The seed of the requests.
    pub(crate) seed: u64,
}

/// The expected result: the state, and the sum of the results of [`parallel`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) state: Vec<u64>,
    pub(crate) sum: u64,
}

/// Runs the requests in a loop on one thread.
pub(crate) fn plain(work: Work) -> Outcome {
    let table = table();
    let (mut state, mut sum) = (vec![0u64; WORDS], 0u64);
    for n in 0..work.requests {
        let request = request(work.seed, n);
        sequential(request, work.sequential, |i, x| {
            state[i] = state[i].wrapping_add(x);
        });
        sum = sum.wrapping_add(parallel(request, work.parallel, &table));
    }
    Outcome { state, sum }
}

/// Nanoseconds of a step of each part, alone on this core: the best of several tries.
pub(crate) fn calibrate() -> (f64, f64) {
    const STEPS: u32 = 1000;
    let table = table();
    let mut state = vec![0u64; WORDS];
    let best = |run: &mut dyn FnMut()| {
        let timed = (0..200).map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_nanos() as f64 / f64::from(STEPS)
        });
        timed.fold(f64::INFINITY, f64::min)
    };
    let sequential_ns = best(&mut || {
        sequential(black_box(7), STEPS, |i, x| {
            state[i] = state[i].wrapping_add(x);
        });
        black_box(&mut state);
    });
    let parallel_ns = best(&mut || {
        black_box(parallel(black_box(7), STEPS, &table));
    });
    (sequential_ns, parallel_ns)
}
