//! The receive pump. It is not a thread: any worker may take it for a moment.
//!
//! It is the only publisher of a group's log. It samples everything that `apply` must know and
//! cannot compute: time, transmit credit, and the applications' cursors. It receives parsed runs of
//! segments. It handles datagrams and commands itself; the [`IpHost`] handles everything else that
//! arrives. The transmit pump is [`TxPump`](crate::io::tx::TxPump).

pub(crate) mod addresses;
mod commands;
mod connections;
mod datagrams;
mod echo;
mod host;
mod idle;
mod loopback;
mod paths;
mod receiver;
mod unanswered;

use std::collections::HashMap;
use std::sync::Arc;

use dominoes_drivers::Frame;
use dominoes_drivers::split::Target;

use crate::groups::classify;
use crate::host::{IpHost, IpHostConfig};
use crate::io::control::ControlWait;
use crate::io::gro::{Found, OpenRun, Parser};
use crate::io::record::{Entry, Recorder, Written};
use crate::io::world::World;
use crate::io::{Batch, FrameRecycler, Run};
use crate::ip::identification::Identifications;
use crate::ip::neighbor::WaitingOpen;
use crate::ip::rate_limit::Rate;
use crate::ip::reassembly::ReassemblyLimits;
use crate::ip::route::Site;
use crate::keys::Keys;
use crate::log::request::{Body, ConnId, Digest, Flow, GroupIndex, NetworkError, Request, Verdict};
use crate::packet as wire;
use crate::packet::{Malformed, Packet};
use crate::seqnum::SeqNum;
use crate::state::demux::Grouping;
use crate::stats::PumpStats;
use crate::time::Instant;
use commands::{ROOM_OF_CHANGE, UNREACHABLE};
use connections::Connections;
use datagrams::Datagrams;
use echo::Echoes;
use loopback::Loopback;
pub(crate) use receiver::Receiver;

/// The most frames that a thread handles with a pump before it releases the pump.
pub(crate) const BATCH: usize = 32;
/// Places of the log that frames leave free for time, credit and applications.
pub(crate) const RESERVED: usize = 4;
/// Frames without a request that are taken before the time, once it is due: as many as a device may
/// have gathered while this machine stood still.
const MAX_LATE_FRAMES: usize = 4096;

/// The destination of requests: a log, or the state itself.
pub(crate) trait Log {
    /// How many requests may be published now.
    fn room(&mut self) -> usize;
    /// Publishes a request with its frames, and with its verdict if that is known already. Requires
    /// room.
    fn publish(&mut self, request: &Request, verdict: Option<Verdict>, run: Run);
    /// How many further requests are needed before the frames of all published requests can be
    /// returned.
    fn gap(&self) -> usize {
        0
    }
    /// The requests that follow come from a batch that this worker parsed, if any.
    fn set_parser(&mut self, _: Option<u8>) {}
    /// Passes the runs that are no longer needed to `each`.
    fn reclaim(&mut self, each: &mut dyn FnMut(Run));
    /// How many requests have been published.
    fn published(&self) -> u64;
    /// The position below which all effects have been performed.
    fn performed(&self) -> u64;
}

/// The batches that a receive pump publishes.
pub(crate) trait Batches {
    /// Publishes what batches hold, as far as the log has room. Returns how many frames were
    /// handled, and whether the device has no more.
    fn publish(&mut self, pump: &mut RxPump, now: Instant, log: &mut impl Log) -> (usize, bool);
    /// Whether so many frames are held that the device may have none left.
    fn hold_many(&self) -> bool;
}

/// The receive pump.
pub(crate) struct RxPump {
    world: Arc<World>,
    /// The IP host below TCP: neighbours, addresses, errors.
    host: IpHost,
    secret: [u64; 2],
    configured: bool,
    /// The group of this pump, and the hash that maps flows to groups.
    group: GroupIndex,
    grouping: Grouping,
    /// Whether payload may be stored while it is verified. This must not change: the pump knows
    /// nothing of payload that was published otherwise.
    pub(crate) stores_ahead: bool,
    /// Frames that are no longer needed, which the current holder of the pump brought along.
    pub(crate) recycler: FrameRecycler,
    /// Parses datagrams that are reassembled, and all batches where one thread takes every step.
    parser: Parser,
    loopback: Loopback,
    /// Frames of a batch that are no segments for us; empty between batches.
    others: Vec<u8>,
    datagrams: Datagrams,
    echoes: Echoes,
    connections: Connections,
    control_wait: ControlWait,
    /// When something is due on the link, or for connections that follow it.
    v6_due: Instant,
    /// What was last published besides requests' own content.
    published: Published,
    recording: Recording,
    /// Payload bytes received in segments.
    pub(crate) received: u64,
    pub(crate) stats: PumpStats,
}

/// What requests carry besides what they are about, as it was last published.
#[derive(Default)]
struct Published {
    time: Instant,
    /// The transmit credit.
    sent: u64,
    /// The number of requests when the time was due, and how many frames came since without one.
    late: (u64, usize),
}

/// What the recorder knows, if there is one.
struct Recording {
    recorder: Option<Recorder>,
    /// For each connection, how many written bytes were published.
    written: HashMap<ConnId, u64>,
}

/// Whatever runs the stack is gone: nothing that was asked of it will be done any more.
impl Drop for RxPump {
    fn drop(&mut self) {
        self.world.shut_down();
    }
}

impl RxPump {
    pub(crate) fn new(
        world: Arc<World>,
        site: Site,
        secret: [u64; 2],
        reassembly: ReassemblyLimits,
        recorder: Option<Recorder>,
    ) -> Self {
        let keys = Keys::new(secret);
        let limits = &world.limits;
        let host = IpHost::new(IpHostConfig {
            mac: world.mac,
            site,
            keys: world.keys,
            mtu: limits.mtu,
            error_rate: Rate {
                total: limits.errors_per_second,
                per_destination: limits.errors_per_destination,
            },
            reassembly,
            send_buffer: limits.udp_send_buffer as usize,
        });
        RxPump {
            world,
            host,
            secret,
            configured: false,
            group: GroupIndex::ONLY,
            grouping: Grouping::new(&keys, 1),
            stores_ahead: false,
            recycler: FrameRecycler::default(),
            parser: Parser::new(),
            loopback: Loopback::default(),
            others: Vec::new(),
            datagrams: Datagrams::default(),
            echoes: Echoes::default(),
            connections: Connections::default(),
            control_wait: ControlWait::default(),
            v6_due: Instant::NEVER,
            published: Published::default(),
            recording: Recording {
                recorder,
                written: HashMap::new(),
            },
            received: 0,
            stats: PumpStats::default(),
        }
    }

    /// Makes the pump one of several groups. Only the first group answers frames that reach all of
    /// them.
    pub(crate) fn join_groups(&mut self, group: GroupIndex) {
        self.group = group;
        let keys = Keys::new(self.secret);
        self.grouping = Grouping::new(&keys, group.count);
        // The group's sockets and the other groups use other identifications.
        let idents = Identifications::new(&keys, 2 * group.index + 1, 2 * group.count);
        self.host.share(group.is_first(), idents);
    }

    /// Whether this flow is this group's.
    pub(crate) fn has_flow(&self, flow: &Flow) -> bool {
        self.group.count == 1 || self.grouping.group(flow) == self.group.index
    }

    /// Whether a reassembled datagram is for this group; its fragments did not show that.
    fn is_for_this_group(&self, frame: &Frame) -> bool {
        match classify::target(&self.grouping, frame.bytes()) {
            Target::One(index) => index == usize::from(self.group.index),
            Target::All => true,
        }
    }

    /// One turn: updates from applications, what `batches` hold, and time or credit if no request
    /// has carried them. `deadline` is the time at which the state wants a request. Returns how
    /// much was done.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        deadline: Instant,
        batches: &mut impl Batches,
        log: &mut impl Log,
    ) -> usize {
        log.reclaim(&mut |run| self.recycler.put(run));
        if !self.configured {
            if log.room() == 0 {
                return 0;
            }
            let body = Body::Configure {
                group: self.group,
                secret: self.secret,
            };
            self.publish_command(now, body, log);
            self.configured = true;
            self.host.announce_again(now);
        }
        self.take_hints(now);
        // Every request carries the time. If that makes a deadline due, frames are received first:
        // an acknowledgment may have waited in the device for as long as this machine stood still.
        let mut done = 0;
        if self.is_time_due(deadline, now) {
            let (frames, device_empty) = self.late_frames(now, deadline, batches, log);
            if frames == 0 && !device_empty {
                return 0;
            }
            done = frames;
        }
        done += self.poll_queues(now, log);
        let (frames, device_empty) = batches.publish(self, now, log);
        done += frames;
        if device_empty && done == 0 {
            done += self.tick(now, deadline, log);
            if done == 0 && batches.hold_many() {
                done += self.pad_chunk(now, log);
            }
        }
        done
    }

    /// No frames arrive, perhaps because the device has no free buffers: frames are returned by
    /// chunks of the log, and the last chunk is not full. Fills the chunk with empty requests.
    #[cold]
    pub(crate) fn pad_chunk(&mut self, now: Instant, log: &mut impl Log) -> usize {
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

    /// Whether `deadline` is due and no published request has that time. A deadline that was
    /// published already is due only because this worker's replica lags behind.
    fn is_time_due(&self, deadline: Instant, now: Instant) -> bool {
        deadline <= now && self.published.time < deadline
    }

    /// Publishes the time if it is due, or the credit if it grew, when no other request carried
    /// them.
    fn tick(&mut self, now: Instant, deadline: Instant, log: &mut impl Log) -> usize {
        let sent = self.world.tx.sent();
        let due = self.is_time_due(deadline, now);
        if (due || sent > self.published.sent) && log.room() > 0 {
            self.published.sent = sent;
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
        self.published.sent = self.world.tx.sent();
        self.published.sent
    }

    fn publish(
        &mut self,
        request: &Request,
        verdict: Option<Verdict>,
        run: Run,
        log: &mut impl Log,
    ) {
        self.stats.requests += 1;
        self.published.time = request.digest.now;
        if self.recording.recorder.is_some() {
            self.record(request, verdict, &run);
        }
        log.publish(request, verdict, run);
    }

    fn record(&mut self, request: &Request, verdict: Option<Verdict>, run: &Run) {
        let written = match request.body {
            Body::Progress {
                conn, app_written, ..
            } => Some((conn, app_written)),
            Body::Sends { .. } => return self.record_sends(request),
            Body::Segments { .. } if request.digest.bits & Digest::PROGRESS != 0 => {
                let conn = request.digest.hint;
                let known = self.recording.written.get(&conn).copied().unwrap_or(0);
                let grown = request.digest.app_written.wrapping_sub(known as u32);
                Some((conn, known + u64::from(grown)))
            }
            _ => None,
        };
        let written = written.and_then(|(conn, to)| {
            let known = self.recording.written.entry(conn).or_insert(0);
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
        let frames = run.frames().iter();
        let frames = frames.map(|frame| frame.bytes().to_vec()).collect();
        let entry = Entry {
            request: *request,
            verdict,
            frames,
            written,
        };
        if let Some(recorder) = &mut self.recording.recorder {
            recorder.add(&entry);
        }
    }

    fn poll_queues(&mut self, now: Instant, log: &mut impl Log) -> usize {
        // Before anything is published: without a log, what is published in this turn counts as
        // performed in the next one, and there may be something in each.
        let mut done = self.free_sockets(log);
        done += self.reap(now, log);
        self.with_host(now, |host| host.on_time(now));
        if self.connections.idle.is_due(now) {
            done += self.look_at_idle(now, log);
        }
        done += self.take_paths(now);
        if self.v6_due <= now {
            self.turn_v6(now, log);
        }
        for overdue in self.overdue(now) {
            self.world.complete_open(overdue.request_id, UNREACHABLE);
            done += 1;
        }
        while log.room() > 0 {
            let Some((open, mac)) = self.connections.opens.pop_front() else {
                break;
            };
            self.publish_open(now, open, mac, log);
            done += 1;
        }
        done += self.poll_commands(now, log);
        for _ in 0..BATCH {
            let mailbox = &self.world.mailbox;
            let is_quiet = mailbox.dirty.is_empty() && mailbox.overflow.is_empty();
            // The progress of a connection follows its options.
            if is_quiet || log.room() <= ROOM_OF_CHANGE {
                break;
            }
            let Some(conn) = mailbox.dirty.pop().or_else(|| mailbox.overflow.pop()) else {
                break;
            };
            self.progress(now, conn, log);
            done += 1;
        }
        if self.connections.unanswered.has_work() {
            done += self.take_unanswered(now, log);
        }
        done += self.poll_sockets(now, log);
        if self.world.mailbox.has_looped() {
            done += self.take_looped(now, log);
        }
        done
    }

    fn overdue(&mut self, now: Instant) -> Vec<WaitingOpen> {
        if self.host.neighbors.next_deadline() > now {
            return Vec::new();
        }
        let overdue = self.with_host(now, |host| host.ask_again(now));
        for address in overdue.silent {
            self.answers_have_no_way(address);
        }
        self.retry_routes(now);
        overdue.failed
    }

    /// Whether so many frames of ours wait for the device that whatever may ask for more has to
    /// wait, too.
    #[inline]
    pub(crate) fn waits_for_control(&mut self, now: Instant) -> bool {
        self.control_wait.has_to_wait(&self.world.control, now)
    }

    // Frames.

    /// As [`Batches::publish`], before anything else. Frames that bring no request carry no time
    /// either: after many of them the time comes by itself.
    #[cold]
    #[inline(never)]
    fn late_frames(
        &mut self,
        now: Instant,
        deadline: Instant,
        batches: &mut impl Batches,
        log: &mut impl Log,
    ) -> (usize, bool) {
        let (frames, device_empty) = batches.publish(self, now, log);
        if self.published.late.0 != self.stats.requests {
            self.published.late = (self.stats.requests, 0);
        }
        self.published.late.1 += frames;
        if self.published.late.1 >= MAX_LATE_FRAMES {
            self.tick(now, deadline, log);
        }
        (frames, device_empty)
    }

    /// Parses a batch and publishes its runs as they end; then handles its other frames. Requires
    /// room for as many requests as there are frames, and one.
    fn parse_and_publish(&mut self, now: Instant, batch: &Batch, log: &mut impl Log) {
        if self.host.is_looping {
            self.stats.segments += self.parse_looped(now, batch, log);
        } else {
            let world = Arc::clone(&self.world);
            // They are put back below: the pump is lent while they are used.
            let mut parser = core::mem::take(&mut self.parser);
            let mut publishing = RunPublisher {
                pump: self,
                now,
                log: &mut *log,
            };
            self.stats.segments += parser.parse(&world, batch, &mut publishing);
            self.parser = parser;
        }
        if !self.others.is_empty() {
            let mut others = core::mem::take(&mut self.others);
            for index in others.drain(..) {
                self.frame(now, batch, usize::from(index), log);
            }
            self.others = others;
            self.close_datagrams(now, log);
        }
    }

    /// Handles a frame of a batch that is no segment for us.
    pub(crate) fn frame(&mut self, now: Instant, batch: &Batch, index: usize, log: &mut impl Log) {
        let bytes = batch[index].bytes();
        let Some((src, dst)) = wire::link(bytes) else {
            self.stats.malformed += 1;
            return;
        };
        if wire::is_ipv6(bytes) {
            return self.frame_v6(now, (batch, index), (src, dst), log);
        }
        let broadcast = dst == [0xff; 6] || dst[0] & 1 != 0 && self.host.listens_at(dst);
        if dst != self.world.mac && !broadcast {
            // A group of IPv6 is found behind a tag only.
            if dst[0] & 1 == 0 || !self.untagged(now, &batch[index], log) {
                self.stats.not_ours += 1;
            }
            return;
        }
        if src[0] & 1 != 0 || wire::ends_v4(bytes).is_some_and(|ends| self.host.is_martian(ends)) {
            self.stats.martians += 1;
            return;
        }
        self.parsed(now, (broadcast, false), (batch, index), log);
    }

    /// Handles a frame of which addresses and link are in order, but that its source may be an
    /// address of ours, of IPv6: `is_from_us`. `broadcast`: it was sent to all hosts, or a group of
    /// them.
    fn parsed(
        &mut self,
        now: Instant,
        (broadcast, is_from_us): (bool, bool),
        (batch, index): (&Batch, usize),
        log: &mut impl Log,
    ) {
        let ours = |address| self.host.is_ours(address) && !broadcast;
        match wire::parse(batch[index].bytes()) {
            // Neighbours may say that an address of ours is theirs; that is all they may.
            Ok(packet) if is_from_us && !matches!(packet, Packet::Link { .. }) => {
                self.stats.martians += 1;
            }
            Ok(Packet::TcpError(error)) if ours(error.dst) => {
                self.network_error(now, &error, log);
            }
            Ok(Packet::Arp(arp)) => self.with_host(now, |host| host.arp(now, &arp)),
            Ok(Packet::Udp(udp)) => self.datagram(now, &udp, broadcast, (batch, index), log),
            Ok(packet) => self.packet(now, &packet, broadcast, &batch[index], log),
            Err(
                Malformed::Truncated
                | Malformed::IpChecksum
                | Malformed::Checksum
                | Malformed::Options,
            ) => self.stats.malformed += 1,
        }
    }

    /// Handles a frame of no known type without its tag, if that names no VLAN. Returns whether it
    /// has such a tag.
    #[cold]
    pub(crate) fn untagged(&mut self, now: Instant, frame: &Frame, log: &mut impl Log) -> bool {
        let Some(frame) = frame.without_priority_tag() else {
            return false;
        };
        // All groups see a frame with a tag.
        if self.is_for_this_group(&frame) {
            self.parse_and_publish(now, &Arc::new(vec![frame]), log);
        } else {
            self.stats.not_ours += 1;
        }
        true
    }

    /// An ICMP error about a segment of ours (RFC 1122 sections 3.2.2 and 4.2.3.9, RFC 4443 section
    /// 3). Source quench is ignored (RFC 6633), and a packet that is too big for IPv6's least MTU
    /// (RFC 8201 section 4).
    fn network_error(&mut self, now: Instant, error: &wire::TcpError, log: &mut impl Log) {
        self.stats.network_errors += 1;
        let mtu = error.mtu;
        let what = match (error.local.address.is_v4(), error.numbers) {
            (true, [3, 2 | 3]) | (false, [1, 4] | [4, 1]) => NetworkError::Refused,
            (true, [3, 4]) => NetworkError::TooBig { mtu },
            (false, [2, _]) if mtu >= wire::IPV6_MIN_MTU => NetworkError::TooBig { mtu },
            (true, [3, 9 | 10 | 13]) | (false, [1, 1 | 5 | 6]) => NetworkError::Prohibited,
            (true, [3 | 11 | 12, _]) | (false, [1 | 3 | 4, _]) => NetworkError::Unreachable,
            _ => return,
        };
        if !self.host.is_ours(error.local.address) {
            return;
        }
        let (local, remote) = (error.local, error.remote);
        let flow = Flow { local, remote };
        let body = Body::NetworkError {
            flow,
            seq: SeqNum(error.seq),
            what,
        };
        self.publish_command(now, body, log);
    }

    /// Publishes a run of segments of `flow`. `hint` is the connection of the flow, with the
    /// version of the table that it was looked up in.
    #[inline]
    pub(crate) fn publish_run(
        &mut self,
        now: Instant,
        request: &mut Request,
        (flow, hint): (Flow, &mut Option<(u64, ConnId)>),
        (mut run, verdict): (Run, Option<Verdict>),
        log: &mut impl Log,
    ) {
        self.stats.runs += 1;
        let conn = match *hint {
            Some((version, conn)) if version == self.connections.hints_version => conn,
            _ => {
                let conn = self.hint_of(now, &flow);
                *hint = Some((self.connections.hints_version, conn));
                conn
            }
        };
        if conn == ConnId::NONE {
            // Nobody may answer for another host or group.
            let is_foreign = self.host.is_foreign(&flow);
            if is_foreign || !self.has_flow(&flow) {
                let count = match is_foreign {
                    true => &mut self.stats.foreign,
                    false => &mut self.stats.not_ours,
                };
                *count += u64::from(request.digest.count);
                return self.recycler.put(run);
            }
            let about = (&*request, flow);
            let Some(hop) = self.hop_of_answer(now, about, (&run, verdict)) else {
                return self.recycler.put(run);
            };
            if let Body::Segments { mac, .. } = &mut request.body {
                *mac = hop;
            }
        }
        let sent = self.world.tx.sent();
        self.published.sent = sent;
        let ahead = self.stores_ahead.then_some(verdict.is_none());
        let digest = &mut request.digest;
        (digest.now, digest.sent, digest.hint) = (now, sent, conn);
        self.received += u64::from(digest.len);
        sample_cursors(&self.world, digest, ahead, &mut run);
        self.stats.requests += 1;
        self.published.time = now;
        if self.recording.recorder.is_some() {
            self.record(request, verdict, &run);
        }
        log.publish(request, verdict, run);
    }

    /// The next time at which this pump has something to do without input.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.host
            .next_deadline()
            .min(self.v6_deadline())
            .min(self.connections.idle.next_deadline())
    }

    /// Whether there is something to do without waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.configured
            || !self.connections.opens.is_empty()
            // These wait for work of other threads, and for frames that the device takes.
            || !self.connections.closing.is_empty() && !self.world.is_device_refusing()
            || self.datagrams.has_work()
            || self.connections.unanswered.has_work()
            || self.world.has_work()
            || self.world.tx.sent() > self.published.sent
            || self.follows_place()
    }

    /// What it and its host counted.
    pub(crate) fn stats(&self) -> PumpStats {
        self.stats.and(self.host.stats)
    }

    /// Lets the addresses be announced at the start.
    pub(crate) fn announce(&mut self) {
        self.host.announce = true;
    }

    /// The recording so far; recording ends with this call.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recording.recorder.take()
    }
}

/// Publishes runs as they end.
struct RunPublisher<'a, L> {
    pump: &'a mut RxPump,
    now: Instant,
    log: &'a mut L,
}

impl<L: Log> Found for RunPublisher<'_, L> {
    #[inline]
    fn run(&mut self, open: &mut OpenRun, run: Run, verdict: Option<Verdict>) {
        let about = (open.flow, &mut open.hint);
        let run = (run, verdict);
        self.pump
            .publish_run(self.now, &mut open.request, about, run, self.log);
    }

    fn other(&mut self, index: usize) {
        self.pump.others.push(index as u8);
    }
}

/// Adds the application's read and write cursors to the digest of `run`, for the connection that
/// its hint names. With `ahead`, reserves a place in the receive ring for the payload of the run if
/// it is still to be verified, so that it can be stored meanwhile.
#[inline(always)]
fn sample_cursors(world: &World, digest: &mut Digest, ahead: Option<bool>, run: &mut Run) {
    if let Some(stream) = world.streams.get(digest.hint) {
        let (app_read, app_written) = stream.cursors();
        if stream.has_changes() {
            // They come before what is written behind them.
            return;
        }
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
