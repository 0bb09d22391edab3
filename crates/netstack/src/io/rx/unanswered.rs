//! Segments of no connection in the receive pump. What answers them, be it a SYN-ACK, a cookie or a
//! reset, goes through routes and neighbours as all else does: the request of such a run names the
//! next hop of its answer. While that is not known, the run waits here.
//!
//! Anybody causes answers, from any address. So no frame but one of ARP or neighbour discovery
//! tells how a neighbour is reached, few neighbours are asked for answers alone
//! ([`Cause::Answer`]), and few runs wait, as copies: the device gets its buffers back. What does
//! not fit is dropped and counted, and its sender repeats it.

use std::collections::{BTreeMap, VecDeque};

use dominoes_drivers::Frame;

use crate::io::Run;
use crate::io::rx::{Log, RESERVED, RxPump};
use crate::ip::neighbor::{Cause, FRAME_OVERHEAD};
use crate::log::request::{Address, Flow, Mac, Request, Verdict};
use crate::time::Instant;

/// Runs that wait for one next hop, and bytes of all that wait.
const MOST_FOR_ONE: usize = 64;
const MOST_BYTES: usize = 1 << 20;

/// Runs whose answers have no way yet.
#[derive(Default)]
pub(super) struct Unanswered {
    waiting: BTreeMap<Address, Vec<Held>>,
    /// Those whose next hop is known now. They are published as the log has room.
    ready: VecDeque<Held>,
    /// What all of them count.
    bytes: usize,
}

/// A run that waits, with frames of its own.
struct Held {
    request: Request,
    flow: Flow,
    verdict: Option<Verdict>,
    run: Run,
}

/// What a run counts that waits.
fn cost(run: &Run) -> usize {
    let frames = run.frames().iter();
    let bytes: usize = frames.map(|frame| frame.len() + FRAME_OVERHEAD).sum();
    bytes + size_of::<Held>()
}

/// The same run, which leaves the device its frames.
fn copied(run: &Run) -> Run {
    let copy = |frame: &Frame| Frame::from_buffer(frame.bytes().into(), 0, frame.len(), frame.meta);
    Run::of(run.frames().iter().map(copy).collect(), run.seq)
}

impl Unanswered {
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl RxPump {
    /// The link-layer address that what answers a run of no connection goes to. If it is not known,
    /// the run waits, or is dropped.
    #[cold]
    pub(super) fn hop_of_answer(
        &mut self,
        now: Instant,
        (request, flow): (&Request, Flow),
        (run, verdict): (&Run, Option<Verdict>),
    ) -> Option<Mac> {
        let remote = flow.remote.address;
        let mac = self.with_host(now, |host| host.resolve(Cause::Answer, now, remote));
        if mac.is_some() {
            return mac;
        }
        let held = self.host.site.next_hop(remote).is_some_and(|hop| {
            let cost = cost(run);
            self.may_wait_for(now, hop, cost) && {
                let held = Held {
                    request: *request,
                    flow,
                    verdict,
                    run: copied(run),
                };
                self.connections.unanswered.bytes += cost;
                let waiting = self.connections.unanswered.waiting.entry(hop);
                waiting.or_default().push(held);
                true
            }
        });
        if !held {
            self.stats.unresolved += u64::from(request.digest.count);
        }
        None
    }

    /// Asks for `hop`. Returns whether a run that counts so much may wait for it.
    fn may_wait_for(&mut self, now: Instant, hop: Address, cost: usize) -> bool {
        let unanswered = &self.connections.unanswered;
        let waiting = unanswered.waiting.get(&hop).map_or(0, Vec::len);
        let has_room = waiting < MOST_FOR_ONE && unanswered.bytes + cost <= MOST_BYTES;
        if self.host.neighbors.ask_to_answer(hop, now) {
            self.with_host(now, |host| host.request_address(hop, None));
        }
        has_room && self.host.neighbors.is_resolving(hop)
    }

    /// Somebody said how `hop` is reached.
    pub(super) fn answers_go_to(&mut self, hop: Address) {
        if let Some(held) = self.connections.unanswered.waiting.remove(&hop) {
            self.connections.unanswered.ready.extend(held);
        }
    }

    /// Nobody said how `hop` is reached.
    pub(super) fn answers_have_no_way(&mut self, hop: Address) {
        for held in self
            .connections
            .unanswered
            .waiting
            .remove(&hop)
            .into_iter()
            .flatten()
        {
            self.connections.unanswered.bytes -= cost(&held.run);
            self.stats.unresolved += u64::from(held.request.digest.count);
        }
    }

    /// Publishes runs whose answers have a way now. Returns how many.
    #[cold]
    pub(super) fn take_unanswered(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        while log.room() > RESERVED
            && let Some(mut held) = self.connections.unanswered.ready.pop_front()
        {
            self.connections.unanswered.bytes -= cost(&held.run);
            let run = (held.run, held.verdict);
            self.publish_run(now, &mut held.request, (held.flow, &mut None), run, log);
            done += 1;
        }
        done
    }
}
