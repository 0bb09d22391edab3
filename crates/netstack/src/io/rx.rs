//! The receive pump. It is not a thread: any worker may take it for a moment.
//!
//! It is the only publisher of a group's log. It samples every input that `apply` cannot compute:
//! time, how many frames were sent (from which `apply` knows how many it may number), and the
//! applications' cursors. It
//! publishes parsed runs of segments, and handles datagrams, commands, and ICMP errors about
//! connections itself; the [`IpHost`] handles all other packets. The transmit pump is
//! [`TxPump`](crate::io::tx::TxPump).

pub(crate) mod addresses;
mod commands;
mod connections;
mod datagrams;
mod dhcp;
mod echo;
mod held;
mod host;
mod loopback;
mod paths;
mod unanswered;

use core::num::NonZeroU32;
use std::sync::Arc;

use dominoes_drivers::Frame;
use dominoes_drivers::split::Target;

use crate::groups;
use crate::host::{IpHost, IpHostConfig};
use crate::io::claim::Claimer;
use crate::io::gro::{Found, Parser};
use crate::io::record::{Published, Recorder};
use crate::io::world::World;
use crate::io::{ClaimedFrames, FrameRecycler, Run};
use crate::ip::identification::Identifications;
use crate::ip::neighbor::WaitingOpen;
use crate::ip::rate_limit::Rate;
use crate::ip::route::Site;
use crate::keys::{Grouping, Keys};
use crate::log::request::{Body, ConnId, Digest, Flow, GroupIndex, NetworkError, Request};
use crate::packet as wire;
use crate::packet::flow::Mac;
use crate::packet::{Malformed, Packet};
use crate::seqnum::SeqNum;
use crate::state::apply::Awaited;
use crate::stats::PumpStats;
use crate::time::Instant;
use commands::{ROOM_OF_CHANGE, UNREACHABLE};
use connections::Connections;
use datagrams::Datagrams;
use echo::Echoes;
pub(crate) use host::ControlFrames;
use host::ControlWait;
use loopback::Loopback;

/// The most frames of one batch without a log, the most numbered frames that one turn of the
/// transmit pump sends, and the most connections whose progress one turn publishes.
pub(crate) const FRAMES_A_TURN: usize = 32;
/// Entries of the log that frames leave free: for time, credit and applications.
pub(crate) const RESERVED: usize = 4;
/// When a deadline is due, the maximum number of frames without a request that are handled before
/// the time is published: about as many as a device gathers while the machine is suspended.
const MAX_LATE_FRAMES: usize = 4096;

/// Where the pump publishes requests: a log, or a queue of the thread that owns the state.
pub(crate) trait Log {
    /// How many requests may be published now.
    fn room(&mut self) -> usize;
    /// Publishes a request, and takes its frames. Requires room.
    fn publish(&mut self, run: &mut Run);
    /// Passes the batch of each run that is no longer needed to `each`.
    fn reclaim(&mut self, each: &mut dyn FnMut(ClaimedFrames));
    /// A count that grows when requests are published; without a log, once for all that wait.
    fn end(&self) -> u64;
    /// The position below which all effects are performed that number no frames.
    fn performed(&mut self) -> u64;
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
    /// Whether payload may be stored before it is verified. Must not change: payload that was
    /// published without it is not counted in `Stream::published_end`.
    pub(crate) stores_ahead: bool,
    /// The frame recycler of the worker that holds the pump. Boxed, so that it is exchanged fast.
    pub(crate) recycler: Box<FrameRecycler>,
    /// Parses packets that the pump has assembled or changed: reassembled datagrams, and frames
    /// whose VLAN tag it removed. Also parses batches if the thread that claims them holds the
    /// pump.
    parser: Parser,
    loopback: Loopback,
    /// Indices of the frames of a batch that are not segments for us; empty between batches.
    others: Vec<u8>,
    datagrams: Datagrams,
    echoes: Echoes,
    connections: Connections,
    control_wait: ControlWait,
    /// When [`turn_v6`](Self::turn_v6) is due.
    v6_due: Instant,
    /// The last published time and credit.
    last_sampled: LastSampled,
    published: Published,
    /// Payload bytes received in segments.
    pub(crate) received: u64,
    pub(crate) stats: PumpStats,
}

/// The last published values of time and credit, which every request carries.
#[derive(Default)]
struct LastSampled {
    time: Instant,
    /// The count of sent frames, for the credit.
    sent: u64,
    /// The number of requests when a deadline was due, and how many frames were handled since then
    /// without another request.
    late: (u64, usize),
}

/// No thread runs the stack any more. Shuts it down, so that no application waits forever.
impl Drop for RxPump {
    fn drop(&mut self) {
        self.world.shut_down();
    }
}

impl RxPump {
    pub(crate) fn new(
        world: Arc<World>,
        (site, fixed_mac): (Site, Option<Mac>),
        secret: [u64; 2],
        recorder: Option<Recorder>,
    ) -> Self {
        let keys = Keys::new(secret);
        let limits = &world.limits;
        let host = IpHost::new(IpHostConfig {
            mac: world.mac,
            fixed_mac,
            site,
            keys: world.keys,
            mtu: limits.mtu,
            error_rate: Rate {
                total: limits.errors_per_second,
                per_destination: limits.errors_per_destination,
            },
            reassembly: limits.into(),
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
            recycler: Box::default(),
            parser: Parser::new(),
            loopback: Loopback::default(),
            others: Vec::new(),
            datagrams: Datagrams::default(),
            echoes: Echoes::default(),
            connections: Connections::default(),
            control_wait: ControlWait::default(),
            v6_due: Instant::NEVER,
            last_sampled: LastSampled::default(),
            published: Published::new(recorder),
            received: 0,
            stats: PumpStats::default(),
        }
    }

    /// Makes this the pump of one of several groups. Only the first group answers frames that reach
    /// all groups.
    pub(crate) fn join_groups(&mut self, group: GroupIndex) {
        self.group = group;
        let keys = Keys::new(self.secret);
        self.grouping = Grouping::new(&keys, group.count);
        // Sockets of this group and other groups draw IP identifications from other sequences.
        let idents = Identifications::new(&keys, 2 * group.index + 1, 2 * group.count);
        self.host.share(group.is_first(), idents);
    }

    /// Whether this flow belongs to this group.
    pub(crate) fn has_flow(&self, flow: &Flow) -> bool {
        self.group.count == 1 || self.grouping.group(flow) == self.group.index
    }

    /// Whether a packet that the pump has assembled or changed is for this group; the frames that
    /// arrived did not show that.
    fn is_for_this_group(&self, frame: &Frame) -> bool {
        match groups::target(&self.grouping, frame.bytes()) {
            Target::One(index) => index == usize::from(self.group.index),
            Target::All => true,
        }
    }

    /// One turn: handles the queues of applications, and frames: `publish` publishes their requests
    /// while the log has room, and returns how many it handled, and whether time may go on (the
    /// device has no more, or none can be read now). Publishes the time or the count of sent frames
    /// that the state has `awaited`, if it did nothing else and the device is empty. If a deadline
    /// is due, handles waiting frames first, and returns if it could take none although there may
    /// be some. Returns how much was done.
    pub(crate) fn turn<L: Log>(
        &mut self,
        now: Instant,
        awaited: Awaited,
        log: &mut L,
        mut publish: impl FnMut(&mut RxPump, &mut L) -> (usize, bool),
    ) -> usize {
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
        let performed = self.housekeeping(now, log);
        // Every request carries the time. If a deadline is due, frames are handled first: an
        // acknowledgment may have waited in the device while this machine was suspended.
        let mut done = 0;
        if self.is_time_due(awaited.time, now) {
            let (frames, device_empty) = self.late_frames(now, awaited, log, &mut publish);
            if frames == 0 && !device_empty {
                return 0;
            }
            done = frames;
        }
        done += self.poll_queues(now, performed, log);
        let (frames, device_empty) = publish(self, log);
        done += frames;
        if device_empty && done == 0 {
            done += self.tick(now, awaited, log);
        }
        done
    }

    /// Whether `deadline` is due and no published request carries its time. If one does, this
    /// worker's replica has not applied it yet.
    fn is_time_due(&self, deadline: Instant, now: Instant) -> bool {
        deadline <= now && self.last_sampled.time < deadline
    }

    /// Publishes the time or the count of sent frames if the state has awaited them, and no other
    /// request carried them. Every request carries both, so nothing else needs a request for them.
    #[inline]
    fn tick(&mut self, now: Instant, awaited: Awaited, log: &mut impl Log) -> usize {
        let sent = self.world.tx.sent();
        let is_awaited = sent > self.last_sampled.sent && sent >= awaited.sent;
        let is_due = is_awaited || self.is_time_due(awaited.time, now);
        match is_due && log.room() > 0 {
            true => self.publish_tick(now, log),
            false => 0,
        }
    }

    #[inline(never)]
    fn publish_tick(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let sent = self.sample_sent();
        self.publish(Run::bare(Request::tick(now, sent)), log);
        1
    }

    fn publish_command(&mut self, now: Instant, body: Body, log: &mut impl Log) {
        let sent = self.sample_sent();
        self.publish(Run::bare(Request::command(now, sent, body)), log);
    }

    fn sample_sent(&mut self) -> u64 {
        self.last_sampled.sent = self.world.tx.sent();
        self.last_sampled.sent
    }

    fn publish(&mut self, mut run: Run, log: &mut impl Log) {
        self.stats.requests += 1;
        self.last_sampled.time = run.request.digest.now;
        (self.published).record(&self.world, &run);
        log.publish(&mut run);
    }

    /// Takes frames that return, what was closed, and then hints: no later run has the hint of a
    /// connection that was closed before. If anything is closing, or a look at an idle connection
    /// is due, returns the position below which all was performed when this turn began: without a
    /// log, the requests of a turn are performed only after it, so a later look could fail in every
    /// turn.
    #[inline]
    fn housekeeping(&mut self, now: Instant, log: &mut impl Log) -> Option<u64> {
        log.reclaim(&mut |batch| self.recycler.put_batch(batch));
        if !self.world.queues.unbound.is_empty() {
            self.take_unbound(log);
        }
        if !self.world.retired.is_empty() {
            self.take_retired(log);
        }
        let is_asked = !self.datagrams.closing.is_empty()
            || !self.connections.closing.is_empty()
            || self.connections.idle.is_due(now);
        let performed = is_asked.then(|| log.performed());
        if !self.world.hints.is_empty() {
            self.take_hints(now);
        }
        performed
    }

    fn poll_queues(&mut self, now: Instant, performed: Option<u64>, log: &mut impl Log) -> usize {
        let mut done = 0;
        if let Some(performed) = performed {
            done += self.free_sockets(performed) + self.reap(now, performed, log);
            done += self.look_at_idle(now, performed, log);
        }
        self.with_host(now, |host| host.on_time(now));
        if self.connections.held.next_deadline() <= now {
            self.drop_syns(now);
        }
        if !self.world.mailbox.paths.is_empty() {
            done += self.take_paths(now);
        }
        if self.v6_due <= now {
            self.turn_v6(now, log);
        }
        for overdue in self.overdue(now) {
            self.world.complete_open(overdue.request_id, UNREACHABLE);
            done += 1;
        }
        while !self.connections.opens.is_empty()
            && log.room() > 0
            && let Some((open, mac)) = self.connections.opens.pop_front()
        {
            self.publish_open(now, open, mac, log);
            done += 1;
        }
        done += self.poll_commands(now, log);
        for _ in 0..FRAMES_A_TURN {
            let mailbox = &self.world.mailbox;
            let is_quiet = mailbox.dirty.is_empty() && mailbox.overflow.is_empty();
            // A connection's progress is published after changes of its options.
            if is_quiet || log.room() <= ROOM_OF_CHANGE {
                break;
            }
            let Some(conn) = mailbox.next_notified(&mut self.connections.overflow_first) else {
                break;
            };
            self.progress(now, conn, log);
            done += 1;
        }
        if self.connections.unanswered.has_work() {
            done += self.take_unanswered(now, log);
        }
        if !self.datagrams.more.is_empty() || !self.world.queues.dirty.is_empty() {
            done += self.poll_sockets(now, log);
        }
        if self.world.mailbox.has_looped() {
            done += self.take_looped(now, log);
        }
        done
    }

    /// Handles the applications' commands while the log has room. Returns how many.
    #[inline(always)]
    fn poll_commands(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        // `is_empty` is cheaper than an attempt to pop.
        while !self.world.commands.is_empty()
            && log.room() > 0
            && !self.waits_for_control(now)
            && let Some(command) = self.world.commands.pop()
        {
            self.command(now, command, log);
            done += 1;
        }
        done
    }

    /// Handles all commands before the frames of a batch, so that a listener exists before the
    /// first connection to it. Returns how many; `None` if some are left.
    #[inline]
    pub(crate) fn commands_before_batch(
        &mut self,
        now: Instant,
        log: &mut impl Log,
    ) -> Option<usize> {
        let done = self.poll_commands(now, log);
        self.world.commands.is_empty().then_some(done)
    }

    /// Calls the host, and performs its effects.
    #[inline]
    fn with_host<R>(&mut self, now: Instant, what: impl FnOnce(&mut IpHost) -> R) -> R {
        let result = what(&mut self.host);
        if self.host.has_effects() {
            self.perform_host(now);
        }
        result
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

    /// Whether too many control frames wait for the device, so that nothing may add more.
    #[inline]
    pub(crate) fn waits_for_control(&mut self, now: Instant) -> bool {
        self.control_wait.has_to_wait(&self.world.control, now)
    }

    // Frames.

    /// As `publish`, when a deadline is due. If many frames cause no request, which would carry the
    /// time, publishes the time separately.
    #[cold]
    #[inline(never)]
    fn late_frames<L: Log>(
        &mut self,
        now: Instant,
        awaited: Awaited,
        log: &mut L,
        publish: &mut impl FnMut(&mut RxPump, &mut L) -> (usize, bool),
    ) -> (usize, bool) {
        let (frames, device_empty) = publish(self, log);
        if self.last_sampled.late.0 != self.stats.requests {
            self.last_sampled.late = (self.stats.requests, 0);
        }
        self.last_sampled.late.1 += frames;
        if self.last_sampled.late.1 >= MAX_LATE_FRAMES {
            self.tick(now, awaited, log);
        }
        (frames, device_empty)
    }

    /// Parses a batch and publishes its runs as they end; then handles its other frames. Requires
    /// room for one request more than there are frames.
    fn parse_and_publish(&mut self, now: Instant, batch: &ClaimedFrames, log: &mut impl Log) {
        if self.host.is_looping {
            self.stats.segments += self.parse_looped(now, batch, log);
        } else {
            let world = Arc::clone(&self.world);
            // Put back below: `publishing` borrows the whole pump.
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

    /// Handles a frame of a batch that is not a segment for us.
    pub(crate) fn frame(
        &mut self,
        now: Instant,
        batch: &ClaimedFrames,
        index: usize,
        log: &mut impl Log,
    ) {
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
            // An IPv6 multicast frame gets here only if it has a VLAN tag.
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

    /// Handles a frame whose addresses are valid. `broadcast`: it was sent to all hosts or to a
    /// multicast group. `is_from_us`: its IPv6 source address is ours.
    fn parsed(
        &mut self,
        now: Instant,
        (broadcast, is_from_us): (bool, bool),
        (batch, index): (&ClaimedFrames, usize),
        log: &mut impl Log,
    ) {
        let ours = |address| self.host.is_ours(address) && !broadcast;
        match wire::parse(batch[index].bytes()) {
            // Only neighbour discovery may use our address as source: it reports a duplicate.
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

    /// If an unknown frame has a priority tag (a tag of VLAN 0), handles it without the tag.
    /// Returns whether it has one.
    #[cold]
    pub(crate) fn untagged(&mut self, now: Instant, frame: &Frame, log: &mut impl Log) -> bool {
        let Some(frame) = frame.without_priority_tag() else {
            return false;
        };
        // All groups see a tagged frame.
        if self.is_for_this_group(&frame) {
            self.parse_and_publish(now, &Arc::new(vec![frame]), log);
        } else {
            self.stats.not_ours += 1;
        }
        true
    }

    /// Publishes an ICMP error about a segment of ours (RFC 1122 sections 3.2.2 and 4.2.3.9, RFC
    /// 4443 section 3). Ignores source quench (RFC 6633), and an MTU below IPv6's minimum (RFC 8201
    /// section 4).
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

    /// Adds what the pump samples to a run of segments, which is published next. Returns false if
    /// the run must not be published.
    #[inline(always)]
    pub(crate) fn sample_run(&mut self, now: Instant, run: &mut Run) -> bool {
        self.stats.runs += 1;
        if !self.is_current(run) {
            run.request.digest.hint = self.hint_of(now, &run.flow());
            run.hint_version = self.connections.hints_version;
        }
        let is_unknown = run.request.digest.hint.index == ConnId::NONE.index;
        if is_unknown && !self.takes_unknown(now, run) {
            return false;
        }
        let sent = self.world.tx.sent();
        self.last_sampled.sent = sent;
        let ahead = self.stores_ahead.then_some(run.verdict.is_none());
        let digest = &mut run.request.digest;
        (digest.now, digest.sent) = (now, sent);
        self.received += u64::from(digest.len);
        run.frames.reserved = sample_cursors(&self.world, digest, ahead);
        self.stats.requests += 1;
        self.last_sampled.time = now;
        (self.published).record(&self.world, run);
        true
    }

    /// Whether the hint of a run was looked up in the table as it is now.
    #[inline(always)]
    pub(crate) fn is_current(&self, run: &Run) -> bool {
        run.hint_version == self.connections.hints_version
    }

    /// Finds the next hop of the answer to a run whose flow has no connection. Returns false if the
    /// run must not be published now.
    #[inline(never)]
    fn takes_unknown(&mut self, now: Instant, run: &mut Run) -> bool {
        let flow = run.flow();
        // Segments to another host or group must not be answered.
        let is_foreign = self.host.is_foreign(&flow);
        if is_foreign || !self.has_flow(&flow) {
            let count = match is_foreign {
                true => &mut self.stats.foreign,
                false => &mut self.stats.not_ours,
            };
            *count += u64::from(run.request.digest.count);
            return false;
        }
        let Some(hop) = self.hop_of_answer(now, run) else {
            return false;
        };
        if let Body::Segments { mac, .. } = &mut run.request.body {
            *mac = hop;
        }
        !(self.connections.held.may_hold(&run.request.digest) && self.hold_syn(now, run))
    }

    /// The next time at which this pump has something to do without input.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.host
            .next_deadline()
            .min(self.v6_deadline())
            .min(self.connections.idle.next_deadline())
            .min(self.connections.held.next_deadline())
    }

    /// Whether there is something to do without waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.configured
            || !self.connections.opens.is_empty()
            // These wait for other threads' work, and until the device accepts frames.
            || !self.connections.closing.is_empty() && !self.world.is_device_refusing()
            || self.datagrams.has_work()
            || self.connections.unanswered.has_work()
            || self.world.has_work()
            || self.follows_place()
    }

    /// The counters of the pump and its host.
    pub(crate) fn stats(&self) -> PumpStats {
        self.stats.and(self.host.stats)
    }

    /// Makes the pump announce its addresses at the start.
    pub(crate) fn announce(&mut self) {
        self.host.announce = true;
    }

    /// The recording so far; recording ends with this call.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.published.take_recorder()
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
    fn run(&mut self, run: &mut Run) {
        match self.pump.sample_run(self.now, run) {
            true => self.log.publish(run),
            false => drop(run.frames.batch.take()),
        }
    }

    fn other(&mut self, index: usize) {
        self.pump.others.push(index as u8);
    }
}

/// Adds the application's read and write cursors to the digest of a run, for the connection that
/// its hint names. With `ahead`, reserves space in the receive ring for the payload. If that is not
/// verified yet (`Some(true)`), returns the place: the payload can be stored there before its
/// delivery.
#[inline(always)]
fn sample_cursors(world: &World, digest: &mut Digest, ahead: Option<bool>) -> Option<NonZeroU32> {
    let stream = world.streams.get(digest.hint)?;
    let (app_read, app_written) = stream.cursors();
    let mut place = None;
    // `reserve` must see every published run, even if the digest gets no cursors.
    if let Some(is_unverified) = ahead
        && digest.len > 0
    {
        place = stream.reserve(digest.seg_seq, digest.len, app_read);
        place = place.filter(|_| is_unverified);
    }
    // Changes must be published before the bytes that were written after them.
    if !stream.has_changes() {
        digest.app_read = app_read as u32;
        digest.app_written = app_written as u32;
        digest.bits |= Digest::PROGRESS;
    }
    place
}

impl RxPump {
    /// Claims a batch of at most `most` frames, parses it, and publishes its requests, as far as
    /// the log has room. Returns how much was done, and whether the device had nothing.
    #[inline]
    pub(crate) fn claim_and_publish(
        &mut self,
        now: Instant,
        (claimer, most): (&mut Claimer, usize),
        log: &mut impl Log,
    ) -> (usize, bool) {
        // Every frame may need a request, and so may the gathered datagrams. Frames without room
        // stay in the device.
        let room = log.room().saturating_sub(RESERVED + 2).min(most);
        claimer.give_back(&mut self.recycler);
        if room == 0 {
            self.stats.log_full += 1;
            return (0, false);
        }
        // Reported as an empty device, so that the pump still publishes the time.
        if self.waits_for_control(now) {
            return (0, true);
        }
        let mut frames = self.recycler.spare();
        let claimed = claimer.claim(room, &mut frames);
        if claimed == 0 {
            self.recycler.put_spare(frames);
            return (0, true);
        }
        let commands = self.commands_before_batch(now, log);
        let room = log.room().saturating_sub(RESERVED + 2);
        let Some(commands) = commands.filter(|_| claimed <= room) else {
            self.stats.log_full += 1;
            claimer.unclaim(0, &mut frames);
            self.recycler.put_spare(frames);
            return (0, false);
        };
        let batch = ClaimedFrames::new(frames);
        self.stats.frames += claimed as u64;
        self.parse_and_publish(now, &batch, log);
        self.recycler.put_batch(batch);
        (commands + claimed, false)
    }
}
