//! What passes the path to a destination (RFC 1191, RFC 8201), in the receive pump.
//!
//! A router's word counts if it is about what left: a connection knows the numbers that are in
//! flight and tells ([`Effect::PathMtu`](crate::log::effect::Effect::PathMtu)), and the host
//! knows the sizes of datagrams, fragments and echoes that it sent lately
//! ([`PathMtus`](crate::ip::pmtu::PathMtus)). Whichever group knows tells the others of its
//! interface. Connections obey, and so do datagrams and echoes of IPv6; routers cut those of IPv4.

use std::collections::BTreeSet;

use crate::io::rx::{Log, RESERVED, RxPump};
use crate::ip::rate_limit::TokenBucket;
use crate::log::request::{Address, Body, Flow};
use crate::time::{Duration, Instant};

/// Destinations whose connections are told together that less passes; of more, datagrams alone
/// know.
const MAX_NARROWED: usize = 256;

/// Searches for such connections in a row, and how long until one more may be: all are looked at.
const SEARCHES: (u64, Duration) = (16, Duration::from_millis(100));

/// Connections that follow their paths.
pub(super) struct Paths {
    /// Destinations to which less passes than connections may know, and the connections that are
    /// told as the log has room.
    narrowed: BTreeSet<Address>,
    narrow: BTreeSet<Flow>,
    searches: TokenBucket,
    /// What the link takes of IPv6, if the log does not say it yet.
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
    /// When a turn is due.
    pub(super) fn next_deadline(&self) -> Instant {
        if !self.narrow.is_empty() || self.link_mtu.is_some() {
            return Instant::ZERO;
        }
        match self.narrowed.is_empty() {
            true => Instant::NEVER,
            false => self.searches.next(),
        }
    }

    /// Connections that may be told.
    fn tell(&mut self, flows: impl Iterator<Item = Flow>) {
        self.narrow.extend(flows);
    }
}

impl RxPump {
    /// No more than `mtu` bytes pass to `remote`.
    fn narrow_path(&mut self, now: Instant, (remote, mtu): (Address, u16)) -> bool {
        let is_less = self.host.paths.too_big(remote, mtu, now);
        if is_less && self.connections.paths.narrowed.len() < MAX_NARROWED {
            self.connections.paths.narrowed.insert(remote);
        }
        self.v6_due = self.v6_deadline();
        is_less
    }

    /// Routers say what the link takes of IPv6, or do not any more: connections follow, and what
    /// SYNs announce, as it does in Linux.
    pub(super) fn follow_link_mtu(&mut self) {
        self.connections.paths.link_mtu = Some(self.host.site.v6.mtu.unwrap_or(0));
        let flows = self.connections.hints.keys().copied();
        self.connections
            .paths
            .tell(flows.filter(|flow| !flow.remote.address.is_v4()));
        self.v6_due = Instant::ZERO;
    }

    /// A router says that a packet of `len` bytes to `remote` was larger than `mtu`, which no
    /// connection sent. Whoever forges that has to know what we sent (RFC 8201 section 4).
    pub(super) fn too_big(&mut self, now: Instant, remote: Address, (len, mtu): (u16, u16)) {
        if mtu < len
            && self.host.paths.has_sent(remote, len, now)
            && self.narrow_path(now, (remote, mtu))
        {
            self.world.tell_path(remote, mtu);
        }
    }

    /// Takes what other groups and our connections know.
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

    /// A connection begins: its path may be known already.
    pub(super) fn path_begins(&mut self, flow: Flow) {
        if self.host.segment_mtu(flow.remote.address) < self.world.limits.mtu {
            self.connections.paths.narrow.insert(flow);
            self.v6_due = Instant::ZERO;
        }
    }

    /// Tells connections what is known of their paths, as far as the log has room. All are looked
    /// at for it, so that is done only so often.
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
