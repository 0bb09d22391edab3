//! The two pumps: roles that any thread may take for a moment, no threads of their own.
//!
//! The receive pump is the only publisher of a group's log. It samples everything that `apply` must know and
//! cannot compute: time, transmit credit, the applications' cursors, and where runs begin and end. The
//! transmit pump hands frames to the device in the order of their numbers.

mod arp;
mod datagrams;
pub(crate) mod moves;
mod network;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dominoes_drivers::split::Target;
use dominoes_drivers::{DeviceRx, DeviceTx, Frame, TxFrame};

use crate::digest::{Body, ConnId, Digest, Flow, MAX_RUN, Mac, NetworkError, Request, Shard};
use crate::engine::balance::Balance;
use crate::engine::demux::Grouping;
use crate::engine::ingress::OpenRun;
use crate::engine::neighbor::{Neighbors, WaitingOpen};
use crate::engine::record::{Entry, Recorder, Written};
use crate::engine::tx::Transmitter;
use crate::engine::world::{Answer, Command, World};
use crate::engine::{Run, Shelf};
use crate::identification::Identifications;
use crate::ip::reassembly::{Reassembly, ReassemblyLimits};
use crate::ip::route::Site;
use crate::keys::{Domain, Keys};
use crate::rate_limit::RateLimit;
use crate::seqnum::SeqNum;
use crate::shards;
use crate::stats::PumpStats;
use crate::time::Instant;
use crate::wire::{self, Malformed, Packet};
use datagrams::Datagrams;
use moves::Moves;

/// Frames that a holder of a pump takes before it lets go.
pub(crate) const BATCH: usize = 32;
/// Batches of frames that come in before any is worked on, where one worker works on all.
const HOLDS: usize = 4;
/// Segments that come together though each is a request of its own: as many as a verdict has bits.
const MOST_APART: usize = 16;
/// How long a thread sleeps before it looks again at a device that is gone, or offers frames again to one that is down: most
/// devices do not tell when they come back.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(10);
/// Places of the log that frames leave free, for time, credit and applications.
pub(crate) const RESERVED: usize = 4;

/// Where requests go: into a log, or straight to the state.
pub(crate) trait Log {
    /// How many requests may be published now.
    fn room(&mut self) -> usize;
    /// Publishes a request with the frames behind it, and its verdict if that is known already. Needs room.
    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run);
    /// Whether runs may be published of which each segment is a request of its own.
    fn takes_apart(&self) -> bool {
        false
    }
    /// As [`Log::publish`], of such a run. Needs [`Log::takes_apart`], or the segments stay together.
    fn publish_apart(&mut self, request: &Request, verdict: Option<u16>, run: Run) {
        self.publish(request, verdict, run);
    }
    /// How many requests are missing before the frames of all that were published can come back.
    fn gap(&self) -> usize {
        0
    }
    /// Hands out the runs that nobody needs any more.
    fn reclaim(&mut self, each: &mut dyn FnMut(Run));
    /// How many requests have been published.
    fn published(&self) -> u64;
    /// All effects of requests below this position have been performed.
    fn performed(&self) -> u64;
}

/// The receive pump.
pub(crate) struct RxPump {
    world: Arc<World>,
    rx: Box<dyn DeviceRx>,
    site: Site,
    secret: [u64; 2],
    configured: bool,
    /// Whether segments may be merged into runs.
    pub(crate) merge: bool,
    /// Whether they come together where they may not be, and are taken apart behind the pump.
    apart: bool,
    /// Whether our address is announced.
    pub(crate) announce: bool,
    /// Which of the stack's groups this pump belongs to, and how connections spread over them.
    shard: Shard,
    grouping: Grouping,
    moves: Moves,
    /// Whether connections go to groups that are less busy, and which.
    pub(crate) balance: Option<Balance>,
    /// Whether payload may be stored while it is verified. Always or never: of what is published otherwise nothing
    /// is known.
    pub(crate) stores_ahead: bool,
    /// Where frames are claimed into; empty between turns.
    batch: Vec<Frame>,
    /// What the holder brought along.
    pub(crate) shelf: Shelf,
    /// Frames that the device has not got back, and how many of them are many.
    held: usize,
    pub(crate) held_many: usize,
    open: OpenRun,
    datagrams: Datagrams,
    hints: HashMap<Flow, ConnId>,
    last_hint: Option<(Flow, ConnId)>,
    /// Connections whose end was told before their beginning.
    over: HashSet<ConnId>,
    neighbors: Neighbors,
    claim: arp::Claim,
    /// Fragments that are not whole yet.
    reassembly: Reassembly,
    /// How often errors are reported.
    reports: RateLimit,
    /// Identifications of packets that are not numbered.
    idents: Identifications,
    /// Opens whose next hop is known and that wait for room in the log.
    opens: VecDeque<(WaitingOpen, Mac)>,
    /// Retired connections, with how much must have been performed before their place is free.
    closing: VecDeque<(u64, ConnId)>,
    /// Frames that must have been sent before the first of them is free, once that is known.
    numbered: Option<u64>,
    /// Retired connections whose socket is still there.
    lingering: HashSet<ConnId>,
    /// Time as last published.
    told: Instant,
    /// Credit as last published.
    sent: u64,
    /// How much each place's application had written when last published, for the recorder.
    recorded: HashMap<ConnId, u64>,
    recorder: Option<Recorder>,
    /// Octets of text that came in segments.
    pub(crate) received: u64,
    pub(crate) stats: PumpStats,
}

impl RxPump {
    pub(crate) fn new(
        world: Arc<World>,
        rx: Box<dyn DeviceRx>,
        site: Site,
        secret: [u64; 2],
        reassembly: ReassemblyLimits,
        recorder: Option<Recorder>,
    ) -> Self {
        let keys = Keys::new(secret);
        RxPump {
            world,
            rx,
            site,
            reassembly: Reassembly::new(reassembly),
            reports: RateLimit::new(&keys, Domain::ErrorLimit),
            idents: Identifications::default(),
            secret,
            configured: false,
            merge: true,
            apart: false,
            announce: false,
            shard: Shard::ONLY,
            grouping: Grouping::new(&keys, 1),
            moves: Moves::default(),
            balance: None,
            stores_ahead: false,
            batch: Vec::with_capacity(BATCH),
            shelf: Shelf::default(),
            held: 0,
            held_many: usize::MAX,
            open: OpenRun::default(),
            datagrams: Datagrams::default(),
            hints: HashMap::new(),
            last_hint: None,
            over: HashSet::new(),
            neighbors: Neighbors::default(),
            claim: arp::Claim::default(),
            opens: VecDeque::new(),
            closing: VecDeque::new(),
            numbered: None,
            lingering: HashSet::new(),
            told: Instant::ZERO,
            sent: 0,
            recorded: HashMap::new(),
            recorder,
            received: 0,
            stats: PumpStats::default(),
        }
    }

    /// It belongs to one of several groups. What reaches all of them is answered by the first alone.
    pub(crate) fn belong_to(&mut self, shard: Shard) {
        self.shard = shard;
        let keys = Keys::new(self.secret);
        self.grouping = Grouping::new(&keys, shard.of);
        // Beside the group's sockets, and beside other groups.
        self.idents = Identifications::new(&keys, 2 * shard.index + 1, 2 * shard.of);
        self.announce &= shard.is_first();
    }

    /// Whether a frame that was put together here is for this group: nobody could tell before.
    fn is_home_of(&self, frame: &Frame) -> bool {
        match shards::target(&self.grouping, &self.world.front.moved, frame.bytes()) {
            Target::One(index) => index == usize::from(self.shard.index),
            Target::All => true,
        }
    }

    /// One turn: news from applications, at most [`BATCH`] frames, and time or credit if nothing else told
    /// them. `deadline` is when the state wants to hear of time. Returns how much was done.
    pub(crate) fn turn(&mut self, now: Instant, deadline: Instant, log: &mut impl Log) -> usize {
        if let Some(balance) = &mut self.balance {
            balance.turn(now, &self.world.front.loads);
        }
        log.reclaim(&mut |run| self.shelf.put(run));
        self.give_back();
        if !self.configured {
            if log.room() == 0 {
                return 0;
            }
            let body = Body::Configure {
                address: self.site.address,
                shard: self.shard,
                secret: self.secret,
            };
            self.publish_command(now, body, log);
            self.configured = true;
            self.claim.begin(now);
        }
        self.take_hints();
        // Every request tells the time. Where that makes a deadline due, what the device has comes first: an acknowledgment
        // may have waited there for as long as this machine stood still.
        let mut done = if self.is_untold(deadline, now) {
            self.late_frames(now, log)
        } else {
            0
        };
        done += self.news(now, log);
        let (frames, device_empty) = self.frames(now, log);
        done += frames;
        if device_empty && done == 0 {
            done += self.tick(now, deadline, log);
            if done == 0 && self.held >= self.held_many {
                done += self.fill_up(now, log);
            }
        }
        if let Some(balance) = &mut self.balance
            && done > 0
        {
            balance.worked();
        }
        done
    }

    /// As many turns as there are full batches for, [`HOLDS`] at most. Returns how much was done.
    pub(crate) fn turns(&mut self, now: Instant, deadline: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        for _ in 0..HOLDS {
            let now_done = self.turn(now, deadline, log);
            done += now_done;
            if now_done < BATCH {
                break;
            }
        }
        done
    }

    /// Gives frames back to the device that nobody needs any more.
    fn give_back(&mut self) {
        while !self.world.returned.is_empty()
            && let Some(frame) = self.world.returned.pop()
        {
            self.shelf.frames.push(frame);
        }
        if !self.shelf.frames.is_empty() {
            // Some may be of another origin, such as packets that were put together.
            self.held = self.held.saturating_sub(self.shelf.frames.len());
            self.rx.release(&mut self.shelf.frames);
        }
    }

    /// Nothing comes in, perhaps since the device has nothing left to receive into: frames come back by chunks of the
    /// log, and the last one is not full. Fills it up with requests that say nothing.
    #[cold]
    pub(crate) fn fill_up(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let gap = log.gap();
        if log.room() < gap {
            return 0;
        }
        let tick = Request::tick(now, self.sample_sent());
        for _ in 0..gap {
            self.publish(&tick, None, Run::default(), log);
        }
        gap
    }

    /// Whether `deadline` is due, and nothing published tells so. One that was told already is due only because this
    /// worker's replica is behind.
    fn is_untold(&self, deadline: Instant, now: Instant) -> bool {
        deadline <= now && self.told < deadline
    }

    /// Publishes time if it is due, or credit if it grew, when there was nothing else to carry them.
    fn tick(&mut self, now: Instant, deadline: Instant, log: &mut impl Log) -> usize {
        let sent = self.world.tx.sent();
        let due = self.is_untold(deadline, now);
        if (due || sent > self.sent) && log.room() > 0 {
            self.sent = sent;
            self.publish(&Request::tick(now, sent), None, Run::default(), log);
            return 1;
        }
        0
    }

    fn publish_command(&mut self, now: Instant, body: Body, log: &mut impl Log) {
        let sent = self.sample_sent();
        let request = Request::command(now, sent, body);
        self.publish(&request, None, Run::default(), log);
    }

    fn sample_sent(&mut self) -> u64 {
        self.sent = self.world.tx.sent();
        self.sent
    }

    fn publish(&mut self, request: &Request, verdict: Option<u16>, run: Run, log: &mut impl Log) {
        self.stats.requests += 1;
        self.told = request.digest.now;
        if self.recorder.is_some() {
            self.record(request, verdict, &run);
        }
        log.publish(request, verdict, run);
    }

    fn record(&mut self, request: &Request, verdict: Option<u16>, run: &Run) {
        let written = match request.body {
            Body::Progress {
                conn, app_written, ..
            } => Some((conn, app_written)),
            Body::Sends { .. } => return self.record_sends(request),
            Body::Segment { .. } if request.digest.bits & Digest::PROGRESS != 0 => {
                let conn = request.digest.hint;
                let known = self.recorded.get(&conn).copied().unwrap_or(0);
                let grown = request.digest.app_written.wrapping_sub(known as u32);
                Some((conn, known + u64::from(grown)))
            }
            _ => None,
        };
        let written = written.and_then(|(conn, to)| {
            let known = self.recorded.entry(conn).or_insert(0);
            let stream = self.world.streams.get(conn)?;
            if to <= *known {
                return None;
            }
            let (a, b) = stream.recorded(*known, to);
            let written = Written {
                conn,
                offset: *known,
                bytes: [a, b].concat(),
            };
            *known = to;
            Some(written)
        });
        let frames = run.frames.iter().map(|f| f.bytes().to_vec()).collect();
        let entry = Entry {
            request: *request,
            verdict,
            frames,
            written,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&entry);
        }
    }

    // News from applications and from primaries.

    fn take_hints(&mut self) {
        while !self.world.hints.is_empty()
            && let Some(news) = self.world.hints.pop()
        {
            // Two primaries may tell of the beginning and the end of a connection in any order.
            if news.open {
                if !self.over.remove(&news.conn) {
                    self.hints.insert(news.flow, news.conn);
                }
            } else if self.hints.get(&news.flow) == Some(&news.conn) {
                self.hints.remove(&news.flow);
            } else {
                self.over.insert(news.conn);
            }
            self.last_hint = None;
        }
    }

    fn news(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        self.give_up_fragments(now);
        self.announce_if_due(now);
        for overdue in self.overdue(now) {
            self.world.answer(overdue.ticket, Answer::Unreachable);
            done += 1;
        }
        while log.room() > 0 {
            let Some((open, mac)) = self.opens.pop_front() else {
                break;
            };
            self.publish_open(now, open, mac, log);
            done += 1;
        }
        // To look whether there is something costs less than to take nothing.
        while !self.world.commands.is_empty() && log.room() > 0 {
            let Some(command) = self.world.commands.pop() else {
                break;
            };
            self.command(now, command, log);
            done += 1;
        }
        for _ in 0..BATCH {
            let door = &self.world.door;
            let is_quiet = door.dirty.is_empty() && door.late.is_empty();
            // Settings and progress of a connection are two requests.
            if is_quiet || log.room() < 2 {
                break;
            }
            let Some(conn) = door.dirty.pop().or_else(|| door.late.pop()) else {
                break;
            };
            self.progress(now, conn, log);
            done += 1;
        }
        done += self.socket_news(now, log);
        done += self.moves(now, log);
        done + self.burials(now, log)
    }

    fn overdue(&mut self, now: Instant) -> Vec<WaitingOpen> {
        if self.neighbors.next_deadline() > now {
            return Vec::new();
        }
        let overdue = self.neighbors.on_time(now);
        self.stats.unresolved += overdue.dropped;
        for address in overdue.ask {
            self.ask(address);
        }
        for (address, mac) in overdue.poll {
            let mut frame = wire::arp_frame(self.world.mac, self.site.address, None, address);
            wire::set_link_dst(&mut frame, mac.0);
            self.control(frame);
        }
        overdue.failed
    }

    fn ask(&mut self, address: Ipv4Addr) {
        let frame = wire::arp_frame(self.world.mac, self.site.address, None, address);
        self.control(frame);
    }

    fn control(&mut self, frame: Vec<u8>) {
        if self.world.control.push(frame).is_err() {
            self.stats.control_dropped += 1;
        }
    }

    fn command(&mut self, now: Instant, command: Command, log: &mut impl Log) {
        let body = match command {
            Command::Open { ticket, remote } => {
                return self.resolve(now, WaitingOpen { ticket, remote }, log);
            }
            Command::Listen { port, backlog } => Body::Listen { port, backlog },
            Command::Accepted { port, accepted } => Body::Accepted { port, accepted },
            Command::Unlisten { port } => Body::Unlisten { port },
            Command::Bind { socket, port } => return self.bind(now, socket, port, log),
            Command::Connect { socket, remote } => return self.connect(socket, remote),
            Command::Unbind { socket } => return self.unbind(socket),
        };
        self.publish_command(now, body, log);
    }

    fn resolve(&mut self, now: Instant, open: WaitingOpen, log: &mut impl Log) {
        let Some(next_hop) = self.site.next_hop(*open.remote.ip()) else {
            self.world.answer(open.ticket, Answer::Unreachable);
            return;
        };
        if let Some(mac) = self.neighbors.lookup(next_hop, now) {
            return self.publish_open(now, open, mac, log);
        }
        match self.neighbors.wait_for(next_hop, open, now) {
            Ok(true) => self.ask(next_hop),
            Ok(false) => {}
            Err(open) => self.world.answer(open.ticket, Answer::NoRoom),
        }
    }

    fn publish_open(&mut self, now: Instant, open: WaitingOpen, mac: Mac, log: &mut impl Log) {
        let WaitingOpen { ticket, remote } = open;
        let body = Body::Open {
            ticket,
            remote,
            mac,
            port: 0,
        };
        self.publish_command(now, body, log);
    }

    /// The application of `conn` has news. On the way from group to group, it is looked for at the end.
    fn progress(&mut self, now: Instant, conn: ConnId, log: &mut impl Log) {
        if !self.moves.has(conn) {
            self.look_at(now, conn, log);
        }
    }

    fn look_at(&mut self, now: Instant, conn: ConnId, log: &mut impl Log) {
        let Some(stream) = self.world.streams.get(conn) else {
            return;
        };
        let (app_read, app_written, asked) = stream.progress();
        if self.lingering.contains(&conn) {
            if asked.orphan {
                self.lingering.remove(&conn);
                self.free(now, conn, log);
            }
            return;
        }
        if asked.set {
            let settings = stream.settings();
            self.publish_command(now, Body::Set { conn, settings }, log);
        }
        let body = if asked.abort {
            Body::Abort { conn }
        } else {
            Body::Progress {
                conn,
                app_read,
                app_written,
                shutdown: asked.shutdown,
                orphan: asked.orphan,
            }
        };
        self.publish_command(now, body, log);
    }

    /// Closed connections whose work is done give their places back, as soon as their sockets are gone.
    fn burials(&mut self, now: Instant, log: &mut impl Log) -> usize {
        while !self.world.retired.is_empty()
            && let Some(conn) = self.world.retired.pop()
        {
            self.closing.push_back((log.published(), conn));
        }
        let mut done = 0;
        while let Some(&(position, conn)) = self.closing.front() {
            if position > log.performed() || log.room() == 0 {
                break;
            }
            // All its frames are built by now. Some may wait for the device, with octets in its send ring.
            let numbered = self.numbered.get_or_insert_with(|| self.world.tx.claimed());
            if self.world.tx.sent() < *numbered {
                break;
            }
            self.numbered = None;
            self.closing.pop_front();
            self.guest_is_gone(conn);
            if let Some(stream) = self.world.streams.get(conn) {
                stream.left();
                if stream.is_orphan() {
                    self.free(now, conn, log);
                } else {
                    self.lingering.insert(conn);
                }
            }
            done += 1;
        }
        done
    }

    fn free(&mut self, now: Instant, conn: ConnId, log: &mut impl Log) {
        self.recorded.remove(&conn);
        self.over.remove(&conn);
        self.world.streams.recycle(conn);
        self.publish_command(now, Body::Free { conn }, log);
    }

    // Frames.

    /// As [`frames`](Self::frames), before anything else.
    #[cold]
    #[inline(never)]
    fn late_frames(&mut self, now: Instant, log: &mut impl Log) -> usize {
        self.frames(now, log).0
    }

    /// Publishes what came in. Returns how many frames were handled, and whether the device had no more.
    fn frames(&mut self, now: Instant, log: &mut impl Log) -> (usize, bool) {
        // Every frame may need a place, and so may the runs before it, of segments and of datagrams. What finds none
        // stays in the device.
        let room = log.room().saturating_sub(RESERVED + 2).min(BATCH);
        if room == 0 {
            self.stats.log_full += 1;
            return (0, false);
        }
        // What must not be merged may come together nevertheless, where it is taken apart again.
        self.apart = !self.merge && log.takes_apart() && self.recorder.is_none();
        self.open.most = if self.apart { MOST_APART } else { MAX_RUN };
        let together = self.merge || self.apart;
        let mut batch = core::mem::take(&mut self.batch);
        let claimed = match self.rx.claim(room, &mut batch) {
            Ok(claimed) => claimed,
            Err(error) => {
                self.world.device_failed(error);
                0
            }
        };
        self.stats.frames += claimed as u64;
        self.held += claimed;
        let mut frames = batch.drain(..);
        loop {
            let done_with = &mut self.shelf.frames;
            self.stats.segments += self.open.follow(&mut frames, done_with) as u64;
            let Some(frame) = frames.next() else { break };
            let Some(what) = self.open.repeated_by(&frame) else {
                self.frame(now, frame, log);
                continue;
            };
            if self.merge {
                self.open.note_followed();
            }
            self.close_run(now, log);
            let done_with = &mut self.shelf.frames;
            self.open.repeat(frame, what, together, done_with);
            self.stats.segments += 1;
        }
        drop(frames);
        self.batch = batch;
        self.close_run(now, log);
        self.close_datagrams(now, log);
        (claimed, claimed == 0)
    }

    fn frame(&mut self, now: Instant, frame: Frame, log: &mut impl Log) {
        let bytes = frame.bytes();
        let Some((src, dst)) = wire::link(bytes) else {
            self.stats.malformed += 1;
            return self.shelf.frames.push(frame);
        };
        let broadcast = dst == [0xff; 6];
        if dst != self.world.mac && !broadcast {
            self.stats.not_ours += 1;
            return self.shelf.frames.push(frame);
        }
        if src[0] & 1 != 0 || wire::ends(bytes).is_some_and(|ends| self.site.is_martian(ends)) {
            self.stats.martians += 1;
            return self.shelf.frames.push(frame);
        }
        match wire::parse(bytes) {
            Ok(Packet::Tcp(tcp)) if tcp.dst == self.site.address && !broadcast => {
                return self.segment(now, &tcp, src, frame, log);
            }
            Ok(Packet::TcpError(error)) if error.dst == self.site.address && !broadcast => {
                self.network_error(now, &error, log);
            }
            Ok(Packet::Arp(arp)) => self.arp(now, &arp, log),
            Ok(Packet::Udp(udp)) => return self.datagram(now, &udp, broadcast, frame, log),
            Ok(packet) => return self.packet(now, &packet, broadcast, frame, log),
            Err(Malformed::Truncated | Malformed::IpChecksum | Malformed::Options) => {
                self.stats.malformed += 1;
            }
        }
        self.shelf.frames.push(frame);
    }

    /// An ICMP error about a segment of ours (RFC 1122 sections 3.2.2 and 4.2.3.9). Source quench is ignored (RFC 6633).
    fn network_error(&mut self, now: Instant, error: &wire::TcpError, log: &mut impl Log) {
        self.stats.network_errors += 1;
        let what = match error.numbers {
            [3, 2 | 3] => NetworkError::Refused,
            [3, 4] => NetworkError::TooBig { mtu: error.mtu },
            [3, 9 | 10 | 13] => NetworkError::Prohibited,
            [3 | 11 | 12, _] => NetworkError::Unreachable,
            _ => return,
        };
        if *error.local.ip() != self.site.address {
            return;
        }
        let body = Body::NetworkError {
            flow: Flow {
                local: error.local,
                remote: error.remote,
            },
            seq: SeqNum(error.seq),
            what,
        };
        if !self.divert_error(Request::command(now, self.sent, body)) {
            self.publish_command(now, body, log);
        }
    }

    fn segment(
        &mut self,
        now: Instant,
        tcp: &wire::Tcp,
        src: [u8; 6],
        frame: Frame,
        log: &mut impl Log,
    ) {
        self.stats.segments += 1;
        let together = self.merge || self.apart;
        let pushed = self.open.push(tcp, src, frame, together).or_else(|frame| {
            self.close_run(now, log);
            // An empty run takes any segment.
            self.open.push(tcp, src, frame, together)
        });
        if let Ok(Some(frame)) | Err(frame) = pushed {
            self.shelf.frames.push(frame);
        }
    }

    fn close_run(&mut self, now: Instant, log: &mut impl Log) {
        let shelf = &mut self.shelf;
        let spare = || shelf.runs.pop().unwrap_or_default();
        let Some((mut run, verdict)) = self.open.take(spare) else {
            return;
        };
        let requests = if self.apart {
            u64::from(self.open.request.digest.count)
        } else {
            1
        };
        self.stats.runs += requests;
        let flow = self.open.flow;
        let hint = self.hint(flow);
        if hint == ConnId::NONE && self.shard.of > 1 && self.is_elsewhere(&flow) {
            return self.divert(now, verdict, run, log);
        }
        let sent = self.sample_sent();
        let ahead = self.stores_ahead.then_some(verdict.is_none());
        let digest = &mut self.open.request.digest;
        (digest.now, digest.sent, digest.hint) = (now, sent, hint);
        self.received += u64::from(digest.len);
        sample_cursors(&self.world, digest, ahead, &mut run);
        self.stats.requests += requests;
        self.told = now;
        if self.recorder.is_some() {
            let request = self.open.request;
            self.record(&request, verdict, &run);
        }
        if self.apart {
            log.publish_apart(&self.open.request, verdict, run);
        } else {
            log.publish(&self.open.request, verdict, run);
        }
    }

    fn hint(&mut self, flow: Flow) -> ConnId {
        if let Some((last, conn)) = self.last_hint
            && last == flow
        {
            return conn;
        }
        let Some(&conn) = self.hints.get(&flow) else {
            return ConnId::NONE;
        };
        self.last_hint = Some((flow, conn));
        conn
    }

    /// When this pump has something to do for time alone.
    pub(crate) fn next_deadline(&self) -> Instant {
        let fragments = self.reassembly.next_deadline();
        let announcement = self.claim.next_announcement();
        self.neighbors
            .next_deadline()
            .min(fragments)
            .min(announcement)
    }

    /// Whether there is something to do without waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.configured
            || !self.opens.is_empty()
            // Those wait for work that others do at this moment, and for frames that the device takes.
            || !self.closing.is_empty() && !self.world.is_refused()
            || self.datagrams.has_work()
            || self.moves.has_work()
            || self.world.has_news()
            || self.world.tx.sent() > self.sent
    }

    /// Gives frames back to the device.
    pub(crate) fn put_back(&mut self, frames: &mut Vec<Frame>) {
        self.held = self.held.saturating_sub(frames.len());
        self.rx.release(frames);
    }

    /// Sleeps in the device until a frame comes, somebody wakes it, or `timeout` is over.
    pub(crate) fn wait(&mut self, timeout: Option<std::time::Duration>) {
        if let Some(balance) = &self.balance {
            balance.sleeps(&self.world.front.loads);
        }
        if let Err(error) = self.rx.wait(timeout) {
            let is_gone = !error.is_temporary();
            self.world.device_failed(error);
            if is_gone {
                // It never waits again.
                std::thread::sleep(timeout.map_or(LOOK_AGAIN, |timeout| timeout.min(LOOK_AGAIN)));
            }
        }
    }

    /// The recording so far, which ends with this.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }
}

/// Adds to the digest of `run` what the application of the connection that it hints at has read and written. If payload may be
/// stored `ahead`, while it is verified, its own gets a place for that if there is one, and if it is still to be verified.
#[inline(always)]
fn sample_cursors(world: &World, digest: &mut Digest, ahead: Option<bool>, run: &mut Run) {
    if let Some(stream) = world.streams.get(digest.hint) {
        let (app_read, app_written) = stream.cursors();
        digest.app_read = app_read as u32;
        digest.app_written = app_written as u32;
        digest.bits |= Digest::PROGRESS;
        if let Some(is_unverified) = ahead
            && digest.len > 0
        {
            let place = stream.reserve(digest.seg_seq, digest.len, app_read);
            run.place = place.filter(|_| is_unverified);
        }
    }
}

/// The transmit pump.
pub(crate) struct TxPump {
    world: Arc<World>,
    tx: Box<dyn DeviceTx>,
    pub(crate) transmitter: Transmitter,
    /// A control frame that the device was too busy for.
    held: Option<Vec<u8>>,
}

impl TxPump {
    pub(crate) fn new(world: Arc<World>, tx: Box<dyn DeviceTx>, transmitter: Transmitter) -> Self {
        TxPump {
            world,
            tx,
            transmitter,
            held: None,
        }
    }

    /// Sends at most [`BATCH`] frames. Returns how many the device took.
    pub(crate) fn turn(&mut self) -> usize {
        self.send::<BATCH>(u64::MAX)
    }

    /// The same, of numbered frames only those below `below`.
    pub(crate) fn turn_below(&mut self, below: u64) -> usize {
        self.send::<BATCH>(below)
    }

    /// Sends one frame, for those who drive the stack step by step.
    pub(crate) fn step(&mut self) -> usize {
        self.send::<1>(u64::MAX)
    }

    fn send<const MAX: usize>(&mut self, below: u64) -> usize {
        let mut done = self.control();
        let mut frames = ArrayVec::<_, MAX>::new();
        self.transmitter.ready(below, &mut frames);
        if frames.is_empty() {
            drop(frames);
            return done + self.send_past_hole::<MAX>();
        }
        let taken = self.tx.transmit(&frames);
        drop(frames);
        self.world.note_refusal(taken.is_err());
        match taken {
            Ok(taken) => {
                self.transmitter.advance(taken);
                done += taken;
            }
            Err(error) => self.world.device_failed(error),
        }
        done
    }

    /// The first unsent frame is not ready. Sends others if it has been waited for long enough.
    fn send_past_hole<const MAX: usize>(&mut self) -> usize {
        if !self.transmitter.look_behind() {
            return 0;
        }
        let mut frames = ArrayVec::<_, MAX>::new();
        let picked = self.transmitter.ready_behind(&mut frames);
        if frames.is_empty() {
            return 0;
        }
        let taken = self.tx.transmit(&frames);
        drop(frames);
        match taken {
            Ok(taken) => {
                self.transmitter.pass(&picked[..taken]);
                taken
            }
            Err(error) => {
                self.world.device_failed(error);
                0
            }
        }
    }

    fn control(&mut self) -> usize {
        let mut done = 0;
        if self.held.is_none() && self.world.control.is_empty() {
            return done;
        }
        while let Some(frame) = self.held.take().or_else(|| self.world.control.pop()) {
            let taken = self.tx.transmit(&[TxFrame::new(&frame)]);
            self.world.note_refusal(taken.is_err());
            match taken {
                Ok(0) => {
                    self.held = Some(frame);
                    break;
                }
                Ok(_) => {
                    self.transmitter.note_unnumbered();
                    done += 1;
                }
                Err(error) => {
                    self.world.device_failed(error);
                    break;
                }
            }
        }
        done
    }

    /// Whether a frame waits to be sent, and the device may take it.
    pub(crate) fn has_work(&self) -> bool {
        self.any_waits() && !self.world.is_refused()
    }

    /// How long to sleep at most, if a frame waits for a device that is down or gone.
    pub(crate) fn next_try(&self) -> Option<std::time::Duration> {
        (self.any_waits() && self.world.is_refused()).then_some(LOOK_AGAIN)
    }

    fn any_waits(&self) -> bool {
        self.transmitter.any_ready() || self.held.is_some() || !self.world.control.is_empty()
    }
}
