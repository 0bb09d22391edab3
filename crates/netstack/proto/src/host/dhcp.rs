//! The client of DHCP (RFC 2131), as plain data, and its place in a host.
//!
//! One [`DhcpClient`] serves an interface, in the first of the hosts that share the addresses. It
//! takes the first offer, probes for the address (RFC 5227 section 2.1), and keeps the [`Lease`]
//! until the server takes it back or it ends. Departures: it begins within a second (RFC 2131
//! section 4.4.1 has 1 to 10 s), and three probes 300 ms apart find another host with the address
//! (RFC 5227 has 1 to 2 s between them).

use core::net::Ipv4Addr;

use crate::host::{IpHost, News};
use crate::ip::neighbor::Cause;
use crate::ip::route::may_be_ours_v4;
use crate::ip::v6::names::may_serve;
use crate::keys::{KeyUse, Keys};
use crate::packet as wire;
use crate::packet::dhcp::{
    self, CLIENT_PORT, CLIENT_PORT_V6, DhcpAnswer, DhcpKind, DhcpRequest, Information, Names,
    SERVER_PORT, SERVER_PORT_V6,
};
use crate::packet::flow::{Address, Endpoint};
use crate::time::{Duration, Instant};

const ALL_HOSTS: Address = Address::v4(u32::MAX);
const SECOND: Duration = Duration::from_secs(1);
/// A request without an answer is repeated this often (RFC 2131 section 3.1, 5).
const REQUESTS: u32 = 4;
/// Opens wait for the first lease until this many messages found no server.
const PATIENCE: u32 = 4;
/// The least time between two messages that renew a lease (RFC 2131 section 4.4.5).
const RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// How long a client waits after a conflict (RFC 2131 section 3.1, 5).
const AFTER_CONFLICT: Duration = Duration::from_secs(10);
/// Probes for an address, and the time after each.
const PROBES: (u32, Duration) = (3, Duration::from_millis(300));
/// Shorter leases are not taken, since each renewal and each change of our address costs work.
const LEAST_LEASE_S: u32 = 10;
/// The least MTU that we take (RFC 791 section 3.1: every host takes packets of this length).
const LEAST_MTU: u16 = 576;

/// How the client names itself to servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DhcpConfig {
    /// The host's name (RFC 2132 section 3.14).
    pub host_name: Option<String>,
    /// The identifier (RFC 2132 section 9.14). Default: 1, and the link-layer address.
    pub client_id: Option<Vec<u8>>,
}

/// A leased address, and further values of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Our address.
    pub address: Address,
    /// The length of its prefix, in bits.
    pub prefix: u8,
    /// Gateways, the best first.
    pub routers: Vec<Address>,
    /// Servers of names, and our domain.
    pub names: Names,
    /// The most bytes of a packet, if the server limits it.
    pub mtu: Option<u16>,
}

/// A lease, and its times.
#[derive(Clone, Debug)]
struct Terms {
    lease: Lease,
    server: Address,
    /// T1 and T2 (RFC 2131 section 4.4.5).
    renew_at: Instant,
    rebind_at: Instant,
    ends: Instant,
}

/// The states of RFC 2131 section 4.4. A restart with a known address has none here.
#[derive(Clone, Debug)]
enum State {
    /// The application has given the lease back.
    Off,
    /// It asks soon.
    Init,
    /// It waits for an offer.
    Selecting,
    /// It has asked for the address that the server offers.
    Requesting {
        server: Address,
        address: Address,
    },
    /// It has the address, and asks whether another host has it.
    Probing(Terms),
    Bound(Terms),
    Renewing(Terms),
    Rebinding(Terms),
}

/// Something to send.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Output {
    /// A message from this address, to a server or all of them.
    Message(Vec<u8>, Address, Address),
    /// Whether another host has the address.
    Probe(Address),
}

/// The client of one interface.
#[derive(Debug)]
pub(super) struct DhcpClient {
    keys: Keys,
    mac: [u8; 6],
    host_name: Option<String>,
    client_id: Vec<u8>,
    /// Whether hosts on this link answer ARP.
    probes: bool,
    state: State,
    /// When something is due.
    next: Instant,
    /// The number of the exchange with servers, when it began, and its messages so far.
    xid: u32,
    began: Instant,
    tries: u32,
    /// Refusals and conflicts since the last lease.
    failures: u32,
    /// Whether opens wait for the first lease.
    is_awaited: bool,
    draws: u64,
    outputs: Vec<Output>,
    /// Whether the lease changed, or is awaited no more.
    has_changed: bool,
    /// The lease that the owner of the host knows.
    known: Option<Lease>,
}

impl DhcpClient {
    fn new(mac: [u8; 6], config: DhcpConfig, keys: Keys, probes: bool) -> Self {
        let usual = || [&[1][..], &mac].concat();
        let mut client_id = config
            .client_id
            .filter(|id| id.len() >= 2)
            .unwrap_or_else(usual);
        client_id.truncate(255);
        DhcpClient {
            keys,
            mac,
            // A longer one is no name of a host (RFC 1035 section 2.3.4).
            host_name: config
                .host_name
                .filter(|name| (1..=63).contains(&name.len())),
            client_id,
            probes,
            state: State::Off,
            next: Instant::NEVER,
            xid: 0,
            began: Instant::ZERO,
            tries: 0,
            failures: 0,
            is_awaited: true,
            draws: 0,
            outputs: Vec::new(),
            has_changed: false,
            known: None,
        }
    }

    fn random(&mut self) -> u64 {
        self.draws += 1;
        let [a, b, c, d, e, f] = self.mac;
        let mac = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.keys.of(KeyUse::Dhcp, [mac, self.draws, 4])
    }

    /// A random time below `most`.
    fn below(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random() % most.as_nanos().max(1))
    }

    /// The wait after the `count`th message: 4 s, then twice as long up to 64 s, each changed by up
    /// to a second (RFC 2131 section 4.1).
    fn back_off(&mut self, count: u32) -> Duration {
        let wait = Duration::from_secs(3 + (4 << count.min(4)) - 4);
        wait + self.below(SECOND.times(2))
    }

    /// The lease, once no other host is known to have the address.
    fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Bound(terms) | State::Renewing(terms) | State::Rebinding(terms) => {
                Some(&terms.lease)
            }
            _ => None,
        }
    }

    /// Asks for a lease, unless it has one or asks already.
    fn begin(&mut self, now: Instant) {
        if matches!(self.state, State::Off) {
            self.restart(now, SECOND);
        }
    }

    /// Begins again, within `most`.
    fn restart(&mut self, now: Instant, most: Duration) {
        self.state = State::Init;
        self.next = now + self.below(most);
    }

    /// Gives the lease back, and asks for none (RFC 2131 section 4.4.6).
    fn release(&mut self, now: Instant) {
        if let State::Bound(terms) | State::Renewing(terms) | State::Rebinding(terms) =
            core::mem::replace(&mut self.state, State::Off)
        {
            self.begin_exchange(now);
            let (ours, server) = (terms.lease.address, terms.server);
            self.send(
                now,
                DhcpKind::Release,
                (Some(ours), None, Some(server)),
                server,
            );
        }
        self.end_wait();
        self.has_changed = true;
        self.next = Instant::NEVER;
    }

    /// The link is up, and may be another one: any server there confirms the lease, or refuses it.
    fn link_is_up(&mut self, now: Instant) {
        match core::mem::replace(&mut self.state, State::Off) {
            State::Off => {}
            State::Bound(terms) | State::Renewing(terms) | State::Rebinding(terms) => {
                self.begin_exchange(now);
                self.state = State::Rebinding(terms);
                self.next = now;
            }
            _ => self.restart(now, SECOND),
        }
    }

    fn end_wait(&mut self) {
        self.has_changed |= self.is_awaited;
        self.is_awaited = false;
    }

    fn begin_exchange(&mut self, now: Instant) {
        self.xid = self.random() as u32;
        (self.began, self.tries) = (now, 0);
    }

    /// Sends a message with our address, the address that it is about, and a server's identifier.
    fn send(
        &mut self,
        now: Instant,
        kind: DhcpKind,
        (ours, about, server): (Option<Address>, Option<Address>, Option<Address>),
        to: Address,
    ) {
        self.tries += 1;
        let secs = now.since(self.began).as_millis() / 1000;
        let message = DhcpRequest {
            kind,
            xid: self.xid,
            secs: u16::try_from(secs).unwrap_or(u16::MAX),
            mac: self.mac,
            ours,
            about,
            server,
            host_name: self.host_name.as_deref(),
            client_id: &self.client_id,
        };
        let from = ours.unwrap_or(Address::UNSPECIFIED);
        self.outputs
            .push(Output::Message(message.message(), from, to));
    }

    /// Does the due work.
    fn on_time(&mut self, now: Instant) {
        if self.next > now {
            return;
        }
        match core::mem::replace(&mut self.state, State::Off) {
            State::Off => self.next = Instant::NEVER,
            State::Init => {
                self.begin_exchange(now);
                self.discover(now);
            }
            State::Selecting => self.discover(now),
            State::Requesting { .. } if self.tries >= REQUESTS => {
                self.begin_exchange(now);
                self.discover(now);
            }
            State::Requesting { server, address } => self.request(now, server, address),
            State::Probing(terms) => self.probe(now, terms),
            State::Bound(terms) | State::Renewing(terms) | State::Rebinding(terms)
                if terms.ends <= now =>
            {
                self.lose(now, SECOND);
            }
            State::Bound(terms) => {
                self.begin_exchange(now);
                self.renew(now, terms);
            }
            State::Renewing(terms) => {
                if terms.rebind_at <= now {
                    self.begin_exchange(now);
                }
                self.renew(now, terms);
            }
            State::Rebinding(terms) => self.rebind(now, terms),
        }
    }

    fn discover(&mut self, now: Instant) {
        self.state = State::Selecting;
        if self.tries >= PATIENCE {
            self.end_wait();
        }
        let count = self.tries;
        self.send(now, DhcpKind::Discover, (None, None, None), ALL_HOSTS);
        self.next = now + self.back_off(count);
    }

    fn request(&mut self, now: Instant, server: Address, address: Address) {
        self.state = State::Requesting { server, address };
        let count = self.tries;
        let about = (None, Some(address), Some(server));
        self.send(now, DhcpKind::Request, about, ALL_HOSTS);
        self.next = now + self.back_off(count);
    }

    fn probe(&mut self, now: Instant, terms: Terms) {
        let (count, interval) = PROBES;
        if self.probes && self.tries < count {
            self.tries += 1;
            self.outputs.push(Output::Probe(terms.lease.address));
            self.next = now + interval;
            self.state = State::Probing(terms);
        } else {
            self.bind(terms);
        }
    }

    fn bind(&mut self, terms: Terms) {
        self.failures = 0;
        self.is_awaited = false;
        self.has_changed = true;
        self.next = terms.renew_at;
        self.state = State::Bound(terms);
    }

    /// Asks the server for more time, and from T2 on any server (RFC 2131 section 4.4.5).
    fn renew(&mut self, now: Instant, terms: Terms) {
        if terms.rebind_at <= now {
            return self.rebind(now, terms);
        }
        let ours = Some(terms.lease.address);
        self.send(now, DhcpKind::Request, (ours, None, None), terms.server);
        self.next = half_way(now, terms.rebind_at);
        self.state = State::Renewing(terms);
    }

    fn rebind(&mut self, now: Instant, terms: Terms) {
        let ours = Some(terms.lease.address);
        self.send(now, DhcpKind::Request, (ours, None, None), ALL_HOSTS);
        self.next = half_way(now, terms.ends);
        self.state = State::Rebinding(terms);
    }

    /// The lease is over.
    fn lose(&mut self, now: Instant, most: Duration) {
        self.has_changed = true;
        self.restart(now, most);
    }

    /// A message arrives. Returns whether it answers ours. `is_taken`: whether we have an address
    /// for another reason.
    fn hear(
        &mut self,
        now: Instant,
        said: &DhcpAnswer,
        is_taken: impl FnOnce(Address) -> bool,
    ) -> bool {
        let Some(server) = said.server.filter(|server| may_serve(*server)) else {
            return false;
        };
        if said.xid != self.xid || said.mac != self.mac {
            return false;
        }
        match (&self.state, said.kind) {
            (State::Selecting, DhcpKind::Offer) if may_be_ours(said.yours) => {
                let lasts = said.lease_s.is_none_or(|seconds| seconds >= LEAST_LEASE_S);
                if lasts {
                    // The lease begins with the first request.
                    self.tries = 0;
                    self.began = now;
                    self.request(now, server, said.yours);
                }
                lasts
            }
            (
                State::Requesting {
                    server: of,
                    address,
                },
                DhcpKind::Ack,
            ) if *of == server && *address == said.yours => {
                let Some(terms) = self.terms(said, server) else {
                    return false;
                };
                self.tries = 0;
                match is_taken(said.yours) {
                    true => self.decline(now, terms),
                    false => self.probe(now, terms),
                }
                true
            }
            (State::Requesting { server: of, .. }, DhcpKind::Nak) if *of == server => {
                self.refused(now);
                true
            }
            (State::Renewing(before) | State::Rebinding(before), DhcpKind::Ack)
                if before.lease.address == said.yours
                    && (before.server == server || matches!(self.state, State::Rebinding(_))) =>
            {
                let before = before.lease.clone();
                let Some(terms) = self.terms(said, server) else {
                    return false;
                };
                let has_changed = self.has_changed;
                let differs = terms.lease != before;
                self.bind(terms);
                self.has_changed = has_changed || differs;
                true
            }
            (State::Renewing(before), DhcpKind::Nak) if before.server == server => {
                self.refused(now);
                true
            }
            (State::Rebinding(_), DhcpKind::Nak) => {
                self.refused(now);
                true
            }
            _ => false,
        }
    }

    /// The server refuses the address: the client begins again, later each time.
    fn refused(&mut self, now: Instant) {
        let had = self.lease().is_some();
        let wait = self.back_off(self.failures);
        self.failures += 1;
        self.restart(now, SECOND);
        self.next = now + wait;
        self.has_changed |= had;
    }

    /// Another host has the address.
    fn decline(&mut self, now: Instant, terms: Terms) {
        let about = (None, Some(terms.lease.address), Some(terms.server));
        self.begin_exchange(now);
        self.send(now, DhcpKind::Decline, about, ALL_HOSTS);
        self.refused(now);
        self.next = self.next.max(now + AFTER_CONFLICT);
    }

    /// A message of ARP: whether it shows that another host has, or probes for, the address that we
    /// probe for (RFC 5227 section 2.1.1).
    fn hear_arp(&mut self, now: Instant, arp: &wire::Arp) {
        let State::Probing(terms) = &self.state else {
            return;
        };
        let address = terms.lease.address;
        let is_probe = arp.sender.is_unspecified() && arp.target == address;
        if arp.sender_mac != self.mac && (arp.sender == address || arp.request && is_probe) {
            let terms = terms.clone();
            self.decline(now, terms);
        }
    }

    /// The terms of a lease, from the first request for it on.
    fn terms(&mut self, said: &DhcpAnswer, server: Address) -> Option<Terms> {
        let lasts = said.lease_s.filter(|seconds| *seconds >= LEAST_LEASE_S)?;
        let after = |seconds: u32| self.began + Duration::from_secs(seconds.into());
        let (t1, t2) = match (said.renew_s, said.rebind_s) {
            (Some(t1), Some(t2)) if 0 < t1 && t1 < t2 && t2 < lasts => (t1, t2),
            _ => (lasts / 2, lasts - lasts / 8),
        };
        let (renew_at, rebind_at, ends) = match lasts {
            u32::MAX => (Instant::NEVER, Instant::NEVER, Instant::NEVER),
            _ => (after(t1), after(t2), after(lasts)),
        };
        // Hosts that started together do not renew at once.
        let early = self.below(Duration::from_millis(u64::from(t1) * 1000 / 16));
        let is_gateway = |router: &Address| may_be_ours(*router) && *router != said.yours;
        let servers = said.names.servers.iter().copied();
        Some(Terms {
            lease: Lease {
                address: said.yours,
                prefix: said.prefix,
                routers: said.routers.iter().copied().filter(is_gateway).collect(),
                names: Names {
                    servers: servers.filter(|server| may_serve(*server)).collect(),
                    domains: said.names.domains.clone(),
                },
                mtu: said.mtu.filter(|mtu| *mtu >= LEAST_MTU),
            },
            server,
            renew_at: match renew_at {
                Instant::NEVER => Instant::NEVER,
                renew_at => renew_at.before(early),
            },
            rebind_at,
            ends,
        })
    }
}

/// Half of the time that is left, but at least a minute of it.
fn half_way(now: Instant, end: Instant) -> Instant {
    let left = end.since(now);
    end.min(now + left.divided(2).max(RENEW_INTERVAL))
}

fn may_be_ours(address: Address) -> bool {
    may_be_ours_v4(Ipv4Addr::from_bits(address.v4_bits()))
}

impl IpHost {
    /// The host asks DHCP servers for an address, unless it is not the first of several.
    pub fn enable_dhcp(&mut self, config: DhcpConfig) {
        if self.is_first {
            let probes = self.neighbors.asks();
            let mut client = DhcpClient::new(self.mac, config, self.keys, probes);
            // The age of the stack is its time.
            client.begin(Instant::ZERO);
            self.dhcp = Some(Box::new(client));
        }
    }

    /// The lease that the last call returned, and the current one.
    pub fn take_lease(&mut self) -> (Option<Lease>, Option<Lease>) {
        let Some(client) = &mut self.dhcp else {
            return (None, None);
        };
        let lease = client.lease().cloned();
        let before = core::mem::replace(&mut client.known, lease.clone());
        (before, lease)
    }

    /// Whether opens should wait for the first lease.
    pub fn awaits_lease(&self) -> bool {
        self.dhcp.as_ref().is_some_and(|client| client.is_awaited)
    }

    /// When the client has something to do.
    pub(super) fn dhcp_deadline(&self) -> Instant {
        let client = self.dhcp.as_ref();
        client.map_or(Instant::NEVER, |client| client.next)
    }

    /// Begins to ask for a lease, or gives it back.
    pub fn set_dhcp(&mut self, now: Instant, is_on: bool) {
        self.with_dhcp(|client| match is_on {
            true => client.begin(now),
            false => client.release(now),
        });
        self.perform_dhcp(now);
    }

    /// The client does its due work.
    pub fn dhcp_on_time(&mut self, now: Instant) {
        if self.dhcp_deadline() <= now {
            self.with_dhcp(|client| client.on_time(now));
            self.perform_dhcp(now);
        }
    }

    /// The link is up, and may be another one.
    pub fn dhcp_link_is_up(&mut self, now: Instant) {
        self.with_dhcp(|client| client.link_is_up(now));
    }

    pub(super) fn dhcp_hears_arp(&mut self, now: Instant, arp: &wire::Arp) {
        if self.dhcp.is_some() {
            self.with_dhcp(|client| client.hear_arp(now, arp));
            self.perform_dhcp(now);
        }
    }

    fn with_dhcp<T>(&mut self, what: impl FnOnce(&mut DhcpClient) -> T) -> Option<T> {
        let client = self.dhcp.as_mut()?;
        let result = what(client);
        if core::mem::take(&mut client.has_changed) {
            self.news.push_back(News::Lease);
        }
        self.news.push_back(News::Deadline);
        Some(result)
    }

    /// Whether datagrams to one of our addresses at this port are for the clients of DHCP.
    pub fn asks_at(&self, local: Endpoint) -> bool {
        match local.port {
            CLIENT_PORT => self.dhcp.is_some() && local.address.is_v4(),
            CLIENT_PORT_V6 => self.has_v6() && local.address.is_link_local(),
            _ => false,
        }
    }

    /// A datagram for a port of [`asks_at`](Self::asks_at), whose checksum is right.
    pub fn dhcp_datagram(&mut self, now: Instant, frame: &[u8]) {
        let ports =
            wire::udp_datagram(frame).map(|read| (read.source.port, read.port, read.payload));
        let is_ours = match ports {
            Some((SERVER_PORT, CLIENT_PORT, message)) => self.hears_server(now, message),
            Some((SERVER_PORT_V6, CLIENT_PORT_V6, message)) => {
                let said = Information::parse(message, self.mac);
                said.is_some_and(|said| self.hears_information(now, said))
            }
            _ => false,
        };
        self.stats.dhcp_answers += u64::from(is_ours);
        self.stats.dhcp_dropped += u64::from(!is_ours);
    }

    fn hears_server(&mut self, now: Instant, message: &[u8]) -> bool {
        let Some(said) = DhcpAnswer::parse(message) else {
            return false;
        };
        let is_taken = self.site.is_own_v4(said.yours);
        let is_ours = self.with_dhcp(|client| client.hear(now, &said, |_| is_taken));
        self.perform_dhcp(now);
        is_ours == Some(true)
    }

    /// Sends the messages and probes of the client.
    fn perform_dhcp(&mut self, now: Instant) {
        let client = self.dhcp.as_mut();
        let outputs = client.map(|client| core::mem::take(&mut client.outputs));
        for output in outputs.into_iter().flatten() {
            match output {
                Output::Probe(address) => {
                    let frame = wire::arp_frame(self.mac, Address::UNSPECIFIED, None, address);
                    self.control(frame);
                }
                Output::Message(message, from, to) => {
                    let ends = (
                        Endpoint::new(from, CLIENT_PORT),
                        Endpoint::new(to, SERVER_PORT),
                    );
                    let ident = self.next_ident(to, wire::UDP);
                    let frame = dhcp::datagram((self.mac, [0xff; 6]), ends, ident, &message);
                    match to {
                        ALL_HOSTS => self.control(frame),
                        server => self.send_frames(now, Cause::Ours, server, vec![frame]),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
