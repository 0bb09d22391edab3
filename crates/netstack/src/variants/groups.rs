//! Groups side by side: a stack of several, each with connections of its own, over one device.
//!
//! A group is a stack in itself, `single` or replicated. A connection belongs to the group that a
//! keyed hash of its flow names, and so do its segments, which [`split`] hands to that group's part
//! of the device. Groups share nothing but the socket table where connections are opened and
//! accepted, so light connections spread over cores without meeting.
//!
//! ```text
//!              +-> part 0 -> group 0: its pumps, state, streams --+
//! device --+---+-> part 1 -> group 1                              +--> socket table: listen on all, accept from any
//!   hash of the flow  ...                                         |
//!              +-> all parts: ARP, ICMP errors, fragments         +
//! ```
//!
//! - A connection that we open is given a port whose flow belongs to the group that opens it, so
//!   the answers come there; groups take turns.
//! - A UDP socket has queues in every group. Datagrams of a peer go through the group of its flow,
//!   both ways; those that are sent to several hosts, multicast among them, arrive in the first.
//! - What is of neither reaches all groups (each knows its own neighbours, and takes part in path
//!   MTU discovery) and is answered by the first alone. So are echo requests.
//! - Fragments reach all groups, since only the first one of a datagram names its flow. A datagram
//!   that was put together is dropped where it does not belong.
//!
//! Limits hold for each group.
//!
//! # What groups share
//!
//! [`split`] lets the thread that finds the receiving half of the device free take frames in for
//! all groups, and passes on those of other groups through lock-free inboxes. A full inbox loses
//! frames, as a queue of a network card does, so a group that stalls does not hold up another. The
//! last part to fall asleep sleeps in the device.
//!
//! The socket table is the only other thing that groups share: request ids, listeners, and one
//! accept queue for each port, in the order in which connections were established. The first
//! request of a log says which group the log belongs to.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, Target, split};

use super::Setup;
use crate::error::ConfigError;
use crate::groups::classify::target;
use crate::io::world::StackShared;
use crate::keys::Keys;
use crate::log::request::GroupIndex;
use crate::socket::Sockets;
use crate::state::demux::Grouping;

#[cfg(feature = "pipelined")]
pub(super) use dominoes_drivers::split::Classify;
pub use dominoes_drivers::split::INBOX;

/// Groups that a stack may have.
pub const MAX_GROUPS: usize = 64;

/// Divides what one group would have among `groups`: each has the setup it is made with, and its
/// part of the device, whose inbox holds `inbox` frames ([`INBOX`] will do). A stack of several
/// groups by hand:
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::variants::groups::{self, INBOX};
/// use dominoes_netstack::variants::{Setup, single::Single};
///
/// let (device, _peer) = memory::pair(MemoryConfig::default());
/// let setup = Setup::new([10, 0, 0, 1].into(), 24, [1, 2]);
/// let stacks = groups::divide(setup, 2, Box::new(device), INBOX)?
///     .into_iter()
///     .map(|(setup, device)| Single::new(setup, Box::new(device)))
///     .collect::<Result<Vec<_>, _>>()?;
/// let sockets = groups::sockets(stacks.iter().map(Single::sockets));
/// let listener = sockets.listen(7, 128)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If there are no groups or more than [`MAX_GROUPS`], or several are to be recorded: each has a
/// log of its own.
pub fn divide(
    setup: Setup,
    groups: usize,
    device: Box<dyn Device>,
    inbox: usize,
) -> Result<Vec<(Setup, SplitDevice)>, ConfigError> {
    let (setups, classify) = divide_setup(setup, groups)?;
    let parts = split(device, groups, inbox, classify);
    Ok(setups.into_iter().zip(parts).collect())
}

/// As [`divide_setup`], of an interface of several, whose groups are those from `first` on of all
/// that `shared` is for; checks nothing.
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
            let mut own = Setup::new(setup.address, setup.prefix, setup.secret);
            (own.limits, own.gateway) = (setup.limits, setup.gateway);
            own.limits.out_of_order /= shared.groups() as u32;
            (own.routes, own.reassembly) = (setup.routes.clone(), setup.reassembly);
            own.addresses = setup.addresses.clone();
            own.ipv6 = setup.ipv6.clone();
            own.salt = setup.salt;
            own.announce = setup.announce;
            own.group = GroupIndex { index, count };
            own.place = first + index;
            own.shared = Arc::clone(shared);
            own
        })
        .collect();
    if let Some(first) = divided.first_mut() {
        first.recorder = recorder;
    }
    (divided, classify)
}

/// The setup of each group, and which of them a frame is for.
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

/// The sockets of all groups that [`divide`] was asked for, or of all interfaces, in their order.
///
/// # Panics
/// If there are none.
pub fn sockets(groups: impl IntoIterator<Item = Sockets>) -> Sockets {
    let worlds = groups.into_iter().flat_map(|group| group.worlds().to_vec());
    let worlds: Vec<_> = worlds.collect();
    assert!(!worlds.is_empty(), "a stack has at least one group");
    Sockets::over(worlds)
}
