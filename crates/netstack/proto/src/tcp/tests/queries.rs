//! Queries about a connection: its progress, and its fingerprint.

use super::end::{CONN, flow};
use super::one_side::OneSide;
use crate::log::request::{ConnId, Flags, Mac};
use crate::tcp::{Tcb, mix2};
use crate::time::Duration;

#[test]
fn a_connection_says_what_it_knows() {
    let mut one_side = OneSide::established();
    one_side.write(3000);
    let next = one_side.tcb().snd_nxt();
    assert_eq!(next, one_side.tcb().snd.iss + 3001);
    assert_eq!(one_side.tcb().reset_seq(), next);
    one_side.now += Duration::from_millis(80);
    one_side.receive(Flags::ACK, 1, 3001, 700);
    let tcb = one_side.tcb();
    assert_eq!((tcb.acknowledged(), tcb.received()), (3000, 700));
    // The handshake took no time, so the result is an eighth of the second measurement.
    assert_eq!(
        (tcb.cwnd(), tcb.srtt()),
        (10_000, Duration::from_millis(10))
    );
    assert_eq!((tcb.conn(), tcb.flow()), (CONN, flow(0)));
    assert!(!tcb.is_closed());
}

#[test]
fn a_connection_keeps_the_name_and_the_next_hop_that_it_is_given() {
    let mut tcb = OneSide::established().tcb().clone();
    let name = ConnId {
        index: 70,
        generation: 2,
    };
    tcb.set_conn(name);
    tcb.set_mac(Mac([2, 0, 0, 0, 0, 9]));
    assert_eq!((tcb.conn(), tcb.mac()), (name, Mac([2, 0, 0, 0, 0, 9])));
}

/// Starts of a fold with few bits, many, and some.
const STARTS: [u64; 3] = [0, u64::MAX, 0x0123_4567_89ab_cdef];

#[test]
fn a_fold_differs_when_any_bit_of_where_the_streams_stand_does() {
    let tcb = OneSide::established().tcb().clone();
    let places: [fn(&mut Tcb) -> &mut u32; 4] = [
        |tcb| &mut tcb.rcv.nxt.0,
        |tcb| &mut tcb.rcv.edge.0,
        |tcb| &mut tcb.snd.una.0,
        |tcb| &mut tcb.snd.nxt.0,
    ];
    for start in STARTS {
        for (number, place) in places.iter().enumerate() {
            for bit in 0..32 {
                let mut other = tcb.clone();
                *place(&mut other) ^= 1 << bit;
                assert_ne!(other.fold(start), tcb.fold(start), "{number}, bit {bit}");
            }
        }
    }
}

#[test]
fn every_bit_of_what_is_mixed_reaches_the_low_half_of_the_result() {
    for h in STARTS {
        for (a, b) in [(h, !h), (7, 9), (u64::MAX, u64::MAX)] {
            let low = |h, a, b| mix2(h, a, b) as u32;
            let is = low(h, a, b);
            for bit in (0..64).map(|bit| 1 << bit) {
                assert_ne!(low(h, a ^ bit, b), is, "{h:x} {a:x} {b:x} {bit:x}");
                assert_ne!(low(h, a, b ^ bit), is, "{h:x} {a:x} {b:x} {bit:x}");
                assert_ne!(low(h ^ bit, a, b), is, "{h:x} {a:x} {b:x} {bit:x}");
            }
        }
    }
}

#[test]
fn every_bit_of_a_mix_is_set_half_of_the_time() {
    let mut ones = [0; 64];
    let mut h = 0;
    for i in 0..1000 {
        h = mix2(h, i, 3 * i);
        for (bit, count) in ones.iter_mut().enumerate() {
            *count += h >> bit & 1;
        }
    }
    assert!(ones.iter().all(|count| (400..600).contains(count)));
}
