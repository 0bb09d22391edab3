//! How a worker comes, goes, and gets its state: by snapshot, from whoever has one.
//!
//! A snapshot is a clone of the replica, of the effects it keeps, and of what it knows of the crews, beside a
//! [fork](Subscription::fork) of its reader; so all of them stand at one position by construction. Whoever wants one
//! writes so into the *book* and calls those who may give it; the first of them that comes between two steps of its own
//! does. The book is behind a lock, into which nobody looks unless a relaxed bit says that there is something in it for
//! them; and a worker that finds it locked goes on with its work, and comes back.
//!
//! What was given is [proven](super::proof) before it counts.
//!
//! Nothing stops meanwhile. The joiner has all requests from the snapshot's position on before it, since the fork holds
//! the log there, and all effects below that may not be done.

use core::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dominoes::{Seq, Spin, Subscription};

use super::kept::Kept;
use super::members::Crews;
use super::proof::Offer;
use super::worker::{Standing, Worker};
use super::{Shared, Tamper};
use crate::config::Limits;
use crate::digest::Request;
use crate::engine::replica::Replica;
use crate::error::MembersError;
use crate::stats::MemberStats;

/// All that a worker needs to go on where another one stands.
pub(super) struct Snapshot {
    pub(super) replica: Replica,
    pub(super) log: Subscription<Request, Spin>,
    pub(super) kept: Kept,
    pub(super) crews: Crews,
}

impl Snapshot {
    /// What a worker has that has none: nothing, of a log that nobody writes.
    pub(super) fn none(limits: Limits) -> Snapshot {
        // Nobody is to wait for a reader that rests.
        let (_, log) = dominoes::channel_with_slots::<Request, Spin>(1, 1);
        let log = log.subscribe().expect("a log has room for one reader");
        Snapshot {
            replica: Replica::new(limits),
            log,
            kept: Kept::default(),
            crews: Crews::new(1),
        }
    }
}

/// How it stands with a seat.
pub(super) enum Seat {
    Free,
    /// Somebody waits for a snapshot of one of these workers.
    Wanted(u64),
    /// It is there, or already where it was wanted, and others say whether it is right.
    Offered(Box<Offer>),
    Taken,
    /// Its worker has no state, and waits to be recruited.
    Resting,
}

/// How a worker came by its state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Joined,
    /// It had differed from the majority.
    Repaired,
    /// It had rested.
    Recruited,
}

/// Why a worker gets up from its seat.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// It was asked to, and owes nothing.
    Left,
    /// It was never there.
    Withdrew,
    /// It unwound, or was dropped.
    Died,
    /// It was asked to rest, and owes nothing.
    Rests,
    /// It differs from these, and wants the state of one of them.
    Differed(u64),
}

/// Who has which seat.
pub(super) struct Book {
    pub(super) seats: Vec<Seat>,
    stats: MemberStats,
    /// Members are known to differ, and not who is right.
    is_undecided: bool,
}

/// [`Book`], and its lock.
pub(super) struct Ledger(Mutex<Book>);

impl Ledger {
    pub(super) fn new(seats: usize, members: usize, others_rest: bool) -> Self {
        let seat = |id| {
            if id < members {
                Seat::Taken
            } else if others_rest {
                Seat::Resting
            } else {
                Seat::Free
            }
        };
        Ledger(Mutex::new(Book {
            seats: (0..seats).map(seat).collect(),
            stats: MemberStats::default(),
            is_undecided: false,
        }))
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// What became of the group's members so far.
    pub(crate) fn member_stats(&self) -> MemberStats {
        let mut stats = self.ledger.open().stats;
        stats.members = u64::from(self.roll.present().count_ones());
        stats
    }

    /// How many workers take part. A moment's view.
    pub(crate) fn members(&self) -> usize {
        self.roll.present().count_ones() as usize
    }

    /// Writes into the book that somebody waits for seat `id`, or for the first that is free.
    fn want(&self, id: Option<usize>) -> Result<usize, MembersError> {
        let mut book = self.ledger.open();
        let sources = self.roll.present();
        if sources == 0 {
            return Err(MembersError::NobodyLeft);
        }
        let is_free = |seat: &Seat| matches!(seat, Seat::Free);
        let id = match id {
            Some(id) => Some(id).filter(|id| book.seats.get(*id).is_some_and(is_free)),
            None => book.seats.iter().position(is_free),
        };
        let id = id.ok_or(MembersError::NoSeat)?;
        book.seats[id] = Seat::Wanted(u64::MAX);
        self.roll.expect(id);
        drop(book);
        self.call(sources);
        Ok(id)
    }

    /// These workers are to look into the book, wherever they sleep.
    pub(super) fn call(&self, workers: u64) {
        self.roll.call(workers);
        self.bell.notify_all();
        self.world.ring();
    }

    /// The snapshot that seat `id` waits for, if it is there.
    pub(super) fn collect(&self, id: usize) -> Option<Snapshot> {
        let mut book = self.ledger.open();
        match &mut book.seats[id] {
            Seat::Offered(offer) => offer.take(),
            Seat::Wanted(from) => {
                // Those who were asked may be gone by now.
                let there = self.roll.present();
                if *from & there == 0 {
                    *from = u64::MAX;
                }
                self.roll.call(there);
                None
            }
            Seat::Free | Seat::Taken | Seat::Resting => None,
        }
    }

    /// Worker `id`, which keeps requests from `first` on and stands at `position`, takes its seat. Returns what is told
    /// of its share.
    pub(super) fn sit(&self, id: usize, first: Seq, position: Seq) -> Seq {
        // ORDERING: Relaxed: nobody else changes the word of a seat, and `Roll::sit` publishes it.
        let told = match self.performed[id].load(Ordering::Relaxed) {
            NOBODY => first,
            told => told.max(first),
        };
        // ORDERING: Release, as in `Worker::after_performing`.
        self.performed[id].store(told, Ordering::Release);
        self.roll.sit(id, position);
        self.roll.expect_no_more(id);
        told
    }

    /// Counts a worker that came.
    pub(super) fn count_arrival(&self, arrival: Arrival) {
        let stats = &mut self.ledger.open().stats;
        match arrival {
            Arrival::Joined => stats.joined += 1,
            Arrival::Repaired => stats.repaired += 1,
            Arrival::Recruited => stats.recruited += 1,
        }
    }

    /// Lets the first worker that rests come back, unless somebody has the book.
    pub(super) fn recruit(&self) {
        let Ok(mut book) = self.ledger.0.try_lock() else {
            return;
        };
        let sources = self.roll.present();
        let resting = book
            .seats
            .iter()
            .position(|seat| matches!(seat, Seat::Resting));
        let (Some(id), true) = (resting, sources != 0) else {
            return;
        };
        book.seats[id] = Seat::Wanted(u64::MAX);
        self.roll.expect(id);
        drop(book);
        self.roll.set_resting(id, false);
        self.call(sources | 1 << id);
        self.rest.notify_all();
    }

    /// Asks the last worker to rest, if another one stays.
    pub(super) fn send_to_rest(&self) {
        let Ok(_book) = self.ledger.0.try_lock() else {
            return;
        };
        let staying = self.roll.crew();
        if staying.count_ones() > 1 {
            let last = staying.ilog2() as usize;
            self.roll.tire(last);
            self.roll.dismiss(last);
            self.bell.notify_all();
        }
    }

    /// Whether worker `id` of those that were asked to leave may: somebody else stays.
    pub(super) fn may_go(&self, id: usize) -> bool {
        let _book = self.ledger.open();
        let others = self.roll.crew() & !(1 << id);
        if others == 0 {
            self.roll.keep(id);
        } else {
            // From here on it counts for nobody who asks the same.
            self.roll.rise(id);
        }
        others != 0
    }

    /// Asks worker `id` to leave, or the last one.
    pub(crate) fn dismiss(&self, id: Option<usize>) -> Result<usize, MembersError> {
        let _book = self.ledger.open();
        let staying = self.roll.crew();
        let last = (staying != 0).then(|| staying.ilog2() as usize);
        let id = id.or(last).ok_or(MembersError::NobodyLeft)?;
        if id >= self.performed.len() || staying >> id & 1 == 0 {
            return Err(MembersError::NoSuchMember);
        }
        if staying.count_ones() == 1 {
            return Err(MembersError::LastMember);
        }
        self.roll.dismiss(id);
        self.bell.notify_all();
        self.world.ring();
        Ok(id)
    }

    /// Worker `id` gets up. What it had begun, it let go of before. With the last one that has a state the world is down.
    pub(super) fn leave(&self, id: usize, exit: Exit) {
        let mut book = self.ledger.open();
        book.is_undecided = false;
        self.roll.rise(id);
        let unserved = core::mem::replace(&mut book.seats[id], Seat::Free);
        self.roll.expect_no_more(id);
        match exit {
            Exit::Left => book.stats.left += 1,
            Exit::Withdrew => {}
            Exit::Died => book.stats.died += 1,
            Exit::Rests => {
                book.stats.rested += 1;
                book.seats[id] = Seat::Resting;
                self.roll.set_resting(id, true);
            }
            Exit::Differed(from) => {
                book.seats[id] = Seat::Wanted(from);
                self.roll.expect(id);
                self.roll.call(from);
            }
        }
        drop(book);
        drop(unserved);
        // Its share is everybody's, at once.
        self.bell.notify_all();
        self.world.ring();
        if self.members() == 0 {
            // Nobody is to wait for what nobody will do.
            self.world.shut_down();
        }
    }

    /// Counts that members differ, and nobody can say who is right. Once, until somebody comes or goes.
    pub(super) fn count_undecided(&self) {
        let mut book = self.ledger.open();
        if !core::mem::replace(&mut book.is_undecided, true) {
            book.stats.undecided += 1;
        }
    }

    /// Nobody waits for seat `id`, or rests there, any more.
    pub(super) fn withdraw(&self, id: usize) {
        self.roll.set_resting(id, false);
        let unused = core::mem::replace(&mut self.ledger.open().seats[id], Seat::Free);
        self.roll.expect_no_more(id);
        // What nobody collects would hold the log.
        drop(unused);
    }
}

/// What the word of a seat that nobody ever had tells.
pub(super) const NOBODY: Seq = Seq::MAX;

impl<T: Tamper> Worker<T> {
    /// Gives snapshots to those who wait for one, and says what is to be said of others'. Says whether somebody still
    /// waits for this worker.
    pub(super) fn serve(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let Ok(mut book) = shared.ledger.0.try_lock() else {
            return true;
        };
        let me = 1u64 << self.id;
        let (mut waiting, mut offered) = (false, false);
        for seat in &mut book.seats {
            match seat {
                Seat::Wanted(from) if *from & me != 0 => match self.snapshot() {
                    Some(snapshot) => {
                        let since = shared.roll.since(self.id);
                        *seat = Seat::Offered(Box::new(Offer::new(self.id, since, snapshot)));
                        offered = true;
                    }
                    None => waiting = true,
                },
                Seat::Offered(offer) => waiting |= !offer.hear(self.id, &self.replica),
                _ => {}
            }
        }
        drop(book);
        if offered {
            shared.call(shared.roll.present() & !me);
        } else if !waiting {
            shared.bell.notify_all();
        }
        waiting
    }
}

/// Where workers come and go, for whoever drives them on threads of its own.
#[derive(Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl core::fmt::Debug for Door {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl Door {
    pub(super) fn new(shared: &Arc<Shared>) -> Door {
        Door {
            shared: Arc::clone(shared),
        }
    }

    /// As [`Group::join`](super::Group::join), on any seat that is free.
    ///
    /// # Errors
    /// If no seat is free, or no worker is left.
    pub fn join<T: Tamper>(&self, tamper: T) -> Result<Joining<T>, MembersError> {
        Joining::new(&self.shared, None, tamper)
    }

    /// As [`Group::leave`](super::Group::leave).
    ///
    /// # Errors
    /// If there is no such worker, or it is the last.
    pub fn leave(&self, seat: usize) -> Result<usize, MembersError> {
        self.shared.dismiss(Some(seat))
    }
}

/// A worker that is to be: it waits for its state.
pub struct Joining<T: Tamper = ()> {
    shared: Arc<Shared>,
    seat: usize,
    /// `None` once it was given a state.
    tamper: Option<T>,
    /// It was given a state, which is to be proven.
    worker: Option<Box<Worker<T>>>,
}

impl<T: Tamper> Joining<T> {
    /// Waits for seat `seat`, or the first that is free.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        seat: Option<usize>,
        tamper: T,
    ) -> Result<Self, MembersError> {
        Ok(Joining {
            seat: shared.want(seat)?,
            shared: Arc::clone(shared),
            tamper: Some(tamper),
            worker: None,
        })
    }

    /// Which seat it will have.
    pub fn seat(&self) -> usize {
        self.seat
    }

    /// Whether it still does.
    pub fn is_waiting(&self) -> bool {
        self.tamper.is_some() || self.worker.is_some()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The worker, once it was given a state that is proven; `None` before, and after it was given away.
    pub fn try_sit(&mut self) -> Option<Worker<T>> {
        if self.tamper.is_some() {
            let snapshot = self.shared.collect(self.seat)?;
            let tamper = self.tamper.take()?;
            let shared = Arc::clone(&self.shared);
            let mut worker = Worker::new(self.seat, shared, snapshot, tamper);
            worker.standing = Standing::Proving;
            self.worker = Some(Box::new(worker));
        }
        if !self.worker.as_mut()?.try_sit() {
            return None;
        }
        self.shared.count_arrival(Arrival::Joined);
        self.worker.take().map(|worker| *worker)
    }
}

impl<T: Tamper> Drop for Joining<T> {
    fn drop(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.standing = Standing::Withdrawn;
        } else if self.tamper.is_some() {
            self.shared.withdraw(self.seat);
        }
    }
}
