//! The queues of the device, each with its own claimer, so that several workers claim at once.
//!
//! Each queue belongs to one of the active workers, which looks at it first; with more queues than
//! workers, a worker looks at its own in turn. A worker that finds them empty, or taken, looks at
//! all others, and every [`LOOK_AROUND`]th claim begins with any queue. So no queue waits for a
//! worker that sleeps, is held up or has died. A batch gets its number while its claimer is taken:
//! the log has the frames of each queue in their order.

use core::time::Duration;

use dominoes::group::replicas;
use dominoes::{TryLock, TryLockGuard};
use dominoes_drivers::queues::QueueWait;

use crossbeam_utils::CachePadded;

use crate::io::claim::Claimer;

/// A worker begins one of this many claims with any queue.
const LOOK_AROUND: u32 = 8;

/// The claimers of all queues.
pub(crate) struct Queues {
    claimers: Box<[CachePadded<TryLock<Claimer>>]>,
    /// Sleeps in all of them, if there are several.
    wait: Option<QueueWait>,
}

impl Queues {
    pub(crate) fn new(first: Claimer, more: Vec<Claimer>) -> Self {
        let all = || [&first].into_iter().chain(&more);
        let wait = || QueueWait::new(all().map(Claimer::rx));
        let wait = (!more.is_empty()).then(wait);
        let claimers = [first].into_iter().chain(more);
        let claimers = claimers.map(|claimer| CachePadded::new(TryLock::new(claimer)));
        Queues {
            claimers: claimers.collect(),
            wait,
        }
    }

    /// The claimer of a queue, unless a worker has it.
    #[inline]
    pub(crate) fn try_take(&self, queue: usize) -> Option<TryLockGuard<'_, Claimer>> {
        self.claimers[queue].try_take()
    }

    /// All claimers, for a worker that sleeps in the device; `None` if a worker has one of them.
    pub(crate) fn try_take_all(&self) -> Option<AllQueues<'_>> {
        let (first, more) = self.claimers.split_first()?;
        Some(AllQueues {
            first: first.try_take()?,
            more: more
                .iter()
                .map(|claimer| claimer.try_take())
                .collect::<Option<_>>()?,
            wait: self.wait.as_ref(),
        })
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.claimers.len()
    }

    /// All queues, from this one on.
    #[inline]
    pub(crate) fn from(&self, first: usize) -> QueueOrder {
        let count = self.claimers.len();
        QueueOrder {
            next: first,
            left: count,
            count,
        }
    }
}

/// The queue at which worker `id` looks first, if it has looked `claims` times before and the
/// workers in the set `active` receive.
pub(crate) fn first_queue(queues: usize, (id, active): (usize, u64), claims: u32) -> usize {
    let around = (claims / LOOK_AROUND) as usize % queues;
    if claims.is_multiple_of(LOOK_AROUND) {
        return around;
    }
    // A worker of rank r has the queues r, r + n, r + 2n ... if n are active.
    let workers = replicas(active | 1 << id).count();
    let rank = replicas(active).take_while(|other| *other < id).count() % queues;
    let own = (queues - rank).div_ceil(workers);
    rank + workers * (claims as usize % own)
}

/// The order in which a worker looks at all queues.
#[derive(Clone)]
pub(crate) struct QueueOrder {
    next: usize,
    left: usize,
    count: usize,
}

impl Iterator for QueueOrder {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let queue = self.next;
        self.next = match queue + 1 == self.count {
            true => 0,
            false => queue + 1,
        };
        Some(queue)
    }
}

/// The claimers of all queues, taken.
pub(crate) struct AllQueues<'a> {
    first: TryLockGuard<'a, Claimer>,
    more: Vec<TryLockGuard<'a, Claimer>>,
    wait: Option<&'a QueueWait>,
}

impl AllQueues<'_> {
    /// Whether one has frames that the device has given already.
    pub(crate) fn has_rest(&self) -> bool {
        self.first.has_rest() || self.more.iter().any(|claimer| claimer.has_rest())
    }

    /// As [`Claimer::wait`], in all queues.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        let Some(wait) = self.wait else {
            return self.first.wait(timeout);
        };
        if self.first.wait_in(wait, timeout) {
            // An error ends further waits until it is reported.
            let more = self.more.iter_mut();
            more.for_each(|claimer| claimer.wait(Some(Duration::ZERO)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Layout, ReplicatedGroup};
    use crate::io::setup::Setup;
    use crate::time::Instant;
    use dominoes_drivers::{Device, TxFrame, memory};

    /// How often each of four queues is the first one, in `LOOK_AROUND` times as many claims.
    fn firsts(id: usize, active: u64) -> [u32; 4] {
        let mut found = [0; 4];
        for claims in 0..4 * LOOK_AROUND {
            found[first_queue(4, (id, active), claims)] += 1;
        }
        found
    }

    #[test]
    fn each_queue_belongs_to_one_active_worker_and_all_look_around() {
        assert_eq!(firsts(1, 0b0010), [5, 9, 9, 9]);
        // Of workers 0, 2 and 5 the first has two queues.
        let active = 0b10_0101;
        assert_eq!(firsts(0, active)[1..3], [1, 1]);
        assert_eq!(firsts(2, active), [1, 29, 1, 1]);
        assert_eq!(firsts(5, active), [1, 1, 29, 1]);
        // More workers than queues.
        assert_eq!(firsts(4, 0b1_1111), firsts(0, 0b1111));
        for id in 0..4 {
            let own = (0..4).map(|queue| if queue == id { 29 } else { 1 });
            assert!(own.eq(firsts(id, 0b1111)));
        }
    }

    /// The first worker publishes every batch, so it has the used frames of both queues, and seldom
    /// looks at the queue of the second one.
    #[test]
    fn a_busy_worker_returns_the_frames_of_queues_where_it_seldom_looks() {
        let pairs = [(); 2].map(|()| memory::pair(memory::MemoryConfig::default().rx_pool(400)));
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let theirs = Box::new(theirs).split_queues().into_iter();
        let mut theirs: Vec<_> = theirs.map(|(_, tx)| tx).collect();
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let layout = Layout::default().replicas(2);
        let mut group = ReplicatedGroup::<()>::new(setup, layout, Box::new(ours)).unwrap();
        let mut claimed = 0;
        for round in 0..50 {
            let now = Instant::from_millis(round);
            for (id, count) in [(1, 30), (0, 90)] {
                let frames = vec![TxFrame::new(&[1; 60]); count];
                assert_eq!(theirs[id].transmit(&frames), Ok(count));
                let worker = &mut group.workers()[id];
                claimed += worker.claim(now).unwrap();
                worker.parse();
            }
            group.workers()[0].publish(now).unwrap();
        }
        assert_eq!(claimed, 50 * (30 + 90));
        let queues = group.workers()[0].shared.queues.try_take_all().unwrap();
        for claimer in queues.more.iter().chain([&queues.first]) {
            assert_eq!(claimer.rx().stats().pool_exhausted, 0);
        }
    }

    #[test]
    fn a_worker_looks_at_every_queue_once() {
        let order = QueueOrder {
            next: 2,
            left: 4,
            count: 4,
        };
        assert!(order.eq([2, 3, 0, 1]));
    }
}
