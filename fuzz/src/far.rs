//! The far side of connections: its knowledge of them, and the segments that it sends.
//!
//! An input encodes sequence numbers relative to the numbers and windows that the stack sent
//! last. A number drawn from the whole sequence space would nearly always be outside the window.

use arbitrary::{Arbitrary, Unstructured};

use crate::packets::{self, ACK, FIN, Header, RST, SYN, TCP};

type Drawn<T> = arbitrary::Result<T>;

/// A number equal or close to one of eight important numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near {
    base: u8,
    delta: i32,
}

impl Near {
    fn resolve(self, bases: [u32; 8]) -> u32 {
        bases[usize::from(self.base)].wrapping_add_signed(self.delta)
    }
}

impl<'a> Arbitrary<'a> for Near {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let byte: u8 = u.arbitrary()?;
        let delta = match byte >> 3 {
            0..=9 => 0,
            10 => 1,
            11 => -1,
            12 => 2,
            13 => 1460,
            14 => -1460,
            15 => 536,
            16 => -536,
            17 => i32::MIN,
            18..=24 => i32::from(u.arbitrary::<i8>()?),
            25..=29 => i32::from(u.arbitrary::<i16>()?),
            _ => u.arbitrary()?,
        };
        Ok(Near {
            base: byte & 7,
            delta,
        })
    }
}

/// The timestamps option of a segment (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// As the connection expects.
    Good,
    /// As the connection expects, but with values off by this much.
    Off(i8, i8),
    /// Without the option where the connection has it, with it where it does not.
    Wrong,
}

/// A segment of an existing connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// The connection, among those known to the far side.
    pub(crate) flow: u8,
    pub(crate) flags: u8,
    seq: Near,
    ack: Near,
    window: u16,
    pub(crate) len: u16,
    stamps: Stamps,
    sacks: [Option<(Near, Near)>; 3],
    /// Options that no connection negotiates.
    strange: Option<[u8; 4]>,
    /// Type of service, with the ECN field.
    tos: u8,
}

impl<'a> Arbitrary<'a> for Segment {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let [first, sizes]: [u8; 2] = u.arbitrary()?;
        let flags = match first >> 2 & 0xf {
            0..=5 => ACK,
            6 | 7 => ACK | 0x08,
            8 => ACK | FIN,
            9 => ACK | SYN,
            10 => RST,
            11 => ACK | RST,
            12 => ACK | 0x40,
            13 => ACK | 0x80,
            14 => SYN,
            _ => u.arbitrary()?,
        };
        let stamps = match first >> 6 {
            0 | 1 => Stamps::Good,
            2 => Stamps::Off(u.arbitrary()?, u.arbitrary()?),
            _ => Stamps::Wrong,
        };
        let len = match sizes & 7 {
            0 | 1 => 0,
            2 => 1,
            3 => 10,
            4 => 536,
            5 => 1400,
            6 => u16::from(u.arbitrary::<u8>()?),
            _ => u.arbitrary::<u16>()? % 4000,
        };
        let window = match sizes >> 3 & 7 {
            0 | 1 => u16::MAX,
            2 => 4000,
            3 => 500,
            4 => 1,
            5 => 0,
            _ => u.arbitrary()?,
        };
        let (seq, ack) = (u.arbitrary()?, u.arbitrary()?);
        let mut sacks = [None; 3];
        let (mut strange, mut tos) = (None, 0);
        match sizes >> 6 {
            0 => {}
            1 => sacks[0] = Some(u.arbitrary()?),
            2 => {
                let [count, other]: [u8; 2] = u.arbitrary()?;
                for sack in &mut sacks[..usize::from(count) % 4] {
                    *sack = Some(u.arbitrary()?);
                }
                tos = other;
            }
            _ => strange = Some(u.arbitrary()?),
        }
        Ok(Segment {
            flow: first & 3,
            flags,
            seq,
            ack,
            window,
            len,
            stamps,
            sacks,
            strange,
            tos,
        })
    }
}

/// A SYN of the far side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// The index of its source port.
    pub(crate) port: u8,
    /// If set, the initial number is this far before the end of the sequence space.
    close: Option<u16>,
    mss: Option<u16>,
    scale: Option<u8>,
    sack: bool,
    stamps: bool,
    ecn: bool,
    pub(crate) window: u16,
    /// Bytes of data on the SYN.
    len: u8,
}

impl<'a> Arbitrary<'a> for Open {
    fn arbitrary(u: &mut Unstructured<'a>) -> Drawn<Self> {
        let [port, bits]: [u8; 2] = u.arbitrary()?;
        let mss = match bits & 3 {
            0 => Some(1460),
            1 => None,
            2 => Some(536),
            _ => Some(u.arbitrary()?),
        };
        let scale = match bits >> 2 & 3 {
            0 => Some(0),
            1 => None,
            2 => Some(7),
            _ => Some(u.arbitrary()?),
        };
        let (mut close, mut len, mut window) = (None, 0, u16::MAX);
        if bits & 0x80 != 0 {
            (close, len, window) = (Some(u.arbitrary()?), u.arbitrary()?, u.arbitrary()?);
        }
        Ok(Open {
            port,
            close,
            mss,
            scale,
            sack: bits & 0x10 == 0,
            stamps: bits & 0x20 == 0,
            ecn: bits & 0x40 != 0,
            window,
            len,
        })
    }
}

/// What the far side knows of a connection: mostly the stack's last numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) far: [u8; 4],
    /// The stack's port, and the far side's.
    pub(crate) ports: (u16, u16),
    /// The stack's initial number, the number after the highest that it sent, and its last
    /// acknowledgment.
    pub(crate) iss: u32,
    pub(crate) high: u32,
    pub(crate) acked: u32,
    window: u32,
    stamp: Option<u32>,
    /// The far side's initial number, and the number after its last segment.
    pub(crate) irs: u32,
    next: u32,
    /// The far side's last acknowledgment.
    una: u32,
    /// The far side's timestamp clock.
    clock: u32,
    /// Whether the stack's stream may begin at another number than its last initial number.
    has_lied: bool,
}

/// The byte that the far side sends from `port` as number `seq`.
pub(crate) const fn pattern_byte(port: u16, seq: u32) -> u8 {
    let mixed = (seq ^ (port as u32) << 20).wrapping_mul(0x9e37_79b9);
    (mixed >> 24) as u8
}

/// The far side.
#[derive(Debug, Default)]
pub(crate) struct Far {
    pub(crate) flows: Vec<Known>,
    /// The SYNs that the far side sent: port, initial number.
    pub(crate) syns: Vec<(u16, u32)>,
    /// Every initial number that the stack sent, with the ports.
    offers: Vec<((u16, u16), u32)>,
    clock: u32,
}

/// The most connections that the far side remembers.
const FLOWS: usize = 8;

impl Far {
    pub(crate) fn flow(&self, which: u8) -> Option<Known> {
        let index = usize::from(which).checked_rem(self.flows.len())?;
        // Counts from the newest, so that inputs that open one connection after another reach
        // all.
        self.flows.iter().rev().nth(index).copied()
    }

    /// Reads a segment from the stack. Returns the position of its payload in the stack's stream,
    /// if it has payload and the position is known.
    pub(crate) fn hear(&mut self, heard: &Header) -> Option<u32> {
        let (far, ports) = (heard.to, (heard.src_port, heard.dst_port));
        let same = |flow: &Known| flow.far == far && flow.ports == ports;
        let index = match self.flows.iter().position(same) {
            Some(index) => index,
            None if heard.has(SYN) => {
                if self.flows.len() == FLOWS {
                    self.flows.remove(0);
                }
                let opened = self.syns.iter().rev().find(|(port, _)| *port == ports.1);
                let irs = opened.map_or(0x1000_0000 ^ u32::from(ports.1) << 12, |(_, irs)| *irs);
                self.flows.push(Known {
                    far,
                    ports,
                    iss: heard.seq,
                    high: heard.seq,
                    acked: irs,
                    window: 0,
                    stamp: None,
                    irs,
                    next: irs,
                    una: heard.seq,
                    clock: 0,
                    has_lied: false,
                });
                self.flows.len() - 1
            }
            None => return None,
        };
        let flow = &mut self.flows[index];
        if heard.has(SYN) {
            (flow.iss, flow.high) = (heard.seq, heard.seq);
            self.offers.push((ports, heard.seq));
            if heard.has(ACK) {
                flow.irs = heard.ack.wrapping_sub(1);
            }
        }
        if (heard.end().wrapping_sub(flow.high) as i32) > 0 {
            flow.high = heard.end();
        }
        if heard.has(ACK) && !heard.has(RST) {
            (flow.acked, flow.window) = (heard.ack, u32::from(heard.wnd));
        }
        flow.stamp = heard.timestamp.or(flow.stamp.filter(|_| !heard.has(SYN)));
        let has_payload = heard.payload.0 < heard.payload.1;
        let behind_syn = flow.iss.wrapping_add(u32::from(!heard.has(SYN)));
        // If the stack answered several SYNs of this flow, its stream may begin at any of those
        // numbers.
        let mut offers = self.offers.iter().filter(|(of, _)| *of == ports);
        let begins_once = offers.all(|(_, offer)| *offer == flow.iss);
        (has_payload && begins_once && !flow.has_lied).then(|| heard.seq.wrapping_sub(behind_syn))
    }

    /// Builds the frame of a SYN to `port`.
    pub(crate) fn open(&mut self, open: &Open, far: [u8; 4], port: u16) -> Vec<u8> {
        self.clock = self.clock.wrapping_add(1);
        let far_port = 4000 + u16::from(open.port % 12);
        let seq = match open.close {
            Some(before) => 0_u32.wrapping_sub(u32::from(before)),
            None => self.clock << 16 | u32::from(open.port),
        };
        self.syns.push((far_port, seq));
        let mut options = Vec::with_capacity(20);
        if let Some(mss) = open.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if let Some(scale) = open.scale {
            options.extend([1, 3, 3, scale]);
        }
        if open.sack {
            options.extend([1, 1, 4, 2]);
        }
        if open.stamps {
            options.extend([1, 1, 8, 10]);
            options.extend(self.clock.to_be_bytes());
            options.extend([0; 4]);
        }
        let mut frame = packets::headers(far, packets::STACK, TCP);
        let flags = SYN | if open.ecn { 0xc0 } else { 0 };
        packets::tcp_header(
            &mut frame,
            (far_port, port),
            (seq, 0),
            flags,
            open.window,
            &options,
        );
        let first = seq.wrapping_add(1);
        frame.extend(
            (0..u32::from(open.len)).map(|at| pattern_byte(far_port, first.wrapping_add(at))),
        );
        frame
    }

    /// Builds the frame of a segment; `None` while there is no connection.
    pub(crate) fn segment(&mut self, segment: &Segment) -> Option<Vec<u8>> {
        let index = usize::from(segment.flow).checked_rem(self.flows.len())?;
        let index = self.flows.len() - 1 - index;
        let flow = &mut self.flows[index];
        let Known {
            acked,
            window,
            irs,
            next,
            iss,
            high,
            una,
            ..
        } = *flow;
        let seqs = [
            acked,
            next,
            acked.wrapping_add(window),
            acked,
            next,
            acked.wrapping_sub(window),
            irs,
            acked.wrapping_add(window / 2),
        ];
        let acks = [
            high,
            high,
            una,
            high,
            iss,
            iss.wrapping_add(1),
            una.wrapping_add(high.wrapping_sub(una) / 2),
            high,
        ];
        let (seq, ack) = (segment.seq.resolve(seqs), segment.ack.resolve(acks));
        let mut options = Vec::with_capacity(40);
        let good = match segment.stamps {
            Stamps::Wrong => flow.stamp.is_none(),
            _ => flow.stamp.is_some(),
        };
        if good {
            let (mut value, mut echo) = (flow.clock, flow.stamp.unwrap_or(0));
            if let Stamps::Off(a, b) = segment.stamps {
                value = value.wrapping_add_signed(i32::from(a));
                echo = echo.wrapping_add_signed(i32::from(b));
            }
            flow.clock = flow.clock.wrapping_add(1);
            options.extend([1, 1, 8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        let count = segment.sacks.iter().flatten().count();
        if count > 0 {
            options.extend([1, 1, 5, 2 + 8 * count as u8]);
            for (left, right) in segment.sacks.iter().flatten() {
                options.extend(left.resolve(acks).to_be_bytes());
                options.extend(right.resolve(acks).to_be_bytes());
            }
        }
        if let Some(strange) = segment.strange {
            options.extend(strange);
        }
        let mut frame = packets::headers(flow.far, packets::STACK, TCP);
        frame[15] = segment.tos;
        packets::tcp_header(
            &mut frame,
            (flow.ports.1, flow.ports.0),
            (seq, ack),
            segment.flags,
            segment.window,
            &options,
        );
        let (port, is_syn) = (flow.ports.1, segment.flags & SYN != 0);
        let first = seq.wrapping_add(is_syn.into());
        let at = |at| pattern_byte(port, first.wrapping_add(at));
        frame.extend((0..u32::from(segment.len)).map(at));
        // A SYN cookie proves a number relative to the initial number that the peer claims. A
        // peer that shifts both equally moves the whole stream. If it acknowledges an older
        // cookie, the stream begins at that cookie.
        let claimed = seq.wrapping_sub(irs).wrapping_sub(1);
        let begins_elsewhere = self.offers.iter().any(|(ports, offer)| {
            let shift = ack.wrapping_sub(*offer).wrapping_sub(1);
            *ports == flow.ports && shift == claimed && (shift != 0 || *offer != iss)
        });
        if is_syn {
            self.syns.push((port, seq));
        } else if begins_elsewhere {
            self.syns.push((port, seq.wrapping_sub(1)));
            flow.has_lied = true;
        }
        let controls = u32::from(is_syn) + u32::from(segment.flags & FIN != 0);
        flow.next = seq
            .wrapping_add(u32::from(segment.len))
            .wrapping_add(controls);
        if segment.flags & ACK != 0 && ack.wrapping_sub(una) as i32 > 0 {
            flow.una = ack;
        }
        Some(frame)
    }

    /// Builds an ICMP error of this type and code about the number `seq` of a connection (RFC
    /// 792).
    pub(crate) fn error(&self, flow: u8, seq: Near, kind: [u8; 2], mtu: u16) -> Option<Vec<u8>> {
        let flow = self.flow(flow)?;
        let Known { iss, high, una, .. } = flow;
        let seqs = [high, una, iss, high, una, high, high.wrapping_sub(1), una];
        let mut frame = packets::headers(flow.far, packets::STACK, packets::ICMP);
        frame.extend([kind[0], kind[1], 0, 0, 0, 0]);
        frame.extend(mtu.to_be_bytes());
        frame.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        frame.extend(packets::STACK);
        frame.extend(flow.far);
        frame.extend(flow.ports.0.to_be_bytes());
        frame.extend(flow.ports.1.to_be_bytes());
        frame.extend(seq.resolve(seqs).to_be_bytes());
        Some(frame)
    }
}
