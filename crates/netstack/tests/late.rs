//! A stack whose machine stood still processes the frames that arrived meanwhile before it
//! concludes that something was lost. Its time also passes if frames arrive without end.

use std::net::SocketAddr;

use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_testkit::{Host, Variant};

/// Longer than any timeout of a connection that has measured its path.
const STOOD_STILL: Duration = Duration::from_secs(2);

fn host(variant: Variant, last: u8) -> Host {
    let setup = Setup::new([10, 0, 0, last].into(), 24, [1, u64::from(last)]);
    Host::new(variant, setup, u64::from(last)).unwrap()
}

/// Moves the frames sent by `from` to `to`.
fn carry(from: &Host, to: &Host) -> usize {
    let sent = from.take_sent();
    let count = sent.len();
    sent.into_iter().for_each(|frame| to.inject(frame));
    count
}

#[test]
fn acknowledgments_that_wait_come_before_the_time_whatever_the_application_does() {
    for variant in Variant::ALL {
        let (mut near, mut far) = (host(variant, 1), host(Variant::Single, 2));
        let listener = far.sockets().listen(7, 1).unwrap();
        let to = SocketAddr::new([10, 0, 0, 2].into(), 7);
        let mut opening = near.sockets().begin_connect(to).unwrap();
        let mut now = Instant::from_millis(1);
        let mut pass = |near: &mut Host, far: &mut Host| {
            now += Duration::from_millis(1);
            near.turn(now);
            carry(near, far);
            far.turn(now);
            carry(far, near);
            now
        };
        let mut stream = loop {
            pass(&mut near, &mut far);
            if let Some(stream) = opening.try_finish().unwrap() {
                break stream;
            }
        };
        let _other = listener.accept().unwrap();
        // Measures the path, and leaves nothing in flight.
        for _ in 0..10 {
            assert_eq!(stream.try_write(&[7; 100]), Ok(100));
            for _ in 0..100 {
                pass(&mut near, &mut far);
            }
        }
        assert_eq!(stream.try_write(&[7; 100]), Ok(100));
        let mut now = pass(&mut near, &mut far);
        // By then the acknowledgment has arrived, and the application has written more.
        let end = now + STOOD_STILL;
        while now < end {
            now += Duration::from_millis(10);
            far.turn(now);
        }
        carry(&far, &near);
        assert_eq!(stream.try_write(&[7; 100]), Ok(100));
        near.turn(now);
        carry(&near, &far);
        let sent = near.effect_stats().sent_bytes;
        assert_eq!((variant, sent), (variant, 1200));
    }
}

/// Frames that carry no segment and cause no request.
fn noise() -> Vec<Vec<u8>> {
    let to = Host::mac_of([10, 0, 0, 1].into());
    let from = Host::mac_of([10, 0, 0, 9].into());
    let framed = |ethertype: [u8; 2], packet: &[u8]| {
        let mut frame = [&to[..], &from, &ethertype, packet].concat();
        frame.resize(60, 0);
        frame
    };
    vec![
        // An experimental protocol, an IPv4 packet that is too short, and an ARP request for
        // another host's address.
        framed([0x88, 0xb5], &[]),
        framed([0x08, 0x00], &[0x45]),
        framed(
            [0x08, 0x06],
            &[
                &[0, 1, 8, 0, 6, 4, 0, 1][..],
                &from,
                &[10, 0, 0, 9],
                &[0; 6],
                &[10, 0, 0, 77],
            ]
            .concat(),
        ),
    ]
}

#[test]
fn time_passes_however_many_frames_come_that_are_no_segments() {
    for variant in Variant::ALL {
        for frame in noise() {
            let (mut near, mut far) = (host(variant, 1), host(Variant::Single, 2));
            let listener = far.sockets().listen(7, 1).unwrap();
            let to = SocketAddr::new([10, 0, 0, 2].into(), 7);
            let mut opening = near.sockets().begin_connect(to).unwrap();
            let mut now = Instant::from_millis(1);
            let mut stream = loop {
                now += Duration::from_millis(1);
                near.turn(now);
                carry(&near, &far);
                far.turn(now);
                carry(&far, &near);
                if let Some(stream) = opening.try_finish().unwrap() {
                    break stream;
                }
            };
            let _other = listener.accept().unwrap();
            assert_eq!(stream.try_write(&[7; 100]), Ok(100));
            // The peer acknowledges nothing, and the device is never empty.
            let end = now + STOOD_STILL;
            while now < end {
                now += Duration::from_millis(10);
                while near.unclaimed() < 1000 {
                    near.inject(frame.clone());
                }
                near.turn(now);
                near.take_sent();
            }
            let sent = near.effect_stats().sent_bytes;
            assert!(sent >= 200, "{variant}, {:02x?}: {sent}", &frame[12..16]);
        }
    }
}
