//! A far side that knows the sequence numbers of its connections and abuses them: every field and
//! option of a segment at and around the values that matter, ICMP errors about its segments, and
//! damaged frames.
//!
//! No frame may cause a panic, not even one that is caught and ends only its connection:
//! [`Host::check`] and the drop of a [`Host`] fail after caught panics. `HOSTILE_CASES=100000` runs
//! longer, `HOSTILE_SEED=0x...` repeats one case.

use dominoes_netstack::TcpStream;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_testkit::packet::{
    self, ACK, FIN, ICMP, RST, Right, STACK, SYN, Segment, TCP, TO_STACK,
};
use dominoes_testkit::{Cases, Host, Rng, Variant};

/// Frames of a case.
const FRAMES: u64 = 700;

/// The far side's view of a flow, from the stack's last segments.
#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    /// The far side's port, and the stack's.
    ports: (u16, u16),
    /// The lowest and the highest sequence number that the stack sent.
    low: u32,
    high: u32,
    /// The stack's last acknowledgment and window.
    ack: u32,
    wnd: u32,
    /// TSval of its newest segment.
    stamp: Option<u32>,
}

/// Counts of a case.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Connections that opened, were answered by a cookie, and moved bytes.
    opened: u64,
    cookies: u64,
    bytes: u64,
    /// Segments that were sent again.
    again: u64,
}

struct Far {
    rng: Rng,
    flows: Vec<FlowState>,
    tally: Tally,
}

impl Far {
    fn on_frame(&mut self, frame: &[u8]) {
        let Some(heard) = Segment::sent(frame) else {
            return;
        };
        let ports = (heard.dst_port, heard.src_port);
        let flow = match self.flows.iter_mut().find(|flow| flow.ports == ports) {
            Some(flow) => flow,
            None if heard.has(SYN) => {
                self.flows.push(FlowState {
                    ports,
                    low: heard.seq,
                    high: heard.seq,
                    ..FlowState::default()
                });
                self.flows.last_mut().expect("it was just added")
            }
            None => return,
        };
        if heard.has(SYN) {
            (flow.low, flow.high) = (heard.seq, heard.seq);
        }
        let end = heard.end();
        if (end.wrapping_sub(flow.high) as i32) > 0 {
            flow.high = end;
        } else {
            self.tally.again += u64::from(!heard.payload.is_empty());
        }
        if heard.has(ACK) && !heard.has(RST) {
            (flow.ack, flow.wnd) = (heard.ack, u32::from(heard.wnd));
        }
        flow.stamp = heard.timestamps.map(|(value, _)| value);
    }

    /// A number at or near one of `bases`.
    fn near(&mut self, bases: &[u32]) -> u32 {
        let base = bases[self.rng.index(bases.len())];
        match self.rng.below(10) {
            0 => self.rng.next() as u32,
            1 => base.wrapping_add(1 << 31),
            2 | 3 => base.wrapping_add(self.rng.below(4) as u32),
            4 => base.wrapping_sub(self.rng.below(4) as u32),
            5 => base.wrapping_add(self.rng.below(3000) as u32),
            6 => base.wrapping_sub(self.rng.below(3000) as u32),
            _ => base,
        }
    }

    fn pick(&mut self, from: &[u32]) -> u32 {
        from[self.rng.index(from.len())]
    }

    /// A SYN of the far side, which may never complete the connection.
    fn open(&mut self) -> Segment {
        let rng = &mut self.rng;
        Segment {
            src_port: 4000 + rng.below(12) as u16,
            dst_port: 80,
            seq: [rng.next() as u32, 0u32.wrapping_sub(rng.below(3000) as u32)][rng.index(2)],
            flags: SYN | if rng.chance(100_000) { 0xc0 } else { 0 },
            wnd: rng.next() as u16,
            mss: rng
                .chance(800_000)
                .then(|| [0, 1, 64, 536, 1460, 65_535][rng.index(6)]),
            scale: rng
                .chance(700_000)
                .then(|| [0, 3, 14, 15, 31, 32, 255][rng.index(7)]),
            sack_permitted: rng.chance(800_000),
            timestamps: rng.chance(500_000).then(|| (rng.next() as u32, 0)),
            ..Segment::default()
        }
    }

    /// A segment of a flow.
    fn segment(&mut self) -> Segment {
        let flow = self.flows[self.rng.index(self.flows.len())];
        let FlowState {
            low,
            high,
            ack,
            wnd,
            ..
        } = flow;
        let seq = match self.rng.below(8) {
            0 => self.near(&[ack, ack.wrapping_add(wnd), ack.wrapping_sub(wnd)]),
            1 => self.near(&[ack]),
            _ => ack,
        };
        let acked = match self.rng.below(5) {
            0 => self.near(&[low, high, low.wrapping_add(1)]),
            1 => high,
            2 => low,
            _ => high.wrapping_sub(self.rng.below(6000) as u32),
        };
        let mut sack = Vec::new();
        for _ in 0..self.rng.below(5) {
            let left = self.near(&[low, high, acked, acked, high.wrapping_sub(1460)]);
            let right = match self.rng.below(3) {
                0 => self.near(&[low, high, acked]),
                _ => left.wrapping_add(self.rng.below(4000) as u32),
            };
            sack.push((left, right));
        }
        let flags = self.pick(&[
            0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x18, 0x18, 0x11, 0x12, 0x14, 0x50, 0x90, 0x00,
            0xff,
        ]) as u8;
        // Rarely a segment that ends the connection.
        let flags = if flags & (FIN | RST) != 0 && self.rng.chance(900_000) {
            ACK
        } else {
            flags
        };
        let most = [0, 1, 10, 536, 1400][self.rng.index(5)];
        let is_stamped = flow.stamp.is_some() != self.rng.chance(20_000);
        if is_stamped {
            sack.truncate(3);
        }
        let window = self.pick(&[0, 1, 500, 4000, 60_000, 65_535]) as u16;
        let rng = &mut self.rng;
        Segment {
            src_port: flow.ports.0,
            dst_port: flow.ports.1,
            seq,
            ack: acked,
            flags,
            wnd: window,
            ecn: rng.below(4) as u8,
            timestamps: is_stamped.then(|| {
                let echo = flow.stamp.unwrap_or(0).wrapping_sub(rng.below(5) as u32);
                (0x7000_0000u32.wrapping_add(rng.below(3) as u32), echo)
            }),
            sack,
            payload: vec![7; rng.below(most + 1) as usize],
            ..Segment::default()
        }
    }

    /// An ICMP error about a segment of the stack (RFC 792).
    fn error(&mut self) -> Vec<u8> {
        let flow = self.flows[self.rng.index(self.flows.len())];
        let seq = self.near(&[flow.low, flow.high, flow.high.wrapping_sub(1)]);
        let numbers = [
            [3, 0],
            [3, 1],
            [3, 2],
            [3, 3],
            [3, 4],
            [3, 13],
            [11, 0],
            [12, 0],
        ][self.rng.index(8)];
        let mtu = self.pick(&[0, 1, 67, 68, 296, 576, 1006, 1499, 1500, 65_535]) as u16;
        let ports = (flow.ports.1, flow.ports.0);
        let about = packet::quote(TO_STACK.reversed(), TCP, 1500, ports, seq);
        packet::ip(TO_STACK, ICMP, &packet::icmp_error(numbers, mtu, &about))
    }

    fn frame(&mut self) -> Vec<u8> {
        let act = self.rng.below(100);
        let mut frame = match act {
            _ if self.flows.is_empty() => self.open().frame(TO_STACK),
            0..=7 => self.open().frame(TO_STACK),
            8..=13 => self.error(),
            _ => self.segment().frame(TO_STACK),
        };
        if self.rng.chance(60_000) {
            // Damages an option or any other byte, with all checksums right.
            let at = 34 + self.rng.index(frame.len() - 34);
            frame[at] = self.rng.next() as u8;
            if packet::protocol(&frame) == Some(TCP) {
                packet::finish(&mut frame, Right::ALL);
            }
        }
        if self.rng.chance(10_000) {
            let len = self.rng.index(frame.len());
            frame.truncate(len);
        }
        frame
    }
}

fn case(seed: u64) -> Result<Tally, String> {
    let mut rng = Rng::new(seed);
    let variant = Variant::ALL[rng.index(Variant::ALL.len())];
    let mut setup = Setup::new(STACK.into(), 24, [seed, 2]);
    setup.limits.connections = 16;
    setup.limits.receive_buffer = 1 << (10 + rng.below(8));
    setup.limits.send_buffer = 1 << (12 + rng.below(6));
    setup.limits.tx_slots = 8 << rng.below(5);
    setup.limits.mtu = [68, 576, 1500, 9000][rng.index(4)];
    setup.limits.syn_queue = [1, 1, 64][rng.index(3)];
    let mut host = Host::new(variant, setup, rng.next()).map_err(|error| error.to_string())?;
    host.inject(packet::arp_reply(TO_STACK));
    let mut now = Instant::from_millis(1 + rng.below(1 << 22));
    let mut far = Far {
        rng,
        flows: Vec::new(),
        tally: Tally::default(),
    };
    let mut listener = Some(
        host.sockets()
            .listen(80, 6)
            .map_err(|error| error.to_string())?,
    );
    let mut streams: Vec<TcpStream> = Vec::new();
    for _ in 0..FRAMES {
        for _ in 0..1 + far.rng.below(4) {
            host.inject(far.frame());
        }
        host.turn(now);
        for frame in host.take_sent() {
            far.on_frame(&frame);
        }
        if let Some(listening) = &listener
            && let Ok((stream, _)) = listening.try_accept()
        {
            streams.push(stream);
        }
        if !streams.is_empty() {
            let at = far.rng.index(streams.len());
            match far.rng.below(400) {
                0 => drop(streams.swap_remove(at)),
                1 => {
                    streams[at].shutdown_write();
                }
                2..=150 => {
                    let text = vec![3; far.rng.index(9000)];
                    let _ = streams[at].try_write(&text);
                }
                _ => {
                    let mut text = [0; 4096];
                    if let Ok(len) = streams[at].try_read(&mut text) {
                        far.tally.bytes += len as u64;
                    }
                }
            }
        }
        if far.rng.chance(500) {
            listener = None;
        }
        now += match far.rng.below(20) {
            0 => Duration::from_millis(far.rng.below(3_000)),
            1..=5 => Duration::from_millis(far.rng.below(60)),
            _ => Duration::from_micros(far.rng.below(900)),
        };
    }
    let stats = host.state_stats();
    far.tally.opened = stats.opened;
    far.tally.cookies = stats.cookies_returned;
    host.check()?;
    Ok(far.tally)
}

#[test]
fn whatever_a_peer_says_of_its_connections_nothing_panics() {
    let command = "cargo test --release --test main whatever_a_peer_says";
    let tallies = Cases::new("HOSTILE", command, 240).run(case);
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let (opened, cookies) = (sum(|t| t.opened), sum(|t| t.cookies));
    let (bytes, again) = (sum(|t| t.bytes), sum(|t| t.again));
    println!("opened {opened}, by cookies {cookies}, bytes {bytes}, sent again {again}");
    if tallies.len() >= 240 {
        let each = tallies.len() as u64;
        assert!(opened > 4 * each && cookies > each / 4);
        assert!(bytes > 100 * each && again > each);
    }
}
