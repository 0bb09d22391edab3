//! Rows: requests about the segments of one run, applied at once.

use crate::log::effect::EffectSink;
use crate::log::request::{Digest, Kind, Options, Request};
use crate::state::apply::Replica;
use crate::tcp::{Cx, DELAYED_ACK, Lengths};

impl Replica {
    /// Applies a row of requests, one for each segment of `run`. The result is the same as if they
    /// were applied one by one. Returns false if the fast path cannot do that; then the caller has
    /// to apply them one by one, and at most the time, credit and cursors of the first one have
    /// been taken over.
    #[inline]
    pub(crate) fn apply_row(
        &mut self,
        (run, verdict): (&Request, u16),
        out: &mut impl EffectSink,
    ) -> bool {
        let digest = &run.digest;
        let unlike = Digest::OPTIONS | Digest::CE | Digest::ACKS | Digest::FOLLOWED;
        let is_text = digest.kind == Kind::Segments && digest.len > 0;
        if !is_text || digest.bits & unlike != 0 || verdict != digest.all_good() {
            return false;
        }
        let (now, sent) = (self.now.max(digest.now), self.frames.sent.max(digest.sent));
        // The first request would trigger further work.
        if self.next_deadline <= now || self.next_sent <= sent {
            return false;
        }
        let conn = digest.hint;
        let Some(place) = self.places.get_mut(conn.index as usize) else {
            return false;
        };
        // A delayed acknowledgment is a deadline, which has to be scheduled unless there is an
        // earlier one.
        if place.generation != conn.generation || now + DELAYED_ACK < place.armed {
            return false;
        }
        let Some(tcb) = &mut place.tcb else {
            return false;
        };
        self.now = now;
        self.frames.update_sent(digest.sent, &self.limits);
        self.next_before = self.frames.next;
        self.touched = conn.index;
        let mut cx = Cx::new(now, &mut self.frames, &self.limits, out);
        if digest.bits & Digest::PROGRESS != 0 {
            tcb.progress_low(digest.app_read, digest.app_written, &mut cx);
            // A read cursor beyond the received data would be reported again with each request.
            if !tcb.is_read_unchanged(digest.app_read) {
                return false;
            }
        }
        let lengths = Lengths {
            count: u32::from(digest.count),
            each: u32::from(digest.seg_len),
            all: digest.len,
        };
        let whole = digest.segment(&Options::None);
        let mut fold = self.fold;
        if !tcb.try_fast_path_row(&whole, lengths, &mut fold, &mut cx) {
            return false;
        }
        self.fold = fold;
        self.position += u64::from(digest.count);
        self.stats.segments += u64::from(digest.count);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::direct::taken_apart;
    use crate::log::effect::Effect;
    use crate::log::request::{Body, ConnId, Flags, Mac};
    use crate::seqnum::SeqNum;
    use crate::state::apply::tests::Fixture;
    use crate::time::{Duration, Instant};
    use proptest::prelude::*;

    /// An event of a connection.
    #[derive(Clone, Debug)]
    enum Step {
        /// Segments that arrive together: how many, the bytes of each, and of the last one.
        Row { count: u8, each: u16, last: u16 },
        /// ... with a window that is wider or narrower than before, and PSH on the last one.
        Other { count: u8, wnd: u16 },
        /// ... after the peer's clock has advanced.
        Later { count: u8, ticks: u32 },
        /// ... one of which is damaged, or which begin after a gap.
        Bad { count: u8, which: u8, gap: bool },
        /// The application has read this much; the next request carries the cursor.
        Read(u8),
        /// The application has written this much, and the peer acknowledges this much of what is in
        /// flight.
        Write(u16, u8),
        /// Time passes.
        Wait(u32),
        /// This many of the numbered frames are sent.
        Sent(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let count = 1u8..=16;
        let step = prop_oneof![
            12 => (count.clone(), 1u16..=1460, 1u16..=1460)
                .prop_map(|(count, each, last)| Step::Row { count, each, last: last.min(each) }),
            2 => (count.clone(), any::<u16>()).prop_map(|(count, wnd)| Step::Other { count, wnd }),
            2 => (count.clone(), 0u32..3).prop_map(|(count, ticks)| Step::Later { count, ticks }),
            1 => (count, 0u8..16, any::<bool>())
                .prop_map(|(count, which, gap)| Step::Bad { count, which, gap }),
            6 => (0u8..=255).prop_map(Step::Read),
            1 => (0u16..4000, any::<u8>()).prop_map(|(len, acked)| Step::Write(len, acked)),
            3 => (0u32..60_000_000).prop_map(Step::Wait),
            6 => (1u8..=255).prop_map(Step::Sent),
        ];
        proptest::collection::vec(step, 1..60)
    }

    /// A replica with an open connection, and its peer.
    struct RowFixture {
        fixture: Fixture,
        conn: ConnId,
        now: Instant,
        sent: u64,
        /// The peer's next sequence number, acknowledgment, and clock.
        seq: SeqNum,
        ack: SeqNum,
        wnd: u16,
        ts_val: Option<u32>,
        read: u64,
        written: u64,
        /// Rows that were applied at once, and the segments in them.
        at_once: (u64, u64),
    }

    impl RowFixture {
        fn new(timestamps: bool) -> RowFixture {
            let mut fixture = Fixture::listening(4);
            let ts_val = timestamps.then_some(50);
            // Windows close, and there is not always room for acknowledgments.
            fixture.replica.limits.receive_buffer = 1 << 16;
            fixture.replica.limits.tx_slots = 16;
            let (conn, ours) = fixture.open_with(4000, 100, ts_val);
            RowFixture {
                fixture,
                conn,
                now: Instant::from_millis(1),
                sent: 0,
                seq: SeqNum(101),
                ack: SeqNum(ours),
                wnd: 60_000,
                ts_val,
                read: 0,
                written: 0,
                at_once: (0, 0),
            }
        }

        fn tcb(&self) -> Option<&crate::tcp::Tcb> {
            self.fixture.replica.places[self.conn.index as usize]
                .tcb
                .as_ref()
        }

        /// The next segments of the peer as a run.
        fn run(&self, count: u8, each: u16, last: u16) -> Request {
            let mut digest = Digest::bare(Kind::Segments, self.now, self.sent);
            digest.hint = self.conn;
            (digest.seg_seq, digest.seg_ack) = (self.seq, self.ack);
            (digest.seg_wnd, digest.flags, digest.count) = (self.wnd, Flags::ACK, count);
            digest.len = u32::from(each) * u32::from(count - 1) + u32::from(last);
            digest.seg_len = if count > 1 { each } else { last };
            digest.bits = Digest::PROGRESS;
            (digest.app_read, digest.app_written) = (self.read as u32, self.written as u32);
            if let Some(ts_val) = self.ts_val {
                digest.bits |= Digest::TIMESTAMPS;
                (digest.ts_val, digest.ts_ecr) = (ts_val, 0);
            }
            let (flow, mac) = (self.fixture.flow(4000), Mac([2; 6]));
            let body = Body::Segment {
                flow,
                mac,
                payload_offset: 54,
                options: Options::None,
            };
            Request { digest, body }
        }

        /// Applies the segments of `run` one by one, and at once if possible, and compares the
        /// results.
        fn arrive(&mut self, run: &Request, verdict: u16) {
            let replica = &mut self.fixture.replica;
            let (mut row, mut asked) = (replica.clone(), Vec::new());
            let at_once = row.apply_row((run, verdict), &mut asked);
            let mut effects = Vec::new();
            for (i, request) in taken_apart(run).iter().enumerate() {
                replica.apply(request, verdict >> i & 1, &mut effects);
            }
            if at_once {
                assert_eq!(asked, effects, "{:?}", run.digest);
                assert_eq!(row.first_difference(replica), None);
                assert_eq!(row.whole_fingerprint(), replica.whole_fingerprint());
                assert_eq!(row.stats(), replica.stats());
                assert_eq!(row.position(), replica.position());
                assert_eq!(row.post(7), replica.post(7));
                assert_eq!(row.next_deadline(), replica.next_deadline());
                self.at_once.0 += 1;
                self.at_once.1 += u64::from(run.digest.count);
            } else {
                assert_eq!(asked, [], "what is refused asks for nothing");
                // Only the other fields of the first request were taken over.
                let mut again = Vec::new();
                for (i, request) in taken_apart(run).iter().enumerate() {
                    row.apply(request, verdict >> i & 1, &mut again);
                }
                assert_eq!(again, effects);
                assert_eq!(row.whole_fingerprint(), replica.whole_fingerprint());
            }
            if let Some(tcb) = self.tcb() {
                self.seq = SeqNum(101) + tcb.received() as u32;
            }
        }

        fn step(&mut self, step: &Step) {
            match *step {
                Step::Row { count, each, last } => {
                    let run = self.run(count, each, last);
                    self.arrive(&run, run.digest.all_good());
                }
                Step::Other { count, wnd } => {
                    self.wnd = wnd;
                    let mut run = self.run(count, 900, 100);
                    run.digest.flags = Flags::ACK.with(Flags::PSH);
                    self.arrive(&run, run.digest.all_good());
                }
                Step::Later { count, ticks } => {
                    self.ts_val = self.ts_val.map(|ts_val| ts_val + ticks);
                    let run = self.run(count, 1000, 1000);
                    self.arrive(&run, run.digest.all_good());
                }
                Step::Bad { count, which, gap } => {
                    let mut run = self.run(count, 500, 500);
                    let damaged = if gap { 0 } else { 1 << (which % count) };
                    run.digest.seg_seq += if gap { 500 } else { 0 };
                    self.arrive(&run, run.digest.all_good() & !damaged);
                }
                Step::Read(share) => {
                    let received = self.tcb().map_or(0, |tcb| tcb.received());
                    // No correct application reads ahead; a corrupted cursor may.
                    self.read += received.saturating_sub(self.read) * u64::from(share) / 240;
                }
                Step::Write(len, acked) => {
                    let outstanding = self.tcb().map_or(0, |tcb| tcb.snd_nxt().since(self.ack));
                    self.ack += outstanding * u32::from(acked) / 255;
                    self.written += u64::from(len);
                }
                Step::Wait(nanos) => {
                    self.now += Duration::from_nanos(u64::from(nanos));
                    // No tick is published while segments arrive.
                    let is_quiet = nanos.is_multiple_of(2);
                    if is_quiet && self.fixture.replica.next_deadline() <= self.now {
                        let tick = Request::tick(self.now, self.sent);
                        self.fixture.replica.apply(&tick, 0, &mut Vec::new());
                    }
                }
                Step::Sent(share) => {
                    let numbered = self.fixture.replica.frames.next - self.sent;
                    self.sent += numbered * u64::from(share) / 255;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_comes_of_a_row_is_what_comes_of_its_segments_one_by_one(
            timestamps in any::<bool>(),
            steps in steps(),
        ) {
            let mut fixture = RowFixture::new(timestamps);
            for step in &steps {
                fixture.step(step);
            }
        }
    }

    #[test]
    fn rows_of_a_transfer_are_applied_at_once() {
        for timestamps in [false, true] {
            let mut fixture = RowFixture::new(timestamps);
            for _ in 0..1000 {
                fixture.now += Duration::from_micros(10);
                fixture.sent = fixture.fixture.replica.frames.next;
                fixture.read = fixture.tcb().map_or(0, |tcb| tcb.received());
                fixture.step(&Step::Row {
                    count: 15,
                    each: 1448,
                    last: 1448,
                });
            }
            assert!(fixture.at_once.0 > 990, "{:?}", fixture.at_once);
        }
    }

    #[test]
    fn every_second_segment_of_a_row_is_acknowledged_with_its_own_number() {
        let mut fixture = RowFixture::new(false);
        let run = fixture.run(5, 1000, 300);
        // One segment before, which waits for the second.
        fixture.step(&Step::Row {
            count: 1,
            each: 1000,
            last: 1000,
        });
        let mut asked = Vec::new();
        let mut run = run;
        run.digest.seg_seq = fixture.seq;
        fixture.fixture.replica.places[fixture.conn.index as usize].armed = Instant::ZERO;
        assert!(fixture.fixture.replica.apply_row((&run, 0x1f), &mut asked));
        let acked: Vec<_> = asked
            .iter()
            .filter_map(|effect| match effect {
                Effect::Transmit(transmit) => Some(transmit.ack.since(fixture.seq)),
                _ => None,
            })
            .collect();
        assert_eq!(acked, [1000, 3000, 4300]);
        let delivered = asked.iter().filter(|e| matches!(e, Effect::Deliver(_)));
        assert_eq!(delivered.count(), 5);
    }
}
