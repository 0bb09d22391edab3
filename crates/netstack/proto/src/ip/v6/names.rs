//! Servers of names, and domains, from router advertisements (RFC 8106) and from DHCPv6 without
//! addresses (RFC 8415 section 18.2.6).

use super::Action;
use crate::keys::{KeyUse, Keys};
use crate::packet::dhcp::{Information, Names};
use crate::packet::flow::Address;
use crate::packet::ndp::RouterAdvertisement;
use crate::time::{Duration, Instant};

/// Limit of each list, since anyone on the link can send advertisements. RFC 8106 section 5.3.1
/// wants at least 3.
const MAX_ADVERTISED: usize = 8;
/// The first request is delayed by a random time below this (`INF_MAX_DELAY`).
const MAX_DELAY: Duration = Duration::from_secs(1);
/// The first wait for an answer, which doubles up to the second (`INF_TIMEOUT`, `INF_MAX_RT`).
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// When we ask again, unless the server gives another time, and the least (`IRT_DEFAULT`,
/// `IRT_MINIMUM`), in seconds.
const REFRESH_S: (u32, u32) = (86_400, 600);

/// The exchange with a server of DHCPv6.
#[derive(Clone, Copy, Debug)]
enum Asking {
    /// No router has named one.
    Never,
    Begins {
        at: Instant,
    },
    Waits {
        xid: u32,
        began: Instant,
        wait: Duration,
        until: Instant,
    },
    Answered {
        again: Instant,
    },
}

/// The names of a link, from its routers and servers.
#[derive(Debug)]
pub(super) struct LinkNames {
    keys: Keys,
    mac: u64,
    /// Each with the end of its lifetime.
    servers: Vec<(Address, Instant)>,
    domains: Vec<(String, Instant)>,
    from_dhcp: Names,
    asking: Asking,
    draws: u64,
}

/// Takes a value with its lifetime, or ends it if that is 0. In a full list it replaces the value
/// that ends first (RFC 8106 section 6.2). Returns whether the values changed.
fn take<T: PartialEq>(list: &mut Vec<(T, Instant)>, value: T, until: Instant, ends: bool) -> bool {
    let known = list.iter().position(|(one, _)| *one == value);
    match (known, ends) {
        (Some(at), true) => drop(list.remove(at)),
        (Some(at), false) => {
            list[at].1 = until;
            return false;
        }
        (None, true) => return false,
        (None, false) => {
            let first = (0..list.len()).min_by_key(|at| list[*at].1);
            if let Some(first) = first.filter(|_| list.len() == MAX_ADVERTISED) {
                list.remove(first);
            }
            list.push((value, until));
        }
    }
    true
}

/// Whether a host can have this address.
pub(crate) fn may_serve(server: Address) -> bool {
    let is_nowhere = server.is_unspecified() || server.ip().is_loopback();
    !is_nowhere && !server.is_multicast()
}

impl LinkNames {
    pub(super) const fn new(keys: Keys, mac: u64) -> Self {
        LinkNames {
            keys,
            mac,
            servers: Vec::new(),
            domains: Vec::new(),
            from_dhcp: Names {
                servers: Vec::new(),
                domains: Vec::new(),
            },
            asking: Asking::Never,
            draws: 0,
        }
    }

    fn random(&mut self) -> u64 {
        self.draws += 1;
        self.keys.of(KeyUse::Dhcp, [self.mac, self.draws, 6])
    }

    /// The current values; DHCPv6 comes first (RFC 8106 section 5.3.1).
    pub(super) fn now(&self) -> Names {
        let mut names = self.from_dhcp.clone();
        let servers = self.servers.iter().map(|(server, _)| *server);
        names.servers.extend(servers);
        let domains = self.domains.iter().map(|(domain, _)| domain.clone());
        names.domains.extend(domains);
        names
    }

    /// A router advertises itself. Returns whether the values changed.
    pub(super) fn on_router(&mut self, said: &RouterAdvertisement, now: Instant) -> bool {
        let mut has_changed = false;
        for (server, lifetime) in &said.servers {
            let until = super::link::end_of(now, *lifetime);
            if may_serve(*server) {
                has_changed |= take(&mut self.servers, *server, until, *lifetime == 0);
            }
        }
        for (domain, lifetime) in &said.domains {
            let until = super::link::end_of(now, *lifetime);
            has_changed |= take(&mut self.domains, domain.clone(), until, *lifetime == 0);
        }
        if said.has_dhcp && matches!(self.asking, Asking::Never) {
            self.asking = Asking::Begins {
                at: now + self.below(MAX_DELAY),
            };
        }
        has_changed
    }

    fn below(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random() % most.as_nanos().max(1))
    }

    /// The link may be another one: asks again if a router named a server.
    pub(super) fn ask_again(&mut self, now: Instant) {
        if !matches!(self.asking, Asking::Never) {
            self.asking = Asking::Begins {
                at: now + self.below(MAX_DELAY),
            };
        }
    }

    /// An answer arrives. Returns whether the values changed; `None`: it answers no request.
    pub(super) fn on_information(&mut self, said: Information, now: Instant) -> Option<bool> {
        match self.asking {
            Asking::Waits { xid, .. } if xid == said.xid => {}
            _ => return None,
        }
        let (usual, least) = REFRESH_S;
        let again = said.refresh_s.unwrap_or(usual).max(least);
        self.asking = Asking::Answered {
            again: super::link::end_of(now, again),
        };
        let mut names = said.names;
        names.servers.retain(|server| may_serve(*server));
        let has_changed = names != self.from_dhcp;
        self.from_dhcp = names;
        Some(has_changed)
    }

    pub(super) fn next_deadline(&self) -> Instant {
        let servers = self.servers.iter().map(|(_, until)| *until);
        let domains = self.domains.iter().map(|(_, until)| *until);
        let asking = match self.asking {
            Asking::Never => Instant::NEVER,
            Asking::Begins { at } => at,
            Asking::Waits { until, .. } => until,
            Asking::Answered { again } => again,
        };
        servers.chain(domains).fold(asking, Instant::min)
    }

    /// Ends lifetimes, and asks if that is due. Returns whether the values changed.
    pub(super) fn on_time(&mut self, now: Instant, actions: &mut Vec<Action>) -> bool {
        let before = self.servers.len() + self.domains.len();
        self.servers.retain(|(_, until)| *until > now);
        self.domains.retain(|(_, until)| *until > now);
        let (xid, began, wait) = match self.asking {
            Asking::Begins { at } | Asking::Answered { again: at } if at <= now => {
                ((self.random() & 0xff_ffff) as u32, now, FIRST_WAIT)
            }
            Asking::Waits {
                xid,
                began,
                wait,
                until,
            } if until <= now => (xid, began, wait.times(2).min(LONGEST_WAIT)),
            _ => return self.servers.len() + self.domains.len() != before,
        };
        // Randomized by a tenth (RFC 8415 section 15).
        let tenth = wait.divided(10);
        let until = now + (wait - tenth) + self.below(tenth.times(2));
        self.asking = Asking::Waits {
            xid,
            began,
            wait,
            until,
        };
        let elapsed = now.since(began).as_millis() / 10;
        actions.push(Action::AskInformation {
            xid,
            elapsed: u16::try_from(elapsed).unwrap_or(u16::MAX),
        });
        self.servers.len() + self.domains.len() != before
    }
}
