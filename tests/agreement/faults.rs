//! Planted faults: mistakes that a careless engine would make. Each must be noticed, although it
//! happens only once in a case.

use dominoes_netstack::group::FaultHooks;
use dominoes_netstack::time::Duration;
use dominoes_proto::log::effect::Effect;
use dominoes_proto::log::request::{Body, Flags, Flow, Request, RequestKind, Verdict};
use dominoes_proto::seqnum::SeqNum;
use dominoes_testkit::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One replica adds its clock's reading to the time of a request.
    Clock,
    /// One replica reads the transmit ring directly and finds more room than the log reports.
    Credit,
    /// One replica gives a frame a number that is one too high.
    FrameNumber,
    /// One replica drops an effect.
    DroppedEffect,
    /// One replica uses an older acknowledgment in a frame's header.
    HeaderOfAnotherMoment,
    /// One replica does not wait for the verdict and assumes that all checksums are correct.
    LateVerdict,
    /// One replica that had to wait moves the last segment of a run to the next run.
    RunBoundaries,
    /// In all replicas, a delivery begins on the last byte of the previous one.
    TwoEffectsOverOneByte,
    /// One replica steals an effect without claiming it.
    StealUnasked,
    /// One replica marks its batch as done before it has performed an effect of it.
    BatchDoneEarly,
}

impl Fault {
    pub(crate) const ALL: [Fault; 10] = [
        Fault::Clock,
        Fault::Credit,
        Fault::FrameNumber,
        Fault::DroppedEffect,
        Fault::HeaderOfAnotherMoment,
        Fault::LateVerdict,
        Fault::RunBoundaries,
        Fault::TwoEffectsOverOneByte,
        Fault::StealUnasked,
        Fault::BatchDoneEarly,
    ];

    fn is_in_all(self) -> bool {
        self == Fault::TwoEffectsOverOneByte
    }
}

/// The segment that a replica moved to the next run.
#[derive(Clone, Copy)]
struct Left {
    flow: Flow,
    seq: SeqNum,
    len: u32,
}

/// A worker with a fault, or without.
pub(crate) struct Faulty {
    /// The fault, until it has happened.
    fault: Option<Fault>,
    /// The first request at which it can happen.
    from: u64,
    rng: Rng,
    /// The request whose verdict was not ready.
    waited: u64,
    /// The flow and the acknowledgment of the previous frame.
    acknowledged: Option<(Flow, SeqNum)>,
    left: Option<Left>,
    takes_left: bool,
}

impl Faulty {
    /// Worker `id` of a group in which `culprit` has the fault.
    pub(crate) fn new(fault: Fault, id: usize, culprit: usize, seed: u64) -> Faulty {
        Faulty {
            fault: (id == culprit || fault.is_in_all()).then_some(fault),
            from: 20 + Rng::new(!seed).below(150),
            rng: Rng::new(seed),
            waited: u64::MAX,
            acknowledged: None,
            left: None,
            takes_left: false,
        }
    }

    /// The fault, if it can happen at this request.
    fn due(&self, seq: u64) -> Option<Fault> {
        self.fault.filter(|_| seq >= self.from)
    }

    /// Notes that the fault has happened.
    fn done(&mut self) {
        self.fault = None;
    }

    /// Whether the segment in `left` can begin this run.
    fn fits(&self, request: &Request) -> bool {
        let digest = &request.digest;
        match (&self.left, &request.body) {
            (Some(left), Body::Segments { flow, .. }) => {
                left.flow == *flow
                    && left.seq + left.len == digest.seg_seq
                    && left.len == u32::from(digest.seg_len)
                    && digest.count < 8
            }
            _ => false,
        }
    }

    fn leave_last_segment(&mut self, request: &mut Request) {
        let digest = &mut request.digest;
        let Body::Segments { flow, .. } = request.body else {
            return;
        };
        let before = (u32::from(digest.count) - 1) * u32::from(digest.seg_len);
        self.left = Some(Left {
            flow,
            seq: digest.seg_seq + before,
            len: digest.len - before,
        });
        digest.len = before;
        digest.count -= 1;
        digest.flags = digest.flags.without(Flags::PSH.with(Flags::FIN));
        self.done();
    }
}

impl FaultHooks for Faulty {
    const ACTIVE: bool = true;

    fn steals_unbegun(&mut self, seq: u64) -> bool {
        let due = self.due(seq) == Some(Fault::StealUnasked);
        if due {
            self.done();
        }
        due
    }

    fn finishes_early(&mut self, seq: u64) -> bool {
        let due = self.due(seq) == Some(Fault::BatchDoneEarly);
        if due {
            self.done();
        }
        due
    }

    fn change_verdict(
        &mut self,
        seq: u64,
        verdict: Option<Verdict>,
        request: &Request,
    ) -> Option<Verdict> {
        if verdict.is_none() {
            self.waited = seq;
            if self.due(seq) == Some(Fault::LateVerdict) {
                self.done();
                return Some(request.digest.all_good());
            }
        }
        self.takes_left = self.fits(request);
        verdict.map(|bits| if self.takes_left { bits << 1 | 1 } else { bits })
    }

    fn change_request(&mut self, seq: u64, request: &mut Request) {
        let digest = &mut request.digest;
        if self.takes_left
            && let Some(left) = self.left.take()
        {
            digest.seg_seq = left.seq;
            digest.len += left.len;
            digest.count += 1;
        }
        match self.due(seq) {
            Some(Fault::Clock) => {
                digest.now += Duration::from_nanos(1 + self.rng.below(50_000));
                self.done();
            }
            Some(Fault::Credit) => {
                digest.sent += 1;
                self.done();
            }
            Some(Fault::RunBoundaries)
                if digest.kind == RequestKind::Segments
                    && digest.count > 1
                    && self.waited == seq =>
            {
                self.leave_last_segment(request);
            }
            _ => {}
        }
    }

    fn change_effects(&mut self, seq: u64, effects: &mut Vec<Effect>) {
        let Some(fault) = self.due(seq) else { return };
        if fault == Fault::DroppedEffect && !effects.is_empty() {
            effects.remove(self.rng.index(effects.len()));
            return self.done();
        }
        for effect in effects {
            match (fault, effect) {
                (Fault::FrameNumber, Effect::Transmit(transmit)) => {
                    transmit.first_frame += 1;
                    return self.done();
                }
                (Fault::HeaderOfAnotherMoment, Effect::Transmit(transmit)) => {
                    let older = self
                        .acknowledged
                        .replace((transmit.common.flow, transmit.ack));
                    if let Some((flow, ack)) = older
                        && flow == transmit.common.flow
                        && ack != transmit.ack
                    {
                        transmit.ack = ack;
                        return self.done();
                    }
                }
                (Fault::TwoEffectsOverOneByte, Effect::Deliver(deliver))
                    if deliver.stream_offset > 0 =>
                {
                    deliver.stream_offset -= 1;
                    return self.done();
                }
                _ => {}
            }
        }
    }
}
