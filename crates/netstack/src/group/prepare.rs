//! How a worker prepares requests: it verifies their frames, which yields their verdicts, and stores
//! payload on the way.

use dominoes::{ReadBatch, Seq};

use super::execute::Share;
use super::worker::ReplicatedWorker;
use crate::group::{FaultHooks, ReplicatedShared};
use crate::io::prepare::prepare_and_store;
use crate::io::{BatchRuns, RunFrames};
use crate::log::request::Request;
use crate::stats::EffectStats;

impl ReplicatedShared {
    /// Computes the verdict of the request at `seq`, unless it is known or another worker does.
    /// Returns whether it did. A verdict is computed once if payload is stored on the way;
    /// `on_begin` is called before.
    #[inline(always)]
    fn prepare(
        &self,
        seq: Seq,
        request: &Request,
        run: &RunFrames,
        stats: &mut EffectStats,
        on_begin: impl FnOnce(),
    ) -> bool {
        let verdict = |stats| prepare_and_store(&self.world, request, run, stats);
        if request.digest.reserved.is_none() {
            self.verdicts.set(seq, verdict(stats));
            return true;
        }
        let Some(begun) = self.verdicts.begin(seq) else {
            return false;
        };
        on_begin();
        begun.set(verdict(stats));
        true
    }
}

impl<T: FaultHooks> ReplicatedWorker<T> {
    /// Prepares this worker's requests, in order, until `prepared_bytes` reaches `ahead_bytes`.
    pub(super) fn prepare_mine(&mut self) -> usize {
        let ReplicatedWorker {
            id,
            shared,
            log,
            replica,
            prepared,
            share,
            ..
        } = self;
        let Share {
            prepared_bytes,
            stats,
            hooks,
            recycler,
            ..
        } = share;
        let end = log.end();
        let mut done = 0;
        let mut reading: Option<ReadBatch<'_, BatchRuns>> = None;
        *prepared = (*prepared).max(replica.position());
        while *prepared < end && *prepared_bytes < shared.layout.tuning.ahead_bytes {
            let seq = *prepared;
            *prepared += 1;
            let Some(request) = log.get(seq) else {
                continue;
            };
            if usize::from(request.in_batch.primary) != *id {
                continue;
            }
            *prepared_bytes += request.digest.len as usize;
            if shared.verdicts.get(seq).is_some() {
                continue;
            }
            let first = request.in_batch.first(seq);
            if reading.as_ref().is_none_or(|batch| batch.first() != first) {
                recycler.put_read(reading.take());
                reading = shared.records.read(first);
            }
            let runs = reading.as_ref().map(ReadBatch::value);
            if let Some(run) = runs.and_then(|runs| runs.get(request.in_batch.index)) {
                let on_begin = || hooks.before_preparing(seq);
                done += usize::from(shared.prepare(seq, request, run, stats, on_begin));
            }
        }
        recycler.put_read(reading);
        done
    }

    /// Prepares the request at `seq`, whichever worker is its primary, if that is still to be done,
    /// and this worker has seen it published and not applied it. Returns whether it did.
    pub fn prepare(&mut self, seq: u64) -> bool {
        if self.handle_membership() {
            return false;
        }
        self.prepare_one(seq)
    }

    pub(super) fn prepare_one(&mut self, seq: u64) -> bool {
        if self.shared.verdicts.get(seq).is_some() {
            return false;
        }
        let Some(request) = self.log.get(seq) else {
            return false;
        };
        let in_batch = request.in_batch;
        let Some(reading) = self.shared.records.read(in_batch.first(seq)) else {
            return false;
        };
        let done = reading.value().get(in_batch.index).is_some_and(|run| {
            let Share { hooks, stats, .. } = &mut self.share;
            let on_begin = || hooks.before_preparing(seq);
            (self.shared).prepare(seq, request, run, stats, on_begin)
        });
        self.share.recycler.put_read(Some(reading));
        done
    }
}
