//! UDP in the receive pump: the table of bound ports, received datagrams that share a request, and
//! the datagrams that applications send.
//!
//! Only the pump publishes when a socket begins and ends, so at any position of the log its table
//! equals every replica's.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use dominoes_drivers::GsoKind;

use crate::io::perform::whole_datagram;
use crate::io::prepare::{datagram_is_good, is_verified_by_device};
use crate::io::rx::{FRAMES_A_TURN, Log, RxPump};
use crate::io::stream::{Parts, StreamRef};
use crate::io::udp_queues::PendingError;
use crate::io::{ClaimedFrames, Indices, Run, RunFrames};
use crate::ip::fragment::{Cut, cut_frame};
use crate::ip::neighbor::Cause;
use crate::log::request::{
    ALL_PORTS, Body, ConnId, Digest, Flow, Lengths, MAX_DATAGRAMS, Mac, Merged, Request,
    RequestKind,
};
use crate::packet as wire;
use crate::packet::IcmpError;
use crate::packet::dhcp::{CLIENT_PORT, CLIENT_PORT_V6};
use crate::packet::flow::{Address, Binding, Endpoint};
use crate::time::Instant;
use crate::udp::gather::{FrameRoom, gather};
use crate::udp::record::{self, RecordHeader};

/// A socket in the pump's table.
#[derive(Clone, Copy, Debug)]
struct Bound {
    socket: ConnId,
    port: u16,
    /// Which datagrams it takes.
    binding: Binding,
    /// Whether it shares them with sockets of the same binding by a hash of the sender.
    is_balanced: bool,
    /// The only peer whose datagrams it takes, if it is connected.
    remote: Option<Endpoint>,
    /// The offset up to which its send ring was published.
    taken: u64,
    /// Whether it wants the destination address and the arrival time of each datagram.
    wants_info: bool,
    /// Whether its last datagram must not be fragmented.
    dont_fragment: bool,
    /// Whether it ends when all that it sent is published.
    ending: bool,
}

impl Bound {
    /// Whether it has all ports, and its datagrams say where they come from.
    fn is_any(&self) -> bool {
        self.port == ALL_PORTS
    }
}

/// The state of all UDP sockets in the pump.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// Sockets by place.
    places: Vec<Option<Bound>>,
    /// The places of the sockets at a port, oldest first.
    ports: HashMap<u16, Vec<u32>>,
    /// The last endpoint of ours that was looked up, and the place of its only socket.
    last: Option<(Endpoint, u32)>,
    open: OpenRun,
    /// Sockets that have more to publish.
    pub(super) more: VecDeque<ConnId>,
    /// Whether the next socket comes from `more`, not from the queue of sockets that just sent.
    more_first: bool,
    /// Whether sockets that have all ports take no datagrams of DHCP.
    pub(super) has_dhcp: bool,
    /// Closed sockets, with the position up to which effects must be performed before the place is
    /// free.
    pub(super) closing: VecDeque<(u64, ConnId)>,
}

/// Gathered datagrams for one socket that will share a request.
#[derive(Default)]
struct OpenRun {
    /// Place of the socket.
    index: u32,
    lens: [u16; MAX_DATAGRAMS],
    /// The datagrams of its only frame, if the device merged several into that frame.
    merged: Option<Merged>,
    /// The batch of the frames. `None` if no datagram is gathered.
    batch: Option<ClaimedFrames>,
    indices: Indices,
    /// Whether the device has verified their checksums.
    is_verified: bool,
}

/// A record in a send ring: a header and a datagram.
#[derive(Clone, Copy)]
struct Found {
    /// The offset of the header.
    offset: u64,
    header: RecordHeader,
    /// Our end, if the record has it.
    local: Option<Endpoint>,
}

/// The payload of a record in the send ring of its socket.
fn payload_of<'a>(stream: &StreamRef<'a>, found: &Found) -> Parts<'a> {
    let from = found.offset + record::HEADER as u64;
    stream.recorded(from, from + u64::from(found.header.len))
}

impl Datagrams {
    /// The socket at place `place` of the table.
    pub(super) fn socket_at(&self, place: u32) -> Option<ConnId> {
        Some(self.bound(place)?.socket)
    }

    fn get(&mut self, socket: ConnId) -> Option<&mut Bound> {
        let bound = self.places.get_mut(socket.index as usize)?.as_mut()?;
        (bound.socket == socket).then_some(bound)
    }

    /// The place of the socket that takes datagrams from `remote` to `local`. If there is only one,
    /// it may be connected to another peer.
    #[inline]
    fn at(&mut self, local: Endpoint, remote: Endpoint) -> Option<u32> {
        if let Some((last, index)) = self.last
            && last == local
        {
            return Some(index);
        }
        self.find(local, remote)
    }

    fn find(&mut self, local: Endpoint, remote: Endpoint) -> Option<u32> {
        let is_dhcp = self.has_dhcp && matches!(local.port, CLIENT_PORT | CLIENT_PORT_V6);
        let mut taking = self.taking(local);
        let index = match (taking.next(), taking.next()) {
            (None, _) if is_dhcp => return None,
            (None, _) => {
                let all = Endpoint::new(local.address, ALL_PORTS);
                self.taking(all).next()?
            }
            (Some(only), None) => only,
            (Some(_), Some(_)) => return self.best(local, remote),
        };
        drop(taking);
        self.last = Some((local, index));
        Some(index)
    }

    /// The places of the sockets at the port of `local` that take datagrams to it.
    fn taking(&self, local: Endpoint) -> impl Iterator<Item = u32> {
        let places = self.ports.get(&local.port).into_iter().flatten().copied();
        places.filter(move |index| {
            let bound = self.bound(*index);
            bound.is_some_and(|bound| bound.binding.takes(local.address))
        })
    }

    /// Of several sockets at a port, the place of the one that takes datagrams from `remote`.
    #[cold]
    fn best(&self, local: Endpoint, remote: Endpoint) -> Option<u32> {
        let rank = |index: u32| {
            let bound = self.bound(index)?;
            let takes = bound.remote.is_none_or(|only| only == remote);
            let rank = (bound.remote.is_some(), bound.binding.address.is_some());
            takes.then_some((rank, index, bound.is_balanced))
        };
        let ranks: Vec<_> = self.taking(local).filter_map(rank).collect();
        let (highest, ..) = ranks.iter().max_by_key(|(rank, ..)| *rank)?;
        let equal: Vec<_> = ranks.iter().filter(|(rank, ..)| rank == highest).collect();
        let hash = || BuildHasherDefault::<DefaultHasher>::default().hash_one(remote);
        let chosen = match equal.iter().all(|(.., is_balanced)| *is_balanced) {
            true => hash() as usize % equal.len(),
            false => equal.len() - 1,
        };
        Some(equal[chosen].1)
    }

    fn bound(&self, place: u32) -> Option<&Bound> {
        self.places.get(place as usize)?.as_ref()
    }

    /// The socket that takes datagrams to `local`, if it is connected to `remote`.
    fn connected(&mut self, local: Endpoint, remote: Endpoint) -> Option<ConnId> {
        let bound = self.at(local, remote).and_then(|index| self.bound(index))?;
        (bound.remote == Some(remote)).then_some(bound.socket)
    }

    /// The place of the socket that takes a datagram from `remote` to `local`. A socket that is
    /// bound to an address takes no multicast.
    fn receiver_of(&mut self, local: Endpoint, remote: Endpoint) -> Option<u32> {
        let index = self.at(local, remote)?;
        let takes = self.bound(index)?.remote.is_none_or(|only| only == remote);
        takes.then_some(index)
    }

    /// Whether only one socket takes datagrams to `local`, which was just looked up.
    fn has_one(&self, local: Endpoint) -> bool {
        self.last.is_some_and(|(last, _)| last == local)
    }

    /// The places of all sockets that take a datagram to several hosts.
    fn receivers_of(&self, local: Endpoint, remote: Endpoint) -> Vec<u32> {
        let takes = |index: &u32| {
            let bound = self.bound(*index);
            bound.is_some_and(|bound| bound.remote.is_none_or(|only| only == remote))
        };
        self.taking(local).filter(takes).collect()
    }

    /// Whether there is something to do without waiting for the device.
    pub(crate) fn has_work(&self) -> bool {
        !self.more.is_empty() || !self.closing.is_empty()
    }
}

impl RxPump {
    // Received datagrams.

    /// Handles a datagram. `broadcast`: its frame was sent to all hosts. A broadcast datagram goes
    /// to the socket at its port like any other, but never causes an ICMP error (RFC 1122 section
    /// 4.1.3.6, section 3.2.2).
    pub(crate) fn datagram(
        &mut self,
        now: Instant,
        udp: &wire::Udp,
        broadcast: bool,
        (batch, index): (&ClaimedFrames, usize),
        log: &mut impl Log,
    ) {
        let frame = &batch[index];
        let ours = self.host.is_ours(udp.dst) && !broadcast;
        if !ours && !self.host.is_to_all(udp.dst, broadcast) {
            self.stats.not_ours += 1;
            return;
        }
        let remote = Endpoint::new(udp.src, udp.src_port);
        let local = Endpoint::new(udp.dst, udp.dst_port);
        let Some(place) = self.datagrams.receiver_of(local, remote) else {
            if self.takes_dhcp(now, udp, (batch, index)) {
                return;
            }
            self.stats.no_port += 1;
            if ours && (is_verified_by_device(frame) || datagram_is_good(frame.bytes())) {
                let bytes = frame.bytes();
                self.with_host(now, |host| {
                    host.report(now, bytes, IcmpError::PortUnreachable)
                });
            }
            return;
        };
        if !ours && !self.datagrams.has_one(local) {
            let places = self.datagrams.receivers_of(local, remote);
            for place in places {
                self.give(now, place, udp, (false, batch, index), log);
            }
            return;
        }
        self.give(now, place, udp, (ours, batch, index), log);
    }

    /// Gives a datagram to the socket at `place`. `ours`: it was sent to this host alone.
    #[inline(always)]
    fn give(
        &mut self,
        now: Instant,
        place: u32,
        udp: &wire::Udp,
        (ours, batch, index): (bool, &ClaimedFrames, usize),
        log: &mut impl Log,
    ) {
        let frame = &batch[index];
        if !ours
            && !self
                .host
                .takes_of_group(self.datagrams.socket_at(place), udp)
        {
            self.stats.not_ours += 1;
            return;
        }
        if let Some(gso) = frame.meta.gso {
            let merged = Merged {
                len: udp.payload_len,
                size: gso.size,
            };
            if gso.kind != GsoKind::Udp || gso.size == 0 {
                self.stats.malformed += 1;
                return;
            }
            // A payload of at most one datagram is handled like an ordinary frame below.
            if merged.count() > 1 {
                return self.undivided(now, (place, merged), (batch, index), log);
            }
        }
        self.stats.datagrams += 1;
        let open = &self.datagrams.open;
        let is_verified = is_verified_by_device(frame);
        let fits = match &open.batch {
            None => true,
            Some(of) => {
                open.index == place
                    && open.indices.len() < MAX_DATAGRAMS
                    && open.is_verified == is_verified
                    && Arc::ptr_eq(of, batch)
            }
        };
        if !fits {
            self.close_datagrams(now, log);
        }
        self.add_datagram(place, (batch, index), udp.payload_len);
    }

    /// Publishes the datagrams of a frame that the device merged, for the socket at `place`, as a
    /// separate request.
    fn undivided(
        &mut self,
        now: Instant,
        (place, merged): (u32, Merged),
        frame: (&ClaimedFrames, usize),
        log: &mut impl Log,
    ) {
        let count = u64::from(merged.count());
        self.stats.split += 1;
        self.stats.pieces += count;
        self.stats.datagrams += count;
        self.close_datagrams(now, log);
        self.add_datagram(place, frame, merged.len);
        self.datagrams.open.merged = Some(merged);
        self.close_datagrams(now, log);
    }

    /// Adds a frame to the gathered datagrams.
    #[inline(always)]
    fn add_datagram(&mut self, place: u32, (batch, index): (&ClaimedFrames, usize), len: u16) {
        let open = &mut self.datagrams.open;
        if open.batch.is_none() {
            open.batch = Some(Arc::clone(batch));
            open.index = place;
            open.is_verified = is_verified_by_device(&batch[index]);
        }
        open.lens[open.indices.len()] = len;
        open.indices.push(index);
    }

    /// Publishes the gathered datagrams.
    pub(crate) fn close_datagrams(&mut self, now: Instant, log: &mut impl Log) {
        let open = &mut self.datagrams.open;
        let Some(batch) = open.batch.take() else {
            return;
        };
        let count = open.indices.len();
        let run = RunFrames::new(&batch, core::mem::take(&mut open.indices));
        let is_verified = open.is_verified;
        let mut lens = [0; MAX_DATAGRAMS];
        lens[..count].copy_from_slice(&open.lens[..count]);
        let lengths = match open.merged.take() {
            None => Lengths::Each(lens),
            Some(merged) => Lengths::Merged(merged),
        };
        let place = self.datagrams.places.get(open.index as usize);
        let Some(Some(bound)) = place else {
            return;
        };
        let (socket, wants_info) = (bound.socket, bound.wants_info);
        let mut digest = Digest::bare(RequestKind::Datagrams, now, 0);
        digest.sent = self.sample_sent();
        digest.hint = socket;
        digest.count = count as u8;
        digest.len = lens.iter().map(|len| u32::from(*len)).sum();
        if wants_info {
            digest.bits |= Digest::INFO;
        }
        if let Some(stream) = self.world.queues.streams.get(socket) {
            digest.app_read = stream.cursors().0 as u32;
            digest.bits |= Digest::PROGRESS;
        }
        let body = Body::Datagrams { lengths };
        let request = Request::new(digest, body);
        self.stats.runs += 1;
        let verdict = is_verified.then(|| request.digest.all_good());
        self.publish(Run::new(request, verdict, run), log);
    }

    /// Reports an ICMP error about a datagram of ours to its socket, if the socket is connected to
    /// the datagram's destination (RFC 1122 section 4.1.3.3).
    pub(crate) fn datagram_error(&mut self, now: Instant, dst: Address, error: &wire::UdpError) {
        let end = Endpoint::new(dst, error.port);
        self.stats.network_errors += 1;
        let trouble = match (error.remote.address.is_v4(), error.numbers) {
            (true, [3, 2 | 3]) | (false, [1, 4] | [4, 1]) => PendingError::Refused,
            // Every router forwards packets of 68 bytes (RFC 791 section 3.2).
            (true, [3, 4]) => PendingError::TooBig {
                mtu: error.mtu.max(68),
            },
            (true, [3, 0 | 1 | 5 | 6..=15]) | (false, [1, _]) => PendingError::Unreachable,
            (false, [2, _]) => {
                // An attacker would have to guess a bound port, too.
                if self.datagrams.at(end, error.remote).is_some() {
                    self.too_big(now, error.remote.address, (error.len, error.mtu));
                }
                return;
            }
            _ => return,
        };
        // All groups see the error; the group that sends to this destination reports it.
        let local = Endpoint::new(Address::UNSPECIFIED, error.port);
        let flow = Flow {
            local,
            remote: error.remote,
        };
        if !self.has_flow(&flow) {
            return;
        }
        if let Some(socket) = self.datagrams.connected(end, error.remote) {
            let bound = self.datagrams.get(socket);
            let is_cut = bound.is_some_and(|bound| !bound.dont_fragment);
            if is_cut && matches!(trouble, PendingError::TooBig { .. }) {
                return;
            }
            self.world.queues.report(socket, trouble);
        }
    }

    // Sockets that begin and end.

    pub(crate) fn bind(
        &mut self,
        now: Instant,
        (socket, port, binding): (ConnId, u16, Option<(Binding, bool)>),
        log: &mut impl Log,
    ) {
        // The gathered datagrams belong to earlier sockets.
        self.close_datagrams(now, log);
        let datagrams = &mut self.datagrams;
        let index = socket.index as usize;
        if datagrams.places.len() <= index {
            datagrams.places.resize(index + 1, None);
        }
        datagrams.places[index] = Some(Bound {
            socket,
            port,
            binding: binding.unwrap_or_default().0,
            is_balanced: binding.is_some_and(|(_, is_balanced)| is_balanced),
            remote: None,
            wants_info: port == ALL_PORTS,
            taken: 0,
            dont_fragment: false,
            ending: false,
        });
        if binding.is_some() {
            datagrams.ports.entry(port).or_default().push(socket.index);
        }
        datagrams.last = None;
        // It may have sent datagrams already. The pump ignored that before it knew the socket.
        datagrams.more.push_back(socket);
        self.publish_command(now, Body::Bind { socket, port }, log);
    }

    pub(crate) fn connect(&mut self, socket: ConnId, remote: Option<Endpoint>) {
        if let Some(bound) = self.datagrams.get(socket) {
            bound.remote = remote;
        }
    }

    /// Sets whether a socket wants the destination address and the arrival time of each datagram.
    pub(crate) fn set_info(&mut self, socket: ConnId, wants_info: bool) {
        if let Some(bound) = self.datagrams.get(socket) {
            bound.wants_info = wants_info;
        }
    }

    /// A socket was dropped: it takes no more datagrams, and ends when its own are published.
    pub(crate) fn unbind(&mut self, now: Instant, socket: ConnId) {
        self.leave_groups(now, socket);
        let datagrams = &mut self.datagrams;
        let Some(bound) = datagrams.get(socket) else {
            return;
        };
        bound.ending = true;
        let port = bound.port;
        if let Some(places) = datagrams.ports.get_mut(&port) {
            places.retain(|place| *place != socket.index);
            if places.is_empty() {
                datagrams.ports.remove(&port);
            }
        }
        datagrams.last = None;
        datagrams.more.push_back(socket);
    }

    // Sent datagrams.

    /// Publishes the datagrams that sockets sent, and the end of dropped sockets. Returns the
    /// number of sockets handled.
    pub(crate) fn poll_sockets(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        while done < FRAMES_A_TURN && log.room() > 0 {
            // The queues take turns, so that neither waits until the other is empty.
            let Datagrams {
                more, more_first, ..
            } = &mut self.datagrams;
            let first = more_first.then(|| more.pop_front()).flatten();
            let next = first.or_else(|| self.world.queues.dirty.pop());
            let Some(socket) = next.or_else(|| more.pop_front()) else {
                break;
            };
            *more_first ^= true;
            done += 1;
            if !self.sends(now, socket, log) {
                self.datagrams.more.push_back(socket);
            }
        }
        done
    }

    /// Publishes the datagrams that a socket sent. Returns false if more are left.
    fn sends(&mut self, now: Instant, socket: ConnId, log: &mut impl Log) -> bool {
        let Some(stream) = self.world.queues.streams.get(socket) else {
            return true;
        };
        let (_, written, _) = stream.progress();
        for _ in 0..FRAMES_A_TURN {
            let Some(&mut bound) = self.datagrams.get(socket) else {
                return true;
            };
            if log.room() == 0 {
                return false;
            }
            let Some(first) = self.found(&bound, bound.taken, written) else {
                if bound.ending {
                    self.datagrams.places[socket.index as usize] = None;
                    self.close_datagrams(now, log);
                    if log.room() == 0 {
                        self.datagrams.places[socket.index as usize] = Some(bound);
                        return false;
                    }
                    self.publish_command(now, Body::Unbind { socket }, log);
                }
                return true;
            };
            let upto = self.send_run(now, &bound, first, written, log);
            if upto == first.offset {
                return false;
            }
            if let Some(bound) = self.datagrams.get(socket) {
                bound.taken = upto;
            }
        }
        false
    }

    /// The record at `offset` of a send ring, if one was written entirely.
    fn found(&self, bound: &Bound, mut offset: u64, written: u64) -> Option<Found> {
        let more = if bound.is_any() { record::MORE } else { 0 } as u64;
        if offset + more + record::HEADER as u64 > written {
            return None;
        }
        let stream = self.world.queues.streams.get(bound.socket)?;
        let mut local = None;
        if bound.is_any() {
            let (ours, _) = stream.recorded(offset, offset + more);
            local = Some(record::More::read(ours)?.local);
            offset += more;
        }
        let (header, _) = stream.recorded(offset, offset + record::HEADER as u64);
        let header = RecordHeader::read(header)?;
        let found = Found {
            offset,
            header,
            local,
        };
        (offset + record::len(header.len) <= written).then_some(found)
    }

    /// Publishes `first` and the following records to the same destination as one request. Returns
    /// the offset of their end; the offset of `first` if nothing was published because too many
    /// frames to ourselves wait.
    fn send_run(
        &mut self,
        now: Instant,
        bound: &Bound,
        first: Found,
        written: u64,
        log: &mut impl Log,
    ) -> u64 {
        let RecordHeader {
            remote,
            ttl,
            tos,
            dont_fragment,
            ..
        } = first.header;
        let mtu = self.host.path_mtu(remote.address);
        let cut = Cut::new(remote.address, mtu);
        let is_cut = |len: u16| cut.count(u32::from(len) + wire::UDP_HEADER as u32) > 1;
        if let Some(bound) = self.datagrams.get(bound.socket) {
            bound.dont_fragment = dont_fragment;
        }
        if dont_fragment && is_cut(first.header.len) {
            return self.refuse_datagram(now, bound, (first, mtu), log);
        }
        let local = self.local_for(bound, &first);
        let mac = self.resolve_next_hop(now, remote.address);
        let (Some(local), Some(mac)) = (local, mac) else {
            return self.send_unresolved(now, bound, first, log);
        };
        let is_own_group = self.is_own_group(remote.address);
        let mut next = first.offset;
        let lens = core::iter::from_fn(|| {
            let found = match next == first.offset {
                true => first,
                // Each datagram of such a socket has an end of its own.
                false if bound.is_any() => return None,
                false => self.found(bound, next, written)?,
            };
            let header = &found.header;
            if (header.remote, header.ttl, header.tos) != (remote, ttl, tos)
                || header.dont_fragment != dont_fragment
                || dont_fragment && is_cut(header.len)
                || is_own_group && !self.loops(bound.socket, (local, mac), &found)
            {
                return None;
            }
            next += record::len(header.len);
            Some(header.len)
        });
        let (lengths, count) = match is_own_group {
            // Each datagram that `lens` yields was already copied to ourselves, so all of them must
            // be sent.
            true => gather(lens.take(MAX_DATAGRAMS), FrameRoom::OF_ONE),
            false => gather(lens, self.world.frame_bounds.to(remote.address, mtu)),
        };
        if count == 0 {
            return first.offset;
        }
        if is_cut(first.header.len) {
            self.host
                .remember_sent(now, remote.address, Some(cut.longest_frame()));
        } else {
            self.host.remember_datagrams(now, remote.address, &lengths);
        }
        let body = Body::Sends {
            socket: bound.socket,
            local,
            remote,
            mac,
            mtu,
            offset: first.offset,
            lengths,
            ttl,
            tos,
            dont_fragment,
        };
        self.publish_sends(now, body, count, log);
        first.offset + record::total(&lengths, count.into())
    }

    /// Sends a copy of a multicast datagram to ourselves, unless its socket has disabled that.
    /// Returns false, and does nothing, while too many frames wait.
    #[cold]
    fn loops(&self, socket: ConnId, from: (Endpoint, Mac), found: &Found) -> bool {
        let stream = self.world.queues.streams.get(socket);
        let Some(stream) = stream.filter(|_| found.header.loops) else {
            return true;
        };
        self.loop_datagram(from, &found.header, payload_of(&stream, found))
    }

    fn publish_sends(&mut self, now: Instant, body: Body, count: u8, log: &mut impl Log) {
        let sent = self.sample_sent();
        let mut request = Request::command(now, sent, body);
        request.digest.count = count;
        self.publish(Run::bare(request), log);
    }

    /// The link-layer address for packets to `remote`, if it is known.
    fn resolve_next_hop(&mut self, now: Instant, remote: Address) -> Option<Mac> {
        self.with_host(now, |host| host.resolve(Cause::Ours, now, remote))
    }

    /// Our end of a datagram that a socket sends, if there is one. A socket that is bound to a
    /// loopback address sends only to this host.
    fn local_for(&self, bound: &Bound, found: &Found) -> Option<Endpoint> {
        let remote = found.header.remote.address;
        if let Some(local) = found.local {
            return Some(local).filter(|local| self.host.site.takes(local.address));
        }
        let only = bound.binding.address;
        if only.is_some_and(|only| only.ip().is_loopback()) && !self.host.site.is_ourselves(remote)
        {
            return None;
        }
        let source = match only {
            Some(only) => Some(only).filter(|only| self.host.site.is_ourselves(*only)),
            None => self.host.site.source(remote),
        };
        source.map(|source| Endpoint::new(source, bound.port))
    }

    /// Builds a datagram whose next hop is not resolved yet, and queues its frames until it is (RFC
    /// 1122 section 2.3.2.2). Drops it if there is no route or source address. Returns the offset
    /// of its end.
    fn send_unresolved(
        &mut self,
        now: Instant,
        bound: &Bound,
        found: Found,
        log: &mut impl Log,
    ) -> u64 {
        let remote = found.header.remote;
        let next_hop = self.host.site.next_hop(remote.address);
        let ident = self.host.next_ident(remote.address, wire::UDP);
        let local = self.local_for(bound, &found);
        let mtu = self.host.path_mtu(remote.address);
        let stream = self.world.queues.streams.get(bound.socket);
        if let (Some(next_hop), Some(stream), Some(local)) = (next_hop, stream, local) {
            let payload = payload_of(&stream, &found);
            let datagram = whole_datagram(&self.world, local, &found.header, ident, payload);
            let frames = cut_frame(datagram, mtu, ident);
            self.host
                .remember_sent(now, remote.address, frames.iter().map(Vec::len).max());
            self.with_host(now, |host| host.hold(now, Cause::Ours, next_hop, frames));
        } else {
            self.stats.unresolved += 1;
        }
        self.skip_datagram(now, bound, found, log)
    }

    /// Drops a datagram that must not be fragmented but exceeds the path MTU, and reports that to
    /// its socket. Returns the offset of its end.
    #[cold]
    fn refuse_datagram(
        &mut self,
        now: Instant,
        bound: &Bound,
        (found, mtu): (Found, u16),
        log: &mut impl Log,
    ) -> u64 {
        let trouble = PendingError::TooBig { mtu };
        self.world.queues.report(bound.socket, trouble);
        self.skip_datagram(now, bound, found, log)
    }

    /// Publishes that a datagram's bytes in the ring are free, and nothing to send. Returns the
    /// offset of its end.
    fn skip_datagram(
        &mut self,
        now: Instant,
        bound: &Bound,
        found: Found,
        log: &mut impl Log,
    ) -> u64 {
        let upto = found.offset + record::len(found.header.len);
        let body = Body::Sends {
            socket: bound.socket,
            local: Endpoint::default(),
            remote: found.header.remote,
            mac: Mac::default(),
            mtu: 0,
            offset: upto,
            lengths: Lengths::Each([0; MAX_DATAGRAMS]),
            ttl: 0,
            tos: 0,
            dont_fragment: false,
        };
        self.publish_sends(now, body, 0, log);
        upto
    }

    /// Takes the closed sockets.
    pub(super) fn take_unbound(&mut self, log: &mut impl Log) {
        while !self.world.queues.unbound.is_empty()
            && let Some(socket) = self.world.queues.unbound.pop()
        {
            let datagrams = &mut self.datagrams;
            datagrams.closing.push_back((log.end(), socket));
        }
    }

    /// Frees closed sockets whose work, below the position `performed`, is done.
    pub(super) fn free_sockets(&mut self, performed: u64) -> usize {
        let mut done = 0;
        while let Some(&(position, socket)) = self.datagrams.closing.front()
            && position <= performed
        {
            self.datagrams.closing.pop_front();
            let next = self.world.queues.recycle(socket);
            let groups = self.world.shared.groups();
            self.world.socket_table().bindings.free(next, groups);
            done += 1;
        }
        done
    }
}
