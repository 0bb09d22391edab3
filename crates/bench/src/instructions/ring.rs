//! Single calls of the ring.

use std::hint::black_box;

use dominoes::{SpinYield, Verdicts};

use crate::instructions::Case;
use crate::micro::{CAPACITY, Others, Ring};

/// Calls between two moments in which everything is released or filled up.
const BLOCK: u64 = 32;

#[inline(never)]
fn counted_publish(ring: &mut Ring<SpinYield>) {
    ring.publish();
}

#[inline(never)]
fn counted_read(ring: &mut Ring<SpinYield>) -> u64 {
    ring.read()
}

#[inline(never)]
fn counted_full(ring: &mut Ring<SpinYield>) -> bool {
    ring.publisher.try_publish([0; 8]).is_err()
}

#[inline(never)]
fn counted_empty(ring: &mut Ring<SpinYield>) -> bool {
    ring.subscriptions[0].try_next_batch().is_err()
}

#[inline(never)]
fn counted_poll(ring: &mut Ring<SpinYield>) -> u64 {
    ring.subscriptions[0].poll()
}

#[inline(never)]
fn counted_fork(ring: &Ring<SpinYield>) {
    drop(ring.subscriptions[0].fork().expect("there is room"));
}

#[inline(never)]
fn counted_verdict(verdicts: &Verdicts, seq: u64) -> Option<u64> {
    verdicts.set(seq, 1);
    verdicts.get(seq)
}

/// All cases of the ring.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for others in [Others::None, Others::Quiet] {
        for batch in [1, 16, 64] {
            for subscribers in [1, 4] {
                let name = format!("ring/publish/{}/{batch}/{subscribers}", others.name());
                let case = Case::new(name, "call", 512, move || {
                    let mut ring = Ring::<SpinYield>::new(others, subscribers, batch);
                    move |units| {
                        for unit in 0..units {
                            counted_publish(&mut ring);
                            if unit % BLOCK == BLOCK - 1 {
                                ring.drain();
                            }
                        }
                    }
                });
                cases.push(case.within("::counted_publish").key_if(subscribers == 1));
            }
        }
    }
    for batch in [1, 16, 64] {
        for subscribers in [1, 4] {
            let name = format!("ring/read/{batch}/{subscribers}");
            let case = Case::new(name, "call", 512, move || {
                let mut ring = Ring::<SpinYield>::new(Others::None, subscribers, batch);
                move |units| {
                    for _ in 0..units / BLOCK {
                        (0..BLOCK).for_each(|_| ring.publish());
                        for _ in 0..BLOCK {
                            let seen = counted_read(&mut ring);
                            assert_eq!(seen, (batch * subscribers) as u64);
                        }
                    }
                }
            });
            cases.push(case.within("::counted_read").key_if(subscribers == 1));
        }
    }
    cases.push(
        Case::new("ring/try_publish when full", "call", 512, || {
            let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
            (0..CAPACITY).for_each(|_| ring.publish());
            move |units| (0..units).for_each(|_| assert!(counted_full(&mut ring)))
        })
        .within("::counted_full")
        .key(),
    );
    cases.push(
        Case::new("ring/try_next_batch when empty", "call", 512, || {
            let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
            move |units| (0..units).for_each(|_| assert!(counted_empty(&mut ring)))
        })
        .within("::counted_empty")
        .key(),
    );
    cases.push(
        Case::new("ring/poll when empty", "call", 512, || {
            let mut ring = Ring::<SpinYield>::new(Others::None, 1, 1);
            move |units| (0..units).for_each(|_| assert_eq!(counted_poll(&mut ring), 0))
        })
        .within("::counted_poll")
        .key(),
    );
    cases.push(
        Case::new("ring/fork and leave", "call", 512, || {
            let ring = Ring::<SpinYield>::new(Others::None, 1, 1);
            move |units| (0..units).for_each(|_| counted_fork(&ring))
        })
        .within("::counted_fork"),
    );
    cases.push(
        Case::new("ring/verdict set and get", "call", 512, || {
            let (verdicts, mut seq) = (Verdicts::new(512), 0);
            move |units| {
                for _ in 0..units {
                    assert_eq!(counted_verdict(&verdicts, black_box(seq)), Some(1));
                    seq += 1;
                }
            }
        })
        .within("::counted_verdict")
        .key(),
    );
    cases
}
