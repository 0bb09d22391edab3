//! Segments without a connection in the receive pump. Their answer (a SYN-ACK, a cookie or a reset)
//! is routed like any packet, so the request of such a run names the answer's next hop. While its
//! link-layer address is unknown, the run waits here.
//!
//! An attacker can cause answers from any address. So link-layer addresses are learned only from
//! ARP and neighbour discovery, few neighbours are resolved only for an answer ([`Cause::Answer`]),
//! and few runs wait. They wait as copies, so the device gets its buffers back. Runs that do not
//! fit are dropped and counted; their sender retransmits.

use std::collections::{BTreeMap, VecDeque};

use dominoes_drivers::Frame;

use crate::io::rx::{Log, RESERVED, RxPump};
use crate::io::{Run, RunFrames};
use crate::ip::neighbor::{Cause, FRAME_OVERHEAD};
use crate::log::request::{Address, Mac};
use crate::time::Instant;

/// Maximum number of runs that wait for one next hop.
const MOST_FOR_ONE: usize = 64;
/// Maximum number of bytes of all runs that wait.
const MOST_BYTES: usize = 1 << 20;

/// Runs whose answers have no known next hop yet. They have copies of their frames.
#[derive(Default)]
pub(super) struct Unanswered {
    waiting: BTreeMap<Address, Vec<Run>>,
    /// Runs whose next hop is known now. They are published when the log has room.
    ready: VecDeque<Run>,
    /// The cost of all of them.
    bytes: usize,
}

/// The memory that a waiting run takes, in bytes.
fn cost(run: &RunFrames) -> usize {
    let frames = run.iter();
    let bytes: usize = frames.map(|frame| frame.len() + FRAME_OVERHEAD).sum();
    bytes + size_of::<Run>()
}

/// A copy of a run, which does not hold buffers of the device.
fn copied(run: &Run) -> RunFrames {
    let copy = |frame: &Frame| Frame::from_buffer(frame.bytes().into(), 0, frame.len(), frame.meta);
    RunFrames::of(run.frames.iter().map(copy).collect(), &run.request)
}

impl Unanswered {
    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }
}

impl RxPump {
    /// The link-layer address to which the answer to this run goes. If it is not known, the run
    /// waits or is dropped.
    #[cold]
    pub(super) fn hop_of_answer(&mut self, now: Instant, run: &Run) -> Option<Mac> {
        let remote = run.flow().remote.address;
        let mac = self.with_host(now, |host| host.resolve(Cause::Answer, now, remote));
        if mac.is_some() {
            return mac;
        }
        let held = self.host.site.next_hop(remote).is_some_and(|hop| {
            let cost = cost(&run.frames);
            self.may_wait_for(now, hop, cost) && {
                let held = Run::new(run.request, run.verdict, copied(run));
                self.connections.unanswered.bytes += cost;
                let waiting = self.connections.unanswered.waiting.entry(hop);
                waiting.or_default().push(held);
                true
            }
        });
        if !held {
            self.stats.unresolved += u64::from(run.request.digest.count);
        }
        None
    }

    /// Starts to resolve `hop`. Returns whether a run of this cost may wait for it.
    fn may_wait_for(&mut self, now: Instant, hop: Address, cost: usize) -> bool {
        let unanswered = &self.connections.unanswered;
        let waiting = unanswered.waiting.get(&hop).map_or(0, Vec::len);
        let has_room = waiting < MOST_FOR_ONE && unanswered.bytes + cost <= MOST_BYTES;
        if self.host.neighbors.ask_to_answer(hop, now) {
            self.with_host(now, |host| host.request_address(hop, None));
        }
        has_room && self.host.neighbors.is_resolving(hop)
    }

    /// `hop` is resolved: the runs that wait for it can be published.
    pub(super) fn answers_go_to(&mut self, hop: Address) {
        if let Some(held) = self.connections.unanswered.waiting.remove(&hop) {
            self.connections.unanswered.ready.extend(held);
        }
    }

    /// `hop` did not answer: drops and counts the runs that wait for it.
    pub(super) fn answers_have_no_way(&mut self, hop: Address) {
        for held in self
            .connections
            .unanswered
            .waiting
            .remove(&hop)
            .into_iter()
            .flatten()
        {
            self.connections.unanswered.bytes -= cost(&held.frames);
            self.stats.unresolved += u64::from(held.request.digest.count);
        }
    }

    /// Publishes the runs whose next hop is known. Returns how many.
    #[cold]
    pub(super) fn take_unanswered(&mut self, now: Instant, log: &mut impl Log) -> usize {
        let mut done = 0;
        while log.room() > RESERVED
            && let Some(mut held) = self.connections.unanswered.ready.pop_front()
        {
            self.connections.unanswered.bytes -= cost(&held.frames);
            match self.sample_run(now, &mut held) {
                true => log.publish(&mut held),
                false => self.recycler.put(held.frames),
            }
            done += 1;
        }
        done
    }
}
