//! Groups side by side: a stack of several, each with connections of its own, over one device.
//!
//! A group is a stack in itself, `single` or replicated. A connection belongs to the group that a keyed hash of its flow
//! names, and so do its segments, which [`split`] hands to that group's part of the device. Groups share nothing but the
//! desk where connections are opened and accepted, so light connections spread over cores without meeting.
//!
//! ```text
//!              +-> part 0 -> group 0: its pumps, state, streams --+
//! device --+---+-> part 1 -> group 1                              +--> desk: listen on all, accept from any
//!   hash of the flow  ...                                         |
//!              +-> all parts: ARP, ICMP errors, fragments         +
//! ```
//!
//! - A connection that we open is given a port whose flow belongs to the group that opens it, so the answers come there;
//!   groups take turns.
//! - What is not of a connection reaches all groups (each knows its own neighbours, and takes part in path MTU
//!   discovery) and is answered by the first alone. So are echo requests; UDP sockets are the first group's.
//! - Fragments reach all groups, since only the first one of a datagram names its flow. A datagram that was put together is
//!   dropped where it does not belong.
//!
//! Limits hold for each group.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::split::{SplitDevice, Target, split};

use crate::digest::{Flow, GroupIndex};
use crate::engine::demux::{Grouping, MigratedFlows};
use crate::engine::world::StackShared;
use crate::error::ConfigError;
use crate::keys::Keys;
use crate::socket::Sockets;
use crate::variants::Setup;

pub use dominoes_drivers::split::INBOX;

/// Groups that a stack may have.
pub const MAX_GROUPS: usize = 64;

const ETHERNET: usize = 14;
const IPV4: [u8; 2] = [8, 0];
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ECHO_REQUEST: u8 = 8;

/// Who gets a frame. What makes no sense goes to the first, which counts it.
#[inline]
pub(crate) fn target(grouping: &Grouping, moved: &MigratedFlows, frame: &[u8]) -> Target {
    let first = Target::One(0);
    let Some((link, packet)) = frame.split_at_checked(ETHERNET) else {
        return first;
    };
    if link[12..14] != IPV4 {
        return Target::All;
    }
    let Some(header) = packet.first_chunk::<20>() else {
        return first;
    };
    // More fragments, or not the first one.
    if (header[6] & 0x3f) | header[7] != 0 {
        return Target::All;
    }
    let behind = packet.get(4 * usize::from(header[0] & 15)..);
    let behind = behind.and_then(|behind| behind.first_chunk::<4>());
    let Some(&[a, b, c, d]) = behind else {
        return first;
    };
    let address =
        |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    match header[9] {
        TCP => {
            let flow = Flow {
                local: SocketAddrV4::new(address(16), u16::from_be_bytes([c, d])),
                remote: SocketAddrV4::new(address(12), u16::from_be_bytes([a, b])),
            };
            let moved = moved.find(&flow);
            Target::One(moved.unwrap_or_else(|| grouping.group(&flow)).into())
        }
        ICMP if a != ECHO_REQUEST => Target::All,
        ICMP | UDP => first,
        _ => first,
    }
}

/// Divides what one group would have among `groups`: each has the setup it is made with, and its part of the device, whose
/// inbox holds `inbox` frames ([`INBOX`] will do). A stack of several groups by hand:
///
/// ```
/// use dominoes_drivers::memory::{self, MemoryConfig};
/// use dominoes_netstack::groups::{self, INBOX};
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
/// If there are no groups or more than [`MAX_GROUPS`], or several are to be recorded: each has a log of its own.
pub fn divide(
    mut setup: Setup,
    groups: usize,
    device: Box<dyn Device>,
    inbox: usize,
) -> Result<Vec<(Setup, SplitDevice)>, ConfigError> {
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
    let recorder = setup.recorder.take();
    if recorder.is_some() && groups > 1 {
        return fail("groups", "1 if the log is recorded");
    }
    let count = groups as u16;
    let grouping = Grouping::new(&Keys::new(setup.secret), count);
    let shared = Arc::new(StackShared::of(count));
    let directory = Arc::clone(&shared);
    let classify = move |frame: &[u8]| target(&grouping, &directory.migrated, frame);
    let parts = split(device, groups, inbox, classify);
    let mut divided: Vec<_> = (0..count)
        .zip(parts)
        .map(|(index, part)| {
            let mut own = Setup::new(setup.address, setup.prefix, setup.secret);
            (own.limits, own.gateway) = (setup.limits, setup.gateway);
            (own.routes, own.reassembly) = (setup.routes.clone(), setup.reassembly);
            own.salt = setup.salt;
            (own.merge, own.announce) = (setup.merge, setup.announce);
            own.processor = setup.processor.clone();
            own.balance = setup.balance;
            own.group = GroupIndex { index, count };
            own.shared = Arc::clone(&shared);
            (own, part)
        })
        .collect();
    if let Some((first, _)) = divided.first_mut() {
        first.recorder = recorder;
    }
    Ok(divided)
}

/// The sockets of all groups that [`divide`] was asked for, in its order.
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

    fn grouping(of: u16) -> Grouping {
        Grouping::new(&Keys::new([3, 5]), of)
    }

    fn whose(of: u16, frame: &[u8]) -> Target {
        target(&grouping(of), &MigratedFlows::default(), frame)
    }

    fn packet(protocol: u8, fragment: u16, ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET];
        frame[12..14].copy_from_slice(&IPV4);
        frame.extend([0x45, 0, 0, 40, 0, 0]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend(ports.map(u16::to_be_bytes).concat());
        frame.extend([0; 16]);
        frame
    }

    #[test]
    fn flows_spread_evenly_and_stay_where_they_are() {
        for of in [1, 2, 3, 8] {
            let mut count = vec![0usize; usize::from(of)];
            for port in 1000..5000 {
                let frame = packet(TCP, 0x4000, [port, 80]);
                let Target::One(index) = whose(of, &frame) else {
                    panic!("a segment is for one group");
                };
                assert_eq!(whose(of, &frame), Target::One(index));
                count[index] += 1;
            }
            let fair = 4000 / usize::from(of);
            assert!(
                count.iter().all(|n| n.abs_diff(fair) < fair / 5),
                "{count:?}"
            );
        }
    }

    #[test]
    fn what_names_no_flow_reaches_all_or_the_first() {
        let of = 4;
        let mut arp = packet(0, 0, [0, 0]);
        arp[13] = 6;
        assert_eq!(whose(of, &arp), Target::All);
        assert_eq!(whose(of, &packet(TCP, 0x2000, [1, 2])), Target::All);
        assert_eq!(whose(of, &packet(TCP, 7, [1, 2])), Target::All);
        let icmp = |kind: u16| packet(ICMP, 0, [kind << 8, 0]);
        assert_eq!(whose(of, &icmp(3)), Target::All);
        assert_eq!(whose(of, &icmp(8)), Target::One(0));
        assert_eq!(whose(of, &packet(UDP, 0, [1, 2])), Target::One(0));
    }

    #[test]
    fn no_frame_is_too_strange() {
        let whole = packet(TCP, 0, [1, 2]);
        for len in 0..whole.len() {
            let _ = whose(2, &whole[..len]);
            let mut longer = whole.clone();
            longer[ETHERNET] = 0x4f;
            let _ = whose(2, &longer[..len]);
        }
    }
}
