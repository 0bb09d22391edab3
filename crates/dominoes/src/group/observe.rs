//! The fingerprints that replicas compare, and the report when they differ.

use super::{
    majority::{Agreement, Fingerprints},
    membership::{MembershipTable, replicas},
};
use crate::Seq;
use std::{
    error::Error,
    fmt,
    sync::{Mutex, PoisonError},
};

/// Fingerprints that each replica keeps posted for comparison.
const DEPTH: usize = 64;

/// State that can be compared field by field.
pub trait Observe {
    /// The names of the fields.
    const FIELDS: &'static [&'static str];

    /// Writes a fingerprint of each field, in that order: equal fields have equal ones, different
    /// fields almost surely different ones. Cheap if the state keeps them up to date as it changes.
    fn fingerprints(&self, out: &mut [u64]);
}

/// A difference between replicas: which replicas, from which position on, in which fields.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Divergence {
    /// The first known position at which they differ: the state after all entries below it.
    pub position: Seq,
    /// The newest earlier position at which they were seen to agree: the fault happened between
    /// the two.
    pub agreed: Option<Seq>,
    /// The fields that differ there, in the order of [`Observe::FIELDS`].
    pub fields: Vec<&'static str>,
    /// The replicas that posted at `position`.
    pub compared: Vec<usize>,
    /// The replicas outside the majority; `None` if there is none, as with two replicas.
    pub minority: Option<Vec<usize>>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.minority {
            Some(minority) => write!(f, "replicas {minority:?}")?,
            None => write!(f, "some of replicas {:?}", self.compared)?,
        }
        let fields = self.fields.join(", ");
        write!(f, " differ in {fields} at position {}", self.position)?;
        if let Some(agreed) = self.agreed {
            write!(f, ", and did not at {agreed}")?;
        }
        Ok(())
    }
}

impl Error for Divergence {}

/// The response to a [`Divergence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDivergence {
    /// Replaces the minority's states by a copy from the majority, if there is a majority.
    Repair,
    /// Only reports it.
    Report,
}

pub(super) type Prints<S> = Box<dyn Fn(&S, &mut [u64]) + Send + Sync>;
pub(super) type DivergenceHook = Box<dyn Fn(&Divergence) -> OnDivergence + Send + Sync>;

/// Compares the states of a group.
pub(super) struct Observer<S> {
    names: &'static [&'static str],
    prints: Prints<S>,
    /// Fingerprints of the whole state.
    posts: Fingerprints,
    /// Fingerprints of each field.
    fields: Box<[Fingerprints]>,
    hook: DivergenceHook,
    /// The last report.
    reported: Mutex<Option<Reported>>,
}

impl<S> Observer<S> {
    pub(super) fn new(
        names: &'static [&'static str],
        every: u64,
        slots: usize,
        prints: Prints<S>,
        hook: DivergenceHook,
    ) -> Self {
        let ring = || Fingerprints::new(slots, DEPTH, every);
        Observer {
            names,
            prints,
            posts: ring(),
            fields: names.iter().map(|_| ring()).collect(),
            hook,
            reported: Mutex::new(None),
        }
    }

    /// The first position after `position` at which a fingerprint is due.
    pub(super) fn next_due(&self, position: Seq) -> Seq {
        (position / self.posts.every() + 1) * self.posts.every()
    }

    /// A fingerprint of each field, and of all of them.
    fn fingerprints(&self, state: &S) -> (Vec<u64>, u64) {
        let mut prints = vec![0; self.names.len()];
        (self.prints)(state, &mut prints);
        let whole = prints.iter().fold(0u64, |whole, print| {
            (whole.rotate_left(23) ^ print).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        });
        (prints, whole)
    }

    /// A fingerprint of the whole state.
    pub(super) fn fingerprint(&self, state: &S) -> u64 {
        self.fingerprints(state).1
    }

    /// Posts the fingerprints of worker `id`, if they are due at `position`, and compares them
    /// with the fingerprints of other workers there.
    pub(super) fn post(
        &self,
        table: &MembershipTable,
        id: usize,
        position: Seq,
        state: &S,
    ) -> Post {
        if !self.posts.is_due(position) {
            return Post::Nothing;
        }
        let (prints, whole) = self.fingerprints(state);
        for (field, print) in self.fields.iter().zip(prints) {
            field.post(id, position, print);
        }
        self.posts.post(id, position, whole);
        let wrong = match self.posts.agreement(table, position) {
            Agreement::Majority { wrong: 0, .. } | Agreement::Open => return Post::Nothing,
            Agreement::Majority { wrong, .. } => Some(wrong),
            Agreement::Undecided if table.voters(position) == 0 => return Post::Nothing,
            Agreement::Undecided => None,
        };
        match (wrong, self.report(table, position, wrong)) {
            (None, _) => Post::Undecided,
            (Some(_), OnDivergence::Report) => Post::Nothing,
            (Some(wrong), OnDivergence::Repair) => Post::Wrong(wrong),
        }
    }

    /// Calls the hook, unless its last report had these workers and none of them has got another
    /// state since.
    fn report(&self, table: &MembershipTable, position: Seq, wrong: Option<u64>) -> OnDivergence {
        let reported = self.reported.lock();
        let mut reported = reported.unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*reported
            && last.wrong == wrong
            && replicas(wrong.unwrap_or(table.active())).all(|id| table.since(id) < last.position)
        {
            return last.action;
        }
        let action = (self.hook)(&self.divergence(table, position, wrong));
        *reported = Some(Reported {
            position,
            wrong,
            action,
        });
        action
    }

    fn divergence(&self, table: &MembershipTable, position: Seq, wrong: Option<u64>) -> Divergence {
        let posted = |at: Seq| {
            replicas(table.ever_active()).filter(move |id| self.posts.at(*id, at).is_some())
        };
        let differ = |posts: &Fingerprints, at: Seq| {
            let mut prints = posted(at).filter_map(|id| posts.at(id, at));
            let first = prints.next();
            prints.any(|print| Some(print) != first)
        };
        let every = self.posts.every();
        let earlier = (1..DEPTH as u64).map_while(|n| position.checked_sub(n * every));
        let agreed = earlier
            .take_while(|at| posted(*at).count() > 1)
            .find(|at| !differ(&self.posts, *at));
        let fields = self.names.iter().zip(&self.fields);
        Divergence {
            position,
            agreed,
            fields: fields
                .filter(|(_, posts)| differ(posts, position))
                .map(|(name, _)| *name)
                .collect(),
            compared: posted(position).collect(),
            minority: wrong.map(|wrong| replicas(wrong).collect()),
        }
    }

    /// The majority that worker `id` differs from, if any. Then its posts from the first wrong
    /// position on no longer count.
    pub(super) fn diverged_from(&self, table: &MembershipTable, id: usize) -> Option<u64> {
        let (right, first) = self.posts.majority_against(table, id)?;
        self.posts.forget_from(id, first);
        self.fields
            .iter()
            .for_each(|field| field.forget_from(id, first));
        Some(right)
    }
}

/// A divergence that the hook was called for.
struct Reported {
    position: Seq,
    /// The workers that differ from the majority, if there is one.
    wrong: Option<u64>,
    action: OnDivergence,
}

/// The result of a comparison.
pub(super) enum Post {
    /// No action is needed.
    Nothing,
    /// Replicas differ, and there is no majority.
    Undecided,
    /// These workers, a bit each, differ from the majority.
    Wrong(u64),
}
