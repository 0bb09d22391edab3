//! The settings of replicated state, and which cores share a replica.

use super::{
    Replicated, ReplicatedError, StateMachine,
    op_log::OpLog,
    replica::{Counts, LocalReplica, Shared, Watch},
};
use crate::{Fingerprints, MAX_SUBSCRIBERS, TryLock, sync::Arc};
use std::{collections::BTreeMap, fmt, fs, path::Path, time::Duration};

/// Fingerprints that each replica keeps posted for comparison.
const DEPTH: usize = 64;

/// A user's function that computes the fingerprint of a state.
type Print<M> = Box<dyn Fn(&M) -> u64 + Send + Sync>;

/// Settings of a [`Replicated`]. Created by [`Replicated::builder`].
#[must_use = "a builder does nothing until it builds"]
pub struct ReplicatedBuilder<M> {
    state: M,
    cores: Vec<Vec<usize>>,
    slots: usize,
    capacity: usize,
    patience: Duration,
    every: u64,
    print: Option<Print<M>>,
}

impl<M: StateMachine> ReplicatedBuilder<M> {
    pub(super) fn new(state: M) -> Self {
        ReplicatedBuilder {
            state,
            cores: nodes(Path::new("/sys/devices/system/node")),
            slots: 0,
            capacity: 1024,
            patience: Duration::from_secs(5),
            every: 0,
            print: None,
        }
    }

    /// This many replicas, at least 1, for no core in particular. By default there is one for each
    /// NUMA node.
    pub fn replicas(self, replicas: usize) -> Self {
        // `build` refuses so many, and more.
        let replicas = replicas.min(MAX_SUBSCRIBERS + 1);
        self.cores(vec![Vec::new(); replicas])
    }

    /// One replica for each core that this process may use.
    pub fn per_core(self) -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let cores: Vec<_> = cores.into_iter().map(|core| vec![core.id]).collect();
        let some = !cores.is_empty();
        self.cores(if some { cores } else { vec![Vec::new()] })
    }

    /// One replica for each of these sets of cores, by the system's numbers. A handle that is made
    /// on one of the cores uses that replica.
    pub fn cores(mut self, cores: Vec<Vec<usize>>) -> Self {
        self.cores = cores;
        self
    }

    /// The most replicas at a time, at most 60: room for [`Replicated::join`]. A value below the
    /// initial number of replicas counts as that number. Default 0.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// Operations that may be published and not yet applied by the slowest replica, 1 to 2^32.
    /// Default 1024.
    pub fn capacity(mut self, operations: usize) -> Self {
        self.capacity = operations;
        self
    }

    /// How long a write that finds the log full tries to apply it to the slowest replica, before it
    /// gives up. Default 5 s.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Compares the states every `every` positions, at least 1, by a fingerprint: equal states must
    /// have equal fingerprints. A replica that differs from the majority takes over another one's
    /// state before it is read again.
    pub fn fingerprint(
        mut self,
        every: u64,
        of: impl Fn(&M) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.every = every;
        self.print = Some(Box::new(of));
        self
    }

    /// Makes the replicas.
    ///
    /// # Errors
    /// If a setting is out of its range, or a clone of the state panics.
    pub fn build(self) -> Result<Replicated<M>, ReplicatedError> {
        let most = MAX_SUBSCRIBERS - if cfg!(loom) { 1 } else { 4 };
        let slots = self.slots.max(self.cores.len());
        let fail = |field, allowed| Err(ReplicatedError::OutOfRange { field, allowed });
        if self.cores.is_empty() || self.cores.len() > most {
            return fail("replicas", "1 to 60");
        }
        if slots > most {
            return fail("slots", "0 to 60");
        }
        if self.capacity == 0 || self.capacity as u64 > 1 << 32 {
            return fail("capacity", "1 to 2^32");
        }
        if self.print.is_some() && self.every == 0 {
            return fail("every", "at least 1");
        }
        let (log, cursor) = OpLog::new(self.capacity);
        let every = self.every;
        let watch = |of| Watch {
            prints: Fingerprints::new(slots, DEPTH, every),
            of,
        };
        let shared = Shared {
            log,
            replicas: (0..slots).map(|_| LocalReplica::new()).collect(),
            patience: self.patience,
            watch: self.print.map(watch),
            counts: Counts::default(),
            changes: TryLock::new(()),
        };
        shared.install(self.state, cursor)?;
        let replicas = Replicated {
            shared: Arc::new(shared),
            cores: self.cores.iter().enumerate().fold(BTreeMap::new(), by_core),
        };
        for id in 1..self.cores.len() {
            replicas.join_at(id)?;
        }
        Ok(replicas)
    }
}

fn by_core(
    mut all: BTreeMap<usize, usize>,
    (replica, cores): (usize, &Vec<usize>),
) -> BTreeMap<usize, usize> {
    all.extend(cores.iter().map(|core| (*core, replica)));
    all
}

impl<M> fmt::Debug for ReplicatedBuilder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicatedBuilder")
            .field("cores", &self.cores)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The cores of each NUMA node, as the system lists them in this folder; one set without any core
/// if it lists none.
pub(super) fn nodes(folder: &Path) -> Vec<Vec<usize>> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<(usize, Vec<usize>)> = entries
        .filter_map(|entry| {
            let number = entry
                .file_name()
                .to_str()?
                .strip_prefix("node")?
                .parse()
                .ok()?;
            let cores = cpus(&fs::read_to_string(entry.path().join("cpulist")).ok()?);
            (!cores.is_empty()).then_some((number, cores))
        })
        .collect();
    nodes.sort_unstable();
    match nodes.is_empty() {
        true => vec![Vec::new()],
        false => nodes.into_iter().map(|(_, cores)| cores).collect(),
    }
}

/// The most cores that a list is believed to have.
const MOST_CORES: usize = 1 << 16;

/// The numbers in a list such as `0-3,8,10-11`.
fn cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST_CORES).then_some(first..=last)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// The core that the calling thread runs on, where the system has a file that knows.
pub(super) fn current_core() -> Option<usize> {
    let stat = fs::read_to_string("/proc/thread-self/stat").ok()?;
    // Fields after the name, which may hold anything but a closing bracket; the 39th of all is the
    // core.
    let after = stat.rsplit_once(')')?.1;
    after.split_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_from_a_folder_as_in_sys() {
        let folder = std::env::temp_dir().join(format!("dominoes-nodes-{}", std::process::id()));
        for (node, list) in [
            ("node1", "2-3,6\n"),
            ("node0", "0-1,4-5\n"),
            ("node2", "\n"),
        ] {
            fs::create_dir_all(folder.join(node)).unwrap();
            fs::write(folder.join(node).join("cpulist"), list).unwrap();
        }
        assert_eq!(nodes(&folder), [vec![0, 1, 4, 5], vec![2, 3, 6]]);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(nodes(&folder), [Vec::<usize>::new()]);
        assert_eq!(cpus("1-99999999999,x,3,5-4,-"), [3]);
    }
}
