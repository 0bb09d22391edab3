//! One case: a group of workers, their application, the bad wire and the far side, all on one
//! thread.

mod quiesce;

use dominoes_drivers::memory::Script;
use dominoes_drivers::{Frame, Gso, GsoKind, RxChecksum, TxChecksum, TxMeta};
use dominoes_netstack::group::{FaultHooks, ReplicatedGroup};
use dominoes_netstack::stats::{EffectStats, StateStats};
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Worker as _;
use dominoes_netstack::{Entry, Limits, Recorder, ReplicaState};
use dominoes_proto::log::request::Body;
use dominoes_testkit::packet::{self, ACK, Family, ICMP, Path, SYN, Segment, TCP, UDP};
use dominoes_testkit::{Rng, mix};

use super::app::Application;
use super::check::{Failure, Marks};
use super::membership::STEPS_BETWEEN_FAULTS;
use super::peer::{FIRST_PORT, Peer, Phase};
use super::plan::{LinkFaults, Plan};
use super::stack::{self, Memory};
use super::watch::Watch;
use super::wire::{Coverage, OnWire, Wire};

/// The most connections of one case.
const PEERS: usize = 200;
/// Nanoseconds until an application opens connections again after a failure.
const RETRY: u64 = 1_000_000_000;
/// The most steps before the faults end. A case needs a few thousand.
const STEPS: usize = 200_000;

/// Frames in the order in which they left, with the device's metadata.
pub(crate) type Left = Vec<(Vec<u8>, TxMeta)>;

/// The results of a case that ended well.
pub(crate) struct Outcome {
    pub(crate) limits: Limits,
    pub(crate) left: Left,
    pub(crate) app: Application,
    pub(crate) marks: Marks,
    pub(crate) seen: Coverage,
    pub(crate) state: StateStats,
    pub(crate) stats: Vec<EffectStats>,
}

pub(crate) struct Case<'p, T: FaultHooks> {
    pub(crate) plan: &'p Plan,
    pub(crate) rng: Rng,
    now: u64,
    pub(crate) group: ReplicatedGroup<T>,
    /// Makes the fault hooks of a worker.
    pub(crate) hooks: &'p dyn Fn(usize) -> T,
    script: Script,
    app: Application,
    peers: Vec<Peer>,
    watch: Watch,
    to_stack: Wire,
    to_peers: Wire,
    path: Path,
    /// Opens no new connection before this time, because the last one failed.
    retry_at: u64,
    marks: Marks,
    left: Left,
    /// Numbers of the frames in `left`.
    order: Vec<u64>,
    /// The highest of these numbers, plus one.
    order_end: u64,
    pub(crate) seen: Coverage,
    /// The slot of the replica with a flipped bit, and the number of repairs before that.
    pub(crate) flipped: Option<usize>,
    pub(crate) repaired: u64,
    /// Slots of workers that panicked because of a flipped bit.
    pub(crate) lost: Vec<usize>,
    /// The slot of a worker that is held up, and the stretches of steps that remain.
    stalled: Option<(usize, u64)>,
    /// For each slot, the position at which its worker was last compared.
    marked: Vec<u64>,
    /// A worker and a position at which its state is wanted.
    watched: Option<(usize, u64)>,
    found: Option<ReplicaState>,
}

/// Kinds of steps.
#[derive(Clone, Copy)]
enum Step {
    Pump,
    Claim,
    Parse,
    Publish,
    Prepare,
    Apply,
    Perform,
    Send,
    Turn,
    Use,
    ToStack,
    ToPeers,
    Emit,
    Read,
    Wait,
    Credit,
}

const KINDS: [(Step, u64); 16] = [
    (Step::Pump, 2),
    (Step::Claim, 4),
    (Step::Parse, 4),
    (Step::Publish, 4),
    (Step::Prepare, 8),
    (Step::Apply, 14),
    (Step::Perform, 20),
    (Step::Send, 8),
    (Step::Turn, 0),
    (Step::Use, 5),
    (Step::ToStack, 6),
    (Step::ToPeers, 6),
    (Step::Emit, 6),
    (Step::Read, 3),
    (Step::Wait, 4),
    (Step::Credit, 1),
];

/// The result of a case.
pub(crate) struct Report {
    pub(crate) result: Result<Outcome, Failure>,
    pub(crate) entries: Vec<Entry>,
    /// The state that `watched` asked for.
    pub(crate) found: Option<ReplicaState>,
}

/// Runs the case of `plan`; worker i has the fault hooks `hooks(i)`. If `watched` names a worker
/// and a position, the report contains the worker's state there.
pub(crate) fn run<T: FaultHooks>(
    plan: &Plan,
    hooks: impl Fn(usize) -> T,
    watched: Option<(usize, u64)>,
) -> Report {
    let log = Memory::default();
    let (device, script) = stack::device(plan);
    let mut setup = stack::setup(plan);
    setup.recorder = Recorder::new(Box::new(log.clone()), &setup.limits).ok();
    let group = ReplicatedGroup::with_fault_hooks(setup, stack::layout(plan), device, &hooks)
        .expect("plans stay within the bounds");
    let app = Application::new(group.sockets(), plan.seed);
    // From now on, the group notes the number of each frame that leaves.
    let _ = group.take_frame_order();
    let mut case = Case {
        plan,
        rng: Rng::new(plan.seed),
        now: 1_000_000,
        group,
        hooks: &hooks,
        script,
        app,
        peers: Vec::new(),
        watch: Watch::default(),
        to_stack: Wire::default(),
        to_peers: Wire::default(),
        path: packet::TO_STACK.to_mac([2, 0, 0, 0, 0, 1]),
        retry_at: 0,
        marks: Marks::default(),
        left: Vec::new(),
        order: Vec::new(),
        order_end: 0,
        seen: Coverage::default(),
        flipped: None,
        repaired: 0,
        lost: Vec::new(),
        stalled: None,
        marked: vec![0; plan.replicas + plan.membership.free],
        watched,
        found: None,
    };
    let result = case
        .announce_far_side()
        .and_then(|()| case.noise())
        .and_then(|()| case.quiesce())
        .and_then(|()| case.check_endings())
        .and_then(|()| case.close_all())
        .and_then(|()| case.end())
        .and_then(|()| case.sort());
    let found = case.found.take();
    let result = result.map(|()| case.outcome());
    let (limits, entries) = log.entries();
    let mut report = Report {
        result,
        entries,
        found,
    };
    let Ok(outcome) = &mut report.result else {
        return report;
    };
    outcome.limits = limits;
    outcome.seen.merged = report
        .entries
        .iter()
        .any(|entry| entry.request.digest.count > 1);
    let opened = outcome.state.opened;
    let freed = |entry: &&Entry| matches!(entry.request.body, Body::Free { .. });
    let freed = report.entries.iter().filter(freed).count() as u64;
    let positions = report.entries.len() as u64;
    if positions < plan.positions || freed != opened {
        let what =
            format!("{positions} entries are recorded, {freed} places of {opened} are free again");
        report.result = Err(Failure::new(what));
    }
    report
}

impl<T: FaultHooks> Case<'_, T> {
    /// Makes the far side's address known to the stack, so that all segments that it sends are
    /// numbered.
    fn announce_far_side(&mut self) -> Result<(), Failure> {
        let now = Instant::from_nanos(self.now);
        // From now on the stack has its own address.
        self.group.workers()[0].pump(now);
        let hello = self.written(&packet::arp_request(self.path));
        self.script.push_frame(Frame::from_bytes(&hello));
        self.group.workers()[0].pump(now);
        let plan = self.plan;
        self.collect(&plan.link_faults)
    }

    /// Runs steps in random order, with faults, until the log is long enough.
    fn noise(&mut self) -> Result<(), Failure> {
        let mut weights = [0; KINDS.len()];
        let mut favourite = 0;
        for step in 0..STEPS {
            if step % 128 == 0 {
                if self.published() >= self.plan.positions {
                    return Ok(());
                }
                // For a while some steps are frequent and others do not happen, and one worker is
                // ahead.
                for (weight, (_, usual)) in weights.iter_mut().zip(KINDS) {
                    *weight = usual * self.rng.between(0, 4);
                }
                weights[Step::Turn as usize] =
                    u64::from(self.plan.turns) * self.rng.between(0, 4) / 8;
                favourite = self.rng.next() as usize;
                self.choose_stalled();
            }
            if step % STEPS_BETWEEN_FAULTS == 0 {
                self.inject_faults()?;
            }
            let mut at = self.rng.below(weights.iter().sum::<u64>().max(1));
            let chosen = weights
                .iter()
                .position(|weight| match at.checked_sub(*weight) {
                    Some(rest) => {
                        at = rest;
                        false
                    }
                    None => true,
                });
            let workers = self.group.workers().len();
            let any = self.rng.index(workers);
            let mut worker = if self.rng.per_mille(500) {
                favourite % workers
            } else {
                any
            };
            if self
                .stalled
                .is_some_and(|(id, _)| id == self.group.workers()[worker].id())
            {
                worker = (worker + 1) % workers;
            }
            let (kind, _) = KINDS[chosen.unwrap_or(0)];
            self.run_with_fault(worker, |case| case.step(kind, worker))?
                .unwrap_or(Ok(()))?;
            self.admit_and_remove()?;
            self.now += self.rng.below(40_000);
        }
        Err(Failure::new(format!(
            "{STEPS} steps made {} log positions only: {:#?} {:#?}",
            self.published(),
            self.peers,
            self.app.connections
        )))
    }

    /// For some stretches of steps, one worker does nothing, wherever it was.
    fn choose_stalled(&mut self) {
        match &mut self.stalled {
            Some((_, 0)) => self.stalled = None,
            Some((_, left)) => *left -= 1,
            None if self.plan.replicas > 1 && self.rng.per_mille(self.plan.late.stalls) => {
                self.seen.stalled = true;
                let index = self.rng.index(self.group.workers().len());
                let id = self.group.workers()[index].id();
                self.stalled = Some((id, self.rng.below(8)));
            }
            None => {}
        }
    }

    fn published(&mut self) -> u64 {
        let workers = self.group.workers().iter_mut();
        let published = workers.map(|worker| {
            let besides = worker.replica().applied() - worker.replica().position();
            worker.published() + besides
        });
        published.max().unwrap_or(0)
    }

    /// The index of a worker with a correct state.
    fn worker_with_state(&mut self) -> usize {
        let flipped = self.flipped;
        let mut workers = self.group.workers().iter();
        let knows = |id| Some(id) != flipped;
        workers
            .position(|worker| worker.is_active() && knows(worker.id()))
            .unwrap_or(0)
    }

    fn step(&mut self, step: Step, index: usize) -> Result<(), Failure> {
        let now = Instant::from_nanos(self.now);
        let plan = self.plan;
        let worker = &mut self.group.workers()[index];
        match step {
            Step::Pump => {
                worker.pump(now);
            }
            Step::Claim => {
                worker.claim(now);
            }
            Step::Parse => {
                worker.parse();
            }
            Step::Publish => {
                worker.publish(now);
                let stats = worker.pump_stats();
                self.seen.helped |= stats.is_some_and(|stats| stats.helped > 0);
                self.seen.log_full |= stats.is_some_and(|stats| stats.log_full > 0);
            }
            Step::Prepare => {
                let first = worker.replica().position();
                let ahead = worker.lag();
                let seq = first + self.rng.below(ahead + 1);
                worker.prepare(seq);
            }
            Step::Apply => {
                worker.apply();
                return self.mark(index);
            }
            Step::Perform => {
                worker.perform();
            }
            Step::Send => {
                worker.send_one();
                return self.collect(&plan.link_faults);
            }
            Step::Turn => {
                worker.turn(now);
                self.seen.solo |= worker.is_solo();
                self.mark(index)?;
                return self.collect(&plan.link_faults);
            }
            Step::Use => {
                self.app.step(&plan.app, plan.peers.short, &mut self.rng)?;
                self.forget_failed();
            }
            Step::ToStack => {
                for _ in 0..self.rng.between(1, 12) {
                    self.arrive(&plan.link_faults);
                }
            }
            Step::ToPeers => {
                for _ in 0..self.rng.between(1, 12) {
                    self.leave(&plan.link_faults)?;
                }
            }
            Step::Emit => self.emit(),
            Step::Read => {
                if !self.peers.is_empty() && self.rng.per_mille(plan.peers.reads) {
                    let index = self.rng.index(self.peers.len());
                    let len = self.rng.below(plan.peers.buffer);
                    self.peers[index].read(len);
                }
            }
            Step::Wait => self.wait(),
            Step::Credit => {
                let busy = self.rng.per_mille(plan.device.busy);
                let credit = busy.then(|| self.rng.index(12));
                self.script.accept_at_most(credit);
            }
        }
        Ok(())
    }

    /// Peers whose connection the application could not open take no further part.
    fn forget_failed(&mut self) {
        for index in std::mem::take(&mut self.app.failed) {
            self.peers[index].phase = Phase::Reset;
            self.peers[index].reset_by_us = true;
            self.retry_at = self.now + RETRY;
        }
    }

    /// Compares the state of a worker, if it has applied something: all replicas agree at a
    /// position.
    pub(crate) fn mark(&mut self, index: usize) -> Result<(), Failure> {
        let is_flipped = self.is_flipped(index);
        let worker = &self.group.workers()[index];
        let (id, replica) = (worker.id(), worker.replica());
        let position = replica.applied();
        if self.marked[id] == position {
            return Ok(());
        }
        self.marked[id] = position;
        if self.watched == Some((id, position)) {
            self.found = Some(replica.clone());
        }
        self.seen.credit_ran_out |= replica.frames().room() == 0;
        let mark = replica.fingerprint();
        if is_flipped {
            // The state may look right again, and still cause a later difference in a field that is
            // compared.
            return Ok(());
        }
        self.marks.note(id, position, mark)
    }

    /// Converts an IPv4 frame to the family of the case.
    fn written(&self, frame: &[u8]) -> Vec<u8> {
        let written = self.plan.family().write(frame);
        written.expect("the far side says nothing else")
    }

    /// Puts the frames that the device has taken on the wire.
    fn collect(&mut self, bad: &LinkFaults) -> Result<(), Failure> {
        let numbers = self.group.take_frame_order().unwrap_or_default();
        let sent = self.script.take_sent();
        if numbers.len() != sent.len() {
            let what = format!("{} frames left, {} are noted", sent.len(), numbers.len());
            return Err(Failure::new(what));
        }
        let family = self.plan.family();
        for ((bytes, meta), number) in sent.into_iter().zip(numbers) {
            let Some(plain) = family.read(&bytes) else {
                // A report of the stack's groups, which needs no replica.
                if number.is_some() || family == Family::V4 {
                    return Err(Failure::new(format!("this left: {bytes:02x?}")));
                }
                continue;
            };
            let protocol = packet::protocol(&plain);
            let is_datagram = protocol == Some(UDP);
            // A datagram without a number waited for address resolution; no replica knows of it.
            if number.is_none() && protocol == Some(TCP) {
                return Err(Failure::new("a segment left without a number".into()));
            }
            let mut late = false;
            if let Some(number) = number {
                late = number < self.order_end;
                self.order_end = self.order_end.max(number + 1);
                self.seen.past_hole |= late;
                self.order.push(number);
                self.left.push((bytes.clone(), meta));
            }
            if is_datagram {
                self.seen.datagrams = true;
                self.seen.fragments |= plain[20] & 0x3f != 0 || plain[21] != 0;
            }
            if is_datagram && let Some(gso) = meta.gso {
                self.seen.gathered = true;
                let packets = family.divide(&bytes, gso.size.into());
                if packets.is_none_or(|packets| packets.len() < 2) {
                    return Err(Failure::new("no device can divide this frame".into()));
                }
            }
            if is_datagram || protocol == Some(ICMP) {
                // No peer listens.
                continue;
            }
            let mut bytes = bytes;
            if matches!(meta.checksum, TxChecksum::Partial { .. }) && !family.complete(&mut bytes) {
                return Err(Failure::new(
                    "a partial checksum is not that of its pseudo-header".into(),
                ));
            }
            // A frame that the pump built by itself belongs to no connection.
            let number = number.unwrap_or(u64::MAX);
            self.seen.over_ipv6 |= family == Family::V6 && protocol == Some(TCP);
            let plain = family.read(&bytes).unwrap_or(plain);
            let iss = self.watch.look(&plain, number, late, &mut self.seen)?;
            let frame = OnWire {
                bytes,
                damaged: false,
                iss,
                cut: None,
            };
            self.to_peers.put(frame, bad, &mut self.rng, &mut self.seen);
        }
        Ok(())
    }

    /// A frame reaches the stack's device.
    fn arrive(&mut self, bad: &LinkFaults) -> bool {
        let Some(mut under_way) = self.to_stack.take(bad, &mut self.rng, &mut self.seen) else {
            return false;
        };
        let family = self.plan.family();
        let plain = family.read(&under_way.bytes);
        let is_tcp = plain.is_some_and(|plain| packet::protocol(&plain) == Some(TCP));
        let lower = family.lower() as u16;
        let mut checksum = RxChecksum::Verify;
        if is_tcp && !under_way.damaged && self.rng.per_mille(self.plan.device.vouches) {
            checksum = RxChecksum::Valid;
            if self.rng.per_mille(500) {
                checksum = RxChecksum::Partial {
                    start: lower,
                    offset: 16,
                };
                family.leave_partial(&mut under_way.bytes);
            }
        }
        let mut frame = Frame::from_bytes(&under_way.bytes);
        frame.meta.checksum = checksum;
        let (kind, header) = match (is_tcp, family) {
            (true, Family::V4) => (GsoKind::Tcp4, 20),
            (true, Family::V6) => (GsoKind::Tcp6, 20),
            (false, _) => (GsoKind::Udp, 8),
        };
        frame.meta.gso = under_way.cut.map(|size| Gso {
            kind,
            size,
            header_len: lower + header,
        });
        // By the ports, so that a flow has one queue.
        let ports = usize::from(lower)..usize::from(lower) + 4;
        let ports = frame.bytes().get(ports).unwrap_or_default();
        let ports = ports
            .iter()
            .fold(0, |all, byte| all << 8 | u64::from(*byte));
        let queue = mix(ports) as usize % self.plan.queues();
        self.seen.other_queue |= queue > 0;
        self.script.push_to(queue, frame);
        true
    }

    /// A frame reaches the far side.
    fn leave(&mut self, bad: &LinkFaults) -> Result<bool, Failure> {
        let Some(frame) = self.to_peers.take(bad, &mut self.rng, &mut self.seen) else {
            return Ok(false);
        };
        let family = self.plan.family();
        let Some(plain) = family.read(&frame.bytes) else {
            // The frame is damaged.
            return Ok(true);
        };
        if packet::asked(&plain) == Some(packet::FAR) {
            if !frame.damaged {
                self.put(packet::arp_reply(self.path), None, bad);
            }
            return Ok(true);
        }
        let Some(seg) = Segment::sent(&plain) else {
            return Ok(true);
        };
        if !seg.payload.is_empty() && self.rng.per_mille(bad.strays) {
            // A router drops the segment and reports an error.
            self.seen.network_error = true;
            let mtu = self
                .rng
                .per_mille(700)
                .then(|| self.rng.between(60, 700) as u16);
            // The MTU of an IPv6 path is never that small.
            let mtu = mtu.map(|mtu| mtu + if family == Family::V6 { 1200 } else { 0 });
            let code = if mtu.is_some() { 4 } else { 1 };
            let about = &plain[packet::ETHERNET..packet::LOWER + 8];
            let error = packet::icmp_error([3, code], mtu.unwrap_or(0), about);
            self.put(packet::ip(self.path, ICMP, &error), None, bad);
            return Ok(true);
        }
        let port = usize::from(seg.dst_port.wrapping_sub(FIRST_PORT));
        let Some(&index) = self.app.newest.get(port) else {
            return Ok(true);
        };
        let peer = &mut self.peers[index];
        if peer
            .irs()
            .is_some_and(|irs| frame.iss.is_some_and(|iss| iss != irs))
        {
            // A late segment of an earlier connection: by sequence numbers alone, the peer could
            // not recognize it.
            return Ok(true);
        }
        if let Some(answer) = peer.arrive(&seg, self.now)? {
            let frame = answer.frame(self.path);
            self.put(frame, None, bad);
        }
        Ok(true)
    }

    fn put(&mut self, bytes: Vec<u8>, cut: Option<u16>, bad: &LinkFaults) {
        let frame = OnWire {
            bytes: self.written(&bytes),
            damaged: false,
            iss: None,
            cut,
        };
        self.to_stack.put(frame, bad, &mut self.rng, &mut self.seen);
    }

    /// The far side may send: a segment of a peer, a stray frame, a change of address, or a SYN.
    fn emit(&mut self) {
        let plan = self.plan;
        if self.rng.per_mille(plan.link_faults.strays) {
            self.unsolicited();
        }
        while self.rng.per_mille(plan.link_faults.datagrams) {
            let payload = vec![self.rng.next() as u8; self.rng.index(700)];
            let port = 53 + u16::from(self.rng.per_mille(50));
            let from = 700 + self.rng.below(3) as u16;
            let frame = packet::udp(self.path, (from, port), &payload);
            // A frame with several datagrams, as a sender on the same machine leaves it.
            let several = plan.device.cuts > 0 && self.rng.per_mille(300);
            let cut = several.then(|| 50 + self.rng.below(300) as u16);
            self.put(frame, cut, &plan.link_faults);
        }
        let live = self.peers.iter().filter(|peer| self.is_live(peer)).count();
        if live < plan.peers.count
            && self.now >= self.retry_at
            && self.peers.len() < PEERS
            && self.rng.per_mille(400)
        {
            self.begin();
        }
        if !self.peers.is_empty() && self.to_stack.len() < 64 {
            let index = self.rng.index(self.peers.len());
            self.emit_from(index, &plan.link_faults);
        }
    }

    fn is_live(&self, peer: &Peer) -> bool {
        let over = matches!(peer.phase, Phase::Reset | Phase::Replaced)
            || peer.saw_the_end() && peer.is_content();
        let gave_up = self
            .app
            .of(peer.index)
            .is_some_and(|connection| connection.gave_up);
        !over && !gave_up
    }

    /// Starts another peer, at a new port or at one whose connection is over.
    fn begin(&mut self) {
        let index = self.peers.len();
        let ours = self.rng.per_mille(self.plan.peers.opened_by_stack);
        let over = self.peers.iter().find(|peer| {
            let is_over =
                peer.phase == Phase::Reset || peer.phase == Phase::Open && peer.is_finished();
            is_over
                && self
                    .app
                    .of(peer.index)
                    .is_some_and(|connection| connection.is_over())
        });
        let port = match over.map(|peer| (peer.index, peer.port)) {
            Some((before, port)) if self.rng.per_mille(950) => {
                self.seen.reused = true;
                self.peers[before].phase = Phase::Replaced;
                self.app.newest[port] = index;
                port
            }
            _ => {
                self.app.newest.push(index);
                self.watch.add()
            }
        };
        let seed = self.plan.seed;
        let peer = Peer::new(index, port, seed, !ours, &self.plan.peers, &mut self.rng);
        self.peers.push(peer);
        if ours {
            self.seen.opened_by_stack = true;
            self.app.open(port, index);
        }
    }

    fn emit_from(&mut self, index: usize, bad: &LinkFaults) -> usize {
        let peer = &mut self.peers[index];
        let out = peer.emit(
            self.now,
            &self.plan.peers,
            bad,
            &mut self.rng,
            &mut self.seen,
        );
        let count = out.len();
        let mut out = out.into_iter().peekable();
        while let Some(mut seg) = out.next() {
            let mut cut = None;
            if self.plan.device.cuts > 0 {
                // A device that segments frames for us merges them as well.
                while let Some(next) = out.peek()
                    && seg.flags == ACK
                    && next.flags == ACK
                    && cut.unwrap_or(seg.payload.len() as u16) == next.payload.len() as u16
                    && next.seq == seg.seq.wrapping_add(seg.payload.len() as u32)
                    && seg.payload.len() < self.plan.device.cuts
                {
                    cut = Some(next.payload.len() as u16);
                    seg.payload.extend(&next.payload);
                    out.next();
                }
            }
            self.put(seg.frame(self.path), cut, bad);
        }
        count
    }

    /// A segment of no connection, or a neighbour that moved.
    fn unsolicited(&mut self) {
        let frame = if self.rng.per_mille(200) {
            self.path.from_mac[5] ^= 4;
            match self.rng.per_mille(500) {
                true => packet::arp_reply(self.path),
                false => packet::arp_request(self.path),
            }
        } else {
            let mut seg = Segment {
                src_port: 900 + self.rng.below(4) as u16,
                dst_port: 79 + self.rng.below(3) as u16,
                seq: self.rng.next() as u32,
                ack: self.rng.next() as u32,
                flags: self.rng.below(32) as u8 & !SYN,
                wnd: 100,
                ..Segment::default()
            };
            seg.payload = vec![7; self.rng.index(40)];
            seg.frame(self.path)
        };
        self.put(frame, None, &self.plan.link_faults);
    }

    fn next_deadline(&mut self) -> u64 {
        let flipped = self.flipped;
        let workers = self.group.workers().iter();
        let ours = workers
            .filter(|worker| Some(worker.id()) != flipped)
            .map(|worker| worker.next_deadline().as_nanos())
            .min();
        let theirs = self.peers.iter().map(Peer::next_deadline).min();
        ours.unwrap_or(u64::MAX).min(theirs.unwrap_or(u64::MAX))
    }

    fn wait(&mut self) {
        match self.rng.below(40) {
            0 => {
                let next = self.next_deadline();
                if next != u64::MAX {
                    self.now = self
                        .now
                        .max(next + self.rng.below(2) * self.rng.below(1_000_000));
                }
            }
            1..=4 => self.now += self.rng.below(30_000_000),
            _ => self.now += self.rng.below(500_000),
        }
    }

    /// Sorts the frames that left by their numbers, and checks each again.
    ///
    /// # Errors
    /// If a frame is missing or left twice, or may not follow the one before.
    fn sort(&mut self) -> Result<(), Failure> {
        let mut sorted: Vec<_> = self.order.drain(..).zip(self.left.drain(..)).collect();
        sorted.sort_by_key(|(number, _)| *number);
        let mut watch = self.watch.again();
        for (expected, (number, (bytes, meta))) in (0..).zip(sorted) {
            if number != expected {
                return Err(Failure::new(format!(
                    "frame {number} leaves where {expected} is due"
                )));
            }
            let family = self.plan.family();
            let mut whole = bytes.clone();
            let is_datagram = family
                .read(&whole)
                .is_some_and(|plain| packet::protocol(&plain) == Some(UDP));
            if is_datagram {
                self.left.push((bytes, meta));
                continue;
            }
            if matches!(meta.checksum, TxChecksum::Partial { .. }) {
                family.complete(&mut whole);
            }
            let plain = family.read(&whole).unwrap_or(whole);
            watch.look(&plain, number, false, &mut Coverage::default())?;
            self.left.push((bytes, meta));
        }
        Ok(())
    }

    fn outcome(mut self) -> Outcome {
        let knowing = self.worker_with_state();
        let mut group = self.group;
        let state = group.workers()[knowing].replica().stats();
        let stats = group
            .workers()
            .iter()
            .map(|worker| worker.stats().effects)
            .collect::<Vec<_>>();
        let mut seen = self.seen;
        seen.queue_full = state.queue_full > 0;
        seen.stolen = stats.iter().any(|stats| stats.stolen > 0);
        Outcome {
            limits: group.limits(),
            left: self.left,
            app: self.app,
            marks: self.marks,
            seen,
            state,
            stats,
        }
    }
}
