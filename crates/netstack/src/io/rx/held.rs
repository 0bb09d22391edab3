//! SYNs that wait until the application accepts or refuses them.
//!
//! They wait here, before the log: a group learns of a SYN only when the application has decided.
//! A SYN takes about 300 bytes, and a listener holds only as many as its backlog. The others are
//! dropped, as if the network had lost them, and so are those that wait too long.

use std::collections::{BTreeMap, BTreeSet};

use super::{Log, RxPump};
use crate::error::SocketError;
use crate::io::Run;
use crate::io::prepare::prepare;
use crate::io::world::{Decision, OpenResult};
use crate::log::request::{
    ALL_PORTS, Binding, Body, Digest, Endpoint, Flow, Options, Request, SynOptions,
};
use crate::time::{Duration, Instant};

/// How long an accepted SYN that comes again does not arrive again while the pump does not know its
/// connection yet. A table of connections that is full makes none.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// The held SYNs of a group.
#[derive(Default)]
pub(super) struct HeldSyns {
    /// By port, or [`ALL_PORTS`].
    listeners: BTreeMap<u16, Holder>,
    /// Other listeners, which precede one for all ports.
    others: BTreeMap<u16, Vec<Binding>>,
    syns: BTreeMap<Flow, HeldSyn>,
    /// When each of `syns` has waited too long.
    deadlines: BTreeSet<(Instant, Flow)>,
    /// Does not wrap within the life of a stack.
    next_id: u64,
}

/// A listener that holds SYNs.
struct Holder {
    most: usize,
    patience: Duration,
    waiting: usize,
}

struct HeldSyn {
    /// The key of its listener.
    port: u16,
    id: u64,
    until: Instant,
    request: Request,
    /// It is in the log, but the pump does not know its connection yet.
    is_accepted: bool,
}

impl HeldSyns {
    /// Whether this segment of no connection may have to wait.
    pub(super) fn may_hold(&self, digest: &Digest) -> bool {
        !self.listeners.is_empty() && digest.flags.opens()
    }

    /// When the first SYN has waited too long.
    pub(super) fn next_deadline(&self) -> Instant {
        self.deadlines
            .first()
            .map_or(Instant::NEVER, |(until, _)| *until)
    }

    fn insert(&mut self, flow: Flow, syn: HeldSyn) {
        self.deadlines.insert((syn.until, flow));
        self.syns.insert(flow, syn);
    }

    /// The key of the listener for connections to `local`.
    fn listener_of(&self, local: Endpoint) -> Option<u16> {
        let others = self.others.get(&local.port);
        let is_other = others.is_some_and(|all| all.iter().any(|one| one.takes(local.address)));
        let ports = [local.port, ALL_PORTS].into_iter();
        let mut ports = ports.filter(|port| self.listeners.contains_key(port));
        ports.next().filter(|_| !is_other)
    }

    /// Removes a SYN that no connection has replaced.
    fn remove(&mut self, flow: &Flow) -> Option<HeldSyn> {
        let held = self.syns.remove(flow)?;
        self.deadlines.remove(&(held.until, *flow));
        if let Some(holder) = self.listeners.get_mut(&held.port) {
            holder.waiting -= usize::from(!held.is_accepted);
        }
        Some(held)
    }

    /// The pump knows the connection of this flow.
    pub(super) fn begins(&mut self, flow: &Flow) {
        if !self.syns.is_empty() {
            self.remove(flow);
        }
    }

    /// Another listener begins or ends.
    pub(super) fn note(&mut self, body: &Body) {
        match *body {
            Body::Listen { port, binding, .. } => {
                self.others.entry(port).or_default().push(binding);
            }
            Body::Unlisten { port, binding } => {
                if let Some(bindings) = self.others.get_mut(&port) {
                    bindings.retain(|other| *other != binding);
                    if bindings.is_empty() {
                        self.others.remove(&port);
                    }
                }
            }
            _ => {}
        }
    }

    /// A listener for `port` holds at most `most` SYNs, each for `patience`; none: it ends.
    pub(super) fn listen(&mut self, port: u16, holds: Option<(u16, Duration)>) {
        match holds {
            Some((most, patience)) => {
                let holder = self.listeners.entry(port).or_insert(Holder {
                    most: 0,
                    patience,
                    waiting: 0,
                });
                (holder.most, holder.patience) = (most.into(), patience);
            }
            None => {
                self.listeners.remove(&port);
                self.syns.retain(|_, syn| syn.port != port);
                let syns = &self.syns;
                self.deadlines.retain(|(_, flow)| syns.contains_key(flow));
            }
        }
    }
}

impl RxPump {
    /// Holds a SYN that has no connection, unless no listener holds it. Returns whether the run is
    /// done with.
    #[cold]
    pub(super) fn hold_syn(&mut self, now: Instant, run: &Run) -> bool {
        let (request, flow) = (&run.request, run.flow());
        let Some(port) = self.connections.held.listener_of(flow.local) else {
            return false;
        };
        let held = self.connections.held.syns.get_mut(&flow);
        match held {
            // Its answer is on the way, or there is no room for the connection.
            Some(held) if held.is_accepted => return true,
            Some(held) if held.request.digest.seg_seq == request.digest.seg_seq => return true,
            _ => {}
        }
        let is_known = held.is_some();
        let Some(holder) = self.connections.held.listeners.get_mut(&port) else {
            return false;
        };
        if !is_known && holder.waiting >= holder.most {
            self.stats.syns_dropped += 1;
            return true;
        }
        let verdict = run.verdict.unwrap_or_else(|| prepare(request, &run.frames));
        if verdict & request.digest.all_good() != request.digest.all_good() {
            self.stats.syns_dropped += 1;
            return true;
        }
        if let Some(held) = self.connections.held.syns.get_mut(&flow) {
            // The peer began again. The application may know the old SYN already.
            held.request = *request;
            return true;
        }
        holder.waiting += 1;
        let until = now + holder.patience;
        let id = self.connections.held.next_id;
        self.connections.held.next_id += 1;
        let syn = HeldSyn {
            port,
            id,
            until,
            request: *request,
            is_accepted: false,
        };
        self.connections.held.insert(flow, syn);
        self.stats.syns_held += 1;
        self.world.arrives(port, id, flow);
        true
    }

    /// Does what the application decided about a held SYN.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        (flow, id): (Flow, u64),
        decision: Decision,
        log: &mut impl Log,
    ) {
        let known = self.connections.held.syns.get(&flow);
        let is_held = known.is_some_and(|syn| syn.id == id && !syn.is_accepted);
        let held = is_held
            .then(|| self.connections.held.remove(&flow))
            .flatten();
        let Some(mut held) = held else {
            if let Decision::Accept { request_id } = decision {
                let too_late = OpenResult::Failed(SocketError::TimedOut);
                self.world.complete_open(request_id, too_late);
            }
            return;
        };
        let Body::Segments { mac, options, .. } = held.request.body else {
            return;
        };
        let body = match decision {
            Decision::Drop => {
                self.stats.syns_dropped += 1;
                return;
            }
            Decision::Refuse => Body::RefuseSyn { flow, mac },
            Decision::Accept { request_id } => Body::AcceptSyn {
                request_id,
                flow,
                mac,
                options: match options {
                    Options::Syn(options) => options,
                    _ => SynOptions::default(),
                },
                settings: self.world.settings_of_open(request_id),
            },
        };
        let syn = held.request.digest;
        let mut request = Request::command(now, self.sample_sent(), body);
        let digest = &mut request.digest;
        // Payload of the SYN is dropped, and the peer sends it again.
        (digest.seg_seq, digest.seg_wnd, digest.flags) = (syn.seg_seq, syn.seg_wnd, syn.flags);
        (digest.ts_val, digest.ts_ecr) = (syn.ts_val, syn.ts_ecr);
        digest.bits = syn.bits & Digest::TIMESTAMPS;
        self.publish(Run::bare(request), log);
        if matches!(decision, Decision::Accept { .. }) {
            held.is_accepted = true;
            held.until = now + BEGINS_WITHIN;
            self.connections.held.insert(flow, held);
        }
    }

    /// Drops the SYNs that have waited too long.
    #[cold]
    pub(super) fn drop_syns(&mut self, now: Instant) {
        let mut late: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
        while let Some(&(until, flow)) = self.connections.held.deadlines.first()
            && until <= now
        {
            if let Some(syn) = self
                .connections
                .held
                .remove(&flow)
                .filter(|syn| !syn.is_accepted)
            {
                self.stats.syns_dropped += 1;
                late.entry(syn.port).or_default().insert(syn.id);
            }
        }
        for (port, ids) in late {
            self.world.arrives_no_more(port, &ids);
        }
    }
}
