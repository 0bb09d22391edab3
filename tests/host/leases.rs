//! Addresses and servers of names that a network gives: `dnsmasq` serves DHCP, router
//! advertisements, DHCPv6 without addresses, and DNS.

use std::fs;

use libtest_mimic::Failed;

use crate::fixture::{Device, Ends, KERNELS_V6, THEIRS, Temporary, start};

pub(crate) const TESTS: &[(&str, Device)] = &[
    ("a_tap_has_an_address_and_names", Device::Tap),
    ("a_veth_has_an_address_and_names", Device::Packet),
];

/// A server of the network at the peer's end. It answers names from its own records only.
fn settings(interface: &str, leases: &str) -> String {
    format!(
        "port=53\nno-ping\nno-resolv\nno-hosts\nbind-dynamic\ninterface={interface}\nuser=root\n\
         dhcp-leasefile={leases}\ndhcp-authoritative\n\
         dhcp-range=10.78.0.50,10.78.0.59,255.255.255.0,2m\n\
         dhcp-option=option:mtu,1400\ndomain=corp.test\n\
         enable-ra\ndhcp-range=fd00:78::,ra-stateless,64,10m\n\
         dhcp-option=option6:dns-server,[{KERNELS_V6}]\n\
         dhcp-option=option6:domain-search,corp.test\n\
         host-record=box.corp.test,{THEIRS},{KERNELS_V6}\n\
         cname=alias.corp.test,box.corp.test\nlog-dhcp\nlog-facility=-\n"
    )
}

/// Hosts are found by their names in the network's domain, over both families.
pub(crate) fn run(device: Device) -> Result<String, Failed> {
    let ends = Ends::new(device)?;
    let interface = ends.interface();
    let peer = ends.peer();
    peer.enable_v6(interface)?;
    peer.ip(&format!("addr add {KERNELS_V6}/64 dev {interface} nodad"))?;
    let root = Temporary::new()?;
    let (file, leases) = (root.file("dnsmasq.conf"), root.file("leases"));
    fs::write(&file, settings(interface, &leases))?;
    let mut command = peer.command("dnsmasq");
    let pid = root.file("pid");
    command.arg("--keep-in-foreground");
    command.args([format!("--conf-file={file}"), format!("--pid-file={pid}")]);
    let server = start(&mut command)?;
    let said = ends.ping_from_lease(&["box", "alias.corp.test"]);
    drop(server);
    let said = said?;
    let replies = |from: &str| said.matches(&format!("bytes from {from}:")).count();
    check(said.contains("from 10.78.0.5"), &said)?;
    check(replies(THEIRS) == 6 && replies(KERNELS_V6) == 6, &said)?;
    let leases = fs::read_to_string(&leases)?;
    check(leases.contains("10.78.0.5"), &leases)?;
    let first = said.lines().next().unwrap_or_default();
    Ok(first.to_owned())
}

fn check(fine: bool, what: &str) -> Result<(), Failed> {
    if fine { Ok(()) } else { Err(what.into()) }
}
