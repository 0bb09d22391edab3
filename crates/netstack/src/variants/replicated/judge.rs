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

    #[cold]
    fn confirm(&mut self) {
        let me = 1u64 << self.id;
        while self.confirmed < self.replica.position() {
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
