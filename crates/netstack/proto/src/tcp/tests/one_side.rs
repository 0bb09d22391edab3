//! One side whose peer is the test.

use super::end::{CONN, End, Wire, compare_paths, flow};
use crate::config::Limits;
use crate::log::effect::Effect;
use crate::log::request::{Flags, Mac, Options, Segment, SynOptions};
use crate::seqnum::SeqNum;
use crate::tcp::{Cx, State, Tcb};
use crate::time::{Duration, Instant};

/// One side; the test plays the other. Numbers are relative to both initial ones.
pub(super) struct OneSide {
    pub(super) end: End,
    pub(super) now: Instant,
    /// Window field of the segments that the test sends.
    pub(super) wnd: u16,
}

impl OneSide {
    pub(super) const ISS: SeqNum = SeqNum(u32::MAX - 5);
    const IRS: SeqNum = SeqNum(0x7fff_fff0);

    /// Limits with which a segment carries 1000 bytes and windows are not scaled.
    pub(super) fn limits() -> Limits {
        Limits {
            receive_buffer: 1 << 15,
            send_buffer: 1 << 15,
            mtu: 1040,
            frame_payload: 0,
            ..Limits::default()
        }
    }

    pub(super) fn syn(mss: Option<u16>, window_scale: Option<u8>) -> Options {
        Options::Syn(SynOptions {
            mss,
            window_scale,
            sack_permitted: false,
        })
    }

    /// In SYN-SENT, after our SYN was sent.
    pub(super) fn active(limits: Limits) -> OneSide {
        let now = Instant::from_millis(10_000);
        let mut end = End::new(limits);
        let mac = Mac::default();
        end.tcb = Some(Tcb::open(CONN, flow(0), mac, Self::ISS, &limits, now));
        let mut one_side = OneSide {
            end,
            now,
            wnd: 30_000,
        };
        one_side.finish();
        one_side
    }

    /// In SYN-RECEIVED, after a SYN with these options arrived and our SYN-ACK was sent.
    pub(super) fn passive(limits: Limits, options: Options, ts: Option<u32>) -> OneSide {
        let now = Instant::from_millis(10_000);
        let mut end = End::new(limits);
        let syn = Wire {
            seq: Self::IRS,
            ack: SeqNum(0),
            len: 0,
            offset: 0,
            wnd: 30_000,
            flags: Flags::SYN,
            timestamps: ts.map(|ts_val| (ts_val, 0)),
            options,
        };
        end.tcb = Some(Tcb::passive(
            CONN,
            flow(0),
            Mac::default(),
            Self::ISS,
            &syn.segment(),
            &limits,
            now,
        ));
        let mut one_side = OneSide {
            end,
            now,
            wnd: 30_000,
        };
        one_side.finish();
        one_side
    }

    /// Established, without timestamps, before any data.
    pub(super) fn established() -> OneSide {
        let mut one_side = OneSide::passive(Self::limits(), Self::syn(Some(1000), None), None);
        assert_eq!(one_side.sent().len(), 1);
        one_side.receive(Flags::ACK, 1, 1, 0);
        assert_eq!(one_side.state(), State::Established);
        one_side
    }

    pub(super) fn state(&self) -> State {
        self.end.state()
    }

    pub(super) fn tcb(&self) -> &Tcb {
        self.end.tcb.as_ref().expect("it has one")
    }

    /// The other side sends a segment.
    pub(super) fn receive(&mut self, flags: Flags, seq: u32, ack: u32, len: u32) {
        self.receive_with(flags, seq, ack, len, None, Options::None);
    }

    pub(super) fn receive_with(
        &mut self,
        flags: Flags,
        seq: u32,
        ack: u32,
        len: u32,
        timestamps: Option<(u32, u32)>,
        options: Options,
    ) {
        let wire = Wire {
            seq: Self::IRS + seq,
            ack: Self::ISS + ack,
            len,
            offset: u64::from((seq + u32::from(flags.has(Flags::SYN))).wrapping_sub(1)),
            wnd: self.wnd,
            flags,
            timestamps,
            options,
        };
        self.end.arrive(self.now, &[(0, wire)], false);
    }

    /// The other side sends `count` segments of `len` bytes, which are one run; `followed`: the
    /// batch has another one.
    pub(super) fn receive_run(&mut self, seq: u32, count: u32, len: u32, followed: bool) {
        let wire = |i: u32| Wire {
            seq: Self::IRS + seq + i * len,
            ack: Self::ISS + 1,
            len,
            offset: u64::from(seq - 1 + i * len),
            wnd: self.wnd,
            flags: Flags::ACK,
            timestamps: None,
            options: Options::None,
        };
        let run: Vec<_> = (0..count).map(|i| (i * len, wire(i))).collect();
        self.end.request(self.now, &run, |tcb, cx| {
            let seg = Segment {
                len: count * len,
                count: count as u8,
                followed,
                ..run[0].1.segment()
            };
            compare_paths(tcb, &seg, cx);
        });
    }

    /// The segments sent since the last call: flags, relative numbers, length.
    pub(super) fn sent(&mut self) -> Vec<(Flags, u32, u32, u32)> {
        self.sent_wires()
            .iter()
            .map(|w| {
                let ack = w.ack.since(Self::IRS);
                let ack = if w.flags.has(Flags::ACK) { ack } else { 0 };
                (w.flags, w.seq.since(Self::ISS), ack, w.len)
            })
            .collect()
    }

    pub(super) fn sent_wires(&mut self) -> Vec<Wire> {
        self.end.taken = self.end.frames.next;
        self.end.unsent.drain(..).map(|(_, w)| w).collect()
    }

    /// The application has written, and read, this many bytes.
    pub(super) fn write(&mut self, written: u64) {
        self.end.written = written;
        let read = self.end.read;
        self.call(|tcb, cx| tcb.progress(read, written, cx));
    }

    pub(super) fn call(&mut self, what: impl FnOnce(&mut Tcb, &mut Cx<'_, Vec<Effect>>)) {
        self.end.request(self.now, &[], what);
    }

    pub(super) fn finish(&mut self) {
        self.call(|_, _| ());
    }

    /// The clock jumps to the next deadline. Returns how far.
    pub(super) fn wait(&mut self) -> Duration {
        let deadline = self.tcb().next_deadline();
        assert_ne!(deadline, Instant::NEVER, "nothing to wait for");
        let span = deadline.since(self.now);
        self.now = self.now.max(deadline);
        self.call(|tcb, cx| tcb.on_time(cx));
        span
    }
}
