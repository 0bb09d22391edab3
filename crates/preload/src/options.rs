//! Options. The kernel's socket, the shadow, checks and stores their values; here the ones that our
//! stack knows reach it.

use core::ffi::c_int;
use core::num::NonZero;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::net::SocketAddr;

use dominoes_netstack::{ConnectionStats, Keepalive, Settings, TcpState};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

use crate::datagrams::Udp;
use crate::socket::{Common, Live, Object};
use crate::stream::Tcp;
use crate::sys::{self, Fd};
use crate::{control, drive};

/// The number of `TCP_INFO`'s bytes that have a meaning here.
const INFO: usize = 136;

fn number(fd: Fd, level: c_int, name: c_int) -> Option<c_int> {
    sys::option(fd, level, name).ok()
}

fn hops(fd: Fd, domain: c_int) -> Option<u32> {
    let name = match domain {
        libc::AF_INET6 => (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        _ => (IPPROTO_IP, libc::IP_TTL),
    };
    number(fd, name.0, name.1).and_then(|hops| u32::try_from(hops).ok())
}

fn traffic_class(fd: Fd, domain: c_int) -> u8 {
    let name = match domain {
        libc::AF_INET6 => (IPPROTO_IPV6, libc::IPV6_TCLASS),
        _ => (IPPROTO_IP, libc::IP_TOS),
    };
    number(fd, name.0, name.1).unwrap_or(0) as u8
}

fn seconds(fd: Fd, name: c_int) -> Duration {
    let seconds = number(fd, IPPROTO_TCP, name).unwrap_or(1);
    Duration::from_secs(seconds.max(1) as u64)
}

/// The settings of a connection with the options of this kernel's socket.
pub(crate) fn settings(shadow: Fd, domain: c_int) -> Settings {
    let mut settings = Settings::default();
    settings.nodelay = number(shadow, IPPROTO_TCP, libc::TCP_NODELAY) == Some(1);
    if number(shadow, SOL_SOCKET, libc::SO_KEEPALIVE) == Some(1) {
        let probes = number(shadow, IPPROTO_TCP, libc::TCP_KEEPCNT).unwrap_or(9);
        let mut keepalive = Keepalive::default();
        keepalive.idle = seconds(shadow, libc::TCP_KEEPIDLE).into();
        keepalive.interval = seconds(shadow, libc::TCP_KEEPINTVL).into();
        keepalive.probes = NonZero::new(probes as u8).unwrap_or(keepalive.probes);
        settings.keepalive = Some(keepalive);
    }
    let timeout = number(shadow, IPPROTO_TCP, libc::TCP_USER_TIMEOUT).unwrap_or(0);
    if timeout > 0 {
        settings.user_timeout = Some(Duration::from_millis(timeout as u64).into());
    }
    if let Some(hops @ 1..=255) = hops(shadow, domain) {
        settings.ttl = hops as u8;
    }
    settings.tos = traffic_class(shadow, domain);
    settings
}

/// Passes the options of a kernel's socket to a UDP socket of ours.
pub(crate) fn apply_to_datagrams(udp: &Udp, shadow: Fd, domain: c_int) {
    let broadcast = number(shadow, SOL_SOCKET, libc::SO_BROADCAST) == Some(1);
    let _ = udp.whole.set_broadcast(broadcast);
    if let Some(hops) = hops(shadow, domain) {
        let _ = udp.whole.set_ttl(hops);
        udp.marks[0].store(hops as u8, Ordering::Relaxed);
    }
    let class = traffic_class(shadow, domain);
    udp.whole.set_tos(class);
    udp.marks[1].store(class, Ordering::Relaxed);
    let wanted = control::wanted(shadow);
    let before = udp.wanted.swap(wanted, Ordering::Relaxed);
    if (before ^ wanted) & control::DESTINATIONS != 0 {
        udp.whole
            .set_packet_info(wanted & control::DESTINATIONS != 0);
    }
}

/// Passes an option to our stack, after the shadow has stored its value.
pub(crate) fn apply(common: &Common, live: &Live, shadow: Fd, level: c_int, name: c_int) {
    if level == SOL_SOCKET && (name == libc::SO_RCVTIMEO || name == libc::SO_SNDTIMEO) {
        if let Ok(value) = sys::option(shadow, level, name) {
            live.mirror
                .set_timeout(usize::from(name == libc::SO_SNDTIMEO), value);
        }
        return;
    }
    match &live.object {
        Object::Udp(udp) => apply_to_datagrams(udp, shadow, common.domain),
        Object::Tcp(tcp) => apply_to_stream(tcp, common, shadow, level, name),
    }
}

fn apply_to_stream(tcp: &Tcp, common: &Common, shadow: Fd, level: c_int, name: c_int) {
    if let Some(listener) = tcp.listener.get() {
        let _ = listener.set_settings(settings(shadow, common.domain));
        return;
    }
    let Some(stream) = tcp.stream.get().map(|stream| &stream.whole) else {
        if let Some(connecting) = &mut *crate::socket::lock(&tcp.opening) {
            let _ = connecting.set_settings(settings(shadow, common.domain));
        }
        return;
    };
    match (level, name) {
        (IPPROTO_TCP, libc::TCP_NODELAY) => {
            let _ = stream.set_nodelay(number(shadow, level, name) == Some(1));
        }
        (IPPROTO_TCP, libc::TCP_CORK) => stream.set_cork(number(shadow, level, name) == Some(1)),
        (SOL_SOCKET, libc::SO_LINGER) => {
            if let Ok(linger) = sys::option::<libc::linger>(shadow, level, name) {
                let time = Duration::from_secs(linger.l_linger.max(0) as u64);
                stream.set_linger((linger.l_onoff != 0).then_some(time));
            }
        }
        (SOL_SOCKET, libc::SO_KEEPALIVE)
        | (
            IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL | libc::TCP_USER_TIMEOUT,
        )
        | (IPPROTO_IP, libc::IP_TTL | libc::IP_TOS)
        | (IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS | libc::IPV6_TCLASS) => {
            let _ = stream.set_settings(settings(shadow, common.domain));
        }
        _ => {}
    }
}

/// The value of an option that the shadow does not know; `None` for the others.
pub(crate) fn own_value(live: &Live, level: c_int, name: c_int) -> Option<Vec<u8>> {
    let number = |number: c_int| Some(number.to_ne_bytes().to_vec());
    match (&live.object, level, name) {
        (Object::Tcp(tcp), SOL_SOCKET, libc::SO_ERROR) => number(tcp.take_error(&live.mirror)),
        (Object::Udp(udp), SOL_SOCKET, libc::SO_ERROR) => number(udp.take_error()),
        (Object::Tcp(tcp), SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            number(tcp.listener.get().is_some().into())
        }
        (Object::Tcp(tcp), IPPROTO_TCP, libc::TCP_MAXSEG) => {
            let stats = drive::beside(|| tcp.stream.get()?.whole.info())?;
            number(stats.info.mss.into())
        }
        (Object::Tcp(tcp), IPPROTO_TCP, libc::TCP_INFO) => Some(info(tcp)),
        _ => None,
    }
}

fn info(tcp: &Tcp) -> Vec<u8> {
    let mut bytes = vec![0; INFO];
    let stats = drive::beside(|| tcp.stream.get()?.whole.info());
    let Some(stats) = stats else {
        bytes[0] = match tcp.listener.get() {
            Some(_) => 10,
            None => 7,
        };
        return bytes;
    };
    let ConnectionStats {
        state,
        cwnd,
        srtt,
        info,
        ..
    } = stats;
    bytes[0] = state_number(state);
    bytes[2] = info.retries;
    let mss = u32::from(info.mss).max(1);
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let words = [
        (8, micros(info.rto.into())),
        (16, mss),
        (20, mss),
        (24, info.in_flight.div_ceil(mss)),
        (28, info.sacked.div_ceil(mss)),
        (32, info.lost.div_ceil(mss)),
        (60, mss + 40),
        (64, info.receive_window),
        (68, micros(srtt.unwrap_or_default())),
        (72, micros(info.rtt_variance.into())),
        (76, info.ssthresh / mss),
        (80, cwnd / mss),
        (84, mss),
        (96, info.receive_window),
        (100, u32::try_from(info.retransmitted).unwrap_or(u32::MAX)),
    ];
    for (at, word) in words {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[120..128].copy_from_slice(&stats.acknowledged.to_ne_bytes());
    bytes[128..136].copy_from_slice(&stats.received.to_ne_bytes());
    bytes
}

/// The number that Linux gives a state.
fn state_number(state: TcpState) -> u8 {
    let name = format!("{state:?}").to_lowercase();
    let names = [
        "established",
        "synsent",
        "synreceived",
        "finwait1",
        "finwait2",
        "timewait",
        "closed",
        "closewait",
        "lastack",
        "listen",
        "closing",
    ];
    let found = names.iter().position(|other| *other == name);
    found.map_or(7, |index| index as u8 + 1)
}

/// Joins or leaves a group of IPv4, for a UDP socket of ours.
pub(crate) fn multicast(
    udp: &Udp,
    name: c_int,
    group: [u8; 4],
    interface: [u8; 4],
) -> Result<(), c_int> {
    let (group, interface) = (group.into(), interface.into());
    let done = match name {
        libc::IP_ADD_MEMBERSHIP => udp.whole.join_multicast_v4(&group, &interface),
        _ => udp.whole.leave_multicast_v4(&group, &interface),
    };
    done.map_err(|error| {
        dominoes_netstack::SocketError::of(&error).map_or(libc::EINVAL, crate::socket::errno_of)
    })
}

/// The address of a socket of ours.
pub(crate) fn local(common: &Common, live: &Live) -> SocketAddr {
    match &live.object {
        Object::Tcp(tcp) => tcp.local(common, live),
        Object::Udp(udp) => udp.local(common),
    }
}
