//! Path MTU discovery in the receive pump (RFC 1191, RFC 8201).
//!
//! A router's message counts only if it is about a packet that we sent. A connection checks that
//! the sequence number is in flight, and reports the MTU by
//! [`Effect::PathMtu`](crate::log::effect::Effect::PathMtu). For datagrams, fragments and echoes,
//! the host compares the sizes that it sent lately ([`PathMtus`](crate::ip::pmtu::PathMtus)). The
//! group that accepts a message informs the other groups of its interface. TCP connections and IPv6
//! datagrams and echoes keep to the path MTU; routers fragment IPv4 datagrams and echoes.

use std::collections::BTreeSet;

use crate::io::rx::{Log, RESERVED, RxPump};
use crate::ip::rate_limit::TokenBucket;
use crate::log::request::{Address, Body, Flow};
use crate::time::{Duration, Instant};

/// Destinations with a smaller MTU that one search covers. Beyond that, only datagrams learn of it.
const MAX_NARROWED: usize = 256;

/// Rate of searches for connections to such destinations: the burst, and the interval after it. A
/// search visits every connection.
const SEARCHES: (u64, Duration) = (16, Duration::from_millis(100));

/// Path MTUs that connections do not know yet.
pub(super) struct Paths {
    /// Destinations whose path MTU became smaller, and whose connections have not been searched.
    narrowed: BTreeSet<Address>,
    /// Connections whose path MTU is published when the log has room.
    narrow: BTreeSet<Flow>,
    searches: TokenBucket,
    /// The link's MTU for IPv6, if it is not published yet. 0: routers announce none.
    link_mtu: Option<u16>,
}

impl Default for Paths {
    fn default() -> Self {
        Paths {
            narrowed: BTreeSet::new(),
            narrow: BTreeSet::new(),
            searches: TokenBucket::new(SEARCHES.0, SEARCHES.1),
            link_mtu: None,
        }
    }
}

impl Paths {
    /// When the next turn is due.
    pub(super) fn next_deadline(&self) -> Instant {
        if !self.narrow.is_empty() || self.link_mtu.is_some() {
            return Instant::ZERO;
        }
        match self.narrowed.is_empty() {
            true => Instant::NEVER,
            false => self.searches.next(),
        }
    }

    /// Queues connections, whose path MTUs will be published.
    fn tell(&mut self, flows: impl Iterator<Item = Flow>) {
        self.narrow.extend(flows);
    }
}

impl RxPump {
    /// Records that the path MTU to `remote` is at most `mtu`. Returns whether that is less than
    /// before.
    fn narrow_path(&mut self, now: Instant, (remote, mtu): (Address, u16)) -> bool {
        let is_less = self.host.paths.too_big(remote, mtu, now);
        if is_less && self.connections.paths.narrowed.len() < MAX_NARROWED {
            self.connections.paths.narrowed.insert(remote);
        }
        self.v6_due = self.v6_deadline();
        is_less
    }

    /// The MTU that IPv6 routers announce has changed: updates connections, and the MSS of later
    /// SYNs, as Linux does.
    pub(super) fn follow_link_mtu(&mut self) {
        self.connections.paths.link_mtu = Some(self.host.site.v6.mtu.unwrap_or(0));
        let flows = self.connections.hints.keys().copied();
        self.connections
            .paths
            .tell(flows.filter(|flow| !flow.remote.address.is_v4()));
        self.v6_due = Instant::ZERO;
    }

    /// The MTU that DHCP gives for IPv4 has changed: updates connections. SYNs keep their MSS,
    /// since the device receives longer packets, too.
    pub(super) fn follow_v4_mtu(&mut self) {
        let flows = self.connections.hints.keys().copied();
        self.connections
            .paths
            .tell(flows.filter(|flow| flow.remote.address.is_v4()));
        self.v6_due = Instant::ZERO;
    }

    /// A router reports that a packet of `len` bytes to `remote`, not a TCP segment, exceeded
    /// `mtu`. An attacker would have to know the size of a packet that we sent (RFC 8201 section
    /// 4).
    pub(super) fn too_big(&mut self, now: Instant, remote: Address, (len, mtu): (u16, u16)) {
        if mtu < len
            && self.host.paths.has_sent(remote, len, now)
            && self.narrow_path(now, (remote, mtu))
        {
            self.world.tell_path(remote, mtu);
        }
    }

    /// Takes the path MTUs that other groups and our connections report. Returns how many.
    pub(super) fn take_paths(&mut self, now: Instant) -> usize {
        let mut done = 0;
        while !self.world.mailbox.paths.is_empty()
            && let Some(path) = self.world.mailbox.paths.pop()
        {
            self.narrow_path(now, path);
            done += 1;
        }
        done
    }

    /// A connection begins: publishes its path MTU if that is known and smaller than the link's.
    pub(super) fn path_begins(&mut self, flow: Flow) {
        if self.host.segment_mtu(flow.remote.address) < self.world.limits.mtu {
            self.connections.paths.narrow.insert(flow);
            self.v6_due = Instant::ZERO;
        }
    }

    /// Publishes the path MTUs of connections while the log has room. The search visits every
    /// connection, so its rate is limited.
    pub(super) fn follow_paths(&mut self, now: Instant, log: &mut impl Log) {
        let paths = &mut self.connections.paths;
        self.host.paths.expire(now);
        if !paths.narrowed.is_empty() && paths.searches.admits(now) {
            let narrowed = core::mem::take(&mut paths.narrowed);
            let flows = self.connections.hints.keys().copied();
            paths.tell(flows.filter(|flow| narrowed.contains(&flow.remote.address)));
        }
        if log.room() > RESERVED
            && let Some(mtu) = self.connections.paths.link_mtu.take()
        {
            self.publish_command(now, Body::LinkMtu { mtu }, log);
        }
        while log.room() > RESERVED
            && let Some(flow) = self.connections.paths.narrow.pop_first()
        {
            if let Some(conn) = self.connections.hints.get(&flow).map(|hint| hint.conn) {
                let mtu = self.host.segment_mtu(flow.remote.address);
                self.publish_command(now, Body::PathMtu { conn, mtu }, log);
            }
        }
    }
}
