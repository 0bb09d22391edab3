//! Who is right when replicas differ, and what becomes of those who are not.
//!
//! A replica's state can be changed behind its back: by a bit of memory that flips, or by a bug that only one machine
//! shows. Replicas post fingerprints of their states at equal positions. Whoever posts looks what the others posted
//! there; so the last of them sees all. A value that more than half of the *voters* posted is right: those are the workers
//! that take part, and came to the position by themselves and not by a snapshot behind it; and whoever has posted there
//! and is gone since, unless it differed. What was decided once stays so, whoever leaves. Others are accused. Who is
//! accused looks once more by itself, gets up from its seat, throws its state away, and joins again with that of one of the
//! majority; if all of those are gone, the state is, and the world is down. Where nobody has a majority, as among two, it
//! is counted and [compared](super::Group::compare) by whoever wants to know, and all go on.
//!
//! By default a change is found when the next fingerprint is posted, and what the replica performed until then is done.
//! With [`Layout::confirm`](super::Layout) each position is posted, together with what the request there asked for, and
//! nothing is performed that a majority does not agree with. Then what comes of a changed state reaches neither the wire nor an application: the pace is that of the
//! majority, and each replica computes a fingerprint per request.

use dominoes::Seq;

use super::handover::{Exit, Snapshot};
use super::kept::{Cursor, Kept};
use super::members::seats;
use super::worker::{Standing, Worker};
use super::{Shared, Tamper};

/// What is known of a position.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finding {
    /// More than half of the voters have the same; those that have something else, and those that have it.
    Majority { wrong: u64, right: u64 },
    /// Not enough have come there yet.
    Open,
    /// All have come there, and no more than half agree.
    Undecided,
}

impl Shared {
    fn judge(&self, position: Seq) -> Finding {
        let posted = |id: usize| self.posts.at(id, position);
        let all = seats(self.roll.known())
            .filter(|id| posted(*id).is_some())
            .fold(0, |all, id| all | 1u64 << id);
        let voters = self.roll.voters(position) | all;
        for print in seats(all).filter_map(posted) {
            let alike = seats(all).filter(|id| posted(*id) == Some(print));
            let right = alike.fold(0, |mask, id| mask | 1u64 << id);
            if 2 * right.count_ones() > voters.count_ones() {
                let wrong = all & !right;
                return Finding::Majority { wrong, right };
            }
        }
        if all == voters {
            Finding::Undecided
        } else {
            Finding::Open
        }
    }

    /// Looks what the others posted at `position`, where the caller just has.
    #[cold]
    pub(super) fn compare_at(&self, position: Seq) {
        match self.judge(position) {
            Finding::Majority { wrong, .. } if wrong != 0 => {
                self.roll.accuse(wrong);
                self.bell.notify_all();
                self.world.ring();
            }
            Finding::Undecided if self.roll.voters(position) != 0 => self.count_undecided(),
            _ => {}
        }
    }

    /// The majority that worker `id` differs from, at some position that is still known, and the first position at which
    /// anybody has something else.
    fn opponents(&self, id: usize) -> Option<(u64, Seq)> {
        // Others may have sat there before.
        let posts = self.posts.all(id).into_iter();
        let own = posts.filter(|(position, _)| *position > self.roll.since(id));
        let (mut majority, mut first) = (None, Seq::MAX);
        for (position, print) in own {
            let mut others = seats(self.roll.known()).filter_map(|id| self.posts.at(id, position));
            if others.any(|other| other != print) {
                first = first.min(position);
            }
            if let Finding::Majority { wrong, right } = self.judge(position)
                && wrong >> id & 1 != 0
            {
                majority = Some(right);
            }
        }
        majority.map(|right| (right, first))
    }

    /// Whether a majority has `print` at `position`; `None` if that is not known.
    pub(super) fn is_right(&self, position: Seq, print: u64) -> Option<bool> {
        match self.judge(position) {
            Finding::Majority { right, .. } => {
                let theirs = seats(right).find_map(|id| self.posts.at(id, position));
                theirs.map(|theirs| theirs == print)
            }
            Finding::Open | Finding::Undecided => None,
        }
    }
}

impl<T: Tamper> Worker<T> {
    /// Somebody says that this worker differs. If it does, it gets up. Says whether it did.
    pub(super) fn face_accusation(&mut self) -> bool {
        let Some((right, first_wrong)) = self.shared.opponents(self.id) else {
            return false;
        };
        if matches!(self.standing, Standing::Leaving(_)) && self.shared.may_go(self.id) {
            self.standing = Standing::Gone;
            return true;
        }
        self.standing = Standing::Waiting;
        let first = self.cursor.seq;
        self.kept = Kept::from(first);
        self.cursor = Cursor::at_first(&self.kept);
        // What it posted before counts on.
        self.shared.posts.forget_from(self.id, first_wrong);
        self.shared.leave(self.id, Exit::Differed(right));
        true
    }

    /// The position below which effects may be performed.
    #[inline]
    pub(super) fn limit(&mut self) -> Seq {
        if !self.shared.layout.confirm {
            return Seq::MAX;
        }
        self.confirm();
        self.confirmed
    }

    fn confirm(&mut self) {
        self.confirm_to(self.replica.position());
    }

    /// Goes on to `position` at most, as far as a majority agrees with this worker.
    #[cold]
    fn confirm_to(&mut self, position: Seq) {
        let me = 1u64 << self.id;
        while self.confirmed < position {
            match self.shared.judge(self.confirmed + 1) {
                Finding::Majority { right, .. } if right & me != 0 => {}
                Finding::Majority { .. } => {
                    self.shared.roll.accuse(me);
                    break;
                }
                Finding::Open => break,
                // Nobody can say who is right. It was counted, and all go on.
                Finding::Undecided => {}
            }
            self.confirmed += 1;
        }
    }

    /// What another worker needs to go on where this one stands; `None` if there is no room for another reader, or if this
    /// worker's state is to be confirmed first.
    pub(super) fn snapshot(&mut self) -> Option<Snapshot> {
        if self.limit() < self.replica.position() {
            return None;
        }
        let log = self.log.fork().ok()?;
        debug_assert_eq!(log.position(), self.replica.position(), "between two steps");
        Some(Snapshot {
            replica: self.replica.clone(),
            log,
            kept: self.kept.clone(),
            crews: self.crews.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use dominoes_drivers::memory::{MemoryConfig, pair};

    use super::*;
    use crate::variants::Setup;
    use crate::variants::replicated::{Group, Layout};

    fn group(replicas: usize) -> Group {
        let (device, _) = pair(MemoryConfig::default());
        let layout = Layout::default().replicas(replicas).fingerprint_every(1);
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        Group::new(setup, layout, Box::new(device)).unwrap()
    }

    #[test]
    fn more_than_half_of_the_voters_are_a_majority_and_half_of_them_are_none() {
        for voters in 1..=6 {
            let group = group(voters);
            let shared = group.shared();
            for (alike, others) in (0..=voters).flat_map(|a| (0..=voters - a).map(move |o| (a, o)))
            {
                for id in 0..voters {
                    shared.posts.forget(id);
                }
                (0..alike).for_each(|id| shared.posts.post(id, 1, 7));
                (alike..alike + others).for_each(|id| shared.posts.post(id, 1, 8));
                let (left, right) = ((1 << alike) - 1, ((1 << others) - 1) << alike);
                let expected = if alike > voters / 2 {
                    Finding::Majority {
                        wrong: right,
                        right: left,
                    }
                } else if others > voters / 2 {
                    Finding::Majority { wrong: left, right }
                } else if alike + others == voters {
                    Finding::Undecided
                } else {
                    Finding::Open
                };
                let what = format!("{alike} and {others} of {voters}");
                assert!(shared.judge(1) == expected, "{what}");
                shared.compare_at(1);
                for id in 0..voters {
                    let is_wrong = match expected {
                        Finding::Majority { wrong, .. } => wrong >> id & 1 != 0,
                        _ => false,
                    };
                    let accused = shared.roll.take_accusation(id);
                    assert_eq!(accused, is_wrong, "{what}: worker {id}");
                }
            }
        }
    }

    #[test]
    fn what_was_posted_up_to_the_snapshot_that_a_worker_began_with_is_not_its_own() {
        let group = group(3);
        let shared = group.shared();
        let post = |position: Seq| {
            [7, 7, 8]
                .into_iter()
                .enumerate()
                .for_each(|(id, print)| shared.posts.post(id, position, print));
        };
        shared.roll.sit(2, 5);
        post(5);
        assert_eq!(shared.opponents(2), None);
        post(6);
        assert_eq!(shared.opponents(2), Some((0b11, 6)));
    }

    #[test]
    fn who_differs_from_the_majority_confirms_nothing_and_who_agrees_does() {
        let (device, _) = pair(MemoryConfig::default());
        let layout = Layout::default().replicas(3).confirm(true);
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let mut group = Group::new(setup, layout, Box::new(device)).unwrap();
        let now = crate::time::Instant::from_millis(1);
        while group.workers()[0].replica().position() == 0 {
            group.workers()[0].turn(now);
        }
        let position = group.workers()[0].replica().position();
        for id in 1..3 {
            while group.workers()[id].replica().position() < position {
                group.workers()[id].turn(now);
            }
        }
        let shared = std::sync::Arc::clone(group.shared());
        // What two of them have at the next position is not what the third has.
        let next = position + 1;
        for (id, print) in [7, 7, 8].into_iter().enumerate() {
            shared.posts.post(id, next, print);
        }
        for (id, confirms) in [true, true, false].into_iter().enumerate() {
            let worker = &mut group.workers()[id];
            worker.confirmed = position;
            worker.confirm_to(next);
            assert_eq!(worker.confirmed == next, confirms, "worker {id}");
            assert_eq!(shared.roll.take_accusation(id), !confirms, "worker {id}");
        }
    }

    #[test]
    fn of_two_and_of_four_that_are_split_in_halves_all_are_counted_and_none_is_accused() {
        for voters in [2, 4] {
            let group = group(voters);
            let shared = group.shared();
            (0..voters).for_each(|id| shared.posts.post(id, 1, (id % 2) as u64));
            let is_undecided = shared.judge(1) == Finding::Undecided;
            assert!(is_undecided, "{voters}");
            shared.compare_at(1);
            assert!(!(0..voters).any(|id| shared.roll.take_accusation(id)));
            assert_eq!(shared.is_right(1, 0), None);
            assert_eq!(shared.opponents(0), None);
        }
    }
}
