//! Names of hosts, which our stack looks up if the launcher's `--dns` gives servers.
//!
//! Libc handles text that is an address, names in `/etc/hosts`, services and hints. A list of
//! ours consists of one of libc's for each address.

use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;

use dominoes_netstack::{Resolver, SocketError};
use libc::addrinfo;

use super::interpose;
use crate::config::Config;
use crate::socket::lock;
use crate::{drive, stack};

/// The port of a server (RFC 1035 section 4.2).
const PORT: u16 = 53;

/// Our lists, by the address of their first entry.
static LISTS: Mutex<BTreeMap<usize, List>> = Mutex::new(BTreeMap::new());

struct List {
    /// The addresses of the first and the last entry of each list of libc's.
    parts: Vec<(usize, usize)>,
    /// The canonical name that the list shows, and the address of libc's.
    name: Option<(CString, usize)>,
}

interpose! {
    fn getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const addrinfo,
        found: *mut *mut addrinfo,
    ) -> c_int |next| {
        let config = stack::config().filter(|config| !config.dns.is_empty() && !stack::is_fork());
        let Some(config) = config.filter(|_| !node.is_null()) else {
            return next(node, service, hints, found);
        };
        let mut numeric: addrinfo = if hints.is_null() { core::mem::zeroed() } else { hints.read() };
        let flags = numeric.ai_flags;
        numeric.ai_flags |= libc::AI_NUMERICHOST;
        // Text that is an address, and wrong hints.
        let code = next(node, service, &raw const numeric, found);
        let is_name = code == libc::EAI_NONAME && flags & libc::AI_NUMERICHOST == 0;
        let name = CStr::from_ptr(node).to_str().ok().filter(|name| is_name && is_foreign(name));
        let Some(name) = name else {
            return if is_name { next(node, service, hints, found) } else { code };
        };
        let addresses = match resolve(config, name, flags, numeric.ai_family) {
            Ok(addresses) => addresses,
            Err(code) => return code,
        };
        let mut parts = Vec::new();
        for address in addresses {
            let Ok(text) = CString::new(address.to_string()) else { continue };
            let mut first = null_mut();
            let code = next(text.as_ptr(), service, &raw const numeric, &raw mut first);
            if code != 0 {
                parts.iter().for_each(|(first, _)| freeaddrinfo(*first as *mut addrinfo));
                return code;
            }
            let mut last = first;
            while !(*last).ai_next.is_null() {
                last = (*last).ai_next;
            }
            parts.push((first as usize, last as usize));
            // Only the first entry of a list has the canonical name.
            numeric.ai_flags &= !libc::AI_CANONNAME;
        }
        for pair in parts.windows(2) {
            (*(pair[0].1 as *mut addrinfo)).ai_next = pair[1].0 as *mut addrinfo;
        }
        let first = parts[0].0 as *mut addrinfo;
        let libcs_name = (*first).ai_canonname;
        let name = CString::new(name).ok().filter(|_| !libcs_name.is_null());
        if let Some(name) = &name {
            (*first).ai_canonname = name.as_ptr().cast_mut();
        }
        let name = name.map(|name| (name, libcs_name as usize));
        lock(&LISTS).insert(first as usize, List { parts, name });
        found.write(first);
        0
    }

    fn freeaddrinfo(list: *mut addrinfo) -> () |next| {
        let Some(List { parts, name }) = lock(&LISTS).remove(&(list as usize)) else {
            return next(list);
        };
        if let Some((_, libcs_name)) = name {
            (*list).ai_canonname = libcs_name as *mut c_char;
        }
        for (first, last) in parts {
            (*(last as *mut addrinfo)).ai_next = null_mut();
            next(first as *mut addrinfo);
        }
    }
}

/// Whether this host does not know a name by itself.
fn is_foreign(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next();
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let lines = hosts.lines().filter_map(|line| line.split('#').next());
    let mut names = lines.flat_map(|line| line.split_whitespace().skip(1));
    name.is_ascii()
        && !last.is_some_and(|last| last.eq_ignore_ascii_case("localhost"))
        && !names.any(|other| other.eq_ignore_ascii_case(name))
}

/// The addresses of a name for which `family` and `flags` of `getaddrinfo` ask, at least one.
/// First come the ones that our stack reaches.
///
/// # Errors
/// `EAI_NONAME`, `EAI_NODATA` without one of the family, `EAI_AGAIN` without an answer, `EAI_FAIL`
/// without a stack.
fn resolve(config: &Config, name: &str, flags: c_int, family: c_int) -> Result<Vec<IpAddr>, c_int> {
    let sockets = stack::sockets().ok_or(libc::EAI_FAIL)?;
    let servers = config
        .dns
        .iter()
        .map(|server| SocketAddr::new(*server, PORT));
    let resolver = Resolver::new(sockets.clone(), servers);
    let found = drive::beside(|| resolver.resolve(name));
    let mut found = found.map_err(|error| match error {
        SocketError::NoAddress => libc::EAI_NONAME,
        SocketError::TimedOut => libc::EAI_AGAIN,
        _ => libc::EAI_FAIL,
    })?;
    let has_v6 = found.iter().any(IpAddr::is_ipv6);
    let maps = flags & libc::AI_V4MAPPED != 0 && (!has_v6 || flags & libc::AI_ALL != 0);
    let is_ours = |ip: &IpAddr| {
        let mut ours = config.addresses.iter().map(|cidr| cidr.address);
        flags & libc::AI_ADDRCONFIG == 0 || ours.any(|own| own.is_ipv4() == ip.is_ipv4())
    };
    found.retain(|ip| {
        is_ours(ip)
            && match family {
                libc::AF_INET => ip.is_ipv4(),
                libc::AF_INET6 => ip.is_ipv6() || maps,
                _ => true,
            }
    });
    found.sort_by_key(|ip| !config.routes(*ip));
    if found.is_empty() {
        return Err(libc::EAI_NODATA);
    }
    Ok(found)
}
