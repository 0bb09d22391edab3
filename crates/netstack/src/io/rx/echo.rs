//! Echo requests of sockets in the receive pump, and the replies to them (RFC 792, RFC 4443 section
//! 4). None of this is in the log.

use std::collections::VecDeque;

use dominoes_drivers::Frame;

use crate::io::echo::{EchoReply, EchoRequest};
use crate::io::rx::RxPump;
use crate::io::world::Command;
use crate::ip::fragment::cut_frame;
use crate::ip::neighbor::Cause;
use crate::packet as wire;
use crate::packet::flow::Address;
use crate::time::Instant;

/// Maximum number of requests without a reply. The oldest are forgotten.
const MOST_WAITING: usize = 1024;

/// Requests that were sent and have no reply yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    sent: VecDeque<(EchoName, Instant)>,
}

/// What names a request: the address asked, the identifier, and the sequence number.
type EchoName = (Address, u16, u16);

impl Echoes {
    /// Adds a request. Returns how many others were forgotten (0 or 1).
    fn sent(&mut self, name: EchoName, now: Instant) -> u64 {
        let is_full = self.sent.len() == MOST_WAITING;
        if is_full {
            self.sent.pop_front();
        }
        self.sent.push_back((name, now));
        is_full.into()
    }

    /// Removes the request that a reply answers, and returns when it was sent.
    fn replied(&mut self, name: EchoName) -> Option<Instant> {
        let at = self.sent.iter().position(|(sent, _)| *sent == name)?;
        self.sent.remove(at).map(|(_, at)| at)
    }
}

impl RxPump {
    /// Sends the echo requests of a socket. Each may be many frames; when too many control frames
    /// wait, the rest is queued as another command.
    pub(super) fn send_echoes(&mut self, now: Instant, ident: u16) {
        let queues = self.world.socket_table().echoes.get(&ident).cloned();
        while let Some(request) = queues.as_ref().and_then(|queues| queues.request()) {
            self.send_echo(now, ident, &request);
            if self.waits_for_control(now) {
                return self.world.commands.push(Command::Echo { ident });
            }
        }
    }

    fn send_echo(&mut self, now: Instant, ident: u16, request: &EchoRequest) {
        let EchoRequest { to, sequence, .. } = *request;
        let Some(source) = self.host.site.source(to) else {
            self.stats.unresolved += 1;
            return;
        };
        let protocol = if to.is_v4() { wire::ICMP } else { wire::ICMPV6 };
        let number = self.host.next_ident(to, protocol);
        let frame = wire::echo_request(
            (self.world.mac, source),
            (to, request.ttl),
            number,
            (ident, sequence),
            &request.data,
        );
        let frames = cut_frame(frame, self.host.path_mtu(to), number);
        self.stats.echo_requests_forgotten += self.echoes.sent((to, ident, sequence), now);
        self.host
            .remember_sent(now, to, frames.iter().map(Vec::len).max());
        self.with_host(now, |host| host.send_frames(now, Cause::Ours, to, frames));
    }

    /// Gives an echo reply to the socket whose request it answers.
    pub(super) fn take_echo_reply(&mut self, now: Instant, frame: &Frame) {
        let Some(reply) = wire::echo_of(frame.bytes()) else {
            return;
        };
        let Some(sent) = self
            .echoes
            .replied((reply.from, reply.ident, reply.sequence))
        else {
            return;
        };
        let queues = self.world.socket_table().echoes.get(&reply.ident).cloned();
        if let Some(queues) = queues {
            let is_lost = queues.reply(EchoReply {
                from: reply.from.ip(),
                sequence: reply.sequence,
                data: reply.data.to_vec(),
                ttl: reply.ttl,
                round_trip: now.since(sent).into(),
            });
            self.stats.echo_replies_unread += u64::from(is_lost);
        }
    }
}
