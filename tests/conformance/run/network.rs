//! Steps other than TCP: UDP, fragments, ICMP errors and ARP, as the peer writes and reads them.
//!
//! Frames of the stack are converted to the words of a step, and compared with the step as text.

use std::net::{Ipv6Addr, SocketAddr};

use dominoes_netstack::UdpSocket;
use dominoes_testkit::packet::{
    self, Address, EVERY_MAC, EVERYBODY, FAR, Family, ICMP, Path, STACK, TO_STACK, UDP, sum,
    transport_sum,
};

use dominoes_testkit::packet::v6::{self, ICMPV6};

use super::{PEER_MAC, Runner, message, number, payload};

/// Identification of the peer's fragments.
const IDENT: u16 = 77;
/// The address of a router other than the peer.
const OTHER_MAC: packet::Mac = [2, 0, 0, 0, 0, 3];

/// The peer's address with `port`.
fn peer(family: Family, port: i64) -> SocketAddr {
    SocketAddr::new(family.address(FAR), port as u16)
}

/// Fields of a step, by name; a word without a value counts as 1.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn new(words: &[&'a str], known: &[&str]) -> Result<Self, String> {
        let split = |word: &&'a str| word.split_once('=').unwrap_or((*word, "1"));
        let fields: Vec<_> = words.iter().map(split).collect();
        match fields.iter().find(|(name, _)| !known.contains(name)) {
            Some((name, _)) => Err(format!("`{name}` is no field")),
            None => Ok(Fields(fields)),
        }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value)
    }

    fn number(&self, name: &str, otherwise: i64) -> Result<i64, String> {
        self.text(name).map_or(Ok(otherwise), number)
    }
}

impl Runner {
    /// Runs a step, unless it is one of TCP: then `None`.
    pub(super) fn network_step(&mut self, words: &[&str]) -> Option<Result<(), String>> {
        Some(match *words {
            ["udp", ref rest @ ..] => self.use_socket(rest),
            ["<", "udp", ref rest @ ..] => datagram(rest).and_then(|frame| self.inject(frame)),
            // Errors about segments begin with their type and code instead.
            ["<", "icmp", ref rest @ ..] if rest.iter().all(|word| word.contains('=')) => {
                icmp(rest).and_then(|frame| self.inject(frame))
            }
            ["<", "ip", ref rest @ ..] => packet_of(rest).and_then(|frame| self.inject(frame)),
            ["<", "router", ref rest @ ..] => router(rest).and_then(|frame| self.inject_v6(frame)),
            ["<", "redirect"] => self.inject_v6(redirect()),
            ["<", "too-big", ref rest @ ..] => {
                too_big(rest).and_then(|frame| self.inject_v6(frame))
            }
            ["<", "arp", "conflict"] => self.inject(arp(STACK)),
            ["<", "arp", "probe"] => self.inject(arp([0; 4])),
            [">", "udp" | "fragment" | "icmp", ..] | [">", "arp", "announcement", ..] => {
                self.expect_shown(&words[1..])
            }
            _ => return None,
        })
    }

    /// Injects an IPv6 frame without an IPv4 counterpart.
    fn inject_v6(&mut self, frame: Vec<u8>) -> Result<(), String> {
        self.run_until_idle();
        self.host.inject(frame);
        self.run_until_idle();
        Ok(())
    }

    fn expect_shown(&mut self, words: &[&str]) -> Result<(), String> {
        let is_time = |word: &&&str| word.starts_with("within=") || word.starts_with("after=");
        let times: Vec<&str> = words.iter().filter(is_time).copied().collect();
        let wanted: Vec<&str> = words
            .iter()
            .filter(|word| !is_time(word))
            .copied()
            .collect();
        let sent = self.next_sent(&times)?;
        let shown = match &sent {
            super::Sent::Shown(shown) => shown.clone(),
            other => self.show(other),
        };
        if shown == wanted.join(" ") {
            Ok(())
        } else {
            Err(format!("{shown} came instead"))
        }
    }

    fn use_socket(&mut self, words: &[&str]) -> Result<(), String> {
        if let ["bind", port] = *words {
            let bound = self.host.sockets().bind_udp(number(port)? as u16);
            self.udp = Some(bound.map_err(|error| error.to_string())?);
            self.run_until_idle();
            return Ok(());
        }
        if let ["close"] = *words {
            self.udp = None;
            self.run_until_idle();
            return Ok(());
        }
        let socket = self.udp.as_mut().ok_or("there is no socket")?;
        let done = step(socket, self.family, words);
        self.run_until_idle();
        done
    }
}

fn step(socket: &mut UdpSocket, family: Family, words: &[&str]) -> Result<(), String> {
    let told = |error| format!("{error:?}");
    match *words {
        ["connect", port] => {
            let (_, sender) = socket.halves();
            sender.connect(peer(family, number(port)?)).map_err(told)
        }
        ["ttl", hops] => {
            socket
                .set_ttl(number(hops)? as u32)
                .map_err(|e| e.to_string())?;
            Ok(())
        }
        ["tos", tos] => {
            socket.set_tos(number(tos)? as u8);
            Ok(())
        }
        ["broadcast", "on"] => {
            socket.set_broadcast(true).map_err(|e| e.to_string())?;
            Ok(())
        }
        ["send", len, ref rest @ ..] => {
            let fields = Fields::new(rest, &["to", "all", "error"])?;
            let bytes = payload(0, number(len)? as usize);
            let to = match fields.text("all") {
                Some(_) => {
                    SocketAddr::new(family.address(EVERYBODY), fields.number("to", 9)? as u16)
                }
                None => peer(family, fields.number("to", 9)?),
            };
            let sent = if fields.text("to").is_none() {
                socket.try_send(&bytes)
            } else {
                socket.try_send_to(&bytes, to)
            };
            match (sent, fields.text("error")) {
                (Ok(()), None) => Ok(()),
                (Err(error), Some(wanted)) if told(error) == wanted => Ok(()),
                (sent, _) => Err(format!("{sent:?}")),
            }
        }
        ["recv", "none"] => match socket.try_peek() {
            Err(dominoes_netstack::SocketError::WouldBlock) => Ok(()),
            other => Err(format!("{other:?}")),
        },
        ["recv", "error", wanted] => match socket.try_peek() {
            Err(error) if told(error) == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        },
        ["recv", len, ref rest @ ..] => {
            let fields = Fields::new(rest, &["from"])?;
            let mut buffer = vec![0; 65_535];
            let (got, from) = socket.try_recv_from(&mut buffer).map_err(told)?;
            if buffer[..got] != payload(0, number(len)? as usize) {
                return Err(format!("{got} bytes came, or others"));
            }
            let port = fields.number("from", i64::from(from.port()))?;
            if from == peer(family, port) {
                Ok(())
            } else {
                Err(format!("it is from {from}"))
            }
        }
        _ => Err("there is no such step".to_owned()),
    }
}

// Frames of the peer.

/// From the peer to the stack, or to broadcast with the field `all`.
fn path(fields: &Fields<'_>) -> Path {
    match fields.text("all") {
        Some(_) => Path::new(FAR, EVERYBODY).to_mac(EVERY_MAC),
        None => TO_STACK,
    }
}

fn datagram(words: &[&str]) -> Result<Vec<u8>, String> {
    let known = [
        "from", "to", "len", "checksum", "all", "piece", "more", "udp-len",
    ];
    let fields = Fields::new(words, &known)?;
    let path = path(&fields);
    let payload = payload(0, fields.number("len", 0)? as usize);
    let ports = (
        fields.number("from", 9)? as u16,
        fields.number("to", 53)? as u16,
    );
    let mut udp = packet::udp(path, ports, &payload).split_off(packet::LOWER);
    if fields.text("udp-len").is_some() {
        udp[4..6].copy_from_slice(&(fields.number("udp-len", 0)? as u16).to_be_bytes());
        udp[6..8].fill(0);
        let checksum = !transport_sum(path.from, path.to, UDP, &udp);
        udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    match fields.text("checksum") {
        None => {}
        Some("none") => udp[6..8].fill(0),
        Some(_) => udp[6..8].iter_mut().for_each(|byte| *byte ^= 0x11),
    }
    let Some(piece) = fields.text("piece") else {
        return Ok(packet::ip(path, UDP, &udp));
    };
    let (from, to) = piece.split_once("..").ok_or("write piece=A..B")?;
    let (from, to) = (number(from)? as usize, number(to)? as usize);
    let bytes = udp.get(from..to).ok_or("there are not so many bytes")?;
    let place = (from, fields.text("more").is_some());
    Ok(packet::fragment(path, UDP, IDENT, place, bytes))
}

/// An error about a datagram of the stack.
fn icmp(words: &[&str]) -> Result<Vec<u8>, String> {
    let fields = Fields::new(words, &["type", "code", "from", "to", "checksum"])?;
    let numbers = [
        fields.number("type", 3)? as u8,
        fields.number("code", 3)? as u8,
    ];
    let ports = (
        fields.number("from", 53)? as u16,
        fields.number("to", 9)? as u16,
    );
    let about = packet::quote(TO_STACK.reversed(), UDP, 36, ports, 16 << 16);
    let bad = fields.text("checksum").is_some();
    Ok(message(packet::icmp_error(numbers, 0, &about), bad))
}

/// A packet of another protocol.
fn packet_of(words: &[&str]) -> Result<Vec<u8>, String> {
    let fields = Fields::new(words, &["protocol", "len", "all"])?;
    let payload = payload(0, fields.number("len", 20)? as usize);
    let protocol = fields.number("protocol", 99)? as u8;
    Ok(packet::ip(path(&fields), protocol, &payload))
}

/// From the link-local address of the peer, as an IPv6 router, to the stack or to a group.
fn from_router(to: Ipv6Addr) -> v6::Path {
    let to_mac = match to.is_multicast() {
        true => v6::group_mac(to),
        false => TO_STACK.to_mac,
    };
    v6::Path {
        from_mac: PEER_MAC,
        to_mac,
        from: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
        to,
        hop_limit: 255,
    }
}

/// A router advertisement (RFC 4861 section 4.2): hop limit, lifetime in seconds, reachable and
/// retransmission times in milliseconds, MTU, and the 64-bit prefix with number `prefix`.
fn router(words: &[&str]) -> Result<Vec<u8>, String> {
    let known = ["hops", "lifetime", "reachable", "retrans", "mtu", "prefix"];
    let fields = Fields::new(words, &known)?;
    let word = |name, otherwise| -> Result<[u8; 4], String> {
        Ok((fields.number(name, otherwise)? as u32).to_be_bytes())
    };
    let [_, _, high, low] = word("lifetime", 1800)?;
    let mut message = vec![134, 0, 0, 0, word("hops", 0)?[3], 0, high, low];
    message.extend(word("reachable", 0)?);
    message.extend(word("retrans", 0)?);
    message.extend([1, 1]);
    message.extend(PEER_MAC);
    if fields.text("mtu").is_some() {
        message.extend([5, 1, 0, 0]);
        message.extend(word("mtu", 0)?);
    }
    if fields.text("prefix").is_some() {
        // On-link, autonomous, valid for a day.
        message.extend([
            3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 1, 0x51, 0x80, 0, 0, 0, 0,
        ]);
        let number = fields.number("prefix", 0)? as u16;
        message.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, number, 0, 0, 0, 0).octets());
    }
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    Ok(v6::frame(from_router(all), ICMPV6, &message))
}

/// A redirect: another router forwards to the peer (RFC 4861 section 4.5).
fn redirect() -> Vec<u8> {
    let mut message = vec![137, 0, 0, 0, 0, 0, 0, 0];
    message.extend(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 3).octets());
    message.extend(packet::v6_of(FAR).octets());
    message.extend([2, 1]);
    message.extend(OTHER_MAC);
    v6::frame(from_router(packet::v6_of(STACK)), ICMPV6, &message)
}

/// A Packet Too Big about an echo reply of `echo` bytes (RFC 4443 section 3.2).
fn too_big(words: &[&str]) -> Result<Vec<u8>, String> {
    let fields = Fields::new(words, &["echo", "mtu"])?;
    let mut reply = vec![129, 0, 0, 0, 0, 0, 0, 0];
    reply.extend(payload(0, fields.number("echo", 0)? as usize));
    let sent = v6::Path {
        from: packet::v6_of(STACK),
        to: packet::v6_of(FAR),
        ..from_router(packet::v6_of(STACK))
    };
    let about = v6::frame(sent, ICMPV6, &reply).split_off(packet::ETHERNET);
    let mut message = vec![2, 0, 0, 0];
    message.extend((fields.number("mtu", 0)? as u32).to_be_bytes());
    message.extend(&about[..about.len().min(1_232)]);
    Ok(v6::frame(
        from_router(packet::v6_of(STACK)),
        ICMPV6,
        &message,
    ))
}

/// An ARP request of the peer for the stack's address, with the sender's address `sender`.
fn arp(sender: Address) -> Vec<u8> {
    let path = TO_STACK.source(sender);
    packet::arp_request(path.to_mac(EVERY_MAC))
}

// Frames of the stack.

/// A frame in the words of a step, if it is of these kinds and right in every field.
pub(super) fn shown(frame: &[u8]) -> Option<String> {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame.len() >= 42 && frame[12..14] == [8, 6] {
        let announces = frame[..6] == [0xff; 6] && frame[28..32] == STACK && frame[38..42] == STACK;
        return announces.then(|| "arp announcement".to_owned());
    }
    if frame.len() < 42 || frame[12..15] != [8, 0, 0x45] || sum(&frame[14..34]) != 0xffff {
        return None;
    }
    let to_all = frame[..6] == [0xff; 6] && frame[30..34] == EVERYBODY;
    let by_other = frame[..6] == OTHER_MAC;
    let to_peer = (by_other || frame[..6] == PEER_MAC) && frame[30..34] == FAR;
    if frame[26..30] != STACK || !(to_all || to_peer) {
        return None;
    }
    let body = frame.get(34..14 + usize::from(half(16)))?;
    let (offset, more) = (usize::from(half(20) & 0x1fff) * 8, frame[20] & 0x20 != 0);
    if offset > 0 || more {
        let more = if more { " more" } else { "" };
        return Some(format!("fragment offset={offset} len={}{more}", body.len()));
    }
    match frame[23] {
        ICMP if sum(body) == 0xffff && body[0] != 0 => {
            Some(format!("icmp type={} code={}", body[0], body[1]))
        }
        UDP => {
            let dst = if to_all { EVERYBODY } else { FAR };
            let is_right = transport_sum(STACK, dst, UDP, body) == 0xffff
                && usize::from(half(38)) == body.len()
                && body[8..] == payload(0, body.len() - 8);
            let mut shown = format!(
                "udp from={} to={} len={}",
                half(34),
                half(36),
                body.len() - 8
            );
            if to_all {
                shown.push_str(" all");
            }
            if frame[22] != 64 {
                shown.push_str(&format!(" ttl={}", frame[22]));
            }
            if frame[15] != 0 {
                shown.push_str(&format!(" tos={}", frame[15]));
            }
            if by_other {
                shown.push_str(" by-other");
            }
            is_right.then_some(shown)
        }
        _ => None,
    }
}
