//! Options. The kernel's socket, the shadow, checks and stores their values; here the ones that our
//! stack knows reach it.

use core::ffi::c_int;
use core::num::NonZero;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use dominoes_netstack::{
    ConnectionStats, Keepalive, Settings, SocketError, TcpState, TcpStream, Tuning,
};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

use crate::datagrams::Udp;
use crate::socket::{Common, Live, Object, errno_of};
use crate::stream::Tcp;
use crate::sys::{self, Errno, Fd};
use crate::{control, drive};

/// The number of `TCP_INFO`'s bytes that have a meaning here.
const INFO: usize = 136;
/// The least size of a buffer of our stack, in bytes.
const LEAST_BUFFER: u32 = 1024;

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

/// The tuning of a connection with the options of this kernel's socket.
pub(crate) fn tuning(shadow: Fd, common: &Common) -> Tuning {
    let mut tuning = Tuning::default();
    tuning.cork = number(shadow, IPPROTO_TCP, libc::TCP_CORK) == Some(1);
    let unsent = number(shadow, IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).unwrap_or(0);
    tuning.notsent_lowat = u32::try_from(unsent).unwrap_or(0);
    tuning.receive_buffer = common.buffers[0].load(Ordering::Relaxed);
    let linger = sys::option::<libc::linger>(shadow, SOL_SOCKET, libc::SO_LINGER);
    if let Ok(linger) = linger
        && linger.l_onoff != 0
    {
        tuning.linger = Some(Duration::from_secs(linger.l_linger.max(0) as u64).into());
    }
    tuning
}

/// Notes the size of a buffer that the program has set, for a kernel's socket.
pub(crate) fn note_buffer(common: &Common, fd: Fd, level: c_int, name: c_int) {
    let buffers = [
        [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE],
        [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE],
    ];
    let index = buffers.iter().position(|names| names.contains(&name));
    if let Some(index) = index.filter(|_| level == SOL_SOCKET) {
        // Linux doubles the size, for its own structures.
        let size = number(fd, level, buffers[index][0]).unwrap_or(0) / 2;
        common.buffers[index].store((size as u32).max(LEAST_BUFFER), Ordering::Relaxed);
    }
}

/// Limits the send buffer of a connection to the size that the program has set.
pub(crate) fn limit_send_buffer(stream: &TcpStream, buffers: &[AtomicU32; 2]) {
    let size = buffers[1].load(Ordering::Relaxed);
    let _ = stream.set_send_buffer(Some(size).filter(|size| *size > 0));
}

/// The options that a connection takes from its listener, by level.
const INHERITED: [(c_int, &[c_int]); 4] = [
    (
        SOL_SOCKET,
        &[
            libc::SO_KEEPALIVE,
            libc::SO_OOBINLINE,
            libc::SO_REUSEADDR,
            libc::SO_REUSEPORT,
        ],
    ),
    (
        IPPROTO_TCP,
        &[
            libc::TCP_NODELAY,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
            libc::TCP_USER_TIMEOUT,
            libc::TCP_NOTSENT_LOWAT,
        ],
    ),
    (IPPROTO_IP, &[libc::IP_TOS, libc::IP_TTL]),
    (
        IPPROTO_IPV6,
        &[
            libc::IPV6_V6ONLY,
            libc::IPV6_TCLASS,
            libc::IPV6_UNICAST_HOPS,
        ],
    ),
];

/// Copies the options of a listener to a kernel's socket.
pub(crate) fn inherit(from: Fd, to: Fd) {
    for (level, names) in INHERITED {
        for name in names {
            if let Some(value) = number(from, level, *name) {
                let _ = sys::set_option(to, level, *name, &value);
            }
        }
    }
    // The kernel doubles each size.
    for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        if let Some(size) = number(from, SOL_SOCKET, name) {
            let _ = sys::set_option(to, SOL_SOCKET, name, &(size / 2));
        }
    }
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        if let Ok(value) = sys::option::<libc::timeval>(from, SOL_SOCKET, name) {
            let _ = sys::set_option(to, SOL_SOCKET, name, &value);
        }
    }
    if let Ok(value) = sys::option::<libc::linger>(from, SOL_SOCKET, libc::SO_LINGER) {
        let _ = sys::set_option(to, SOL_SOCKET, libc::SO_LINGER, &value);
    }
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
    let (level, to_group, loops) = match domain {
        libc::AF_INET6 => (
            IPPROTO_IPV6,
            libc::IPV6_MULTICAST_HOPS,
            libc::IPV6_MULTICAST_LOOP,
        ),
        _ => (IPPROTO_IP, libc::IP_MULTICAST_TTL, libc::IP_MULTICAST_LOOP),
    };
    let to_group = number(shadow, level, to_group).unwrap_or(1);
    udp.marks[2].store(u8::try_from(to_group).unwrap_or(1), Ordering::Relaxed);
    let loops = number(shadow, level, loops) != Some(0);
    let _ = udp.whole.set_multicast_loop_v4(loops);
    let _ = udp.whole.set_multicast_loop_v6(loops);
    let wanted = control::wanted(shadow, domain);
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
    let Some(stream) = tcp.stream.get().map(|stream| &stream.whole) else {
        let (settings, tuning) = (settings(shadow, common.domain), tuning(shadow, common));
        if let Some(listener) = tcp.listener.get() {
            let _ = listener.set_settings(settings);
            let _ = listener.set_tuning(tuning);
        } else if let Some(connecting) = &mut *crate::socket::lock(&tcp.opening) {
            let _ = connecting.set_settings(settings);
            let _ = connecting.set_tuning(tuning);
        }
        return;
    };
    match (level, name) {
        (IPPROTO_TCP, libc::TCP_NODELAY) => {
            let _ = stream.set_nodelay(number(shadow, level, name) == Some(1));
        }
        (IPPROTO_TCP, libc::TCP_CORK | libc::TCP_NOTSENT_LOWAT)
        | (SOL_SOCKET, libc::SO_LINGER | libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
            let _ = stream.set_tuning(tuning(shadow, common));
        }
        (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
            limit_send_buffer(stream, &common.buffers);
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

/// Joins or leaves a group, for a UDP socket of ours; `None` if this option does not.
pub(crate) fn multicast(
    udp: &Udp,
    (level, name): (c_int, c_int),
    value: &[u8],
) -> Option<Result<(), Errno>> {
    const JOIN_V6: c_int = libc::IPV6_ADD_MEMBERSHIP;
    const LEAVE_V6: c_int = libc::IPV6_DROP_MEMBERSHIP;
    // Which interface of IPv6 is meant makes no difference: the stack has one.
    let v4 = |at: usize| Some(Ipv4Addr::from(*value.get(at..at + 4)?.first_chunk::<4>()?));
    let v6 = || Some(Ipv6Addr::from(*value.first_chunk::<16>()?));
    let done = match (level, name) {
        (IPPROTO_IP, libc::IP_ADD_MEMBERSHIP) => udp.whole.join_multicast_v4(&v4(0)?, &v4(4)?),
        (IPPROTO_IP, libc::IP_DROP_MEMBERSHIP) => udp.whole.leave_multicast_v4(&v4(0)?, &v4(4)?),
        (IPPROTO_IP, libc::IP_ADD_SOURCE_MEMBERSHIP) => {
            udp.whole.join_source(v4(0)?.into(), v4(8)?.into())
        }
        (IPPROTO_IPV6, JOIN_V6) => udp.whole.join_multicast_v6(&v6()?, 0),
        (IPPROTO_IPV6, LEAVE_V6) => udp.whole.leave_multicast_v6(&v6()?, 0),
        _ => return None,
    };
    Some(done.map_err(|error| SocketError::of(&error).map_or(libc::EINVAL, errno_of)))
}

/// The address of a socket of ours.
pub(crate) fn local(common: &Common, live: &Live) -> SocketAddr {
    match &live.object {
        Object::Tcp(tcp) => tcp.local(common, live),
        Object::Udp(udp) => udp.local(common),
    }
}
