//! Changes of our addresses and of the link while the stack runs.
//!
//! An address is used for what begins from the change on. What is under way from one that is lost
//! ends: connections by [`Body::Lost`], which sends nothing, as the address may be another host's
//! by now. Listeners and UDP sockets stay, and are reached at the addresses that are there.

use core::net::IpAddr;

use crate::io::rx::{BATCH, Log, RxPump};
use crate::ip::route::Site;
use crate::log::request::{Address, Body};
use crate::time::Instant;

/// A change of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InterfaceChange {
    /// It has this address from now on, and neighbours whose addresses begin with so many bits of
    /// it.
    Add { address: IpAddr, prefix: u8 },
    /// It has this address no longer.
    Remove { address: IpAddr },
    /// Its link is up or down from now on.
    Link { is_up: bool },
    /// Its device takes frames again, after it was down.
    Returned,
}

impl RxPump {
    pub(super) fn change_interface(&mut self, now: Instant, change: InterfaceChange) {
        match change {
            InterfaceChange::Add { address, prefix } => match address {
                IpAddr::V4(address) => self.set_v4(now, Some((address.into(), prefix))),
                IpAddr::V6(address) => {
                    self.with_link(|link| link.add_by_hand(address, prefix, now));
                }
            },
            InterfaceChange::Remove { address } => match address {
                IpAddr::V4(address) if self.site.address == Address::from(address) => {
                    self.set_v4(now, None)
                }
                IpAddr::V4(_) => {}
                IpAddr::V6(address) => {
                    self.with_link(|link| link.remove(address.into()));
                }
            },
            InterfaceChange::Returned => self.link_is_up(now),
            InterfaceChange::Link { is_up } => {
                self.world.set_link_up(is_up);
                if is_up {
                    self.link_is_up(now);
                }
            }
        }
    }

    /// Our address of IPv4 is this from now on.
    fn set_v4(&mut self, now: Instant, address: Option<(Address, u8)>) {
        let (address, prefix) = address.unwrap_or((Site::NO_V4, 32));
        (self.site.address, self.site.prefix) = (address, prefix);
        self.world.set_v4(self.site.v4());
        self.announce_again(now);
        self.find_lost_connections();
    }

    /// The link is there, perhaps another one than before: neighbours are asked anew, and told of
    /// us.
    fn link_is_up(&mut self, now: Instant) {
        self.neighbors.forget();
        self.announce_again(now);
        self.with_link(|link| link.ask_again(now));
    }

    /// Finds connections of addresses that are not ours any more. They end as the log has room (RFC
    /// 4862 section 5.5.4).
    pub(super) fn find_lost_connections(&mut self) {
        let lost = self
            .hints
            .iter()
            .filter(|(flow, _)| self.is_lost(flow.local.address));
        let mut lost: Vec<_> = lost
            .map(|(flow, hint)| (flow.local, flow.remote, hint.conn))
            .collect();
        // In an order that does not depend on the table.
        lost.sort_unstable_by_key(|(local, remote, _)| (*local, *remote));
        self.lost.extend(lost.into_iter().map(|(_, _, conn)| conn));
        if !self.lost.is_empty() {
            // The next turn takes them.
            self.v6_due = Instant::ZERO;
        }
    }

    /// Whether connections of this address end.
    pub(super) fn is_lost(&self, local: Address) -> bool {
        !self.site.is_ourselves(local)
    }

    /// Ends connections of lost addresses.
    pub(super) fn end_lost_connections(&mut self, now: Instant, log: &mut impl Log) {
        while log.room() > BATCH
            && let Some(conn) = self.lost.pop_front()
        {
            self.publish_command(now, Body::Lost { conn }, log);
        }
    }
}
