//! The rows of a comparison, as the command line chooses them.

use std::time::Duration;

use crate::drivers::{Direction, VARIANTS, Variant};
use crate::ratio::{self, Target};
use crate::workload::Workload;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What all rows have in common, unless an experiment varies it.
    pub base: Workload,
    /// Sizes of segments, the most important first.
    pub segments: Vec<usize>,
    /// Numbers of connections, where an experiment varies them.
    pub connections: Vec<usize>,
    /// Segments of one connection in a row, where there are several connections.
    pub bursts: Vec<usize>,
    /// Variants; all if empty.
    pub variants: Vec<String>,
    /// Numbers of cores.
    pub cores: Vec<usize>,
    /// Rounds of comparisons that no target belongs to.
    pub side_rounds: usize,
    /// How long one experiment may take: it takes fewer rounds or samples if they would take
    /// longer. `None`: as long as it takes.
    pub budget: Option<Duration>,
}

/// One row to be.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What runs.
    pub variant: &'static Variant,
    /// Its number of cores.
    pub cores: usize,
    /// The difference from other rows of the panel, except variant and cores; may be empty.
    pub case: String,
    /// Its payload, and the memory that it uses.
    pub workload: Workload,
}

/// Rows that take turns, and are compared with each other.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Which way the payload goes.
    pub direction: Direction,
    /// What its rows have in common.
    pub workload: Workload,
    /// The rows.
    pub entries: Vec<Entry>,
    /// The ratios that are taken, with their targets.
    pub targets: Vec<Target>,
    /// Slices of each row.
    pub rounds: usize,
}

impl Wanted {
    /// An empty panel.
    pub(crate) fn panel(
        &self,
        name: impl Into<String>,
        direction: Direction,
        workload: Workload,
    ) -> Panel {
        Panel {
            name: name.into(),
            direction,
            workload,
            entries: Vec::new(),
            targets: Vec::new(),
            rounds: self.side_rounds.min(self.base.rounds),
        }
    }

    /// The variants whose names match one of `names` (see [`ratio::matches`]) and that were
    /// asked for and can do it, on each number of cores that was asked for.
    pub(crate) fn entries(
        &self,
        direction: Direction,
        names: &[&str],
        case: &str,
        workload: Workload,
    ) -> Vec<Entry> {
        self.entries_of(VARIANTS, direction, names, case, workload)
    }

    /// As [`Wanted::entries`], from `variants`.
    pub(crate) fn entries_of(
        &self,
        variants: &'static [Variant],
        direction: Direction,
        names: &[&str],
        case: &str,
        workload: Workload,
    ) -> Vec<Entry> {
        let mut entries = Vec::new();
        for variant in variants {
            let meant = names.iter().any(|name| ratio::matches(variant.name, name));
            let asked = self.variants.is_empty() || self.variants.iter().any(|v| v == variant.name);
            if !meant || !asked || !(variant.can)(direction, &workload) {
                continue;
            }
            for &cores in &self.cores {
                if cores == 1 || variant.scales {
                    entries.push(Entry {
                        variant,
                        cores,
                        case: case.to_owned(),
                        workload,
                    });
                }
            }
        }
        entries
    }
}

impl Panel {
    /// Adds rows; see [`Wanted::entries`].
    pub(crate) fn rows(mut self, wanted: &Wanted, names: &[&str]) -> Panel {
        let more = wanted.entries(self.direction, names, "", self.workload);
        self.entries.extend(more);
        self
    }

    /// Adds rows that differ from the panel in `workload`, which is called `case`.
    pub(crate) fn case(
        mut self,
        wanted: &Wanted,
        names: &[&str],
        case: &str,
        workload: Workload,
    ) -> Panel {
        let more = wanted.entries(self.direction, names, case, workload);
        self.entries.extend(more);
        self
    }

    /// Sets ratios that no goal depends on: the number of rounds stays that of side panels.
    pub(crate) fn ratios(self, targets: Vec<Target>) -> Panel {
        Panel { targets, ..self }
    }

    /// Sets the targets, and with them the number of rounds that was asked for.
    pub(crate) fn targets(mut self, wanted: &Wanted, targets: Vec<Target>) -> Panel {
        self.targets = targets;
        self.rounds = wanted.base.rounds;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_and_can_be_done_has_a_row() {
        let wanted = Wanted {
            base: Workload::default(),
            segments: vec![1448],
            bursts: vec![8],
            connections: vec![1],
            variants: vec!["limit".to_owned(), "single".to_owned()],
            cores: vec![1, 2],
            side_rounds: 20,
            budget: None,
        };
        let names = |workload| {
            wanted
                .panel("x", Direction::Receive, workload)
                .rows(&wanted, &["limit", "single", "replicated"])
                .entries
                .iter()
                .map(|entry| (entry.variant.name, entry.cores))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(wanted.base),
            [("limit", 1), ("limit", 2), ("single", 1)]
        );
        let several = Workload {
            connections: 8,
            ..wanted.base
        };
        assert_eq!(names(several), [("single", 1)]);
    }
}
