//! UDP (RFC 768, RFC 1122 section 4.1): the replicated part of its sockets.
//!
//! `apply` decides little about a datagram: whether it fits the queue of its socket, its offset
//! there, and the numbers of the frames that we send. The pump finds the socket of a datagram,
//! because only the pump's own requests change the bindings; so `apply` looks nothing up and
//! stays cheap, which lets UDP scale with cores.
//!
//! A queue is a byte ring like a stream's, but it holds *records*: a header of
//! [`record::HEADER`] bytes, the payload, and padding. Both rings of a socket hold such
//! records. Received ones are numbered here and copied by the primary; the application writes
//! outgoing ones, and the pump finds them.

pub mod gather;
pub mod record;
mod send;

use crate::hash::mix;
use std::collections::VecDeque;

use crate::config::Limits;
use crate::ip::identification::Identifications;
use crate::keys::Keys;
use crate::log::effect::{Effect, EffectSink, FrameNumbers, Queue};
use crate::log::request::{
    Body, ConnId, Digest, GroupIndex, Lengths, Merged, Request, RequestKind, Verdict,
};
use crate::stats::StateStats;
use send::Sends;

/// The state of one socket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Socket {
    id: ConnId,
    port: u16,
    /// Bytes of its queue that the application has read.
    app_read: u64,
    /// All bytes that were put into its queue so far.
    queued: u64,
    /// Number of the next delivery.
    delivery: u64,
    /// Datagrams to send whose frames are not all numbered yet, oldest first.
    sends: VecDeque<Sends>,
    /// Whether it is in `waiting`.
    waits_for_turn: bool,
    /// Number of its entries in `unsent`.
    unsent: u32,
    /// Whether it ends as soon as everything is sent.
    closing: bool,
}

/// The context of a request: everything that sockets need from outside.
pub struct UdpCx<'a, S> {
    /// Numbers of the frames that are sent.
    pub frames: &'a mut FrameNumbers,
    /// The limits of the group.
    pub limits: &'a Limits,
    /// Counters of the state.
    pub stats: &'a mut StateStats,
    /// Takes the effects.
    pub out: &'a mut S,
}

/// The sockets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpSockets {
    places: Vec<Option<Socket>>,
    /// Sockets that could send more, in order of their turns.
    waiting: VecDeque<ConnId>,
    /// Offset up to which a socket's send ring may be overwritten once that many frames are
    /// sent; frame counts ascend.
    unsent: VecDeque<(u64, ConnId, u64)>,
    /// Identifications of the next datagrams.
    idents: Identifications,
    /// Whether sockets precede connections when both wait for room.
    first: bool,
}

impl UdpSockets {
    /// Sets the keys. Identifications differ from those of the group's pump and of other groups.
    pub fn configure(&mut self, keys: &Keys, group: GroupIndex) {
        self.idents = Identifications::new(keys, 2 * group.index, 2 * group.count);
    }

    fn get(&mut self, id: ConnId) -> Option<&mut Socket> {
        let place = self.places.get_mut(id.index as usize)?.as_mut()?;
        (place.id == id).then_some(place)
    }

    /// Applies a run of datagrams for one socket. Datagrams that do not fit its queue are
    /// dropped (RFC 1122 section 4.1.3.1 leaves that to us).
    pub fn arrive<S: EffectSink>(
        &mut self,
        request: &Request,
        verdict: Verdict,
        cx: &mut UdpCx<'_, S>,
    ) {
        let (digest, Body::Datagrams { lengths }) = (&request.digest, &request.body) else {
            return;
        };
        let lens = match lengths {
            Lengths::Each(lens) => lens,
            Lengths::Merged(merged) => return self.arrive_merged(digest, *merged, verdict, cx),
        };
        let count = u32::from(digest.count).min(lens.len() as u32);
        let good = verdict & digest.all_good();
        cx.stats.datagrams += u64::from(count);
        cx.stats.bad_datagrams += u64::from(count.saturating_sub(good.count_ones()));
        let Some(socket) = self.get(digest.hint).filter(|socket| !socket.closing) else {
            cx.stats.no_socket += u64::from(good.count_ones());
            return;
        };
        if digest.bits & Digest::PROGRESS != 0 {
            socket.read_low(digest.app_read);
        }
        let lens = &lens[..count as usize];
        let has_more = digest.bits & Digest::INFO != 0;
        let offset = socket.queued;
        let take = match has_more {
            false => socket.take::<0, S>(lens, good, cx),
            true => socket.take::<{ record::MORE as u64 }, S>(lens, good, cx),
        };
        if take != 0 {
            cx.out.push(Effect::Queue(Queue {
                socket: socket.id,
                take,
                lengths: *lengths,
                offset,
                end: socket.queued,
                delivery: socket.delivery,
                arrived: has_more.then_some(digest.now),
            }));
            socket.delivery += 1;
        }
    }

    /// [`Self::arrive`] for datagrams in one frame, which has one checksum.
    fn arrive_merged<S: EffectSink>(
        &mut self,
        digest: &Digest,
        merged: Merged,
        verdict: Verdict,
        cx: &mut UdpCx<'_, S>,
    ) {
        let count = u64::from(merged.count());
        cx.stats.datagrams += count;
        if verdict & 1 == 0 {
            cx.stats.bad_datagrams += count;
            return;
        }
        let Some(socket) = self.get(digest.hint).filter(|socket| !socket.closing) else {
            cx.stats.no_socket += count;
            return;
        };
        if digest.bits & Digest::PROGRESS != 0 {
            socket.read_low(digest.app_read);
        }
        let has_more = digest.bits & Digest::INFO != 0;
        let offset = socket.queued;
        let taken = socket.take_merged(merged, has_more, cx.limits);
        cx.stats.queue_full += count - u64::from(taken.count());
        if taken.len > 0 {
            cx.out.push(Effect::Queue(Queue {
                socket: socket.id,
                take: 1,
                lengths: Lengths::Merged(taken),
                offset,
                end: socket.queued,
                delivery: socket.delivery,
                arrived: has_more.then_some(digest.now),
            }));
            socket.delivery += 1;
        }
    }

    /// Applies a command of a socket. Returns false if the request is something else.
    pub fn command<S: EffectSink>(&mut self, request: &Request, cx: &mut UdpCx<'_, S>) -> bool {
        match request.body {
            Body::Bind { socket, port } => self.bind(socket, port, cx.limits),
            Body::Sends { .. } => self.send(request, cx),
            Body::Unbind { socket } => {
                if let Some(place) = self.get(socket) {
                    place.closing = true;
                    self.end(socket, cx);
                }
            }
            _ => return false,
        }
        true
    }

    fn bind(&mut self, id: ConnId, port: u16, limits: &Limits) {
        let index = id.index as usize;
        if index >= limits.udp_sockets as usize {
            return;
        }
        if self.places.len() <= index {
            self.places.resize(index + 1, None);
        }
        self.places[index].get_or_insert(Socket {
            id,
            port,
            app_read: 0,
            queued: 0,
            delivery: 0,
            sends: VecDeque::new(),
            waits_for_turn: false,
            unsent: 0,
            closing: false,
        });
    }

    /// Removes a closing socket once nothing is left to send.
    fn end<S: EffectSink>(&mut self, id: ConnId, cx: &mut UdpCx<'_, S>) {
        let Some(socket) = self.get(id) else { return };
        if socket.closing && socket.sends.is_empty() && socket.unsent == 0 {
            self.places[id.index as usize] = None;
            cx.out.push(Effect::Unbound { socket: id });
        }
    }

    /// The number of sent frames at which a socket has work to do; 0 while one waits for its turn.
    pub fn next_sent(&self) -> u64 {
        match (self.waiting.is_empty(), self.unsent.front()) {
            (false, _) => 0,
            (true, Some(&(sent, ..))) => sent,
            (true, None) => u64::MAX,
        }
    }

    /// Whether sockets precede connections this time; it alternates.
    pub fn comes_first(&mut self) -> bool {
        self.first = !self.first && !self.waiting.is_empty();
        self.first
    }

    /// Folds the changes of a request into `h`.
    pub fn fold(&self, h: u64, request: &Request) -> u64 {
        let id = match (request.digest.kind, request.body) {
            (RequestKind::Datagrams, _) => request.digest.hint,
            (
                _,
                Body::Sends { socket, .. } | Body::Bind { socket, .. } | Body::Unbind { socket },
            ) => socket,
            _ => return h,
        };
        let place = self.places.get(id.index as usize);
        let socket = place.and_then(Option::as_ref);
        socket.map_or(h, |socket| {
            socket.words().iter().fold(h, |h, word| mix(h ^ word))
        })
    }

    /// A hash of the whole state.
    pub fn fingerprint(&self) -> u64 {
        let mut h = self.idents.fingerprint() ^ u64::from(self.first);
        let mut add = |word: u64| h = mix(h ^ word);
        for socket in &self.places {
            let Some(socket) = socket else {
                add(u64::MAX);
                continue;
            };
            socket.words().into_iter().for_each(&mut add);
            for sends in &socket.sends {
                sends.words().into_iter().for_each(&mut add);
            }
        }
        for id in &self.waiting {
            add(u64::from(id.index));
        }
        for (sent, id, upto) in &self.unsent {
            add(*sent ^ u64::from(id.index) << 48);
            add(*upto);
        }
        h
    }
}

impl Socket {
    /// Adds good datagrams of these lengths to the queue while there is room. Each takes `MORE`
    /// bytes in addition to its record. Returns the accepted ones, a bit each.
    #[inline(always)]
    fn take<const MORE: u64, S>(
        &mut self,
        lens: &[u16],
        good: Verdict,
        cx: &mut UdpCx<'_, S>,
    ) -> u16 {
        let most = self.app_read + u64::from(cx.limits.udp_receive_buffer);
        let mut take = 0;
        for (i, len) in lens.iter().enumerate() {
            if good & 1 << i == 0 {
                continue;
            }
            let end = self.queued + record::len(*len) + MORE;
            if end <= most {
                take |= 1 << i;
                self.queued = end;
            } else {
                cx.stats.queue_full += 1;
            }
        }
        take
    }

    /// Adds the first of several merged datagrams to the queue, as many as fit, and returns them.
    fn take_merged(&mut self, merged: Merged, has_more: bool, limits: &Limits) -> Merged {
        let more = if has_more { record::MORE as u64 } else { 0 };
        let most = self.app_read + u64::from(limits.udp_receive_buffer);
        let room = most.saturating_sub(self.queued);
        let (whole, rest) = merged.split();
        let each = record::len(merged.size) + more;
        let fit = u64::from(whole).min(room / each);
        self.queued += fit * each;
        let last = record::len(rest) + more;
        if fit == u64::from(whole) && rest > 0 && last <= room - fit * each {
            self.queued += last;
            return merged;
        }
        Merged {
            len: fit as u16 * merged.size,
            ..merged
        }
    }

    /// Updates the application's cursor from its low half.
    fn read_low(&mut self, low: u32) {
        let step = low.wrapping_sub(self.app_read as u32);
        // An older cursor is ignored.
        if step < 1 << 31 {
            self.app_read += u64::from(step);
        }
    }

    fn words(&self) -> [u64; 6] {
        let flags = u64::from(self.waits_for_turn) << 1 | u64::from(self.closing);
        [
            u64::from(self.id.index) << 32 | u64::from(self.id.generation),
            u64::from(self.port) << 32 | u64::from(self.unsent) << 2 | flags,
            self.app_read,
            self.queued,
            self.delivery,
            self.sends.len() as u64,
        ]
    }
}

#[cfg(test)]
mod tests;
