//! A design that cannot work: separate queues for frames and for application writes.
//!
//! Every replica gets all segments in one order, and all progress of applications in one order, but
//! a replica that is busy with one queue is late with the other. Sizemore's dissertation of 2011
//! (figure 3.2) explains why copies of one connection then diverge.

use dominoes_netstack::{Entry, Limits, ReplicaState};
use dominoes_proto::log::effect::Effect;
use dominoes_proto::log::request::{Body, Digest, RequestKind};
use dominoes_testkit::Rng;

use super::check::{Failure, Marks};

/// The result of a log that was split in two.
pub(crate) struct Parted {
    /// The first difference between replicas that had applied equal entries.
    pub(crate) states: Option<Failure>,
    /// Whether they sent different frames.
    pub(crate) frames: bool,
}

/// Splits a log in two queues. For each of `haste`, a replica applies both queues, alternating
/// between them at random. Whenever all replicas have applied equal entries of both queues, they
/// are compared.
pub(crate) fn part(entries: &[Entry], limits: Limits, haste: &mut [Rng]) -> Parted {
    let (writes, frames): (Vec<&Entry>, Vec<&Entry>) = entries
        .iter()
        .partition(|entry| matches!(entry.request.body, Body::Progress { .. }));
    let mut rng = Rng::new(entries.len() as u64);
    let mut copies: Vec<_> = haste
        .iter()
        .map(|_| (ReplicaState::new(limits), Vec::new()))
        .collect();
    let mut marks = Marks::default();
    let mut states = None;
    let (mut write, mut frame) = (0, 0);
    while write < writes.len() || frame < frames.len() {
        // Up to here all replicas have applied equal entries. Now each applies a few of both
        // queues, in any order.
        let writes = &writes[write..(write + rng.index(2)).min(writes.len())];
        let frames = &frames[frame..(frame + 1 + rng.index(3)).min(frames.len())];
        for (id, ((replica, effects), rng)) in copies.iter_mut().zip(&mut *haste).enumerate() {
            let mut queues = [writes, frames];
            while let [a, b] = queues
                && !(a.is_empty() && b.is_empty())
            {
                let from = if b.is_empty() || (!a.is_empty() && rng.per_mille(500)) {
                    0
                } else {
                    1
                };
                if let Some((next, rest)) = queues[from].split_first() {
                    apply(replica, next, effects);
                    queues[from] = rest;
                }
            }
            let mark = marks.note(id, replica.position(), replica.fingerprint());
            states = states.or(mark.err());
        }
        write += writes.len();
        frame += frames.len();
    }
    let sent = |effects: &[Effect]| -> Vec<Effect> {
        let sends = |effect: &&Effect| matches!(effect, Effect::Transmit(_));
        effects.iter().filter(sends).copied().collect()
    };
    let first = sent(&copies[0].1);
    Parted {
        states,
        frames: copies[1..]
            .iter()
            .any(|(_, effects)| sent(effects) != first),
    }
}

/// Applies an entry without the application's cursors, which a segment can carry only in a shared
/// log.
fn apply(replica: &mut ReplicaState, entry: &Entry, effects: &mut Vec<Effect>) {
    let mut request = entry.request;
    if request.digest.kind == RequestKind::Segments {
        request.digest.bits &= !Digest::PROGRESS;
    }
    replica.apply(&request, request.digest.all_good(), effects);
}
