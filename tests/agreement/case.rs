//! One case: a group of workers, their application, the bad wire and the far side, all on one thread.

use std::io::Write;
use std::sync::{Arc, Mutex};

use dominoes_drivers::memory::{MemoryConfig, Script, scripted_with};
use dominoes_drivers::{Device, Frame, Gso, GsoKind, RxChecksum, TxChecksum, TxMeta};
use dominoes_netstack::stats::EffectStats;
use dominoes_netstack::time::Instant;
use dominoes_netstack::variants::Setup;
use dominoes_netstack::variants::replicated::{Group, Layout, Tamper};
use dominoes_netstack::{Entry, Limits, Recorder, Recording, Replica};

use super::app::Application;
use super::check::{Failure, Marks};
use super::peer::{FIRST_PORT, Peer, Phase};
use super::plan::{Bad, Plan};
use super::segment::{self, RST, SYN, Segment};
use super::wire::{OnWire, Seen, Wire};
use crate::support::Rng;

/// Nothing goes wrong any more.
const GOOD: Bad = Bad {
    loss: 0,
    duplication: 0,
    reordering: 0,
    corruption: 0,
    overlap: 0,
    strays: 0,
};

/// Connections of one case, at most.
const PEERS: usize = 40;
/// Steps before the faults end, at most. A case needs a few thousand.
const STEPS: usize = 200_000;
/// Jumps to the next deadline after the faults have ended, without an octet arriving.
const JUMPS: usize = 60;

/// What left, in order: the frame, and what the device is asked to do to it.
pub(crate) type Left = Vec<(Vec<u8>, TxMeta)>;

/// A case that ended well.
pub(crate) struct Outcome {
    pub(crate) limits: Limits,
    pub(crate) left: Left,
    pub(crate) app: Application,
    pub(crate) marks: Marks,
    pub(crate) seen: Seen,
    pub(crate) stats: Vec<EffectStats>,
}

/// A log in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn entries(&self) -> (Limits, Vec<Entry>) {
        let bytes = self.0.lock().expect("no writer panics");
        let recording = Recording::open(&bytes[..]).expect("the recorder wrote it");
        let limits = recording.limits();
        let entries: Result<Vec<Entry>, _> = recording.collect();
        (limits, entries.expect("the recorder wrote it"))
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The device of a plan and its far side.
pub(crate) fn device(plan: &Plan) -> (Box<dyn Device>, Script) {
    let config = MemoryConfig::default().tso4_max_bytes(plan.device.cuts);
    let (device, script) = scripted_with(config);
    (Box::new(device), script)
}

/// Address, secret and bounds of a plan.
pub(crate) fn setup(plan: &Plan) -> Setup {
    let mut setup = Setup::new(segment::STACK.into(), 24, [plan.seed, !plan.seed]);
    let limits = &mut setup.limits;
    limits.connections = plan.limits.connections;
    limits.receive_buffer = plan.limits.receive_buffer;
    limits.send_buffer = plan.limits.send_buffer;
    limits.tx_slots = plan.limits.tx_slots;
    limits.mtu = plan.limits.mtu;
    limits.quantum = plan.limits.quantum;
    limits.frame_payload = plan.device.cuts as u32;
    setup
}

pub(crate) fn layout(plan: &Plan) -> Layout {
    let mut layout = Layout::default();
    layout.replicas = plan.replicas;
    layout.log = plan.log;
    layout.request_chunk = plan.request_chunk;
    layout.frame_chunk = plan.frame_chunk;
    layout.ahead_bytes = plan.ahead_bytes;
    layout.keep = plan.keep;
    layout.fingerprint_every = plan.fingerprint_every;
    layout
}

/// Sees what leaves for one port of the far side.
#[derive(Clone, Copy, Default)]
struct Watch {
    /// Sequence number of the newest SYN, and the stack's port.
    syn: Option<(u32, u16)>,
    /// The number after the highest octet that left.
    left: Option<u32>,
    /// The right edge of the stack's window.
    edge: Option<u32>,
}

struct Case<'p, T: Tamper> {
    plan: &'p Plan,
    rng: Rng,
    now: u64,
    group: Group<T>,
    script: Script,
    app: Application,
    peers: Vec<Peer>,
    watches: Vec<Watch>,
    to_stack: Wire,
    to_peers: Wire,
    mac: [u8; 6],
    marks: Marks,
    left: Left,
    seen: Seen,
    /// Position of each worker as last marked.
    marked: Vec<u64>,
    /// A worker and a position at which its state is wanted.
    watched: Option<(usize, u64)>,
    found: Option<Replica>,
}

/// What may happen next.
#[derive(Clone, Copy)]
enum Step {
    Pump,
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

const KINDS: [(Step, u64); 13] = [
    (Step::Pump, 4),
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

/// What became of a case.
pub(crate) struct Report {
    pub(crate) result: Result<Outcome, Failure>,
    pub(crate) entries: Vec<Entry>,
    /// The state that was asked for.
    pub(crate) found: Option<Replica>,
}

/// Runs the case of `plan`, worker i tampered with by `tamper(i)`. If `watched` names a worker and a position,
/// the worker's state there comes back.
pub(crate) fn run<T: Tamper>(
    plan: &Plan,
    tamper: impl Fn(usize) -> T,
    watched: Option<(usize, u64)>,
) -> Report {
    let log = Memory::default();
    let (device, script) = device(plan);
    let mut setup = setup(plan);
    setup.recorder = Recorder::new(Box::new(log.clone()), &setup.limits).ok();
    let group = Group::with_tampers(setup, layout(plan), device, tamper)
        .expect("plans stay within the bounds");
    let app = Application::new(group.sockets(), plan.seed);
    let mut case = Case {
        plan,
        rng: Rng::new(plan.seed),
        now: 1_000_000,
        group,
        script,
        app,
        peers: Vec::new(),
        watches: Vec::new(),
        to_stack: Wire::default(),
        to_peers: Wire::default(),
        mac: [2, 0, 0, 0, 0, 2],
        marks: Marks::default(),
        left: Vec::new(),
        seen: Seen::default(),
        marked: vec![0; plan.replicas],
        watched,
        found: None,
    };
    let result = case.noise().and_then(|()| case.calm()).and_then(|()| case.end());
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
    outcome.seen.merged = report.entries.iter().any(|entry| entry.request.digest.count > 1);
    if (report.entries.len() as u64) < plan.positions {
        let what = format!("{} entries are recorded", report.entries.len());
        report.result = Err(Failure::new(what));
    }
    report
}

impl<T: Tamper> Case<'_, T> {
    /// Faults, and everything in random order, until the log is long enough.
    fn noise(&mut self) -> Result<(), Failure> {
        let mut weights = [0; KINDS.len()];
        let mut favourite = 0;
        for step in 0..STEPS {
            if step % 128 == 0 {
                if self.published() >= self.plan.positions {
                    return Ok(());
                }
                // For a while some things happen often and others not at all, and one worker is ahead.
                for (weight, (_, usual)) in weights.iter_mut().zip(KINDS) {
                    *weight = usual * self.rng.between(0, 4);
                }
                weights[Step::Turn as usize] = u64::from(self.plan.turns) * self.rng.between(0, 4) / 8;
                favourite = self.rng.index(self.plan.replicas);
            }
            let mut at = self.rng.below(weights.iter().sum::<u64>().max(1));
            let chosen = weights.iter().position(|weight| match at.checked_sub(*weight) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
            let any = self.rng.index(self.plan.replicas);
            let worker = if self.rng.chance(500) { favourite } else { any };
            let (kind, _) = KINDS[chosen.unwrap_or(0)];
            self.step(kind, worker)?;
            self.now += self.rng.below(40_000);
        }
        Err(Failure::new(format!(
            "{STEPS} steps made {} log positions only",
            self.published()
        )))
    }

    fn published(&mut self) -> u64 {
        let workers = self.group.workers().iter_mut();
        workers.map(|worker| worker.published()).max().unwrap_or(0)
    }

    fn step(&mut self, step: Step, id: usize) -> Result<(), Failure> {
        let now = Instant::from_nanos(self.now);
        let plan = self.plan;
        let worker = &mut self.group.workers()[id];
        match step {
            Step::Pump => {
                worker.pump(now);
            }
            Step::Prepare => {
                let first = worker.replica().position();
                let ahead = worker.lag();
                let seq = first + self.rng.below(ahead + 1);
                worker.prepare(seq);
            }
            Step::Apply => {
                worker.apply();
                return self.mark(id);
            }
            Step::Perform => {
                worker.perform();
            }
            Step::Send => {
                worker.send_one();
                return self.collect(&plan.bad);
            }
            Step::Turn => {
                worker.turn(now);
                self.mark(id)?;
                return self.collect(&plan.bad);
            }
            Step::Use => {
                self.app.step(&plan.app, plan.peers.short, &mut self.rng)?;
                self.forget_failed();
            }
            Step::ToStack => {
                for _ in 0..self.rng.between(1, 12) {
                    self.arrive(&plan.bad);
                }
            }
            Step::ToPeers => {
                for _ in 0..self.rng.between(1, 12) {
                    self.leave(&plan.bad)?;
                }
            }
            Step::Emit => self.emit(),
            Step::Read => {
                if !self.peers.is_empty() && self.rng.chance(plan.peers.reads) {
                    let index = self.rng.index(self.peers.len());
                    let len = self.rng.below(plan.peers.buffer);
                    self.peers[index].read(len);
                }
            }
            Step::Wait => self.wait(),
            Step::Credit => {
                let busy = self.rng.chance(plan.device.busy);
                let credit = busy.then(|| self.rng.index(12));
                self.script.accept_at_most(credit);
            }
        }
        Ok(())
    }

    /// Peers that the application could not connect to take no part any more.
    fn forget_failed(&mut self) {
        for index in std::mem::take(&mut self.app.failed) {
            self.peers[index].phase = Phase::Reset;
            self.peers[index].reset_by_us = true;
        }
    }

    /// A worker may have applied something: its state at a position is everybody's.
    fn mark(&mut self, id: usize) -> Result<(), Failure> {
        let replica = self.group.workers()[id].replica();
        let position = replica.position();
        if self.marked[id] == position {
            return Ok(());
        }
        self.marked[id] = position;
        if self.watched == Some((id, position)) {
            self.found = Some(replica.clone());
        }
        self.seen.credit_ran_out |= replica.frames().room() == 0;
        self.marks.note(id, position, replica.fingerprint())
    }

    /// What the device took goes on the wire.
    fn collect(&mut self, bad: &Bad) -> Result<(), Failure> {
        for (bytes, meta) in self.script.take_sent() {
            if bytes[12..14] == [0x08, 0x00] && bytes[23] == 6 {
                self.left.push((bytes.clone(), meta));
            }
            let mut bytes = bytes;
            if matches!(meta.checksum, TxChecksum::Partial { .. }) && !segment::complete(&mut bytes)
            {
                return Err(Failure::new("a partial checksum is not that of its pseudo-header".into()));
            }
            let iss = self.watch(&bytes)?;
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

    /// Looks at a frame that leaves; gives the initial sequence number of its connection.
    fn watch(&mut self, bytes: &[u8]) -> Result<Option<u32>, Failure> {
        if bytes[12..14] == [0x08, 0x06] {
            return Ok(None);
        }
        let Some(seg) = Segment::read(bytes) else {
            return Err(Failure::new(format!("a damaged frame left: {bytes:02x?}")));
        };
        let port = usize::from(seg.dst_port.wrapping_sub(FIRST_PORT));
        let Some(watch) = self.watches.get_mut(port) else {
            return Ok(None);
        };
        let syn = u32::from(seg.has(SYN));
        if seg.has(SYN) && watch.syn != Some((seg.seq, seg.src_port)) {
            *watch = Watch {
                syn: Some((seg.seq, seg.src_port)),
                ..Watch::default()
            };
        }
        let Some((iss, stack_port)) = watch.syn else {
            return Ok(None);
        };
        if seg.src_port != stack_port || seg.has(RST) {
            return Ok((seg.src_port == stack_port).then_some(iss));
        }
        let end = seg.seq.wrapping_add(seg.payload.len() as u32 + syn);
        let is_new = watch.left.is_none_or(|left| (end.wrapping_sub(left) as i32) > 0);
        if is_new {
            watch.left = Some(end);
        } else {
            self.seen.retransmission |= syn > 0 || !seg.payload.is_empty();
        }
        if !seg.has(segment::ACK) {
            return Ok(Some(iss));
        }
        self.seen.our_window_closed |= seg.wnd == 0;
        // The receive buffer is small: windows are not scaled.
        let edge = seg.ack.wrapping_add(u32::from(seg.wnd));
        let back = watch.edge.map_or(0, |known| known.wrapping_sub(edge) as i32);
        watch.edge = Some(edge);
        if back > 0 {
            return Err(Failure::new(format!(
                "the right edge of the window for port {port} moved back by {back}: {seg:?}"
            )));
        }
        Ok(Some(iss))
    }

    /// A frame reaches the stack's device.
    fn arrive(&mut self, bad: &Bad) -> bool {
        let Some(mut under_way) = self.to_stack.take(bad, &mut self.rng, &mut self.seen) else {
            return false;
        };
        let is_tcp = under_way.bytes[12..14] == [0x08, 0x00];
        let mut checksum = RxChecksum::Verify;
        if is_tcp && !under_way.damaged && self.rng.chance(self.plan.device.vouches) {
            checksum = RxChecksum::Valid;
            if self.rng.chance(500) {
                checksum = RxChecksum::Partial {
                    start: segment::LOWER as u16,
                    offset: 16,
                };
                segment::leave_partial(&mut under_way.bytes);
            }
        }
        let mut frame = Frame::from_bytes(&under_way.bytes);
        frame.meta.checksum = checksum;
        frame.meta.gso = under_way.cut.map(|size| Gso {
            kind: GsoKind::Tcp4,
            size,
            header_len: segment::LOWER as u16 + 20,
        });
        self.script.push_frame(frame);
        true
    }

    /// A frame reaches the far side.
    fn leave(&mut self, bad: &Bad) -> Result<bool, Failure> {
        let Some(frame) = self.to_peers.take(bad, &mut self.rng, &mut self.seen) else {
            return Ok(false);
        };
        if segment::asks_for_us(&frame.bytes) {
            if !frame.damaged {
                self.put(segment::arp(self.mac, true), None, bad);
            }
            return Ok(true);
        }
        let Some(seg) = Segment::read(&frame.bytes) else {
            return Ok(true);
        };
        let port = usize::from(seg.dst_port.wrapping_sub(FIRST_PORT));
        let Some(&index) = self.app.newest.get(port) else {
            return Ok(true);
        };
        let peer = &mut self.peers[index];
        if peer.irs().is_some_and(|irs| frame.iss.is_some_and(|iss| iss != irs)) {
            // Late, and of a connection that was here before: who knows only sequence numbers could not tell.
            return Ok(true);
        }
        if let Some(answer) = peer.arrive(&seg, self.now)? {
            let frame = answer.frame(self.mac);
            self.put(frame, None, bad);
        }
        Ok(true)
    }

    fn put(&mut self, bytes: Vec<u8>, cut: Option<u16>, bad: &Bad) {
        let frame = OnWire {
            bytes,
            damaged: false,
            iss: None,
            cut,
        };
        self.to_stack.put(frame, bad, &mut self.rng, &mut self.seen);
    }

    /// The far side may send: one of the peers, a stray, news of where it is, or a new connection.
    fn emit(&mut self) {
        let plan = self.plan;
        if self.rng.chance(plan.bad.strays) {
            self.stray();
        }
        let live = self.peers.iter().filter(|peer| self.is_live(peer)).count();
        if live < plan.peers.count && self.peers.len() < PEERS && self.rng.chance(200) {
            self.begin();
        }
        if !self.peers.is_empty() && self.to_stack.len() < 64 {
            let index = self.rng.index(self.peers.len());
            self.emit_from(index, &plan.bad);
        }
    }

    fn is_live(&self, peer: &Peer) -> bool {
        let over = matches!(peer.phase, Phase::Reset | Phase::Replaced)
            || peer.saw_the_end() && peer.is_content();
        let gave_up = self.app.of(peer.index).is_some_and(|connection| connection.gave_up);
        !over && !gave_up
    }

    /// Another peer, at a port of its own or at one whose connection is over.
    fn begin(&mut self) {
        let index = self.peers.len();
        let ours = self.rng.chance(self.plan.peers.opened_by_stack);
        let over = self.peers.iter().find(|peer| {
            let is_over = peer.phase == Phase::Reset || peer.phase == Phase::Open && peer.is_finished();
            is_over && self.app.of(peer.index).is_some_and(|connection| connection.is_over())
        });
        let port = match over.map(|peer| (peer.index, peer.port)) {
            Some((before, port)) if self.rng.chance(700) => {
                self.seen.reused = true;
                self.peers[before].phase = Phase::Replaced;
                self.app.newest[port] = index;
                port
            }
            _ => {
                self.watches.push(Watch::default());
                self.app.newest.push(index);
                self.watches.len() - 1
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

    fn emit_from(&mut self, index: usize, bad: &Bad) -> usize {
        let peer = &mut self.peers[index];
        let out = peer.emit(self.now, &self.plan.peers, bad.overlap, &mut self.rng, &mut self.seen);
        let count = out.len();
        let mut out = out.into_iter().peekable();
        while let Some(mut seg) = out.next() {
            let mut cut = None;
            if self.plan.device.cuts > 0 {
                // A device that cuts frames for us merges them for us as well.
                while let Some(next) = out.peek()
                    && seg.flags == segment::ACK
                    && next.flags == segment::ACK
                    && cut.unwrap_or(seg.payload.len() as u16) == next.payload.len() as u16
                    && next.seq == seg.seq.wrapping_add(seg.payload.len() as u32)
                    && seg.payload.len() < self.plan.device.cuts
                {
                    cut = Some(next.payload.len() as u16);
                    seg.payload.extend(&next.payload);
                    out.next();
                }
            }
            self.put(seg.frame(self.mac), cut, bad);
        }
        count
    }

    /// A segment of no connection, or a neighbour that moved.
    fn stray(&mut self) {
        let frame = if self.rng.chance(200) {
            self.mac[5] ^= 4;
            segment::arp(self.mac, self.rng.chance(500))
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
            seg.frame(self.mac)
        };
        self.put(frame, None, &self.plan.bad);
    }

    fn next_deadline(&mut self) -> u64 {
        let workers = self.group.workers().iter();
        let ours = workers.map(|worker| worker.next_deadline().as_nanos()).min();
        let theirs = self.peers.iter().map(Peer::next_deadline).min();
        ours.unwrap_or(u64::MAX).min(theirs.unwrap_or(u64::MAX))
    }

    fn wait(&mut self) {
        match self.rng.below(40) {
            0 => {
                let next = self.next_deadline();
                if next != u64::MAX {
                    self.now = self.now.max(next + self.rng.below(2) * self.rng.below(1_000_000));
                }
            }
            1..=4 => self.now += self.rng.below(30_000_000),
            _ => self.now += self.rng.below(500_000),
        }
    }

    // After the faults.

    /// No more faults and no new data: everything that was sent arrives.
    fn calm(&mut self) -> Result<(), Failure> {
        self.script.accept_at_most(None);
        let finishes = self.plan.app.finishes;
        self.app.stop(finishes);
        for peer in &mut self.peers {
            peer.stop(finishes);
        }
        let mut jumps = 0;
        let mut before = 0;
        loop {
            let mut done = self.app.drain(finishes)?;
            self.forget_failed();
            for index in 0..self.peers.len() {
                self.peers[index].read(u64::MAX >> 1);
                done += self.emit_from(index, &GOOD);
            }
            while self.arrive(&GOOD) {
                done += 1;
            }
            while self.leave(&GOOD)? {
                done += 1;
            }
            done += self.turns()?;
            let octets = self.octets();
            if octets != before {
                (before, jumps) = (octets, 0);
            }
            if done > 0 {
                self.now += 10_000;
                continue;
            }
            if (0..self.peers.len()).all(|index| self.is_complete(index)) {
                return Ok(());
            }
            let next = self.next_deadline();
            jumps += 1;
            if next == u64::MAX || jumps > JUMPS {
                return Err(self.incomplete());
            }
            self.now = self.now.max(next);
        }
    }

    /// A turn of every worker.
    fn turns(&mut self) -> Result<usize, Failure> {
        let mut done = 0;
        let first = self.rng.index(self.plan.replicas);
        for i in 0..self.plan.replicas {
            let id = (first + i) % self.plan.replicas;
            done += self.group.workers()[id].turn(Instant::from_nanos(self.now));
            self.mark(id)?;
        }
        self.collect(&GOOD)?;
        Ok(done)
    }

    fn octets(&self) -> u64 {
        let read: usize = self.app.connections.iter().map(|c| c.received.len()).sum();
        let got: u64 = self.peers.iter().map(Peer::received).sum();
        read as u64 + got
    }

    /// Whether everything that was sent on a connection has arrived.
    fn is_complete(&self, index: usize) -> bool {
        let peer = &self.peers[index];
        if !peer.is_open() {
            return true;
        }
        let Some(connection) = self.app.of(index) else {
            return self.app.is_connecting(index) && peer.sent() == 0;
        };
        connection.gave_up
            || connection.ended.is_none()
                && peer.is_content()
                && peer.received() == connection.written
                && peer.sent() == connection.received.len() as u64
                && (!self.plan.app.finishes || connection.eof && peer.saw_the_end())
    }

    fn incomplete(&mut self) -> Failure {
        let index = (0..self.peers.len()).find(|&index| !self.is_complete(index));
        let index = index.unwrap_or(0);
        let position = self.published();
        Failure::new(format!(
            "not everything arrives: {:?} / {:?} at {position}, now {} ns",
            self.peers[index],
            self.app.of(index),
            self.now
        ))
    }

    /// All work is done, nobody saw a disagreement, and connections ended only as somebody wanted.
    fn end(&mut self) -> Result<(), Failure> {
        while self.turns()? > 0 {}
        let end = self.published();
        for (id, worker) in self.group.workers().iter().enumerate() {
            let position = worker.replica().position();
            if position != end {
                return Err(Failure::new(format!("worker {id} stays at {position} of {end}")));
            }
            let diverged = worker.stats().diverged;
            if diverged > 0 {
                return Err(Failure::new(format!("worker {id} counts {diverged} divergences")));
            }
        }
        if let Err(mismatch) = self.group.compare() {
            return Err(Failure::new(format!("posted: {mismatch}")));
        }
        for connection in &self.app.connections {
            let peer = &self.peers[connection.peer];
            let wanted = peer.reset_by_us || connection.gave_up;
            if connection.eof && connection.received.len() as u64 != peer.sent() {
                return Err(Failure::new(format!("{connection:?} ends before {peer:?}")));
            }
            self.seen.reset |= peer.phase == Phase::Reset;
            self.seen.finished |= connection.eof && peer.saw_the_end();
            if connection.ended.is_some() && !wanted || peer.phase == Phase::Reset && !wanted {
                return Err(Failure::new(format!(
                    "nobody wanted the end of {connection:?} / {peer:?}"
                )));
            }
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        let mut group = self.group;
        let stats = group.workers().iter().map(|worker| worker.stats()).collect();
        Outcome {
            limits: group.limits(),
            left: self.left,
            app: self.app,
            marks: self.marks,
            seen: self.seen,
            stats,
        }
    }
}
