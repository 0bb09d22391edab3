//! Whether a state that is handed over is right.
//!
//! A replica may have been changed behind its back, and nobody have noticed yet: what is posted covers two connections at a
//! time. If it gives its state to another, there are two who have it, and before long they are the majority. So where
//! there are three or more, a state counts only when more than half of them have it, whoever gives it among them. They do
//! not stop for that. Whoever is not behind the joiner leaves a fingerprint of all that it knows in the book, with its
//! position; the joiner, whose reader holds the log, goes on to there, and compares. Until then it performs nothing, gives
//! its state to nobody, and has no vote.
//!
//! With [`Layout::confirm`](super::Layout), what it came by on the way must be what the majority had there, since it is
//! going to perform it.
//!
//! Who gave a state and is there no more, or there anew, may have been found to be wrong: what it gave is taken from nobody,
//! and another one is asked.
//!
//! Among two nobody can say who is right, and the joiner takes what it gets. What the giver had asked for and not
//! performed is handed over as it is: it is proven with [`Layout::confirm`](super::Layout) alone.

use std::sync::Arc;

use dominoes::Seq;

use super::Tamper;
use super::handover::{Seat, Snapshot};
use super::kept::{Cursor, Kept};
use super::worker::{Standing, Worker};
use crate::engine::replica::Replica;

/// What a worker has at a position.
struct Word {
    id: usize,
    position: Seq,
    print: u64,
}

/// A state that was given, and what others say of it.
pub(super) struct Offer {
    /// `None` once the joiner has it.
    snapshot: Option<Snapshot>,
    giver: usize,
    /// Where the giver had begun: another one may sit there by now.
    giver_since: Seq,
    /// How far the joiner has come.
    position: Seq,
    /// Those who have said something.
    heard: u64,
    /// What is not compared yet.
    words: Vec<Word>,
    /// Those who have the same, the giver among them, and those who have something else.
    alike: u64,
    differ: u64,
}

/// What follows from what was said.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finding {
    Proven,
    Refuted,
    /// Nobody can say who is right.
    Undecided,
    /// The next who has said something is there.
    GoTo(Seq),
    Open,
}

impl Offer {
    pub(super) fn new(giver: usize, giver_since: Seq, snapshot: Snapshot) -> Self {
        Offer {
            giver,
            giver_since,
            position: snapshot.replica.position(),
            snapshot: Some(snapshot),
            heard: 1 << giver,
            words: Vec::new(),
            alike: 1 << giver,
            differ: 0,
        }
    }

    pub(super) fn take(&mut self) -> Option<Snapshot> {
        self.snapshot.take()
    }

    /// Worker `id` says what it has. Returns false if it has not come far enough.
    pub(super) fn hear(&mut self, id: usize, replica: &Replica) -> bool {
        if self.heard >> id & 1 != 0 {
            return true;
        }
        let position = replica.position();
        if position < self.position {
            return false;
        }
        let print = replica.whole_fingerprint();
        self.heard |= 1 << id;
        self.words.push(Word {
            id,
            position,
            print,
        });
        true
    }

    /// Compares what was said with what the joiner has, among those who are `there`.
    fn weigh(&mut self, joiner: &Replica, there: u64) -> Finding {
        self.position = joiner.position();
        let here = |word: &Word| word.position == self.position;
        if self.words.iter().any(here) {
            let print = joiner.whole_fingerprint();
            for word in self.words.iter().filter(|word| here(word)) {
                let mask = if word.print == print {
                    &mut self.alike
                } else {
                    &mut self.differ
                };
                *mask |= 1 << word.id;
            }
            let position = self.position;
            self.words.retain(|word| word.position != position);
        }
        let voters = there.count_ones();
        let count = |mask: u64| (mask & there).count_ones();
        if 2 * count(self.alike) > voters || voters < 3 && count(self.differ) == 0 {
            return Finding::Proven;
        }
        if 2 * count(self.differ) > voters {
            return Finding::Refuted;
        }
        if voters < 3 || there & !(self.alike | self.differ) == 0 {
            return Finding::Undecided;
        }
        let next = self.words.iter().map(|word| word.position).min();
        next.map_or(Finding::Open, Finding::GoTo)
    }
}

impl<T: Tamper> Worker<T> {
    /// Goes on until enough others have the state that this worker was given. Says whether it takes part from now on.
    pub(super) fn prove(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut book = shared.ledger.open();
            let there = shared.roll.present();
            let Seat::Offered(offer) = &mut book.seats[self.id] else {
                return false;
            };
            let giver = offer.giver;
            let is_gone = there >> giver & 1 == 0 || shared.roll.since(giver) != offer.giver_since;
            let mut finding = match is_gone && there != 0 {
                // It may have been found to differ, and nobody answers for what it gave any more.
                true => Finding::Refuted,
                false => offer.weigh(&self.replica, there),
            };
            if finding == Finding::Proven && shared.layout.confirm {
                let way = self.unposted.iter();
                let way = way.map(|(position, print)| shared.is_right(*position, *print));
                finding = way.fold(finding, |finding, is_right| match is_right {
                    Some(true) => finding,
                    Some(false) => Finding::Refuted,
                    None if finding == Finding::Proven => Finding::Open,
                    None => finding,
                });
            }
            let differ = offer.differ & there;
            match finding {
                Finding::Proven | Finding::Undecided => book.seats[self.id] = Seat::Taken,
                Finding::Refuted => {
                    let from = if is_gone {
                        there
                    } else {
                        there & !(1 << giver)
                    };
                    book.seats[self.id] = Seat::Wanted(from);
                }
                Finding::GoTo(_) | Finding::Open => {}
            }
            drop(book);
            match finding {
                Finding::Proven => {
                    if differ != 0 {
                        // Others may be wrong instead. They look for themselves.
                        shared.roll.accuse(differ);
                    }
                    self.sit();
                    return true;
                }
                Finding::Undecided => {
                    shared.count_undecided();
                    self.sit();
                    return true;
                }
                Finding::Refuted => {
                    if !is_gone {
                        shared.roll.accuse(1 << giver);
                    }
                    self.kept = Kept::from(self.replica.position());
                    self.cursor = Cursor::at_first(&self.kept);
                    self.standing = Standing::Waiting;
                    shared.call(there);
                    return false;
                }
                Finding::GoTo(position) => {
                    self.log.poll();
                    while self.replica.position() < position {
                        if !self.apply_one() {
                            return false;
                        }
                    }
                    self.log.advance_to(self.replica.position());
                }
                Finding::Open => {
                    // Somebody else may be there by now.
                    shared.roll.call(there & !(1 << giver));
                    return false;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::digest::Request;
    use crate::time::Instant;

    /// A replica that was told a time.
    fn told(limits: Limits, millis: u64) -> Replica {
        let mut replica = Replica::new(limits);
        let tick = Request::tick(Instant::from_millis(millis), 0);
        replica.apply(&tick, 0, &mut Vec::new());
        replica
    }

    #[test]
    fn a_state_counts_when_more_than_half_have_it_and_half_of_them_prove_nothing() {
        let limits = Limits::default();
        let (joiner, other) = (told(limits, 1), told(limits, 2));
        assert_ne!(joiner.whole_fingerprint(), other.whole_fingerprint());
        // The giver has it.
        let split = |voters: usize| {
            (1..=voters)
                .flat_map(move |alike| (0..=voters - alike).map(move |wrong| (alike, wrong)))
        };
        for voters in 1..=6 {
            for (alike, differ) in split(voters) {
                let mut offer = Offer::new(0, 0, Snapshot::none(limits));
                for id in 1..alike + differ {
                    let theirs = if id < alike { &joiner } else { &other };
                    assert!(offer.hear(id, theirs));
                }
                // Of two nobody else can say anything, so what nobody contradicts is taken.
                let expected = if alike > voters / 2 || voters < 3 && differ == 0 {
                    Finding::Proven
                } else if differ > voters / 2 {
                    Finding::Refuted
                } else if voters < 3 || alike + differ == voters {
                    Finding::Undecided
                } else {
                    Finding::Open
                };
                let found = offer.weigh(&joiner, (1 << voters) - 1);
                assert!(found == expected, "{alike} and {differ} of {voters}");
            }
        }
    }
}
