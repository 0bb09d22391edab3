//! Compares a case with its replays.

use dominoes_drivers::memory::Script;
use dominoes_netstack::group::{GroupTuning, Layout};
use dominoes_netstack::variants::VariantKind;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::{Entry, ReplicaState};

use super::app::Application;
use super::case::{Left, Outcome};
use super::plan::Plan;
use super::stack;

/// Number of the replayed `single` among the workers.
pub(crate) const ORACLE: usize = usize::MAX;
/// Number of the replayed `locked`.
const LOCKED: usize = ORACLE - 1;
/// Number of the replayed `pipelined`.
const PIPELINED: usize = ORACLE - 2;

/// A disagreement, or an event that must not happen.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) what: String,
    /// Two workers, and the position at which their states differ.
    pub(crate) at: Option<(usize, usize, u64)>,
}

impl Failure {
    pub(crate) fn new(what: String) -> Failure {
        Failure { what, at: None }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::new(what)
    }
}

/// The first fingerprint that a worker had at each position.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    at: Vec<Option<(usize, u64)>>,
}

impl Marks {
    /// Notes that a worker has this fingerprint after `position` requests.
    ///
    /// # Errors
    /// If another worker had a different fingerprint there.
    pub(crate) fn note(&mut self, who: usize, position: u64, mark: u64) -> Result<(), Failure> {
        let index = position as usize;
        if self.at.len() <= index {
            self.at.resize(index + 1, None);
        }
        match self.at[index] {
            None => self.at[index] = Some((who, mark)),
            Some((_, known)) if known == mark => {}
            Some((other, _)) => {
                return Err(Failure {
                    what: format!(
                        "{} and {} differ at position {position}",
                        name(other),
                        name(who)
                    ),
                    at: Some((other, who, position)),
                });
            }
        }
        Ok(())
    }
}

pub(crate) fn name(who: usize) -> String {
    match who {
        ORACLE => "single".to_owned(),
        LOCKED => "locked".to_owned(),
        PIPELINED => "pipelined".to_owned(),
        _ => format!("replica {who}"),
    }
}

/// Replays the log of a case in `single` and compares everything observable with the case.
///
/// # Errors
/// The first difference.
pub(crate) fn replay(plan: &Plan, entries: &[Entry], outcome: &mut Outcome) -> Result<(), Failure> {
    let layout = Layout::default().replicas(1);
    replay_in(plan, VariantKind::Single, layout, entries, outcome)
}

/// Like [`replay`], in a group of `replicas`.
///
/// # Errors
/// The first difference.
pub(crate) fn replay_in_group(
    plan: &Plan,
    replicas: usize,
    entries: &[Entry],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut layout = stack::layout(plan);
    layout.replicas = replicas;
    layout.replica_slots = replicas;
    // Frames are compared in the order in which they leave.
    layout.tuning.past_hole = usize::MAX;
    replay_in(plan, VariantKind::Replicated, layout, entries, outcome)
}

/// All variants except `replicated` and `single`. A case replays its log in one of them.
pub(crate) fn others() -> Vec<VariantKind> {
    let all = VariantKind::ALL.iter().copied();
    all.filter(|kind| !matches!(kind, VariantKind::Single | VariantKind::Replicated))
        .collect()
}

/// Like [`replay`], in a variant of kind `kind` with `workers` workers: it must send the frames
/// that `single` sends.
///
/// # Errors
/// The first difference.
pub(crate) fn replay_in_other(
    plan: &Plan,
    (kind, workers): (VariantKind, usize),
    entries: &[Entry],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    // These variants need a longer log than `replicated`.
    let layout = Layout::default()
        .replicas(workers)
        .tuning(GroupTuning::default().log(plan.log.max(64)));
    replay_in(plan, kind, layout, entries, outcome)
}

fn replay_in(
    plan: &Plan,
    kind: VariantKind,
    layout: Layout,
    entries: &[Entry],
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let (device, script) = stack::device(plan);
    let mut setup = stack::setup(plan);
    setup.limits = outcome.limits;
    let stack = kind.build(setup, layout, device);
    let mut stack = stack.map_err(|e| Failure::new(e.to_string()))?;
    let app = Application::new(stack.sockets(), plan.seed);
    let mut follower = Follower::new(app, outcome, script);
    for (position, entry) in (1..).zip(entries) {
        stack.replay_entry(entry);
        let replicas = stack.inspect(|replica| replica.fingerprint());
        for (id, mark) in replicas.into_iter().enumerate() {
            let who = match kind {
                VariantKind::Replicated => id,
                VariantKind::Single => ORACLE,
                VariantKind::Pipelined => PIPELINED,
                _ => LOCKED,
            };
            outcome.marks.note(who, position, mark)?;
        }
        follower.follow()?;
    }
    // A panic that a replica catches ends the connection alike in all replicas, so no other
    // comparison shows it.
    let mut panics = 0;
    stack.inspect(|replica| panics += replica.unexpected_panics());
    let diverged = stack.effect_stats().diverged;
    if panics + diverged > 0 {
        return Err(Failure::new(format!(
            "{kind} caught {panics} panics and counts {diverged} divergences"
        )));
    }
    follower.compare(outcome)
}

/// The state of `single` after the first `position` entries of a log.
pub(crate) fn oracle_at(plan: &Plan, entries: &[Entry], position: u64) -> Option<ReplicaState> {
    let (device, _script) = stack::device(plan);
    let mut single = Single::new(stack::setup(plan), device).ok()?;
    for entry in entries.get(..position as usize)? {
        single.replay_entry(entry);
    }
    Some(single.replica().clone())
}

/// The application and the network of a replayed stack.
struct Follower {
    app: Application,
    script: Script,
    left: Left,
}

impl Follower {
    fn new(mut app: Application, outcome: &Outcome, script: Script) -> Follower {
        for port in &outcome.app.opened {
            app.open(*port, 0);
        }
        Follower {
            app,
            script,
            left: Vec::new(),
        }
    }

    /// The application reads all available bytes: at least as many as when the log was made.
    fn follow(&mut self) -> Result<(), Failure> {
        self.app.drain(false)?;
        self.left.append(&mut self.script.take_sent());
        Ok(())
    }

    fn compare(&self, outcome: &Outcome) -> Result<(), Failure> {
        let both = outcome.left.iter().zip(&self.left);
        for (number, (ours, theirs)) in both.enumerate() {
            if ours != theirs {
                return Err(Failure::new(format!(
                    "frame {number} differs from that of the replay:\n{ours:02x?}\n{theirs:02x?}"
                )));
            }
        }
        if outcome.left.len() != self.left.len() {
            return Err(Failure::new(format!(
                "{} frames left, {} in the replay",
                outcome.left.len(),
                self.left.len()
            )));
        }
        if outcome.app.datagrams != self.app.datagrams {
            return Err(Failure::new(format!(
                "{} datagrams were taken, {} in the replay, not the same",
                outcome.app.datagrams.len(),
                self.app.datagrams.len()
            )));
        }
        for connection in &outcome.app.connections {
            let again = self
                .app
                .connections
                .iter()
                .find(|other| other.id == connection.id);
            let again = again.map_or(&[][..], |again| &again.received);
            let ours = &connection.received[..];
            let equal = if connection.gave_up || connection.ended.is_some() {
                again.starts_with(ours)
            } else {
                again == ours
            };
            if !equal {
                return Err(Failure::new(format!(
                    "connection {}: {} bytes were read, {} in the replay, not the same",
                    connection.peer,
                    ours.len(),
                    again.len()
                )));
            }
        }
        Ok(())
    }
}
