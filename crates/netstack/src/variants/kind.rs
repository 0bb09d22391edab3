//! The choice of a variant, as a value.

use core::fmt;
use core::str::FromStr;

use dominoes_drivers::Device;

#[cfg(feature = "locked")]
use super::locked;
#[cfg(feature = "pipelined")]
use super::pipelined;
use super::single::Single;
use super::{ByHand, Setup};
use crate::error::{ConfigError, VARIANT_NAMES};
use crate::group::{Layout, ReplicatedGroup};
use crate::log::request::GroupIndex;

/// Names a variant, for [`Builder::variant`](crate::Builder::variant). Variants run one protocol,
/// and differ in where they call its steps: prepare (verify checksums), apply, and perform (copy,
/// build frames).
///
/// | variant | how it works | use |
/// |---|---|---|
/// | `single` | one thread, no log, direct calls | one core is enough; the oracle of the tests |
/// | `locked` (a feature) | one state, one, two or six locks around it, any thread processes any packet | a comparison: the cost of a lock |
/// | `pipelined` (a feature) | a stage for frames, some for payload, one for headers | a comparison: division by function |
/// | `replicated` | one log, a copy of the state per thread, costly work by primaries | one connection on several cores; threads that may fail |
///
/// For all of them:
///
/// - No variant contains a protocol rule: given the same requests in the same order, all reach the
///   same state and send the same frames. All except `locked` apply requests in the order of the
///   receive pump. Workers of `locked` may overtake each other on the way to the lock, so TCP may
///   see segments out of order that the network did not reorder.
/// - `single`, `locked` and `pipelined` have one copy of the state. It is lost when its thread
///   ends, or when a thread fails while it holds the lock or some payload. `replicated` replaces
///   replicas that fail or diverge, and replicas may join and leave.
/// - No step waits for another thread, except in `locked`, where a step may wait for the lock.
/// - With several [groups](crate::Builder::groups), each is `single` or `replicated`. With several
///   [interfaces](crate::Interface), each is any variant.
///
/// ```
/// use dominoes_netstack::VariantKind;
///
/// let kind: VariantKind = "replicated".parse()?;
/// assert_eq!(kind, VariantKind::Replicated);
/// assert_eq!(kind.to_string(), "replicated");
/// # Ok::<(), dominoes_netstack::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VariantKind {
    /// One thread, no log.
    Single,
    /// One state, guarded by a [`std::sync::Mutex`]. Needs the feature `locked`.
    Locked,
    /// One state, guarded by the queue lock of Mellor-Crummey and Scott. Needs the feature
    /// `locked`.
    LockedMcs,
    /// One state with two mutexes, one for receiving and one for sending; the application takes
    /// packets in the order of their tickets. Needs the feature `locked`.
    LockedTwo,
    /// As [`VariantKind::LockedTwo`], with queue locks.
    LockedTwoMcs,
    /// One state with six mutexes. Needs the feature `locked`.
    LockedSix,
    /// As [`VariantKind::LockedSix`], with queue locks.
    LockedSixMcs,
    /// Stages for frames, payload and headers in a row. Needs the feature `pipelined`.
    Pipelined,
    /// One log, a copy of the state per thread.
    Replicated,
}

impl VariantKind {
    /// The variants of this build, in the order of the table above.
    pub const ALL: &'static [VariantKind] = VariantKind::BUILT.0.split_at(VariantKind::BUILT.1).0;

    /// All variants, in the order of their names in [`VARIANT_NAMES`].
    const NAMED: [VariantKind; 9] = [
        VariantKind::Single,
        VariantKind::Locked,
        VariantKind::LockedMcs,
        VariantKind::LockedTwo,
        VariantKind::LockedTwoMcs,
        VariantKind::LockedSix,
        VariantKind::LockedSixMcs,
        VariantKind::Pipelined,
        VariantKind::Replicated,
    ];

    /// The variants of this build, and their number; the rest of the array is padding.
    const BUILT: ([VariantKind; 9], usize) = {
        let mut built = VariantKind::NAMED;
        let (mut next, mut len) = (0, 0);
        while next < built.len() {
            if VariantKind::NAMED[next].feature().1 {
                built[len] = VariantKind::NAMED[next];
                len += 1;
            }
            next += 1;
        }
        (built, len)
    };

    /// The feature that the variant needs, and whether this build has it.
    const fn feature(self) -> (&'static str, bool) {
        match self {
            VariantKind::Single | VariantKind::Replicated => ("default", true),
            VariantKind::Pipelined => ("pipelined", cfg!(feature = "pipelined")),
            _ => ("locked", cfg!(feature = "locked")),
        }
    }

    const fn name(self) -> &'static str {
        VARIANT_NAMES[self as usize]
    }

    /// Makes the variant, to be driven by hand or [divided](ByHand::into_parts) among threads.
    /// `layout.replicas` is the number of its workers (in `pipelined`, two workers have no data
    /// stage if there are at least three), and `layout.tuning.log` is the number of requests that
    /// may be in flight (`locked*` and `pipelined`: 64 to 65536; `single`: ignored). The rest of
    /// `layout` concerns `replicated` alone.
    ///
    /// # Errors
    /// If a setting is out of its range, excludes this variant, or needs a feature that this build
    /// leaves out.
    #[doc(hidden)]
    pub fn build(
        self,
        setup: Setup,
        layout: Layout,
        device: Box<dyn Device>,
    ) -> Result<ByHand, ConfigError> {
        if self != VariantKind::Replicated {
            self.check(&setup, &layout)?;
        }
        match self {
            VariantKind::Single => Ok(Single::new(setup, device)?.any()),
            #[cfg(feature = "locked")]
            VariantKind::Locked | VariantKind::LockedTwo | VariantKind::LockedSix => {
                self.behind::<locked::Mutex>(setup, layout, device)
            }
            #[cfg(feature = "locked")]
            VariantKind::LockedMcs | VariantKind::LockedTwoMcs | VariantKind::LockedSixMcs => {
                self.behind::<locked::Mcs>(setup, layout, device)
            }
            #[cfg(feature = "pipelined")]
            VariantKind::Pipelined => {
                let layout = pipelined::PipelinedLayout::default()
                    .workers(layout.replicas)
                    .window(layout.tuning.log);
                Ok(pipelined::Pipeline::new(setup, layout, device)?.any())
            }
            VariantKind::Replicated => Ok(ReplicatedGroup::new(setup, layout, device)?
                .into_by_hand()
                .any()),
            #[cfg(not(all(feature = "locked", feature = "pipelined")))]
            _ => Err(ConfigError::MissingFeature {
                what: self.name(),
                feature: self.feature().0,
            }),
        }
    }

    /// Makes a variant of `locked`.
    #[cfg(feature = "locked")]
    fn behind<K: locked::LockKind>(
        self,
        setup: Setup,
        layout: Layout,
        device: Box<dyn Device>,
    ) -> Result<ByHand, ConfigError> {
        use locked::{Counting, Granularity};
        let (granularity, counting) = match self {
            VariantKind::LockedTwo | VariantKind::LockedTwoMcs => {
                (Granularity::Two, Counting::Ticketed)
            }
            VariantKind::LockedSix | VariantKind::LockedSixMcs => {
                let checksums_inside = true;
                (Granularity::Six { checksums_inside }, Counting::Ticketed)
            }
            _ => (Granularity::One, Counting::None),
        };
        let layout = locked::LockedLayout::default()
            .workers(layout.replicas)
            .window(layout.tuning.log)
            .granularity(granularity)
            .counting(counting);
        Ok(locked::LockedGroup::<K>::new(setup, layout, device)?.any())
    }

    /// Rejects settings that a variant with one state does not support.
    fn check(self, setup: &Setup, layout: &Layout) -> Result<(), ConfigError> {
        const OTHER: &str = "choose the variant `replicated`";
        let is_single = self == VariantKind::Single;
        let several = layout.replicas > 1;
        let fail = |field, value: usize, allowed| {
            Err(ConfigError::OutOfRange {
                field,
                value: value as u64,
                allowed,
            })
        };
        if layout.replicas == 0 {
            return fail("replicas", 0, "1 to 56");
        }
        let log = layout.tuning.log;
        if !is_single && !super::WINDOWS.contains(&log) {
            return fail("GroupTuning::log", log, "a power of two, 64 to 65536");
        }
        let asked = [
            (
                is_single && several,
                "more than one thread",
                "set `replicas` to 1, or choose another variant",
            ),
            (
                layout.autoscale && (several || layout.replica_slots > 1),
                "`replicas_up_to`",
                OTHER,
            ),
            (
                layout.replica_slots > layout.replicas,
                "replicas that join later",
                OTHER,
            ),
            (several && layout.confirm, "`Layout::confirm`", OTHER),
            (
                !is_single && setup.group != GroupIndex::ONLY,
                "several groups",
                "choose `single` or `replicated`",
            ),
            (
                !matches!(self, VariantKind::Single | VariantKind::Pipelined)
                    && several
                    && setup.recorder.is_some(),
                "recording with several threads",
                "set `replicas` to 1, or choose `replicated`",
            ),
        ];
        match asked.into_iter().find(|(is_asked, ..)| *is_asked) {
            None => Ok(()),
            Some((_, what, instead)) => Err(ConfigError::Conflict {
                what,
                with: self.name(),
                instead,
            }),
        }
    }
}

impl fmt::Display for VariantKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for VariantKind {
    type Err = ConfigError;

    /// Accepts the names of all variants. For a variant that this build leaves out,
    /// the error of the start names the feature to enable.
    fn from_str(name: &str) -> Result<Self, ConfigError> {
        let mut kinds = VariantKind::NAMED.into_iter();
        let found = kinds.find(|kind| kind.name() == name);
        found.ok_or_else(|| ConfigError::UnknownVariant(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_shown_and_others_are_refused() {
        for kind in VariantKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
        }
        let error = "lock".parse::<VariantKind>().unwrap_err();
        assert_eq!(error, ConfigError::UnknownVariant("lock".to_owned()));
        assert!(error.to_string().contains("locked-mcs"));
    }

    /// Units hold an `Arc` of their world, so a stack must release them however it ends, or the
    /// world leaks.
    #[test]
    fn a_stack_that_goes_leaves_no_units_behind_and_no_call_waiting() {
        use crate::io::units::UnitWork;
        use crate::io::world::World;
        use std::sync::Arc;

        struct Units(Arc<World>);
        impl UnitWork for Units {
            fn serve(self: Arc<Self>, _: &dyn Fn()) -> usize {
                unreachable!("nobody serves it, down: {}", self.0.is_down())
            }
            fn finish(self: Arc<Self>) -> Option<(u16, crate::log::request::ConnId)> {
                None
            }
        }

        for kind in VariantKind::ALL {
            let (device, _) = dominoes_drivers::memory::pair(Default::default());
            let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
            let workers = if *kind == VariantKind::Single { 1 } else { 2 };
            let layout = Layout::default().replicas(workers);
            let built = kind.build(setup, layout, Box::new(device));
            let built = built.expect("the bounds are valid");
            let sockets = built.sockets();
            let world = Arc::clone(&sockets.worlds()[0]);
            world.push_units(Arc::new(Units(Arc::clone(&world))));
            drop(built);
            assert!(world.is_down(), "{kind}: calls may wait for ever");
            world.push_units(Arc::new(Units(Arc::clone(&world))));
            drop(sockets);
            assert_eq!(Arc::strong_count(&world), 1, "{kind}: it is held");
        }
    }

    #[test]
    fn a_turn_without_frames_and_time_processes_units() {
        use crate::io::units::UnitWork;
        use std::sync::Arc;

        struct Units;
        impl UnitWork for Units {
            fn serve(self: Arc<Self>, _: &dyn Fn()) -> usize {
                7
            }
            fn finish(self: Arc<Self>) -> Option<(u16, crate::log::request::ConnId)> {
                None
            }
        }

        for kind in VariantKind::ALL {
            let (device, _) = dominoes_drivers::memory::pair(Default::default());
            let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
            let layout = Layout::default().replicas(1);
            let mut built = kind.build(setup, layout, Box::new(device)).unwrap();
            built.sockets().worlds()[0].push_units(Arc::new(Units));
            let worker = &mut built.workers()[0];
            let first = worker.work();
            assert_eq!(first.max(worker.work()), 7, "{kind}");
        }
    }

    #[test]
    fn a_log_that_a_variant_cannot_have_is_refused_and_not_changed() {
        for kind in VariantKind::ALL {
            // `single` has no bound of requests in flight.
            let is_single = *kind == VariantKind::Single;
            let (short, allowed) = match kind {
                VariantKind::Replicated => (true, "a power of two from 16 to 2^20"),
                _ => (is_single, "a power of two, 64 to 65536"),
            };
            for (log, is_valid) in [(16, short), (64, true), (100, is_single)] {
                let (device, _) = dominoes_drivers::memory::pair(Default::default());
                let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
                let tuning = crate::group::GroupTuning::default().log(log);
                let layout = Layout::default().replicas(1).tuning(tuning);
                let built = kind.build(setup, layout, Box::new(device));
                let refused = ConfigError::OutOfRange {
                    field: "GroupTuning::log",
                    value: log as u64,
                    allowed,
                };
                assert_eq!(built.err(), (!is_valid).then_some(refused), "{kind}, {log}");
            }
        }
    }

    #[test]
    fn a_variant_that_the_build_leaves_out_says_which_feature_has_it() {
        use VariantKind::{Locked, LockedMcs, Pipelined};
        use dominoes_drivers::memory::{MemoryConfig, pair};
        for kind in [Locked, LockedMcs, Pipelined] {
            let (device, _) = pair(MemoryConfig::default());
            let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
            let built = kind.build(setup, Layout::default(), Box::new(device));
            assert_eq!(built.is_ok(), VariantKind::ALL.contains(&kind));
            if let Err(error) = built {
                assert!(error.to_string().contains("enable the feature `"));
            }
        }
        let error = ConfigError::MissingFeature {
            what: "locked",
            feature: "locked",
        };
        assert!(error.to_string().contains("enable the feature `locked`"));
    }
}
