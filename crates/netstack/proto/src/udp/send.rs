//! Sending by sockets: assigns frame numbers, within credit, in fair turns.

use crate::hash::mix;

use super::{Socket, UdpCx, UdpSockets, record};
use crate::ip::fragment::Cut;
use crate::ip::identification::Sequence;
use crate::log::effect::{Effect, EffectSink, SendDatagrams};
use crate::log::request::{Address, Body, ConnId, Endpoint, Lengths, MAX_DATAGRAMS, Mac, Request};

/// UDP's number among the protocols of IPv4.
const PROTOCOL: u8 = 17;

/// Datagrams to one destination; some of their frames may be numbered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sends {
    local: Endpoint,
    remote: Endpoint,
    mac: Mac,
    /// Path MTU in bytes.
    mtu: u16,
    ttl: u8,
    tos: u8,
    dont_fragment: bool,
    /// Payload lengths.
    lengths: Lengths,
    /// Number of datagrams; 1 for merged ones.
    count: u8,
    /// The next datagram that needs frame numbers.
    next: u8,
    /// Number of its fragments that are numbered.
    fragments: u32,
    /// Identifications, from the next datagram on.
    idents: Sequence,
    /// Offset of its record in the send ring.
    offset: u64,
}

impl Sends {
    /// Takes the contents of one effect from the rest: datagrams that each fit a packet, fragments
    /// of one that does not, or a frame of several. At most `room` frames, at least one.
    fn take(&mut self, socket: ConnId, room: u64) -> SendDatagrams {
        let taken = SendDatagrams {
            socket,
            first_frame: 0,
            count: 1,
            local: self.local,
            remote: self.remote,
            mac: self.mac,
            mtu: self.mtu,
            ttl: self.ttl,
            tos: self.tos,
            dont_fragment: self.dont_fragment,
            lengths: self.lengths,
            offset: self.offset,
            idents: self.idents,
            fragment: None,
        };
        match self.lengths {
            Lengths::Each(lens) => self.take_each(&lens, taken, room),
            Lengths::Merged(merged) => {
                self.next = self.count;
                self.offset += record::total(&self.lengths, 1);
                self.idents.skip(merged.count());
                taken
            }
        }
    }

    /// [`Self::take`] for datagrams in separate frames.
    fn take_each(
        &mut self,
        lens: &[u16; MAX_DATAGRAMS],
        mut taken: SendDatagrams,
        room: u64,
    ) -> SendDatagrams {
        let next = usize::from(self.next);
        let cut = Cut::new(self.remote.address, self.mtu);
        let frames_of = |len: u16| cut.count(8 + u32::from(len));
        let room = room.clamp(1, u64::from(u32::MAX)) as u32;
        let left = &lens[next..usize::from(self.count)];
        let cut = left.first().is_some_and(|len| frames_of(*len) > 1);
        let mut own = [0; MAX_DATAGRAMS];
        let count = if cut {
            own[0] = left[0];
            room.min(frames_of(left[0]) - self.fragments)
        } else {
            let uncut = left.iter().take_while(|len| frames_of(**len) == 1).count();
            let count = uncut.min(room as usize);
            own[..count].copy_from_slice(&left[..count]);
            count as u32
        };
        taken.count = count;
        taken.lengths = Lengths::Each(own);
        taken.fragment = cut.then_some(self.fragments);
        if cut && self.fragments + count < frames_of(left[0]) {
            self.fragments += count;
            return taken;
        }
        self.fragments = 0;
        let done = if cut { 1 } else { count as usize };
        for len in &lens[next..next + done] {
            self.offset += record::len(*len);
        }
        self.next += done as u8;
        self.idents.skip(done as u16);
        taken
    }

    pub(super) fn words(&self) -> [u64; 7] {
        let lens = match &self.lengths {
            Lengths::Each(lens) => lens.iter().fold(0, |h, len| mix(h ^ u64::from(*len))),
            Lengths::Merged(merged) => {
                let words = [merged.len, merged.size].map(u64::from);
                words.iter().fold(1, |h, word| mix(h ^ word))
            }
        };
        let addresses = [self.local.address, self.remote.address].map(Address::words);
        let addresses = addresses.as_flattened().iter();
        let addresses = addresses.fold(0, |h, word| mix(h ^ word));
        [
            self.offset,
            lens,
            addresses,
            u64::from(self.remote.port) | u64::from(self.local.port) << 16,
            self.idents.fingerprint(),
            u64::from(self.dont_fragment) << 63
                | u64::from(self.count) << 48
                | u64::from(self.next) << 40
                | u64::from(self.ttl) << 32
                | u64::from(self.fragments) << 8
                | u64::from(self.tos),
            self.mac
                .0
                .iter()
                .fold(self.mtu.into(), |h, byte| h << 8 | u64::from(*byte)),
        ]
    }
}

impl UdpSockets {
    /// Datagrams to send or, with a count of 0, a part of the send ring that may be overwritten.
    pub(super) fn send<S: EffectSink>(&mut self, request: &Request, cx: &mut UdpCx<'_, S>) {
        let Body::Sends {
            socket: id,
            local,
            remote,
            mac,
            mtu,
            offset,
            lengths,
            ttl,
            tos,
            dont_fragment,
        } = request.body
        else {
            return;
        };
        let (count, datagrams) = match lengths {
            Lengths::Each(_) => {
                let count = request.digest.count.min(MAX_DATAGRAMS as u8);
                (count, count.into())
            }
            Lengths::Merged(merged) => (1, merged.count()),
        };
        if self.get(id).is_none() {
            return;
        }
        let idents = self.idents.take(remote.address, PROTOCOL, datagrams);
        let Some(socket) = self.get(id) else { return };
        socket.sends.push_back(Sends {
            local,
            remote,
            mac,
            mtu,
            ttl,
            tos,
            dont_fragment,
            lengths,
            count,
            next: 0,
            fragments: 0,
            idents,
            offset,
        });
        cx.stats.sent_datagrams += u64::from(datagrams);
        self.turn(id, cx);
    }

    /// Lets a socket number its frames, as many as its turn allows.
    fn turn<S: EffectSink>(&mut self, id: ConnId, cx: &mut UdpCx<'_, S>) {
        let mut unsent = core::mem::take(&mut self.unsent);
        if let Some(socket) = self.get(id) {
            let blocked = socket.number(cx, &mut unsent);
            if blocked && !socket.waits_for_turn {
                socket.waits_for_turn = true;
                self.waiting.push_back(id);
            }
        }
        self.unsent = unsent;
        // A request may need no frame at all.
        self.after_sending(cx);
    }

    /// Lets waiting sockets send, a quantum each in turn, while there is room.
    pub fn serve<S: EffectSink>(&mut self, cx: &mut UdpCx<'_, S>) {
        for _ in 0..self.waiting.len() {
            if cx.frames.room() == 0 {
                return;
            }
            let Some(id) = self.waiting.pop_front() else {
                return;
            };
            if let Some(socket) = self.get(id) {
                socket.waits_for_turn = false;
                self.turn(id, cx);
            }
        }
    }

    /// Frames were sent: their records may be overwritten.
    pub fn after_sending<S: EffectSink>(&mut self, cx: &mut UdpCx<'_, S>) {
        while let Some(&(sent, id, upto)) = self.unsent.front() {
            if sent > cx.frames.sent {
                return;
            }
            self.unsent.pop_front();
            if let Some(socket) = self.get(id) {
                socket.unsent -= 1;
            }
            let last_of_it = self
                .unsent
                .front()
                .is_none_or(|&(sent, next, _)| next != id || sent > cx.frames.sent);
            if last_of_it {
                cx.out.push(Effect::Sent { socket: id, upto });
                self.end(id, cx);
            }
        }
    }
}

impl Socket {
    /// Numbers frames, at most a quantum. Returns whether there are more.
    fn number<S: EffectSink>(
        &mut self,
        cx: &mut UdpCx<'_, S>,
        unsent: &mut std::collections::VecDeque<(u64, ConnId, u64)>,
    ) -> bool {
        let UdpCx {
            frames,
            limits,
            stats,
            out,
        } = cx;
        let mut quantum = u64::from(limits.quantum);
        while let Some(sends) = self.sends.front_mut() {
            if sends.next == sends.count {
                unsent.push_back((frames.next, self.id, sends.offset));
                self.unsent += 1;
                self.sends.pop_front();
                continue;
            }
            let room = frames.room().min(quantum);
            if room == 0 {
                return true;
            }
            let mut effect = sends.take(self.id, room);
            effect.first_frame = frames.next;
            frames.next += u64::from(effect.count);
            quantum -= u64::from(effect.count);
            if effect.fragment.is_some() {
                stats.fragments_made += u64::from(effect.count);
            }
            out.push(Effect::Send(effect));
        }
        false
    }
}
