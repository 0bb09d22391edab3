//! Groups side by side: a stack of several groups, each with its own connections, over one device.
//!
//! [`Builder::groups`](crate::Builder::groups) says what belongs to which group.
//!
//! # What groups share
//!
//! In [`split`], the thread that finds the receiving half of the device free takes frames in for
//! all groups, and passes frames of other groups through lock-free inboxes. A full inbox drops
//! frames, as a full queue of a network card does, so a stalled group does not hold up another. The
//! last part to fall asleep sleeps in the device.
//!
//! The socket table holds request ids, listeners, and one accept queue for each port, in the order
//! in which connections were established. The first request of a log names the group that the log
//! belongs to.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, Target, split};

use super::Setup;
use crate::error::{ConfigError, check_queues};
use crate::groups::target;
use crate::io::world::StackShared;
use crate::keys::{Grouping, Keys};
use crate::log::request::GroupIndex;
use crate::socket::Sockets;

#[cfg(feature = "pipelined")]
pub(super) use dominoes_drivers::split::Classify;
pub use dominoes_drivers::split::INBOX;

/// The most groups that a stack may have.
pub const MAX_GROUPS: usize = 64;

/// Divides a setup and a device among `groups`: returns the setup and the part of the device with
/// which to make each group. The inbox of a part holds `inbox` frames ([`INBOX`] is a good
/// default).
///
/// # Errors
/// If `groups` is 0 or more than [`MAX_GROUPS`], or if there are several and the setup has a
/// recorder: each group has its own log.
pub fn divide(
    setup: Setup,
    groups: usize,
    device: Box<dyn Device>,
    inbox: usize,
) -> Result<Vec<(Setup, SplitDevice)>, ConfigError> {
    check_queues(device.queues())?;
    let (setups, classify) = divide_setup(setup, groups)?;
    let parts = split(device, groups, inbox, classify);
    Ok(setups.into_iter().zip(parts).collect())
}

/// Like [`divide_setup`], for one interface of several: its groups have the places `first` on among
/// all groups that `shared` is for. Checks nothing.
pub(super) fn divide_interface(
    mut setup: Setup,
    count: u16,
    (first, shared): (u16, &Arc<StackShared>),
) -> (Vec<Setup>, impl Fn(&[u8]) -> Target + Send + Sync + use<>) {
    let recorder = setup.recorder.take();
    let grouping = Grouping::new(&Keys::new(setup.secret), count);
    let classify = move |frame: &[u8]| target(&grouping, frame);
    let mut divided: Vec<_> = (0..count)
        .map(|index| {
            let mut own = Setup::of(setup.interface.clone(), setup.secret);
            own.limits = setup.limits;
            own.limits.out_of_order /= shared.groups() as u32;
            own.salt = setup.salt;
            own.announce = setup.announce;
            own.group = GroupIndex { index, count };
            own.number = first + index;
            own.shared = Arc::clone(shared);
            own
        })
        .collect();
    if let Some(first) = divided.first_mut() {
        first.recorder = recorder;
    }
    (divided, classify)
}

/// The setup of each group, and a function that returns the group a frame is for.
#[expect(clippy::type_complexity, reason = "named right above")]
pub(super) fn divide_setup(
    setup: Setup,
    groups: usize,
) -> Result<(Vec<Setup>, impl Fn(&[u8]) -> Target + Send + Sync + use<>), ConfigError> {
    let fail = |field, allowed| {
        Err(ConfigError::OutOfRange {
            field,
            value: groups as u64,
            allowed,
        })
    };
    if !(1..=MAX_GROUPS).contains(&groups) {
        return fail("groups", "1 to 64");
    }
    if setup.recorder.is_some() && groups > 1 {
        return fail("groups", "1 if the log is recorded");
    }
    if setup.shared.has_interfaces() {
        return Err(ConfigError::Conflict {
            what: "groups of one interface",
            with: "several interfaces",
            instead: "divide all of them by `interfaces::divide`",
        });
    }
    let shared = Arc::new(StackShared::of(1, groups as u16));
    Ok(divide_interface(setup, groups as u16, (0, &shared)))
}

/// Joins the sockets of all groups that [`divide`] made, or of all interfaces, in their order.
///
/// # Panics
/// If there are none.
pub fn sockets(groups: impl IntoIterator<Item = Sockets>) -> Sockets {
    let worlds = groups.into_iter().flat_map(|group| group.worlds().to_vec());
    let worlds: Vec<_> = worlds.collect();
    assert!(!worlds.is_empty(), "a stack has at least one group");
    Sockets::over(worlds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variants::single::Single;
    use dominoes_drivers::memory;

    #[test]
    fn frames_to_ourselves_that_concern_all_groups_are_bounded_too() {
        let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
        let device = Box::new(memory::scripted().0);
        let parts = divide(setup, 2, device, INBOX).unwrap().into_iter();
        let groups: Vec<_> = parts
            .map(|(setup, part)| Single::new(setup, Box::new(part)).unwrap())
            .collect();
        let sockets = groups[0].sockets();
        let world = &sockets.worlds()[0];
        let mut fragment = [0; 60];
        fragment[12..14].copy_from_slice(&[8, 0]);
        fragment[20] = 0x20;
        let taken = (0..2000).take_while(|_| world.give_to_ourselves(fragment.to_vec(), None));
        assert_eq!(taken.count(), 1024);
    }
}
