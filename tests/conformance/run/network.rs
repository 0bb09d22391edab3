//! What is not TCP: UDP, fragments, ICMP errors and ARP, as the peer writes and reads them.
//!
//! What the stack sends is read into the words of a step, and compared with them as text.

use std::net::SocketAddrV4;

use dominoes_netstack::UdpSocket;

use super::{FAR, PEER_MAC, Runner, STACK, number, payload, sum};

const EVERYBODY: [u8; 4] = [255; 4];
/// Identification of the peer's fragments.
const IDENT: u16 = 77;

/// The peer's end at `port`.
fn peer(port: i64) -> SocketAddrV4 {
    SocketAddrV4::new(FAR.into(), port as u16)
}

/// Fields of a step, by name; a word without a value counts 1.
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
    /// A step that is not about TCP; `None` if it is.
    pub(super) fn network_step(&mut self, words: &[&str]) -> Option<Result<(), String>> {
        Some(match *words {
            ["udp", ref rest @ ..] => self.use_socket(rest),
            ["<", "udp", ref rest @ ..] => datagram(rest).and_then(|frame| self.inject_as(frame)),
            // Errors about segments begin with their numbers.
            ["<", "icmp", ref rest @ ..] if rest.iter().all(|word| word.contains('=')) => {
                icmp(rest).and_then(|frame| self.inject_as(frame))
            }
            ["<", "ip", ref rest @ ..] => packet(rest).and_then(|frame| self.inject_as(frame)),
            ["<", "arp", "conflict"] => self.inject_as(arp(STACK, STACK)),
            ["<", "arp", "probe"] => self.inject_as(arp([0; 4], STACK)),
            [">", "udp" | "fragment" | "icmp", ..] | [">", "arp", "announcement", ..] => {
                self.expect_shown(&words[1..])
            }
            _ => return None,
        })
    }

    /// The frame is addressed already.
    fn inject_as(&mut self, frame: Vec<u8>) -> Result<(), String> {
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
        let done = step(socket, words);
        self.run_until_idle();
        done
    }
}

fn step(socket: &mut UdpSocket, words: &[&str]) -> Result<(), String> {
    let told = |error| format!("{error:?}");
    match *words {
        ["connect", port] => socket.connect(peer(number(port)?)).map_err(told),
        ["ttl", hops] => {
            socket.set_ttl(number(hops)? as u8);
            Ok(())
        }
        ["tos", tos] => {
            socket.set_tos(number(tos)? as u8);
            Ok(())
        }
        ["broadcast", "on"] => {
            socket.set_broadcast(true);
            Ok(())
        }
        ["send", len, ref rest @ ..] => {
            let fields = Fields::new(rest, &["to", "all", "error"])?;
            let bytes = payload(0, number(len)? as usize);
            let to = match fields.text("all") {
                Some(_) => SocketAddrV4::new(EVERYBODY.into(), fields.number("to", 9)? as u16),
                None => peer(fields.number("to", 9)?),
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
            if from == peer(port) {
                Ok(())
            } else {
                Err(format!("it is from {from}"))
            }
        }
        _ => Err("there is no such step".to_owned()),
    }
}

// Frames of the peer.

/// An IPv4 packet of the peer, or a piece of one.
fn ip(protocol: u8, dst: [u8; 4], piece: (usize, bool), payload: &[u8]) -> Vec<u8> {
    let mut frame = if dst == EVERYBODY {
        vec![0xff; 6]
    } else {
        super::to_stack(vec![0; 6])
    };
    frame.extend(PEER_MAC);
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(((20 + payload.len()) as u16).to_be_bytes());
    frame.extend(IDENT.to_be_bytes());
    let place = (piece.0 / 8) as u16 | if piece.1 { 0x2000 } else { 0 };
    frame.extend(place.to_be_bytes());
    frame.extend([64, protocol, 0, 0]);
    frame.extend(FAR);
    frame.extend(dst);
    let header = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    frame.extend(payload);
    frame
}

fn checksum_of_datagram(src: [u8; 4], dst: [u8; 4], udp: &[u8]) -> u16 {
    let len = (udp.len() as u16).to_be_bytes();
    sum(&[&src[..], &dst, &[0, 17], &len, udp].concat())
}

fn datagram(words: &[&str]) -> Result<Vec<u8>, String> {
    let known = [
        "from", "to", "len", "checksum", "all", "piece", "more", "udp-len",
    ];
    let fields = Fields::new(words, &known)?;
    let payload = payload(0, fields.number("len", 0)? as usize);
    let len = 8 + payload.len() as i64;
    let mut udp = Vec::new();
    udp.extend((fields.number("from", 9)? as u16).to_be_bytes());
    udp.extend((fields.number("to", 53)? as u16).to_be_bytes());
    udp.extend((fields.number("udp-len", len)? as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let dst = if fields.text("all").is_some() {
        EVERYBODY
    } else {
        STACK
    };
    let checksum = match fields.text("checksum") {
        None => !checksum_of_datagram(FAR, dst, &udp),
        Some("none") => 0,
        Some(_) => !checksum_of_datagram(FAR, dst, &udp) ^ 0x1111,
    };
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    let Some(piece) = fields.text("piece") else {
        return Ok(ip(17, dst, (0, false), &udp));
    };
    let (from, to) = piece.split_once("..").ok_or("write piece=A..B")?;
    let (from, to) = (number(from)? as usize, number(to)? as usize);
    let bytes = udp.get(from..to).ok_or("there are not so many bytes")?;
    Ok(ip(17, dst, (from, fields.text("more").is_some()), bytes))
}

/// An error about a datagram of the stack.
fn icmp(words: &[&str]) -> Result<Vec<u8>, String> {
    let fields = Fields::new(words, &["type", "code", "from", "to", "checksum"])?;
    let mut message = vec![
        fields.number("type", 3)? as u8,
        fields.number("code", 3)? as u8,
    ];
    message.extend([0; 6]);
    message.extend([0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0]);
    message.extend(STACK);
    message.extend(FAR);
    message.extend((fields.number("from", 53)? as u16).to_be_bytes());
    message.extend((fields.number("to", 9)? as u16).to_be_bytes());
    message.extend([0, 16, 0, 0]);
    let bad = if fields.text("checksum").is_some() {
        1
    } else {
        0
    };
    let checksum = !sum(&message) ^ bad;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Ok(ip(1, STACK, (0, false), &message))
}

fn packet(words: &[&str]) -> Result<Vec<u8>, String> {
    let fields = Fields::new(words, &["protocol", "len", "all"])?;
    let dst = if fields.text("all").is_some() {
        EVERYBODY
    } else {
        STACK
    };
    let payload = payload(0, fields.number("len", 20)? as usize);
    Ok(ip(
        fields.number("protocol", 99)? as u8,
        dst,
        (0, false),
        &payload,
    ))
}

/// A question to everybody about `target`, from who says to have `sender`.
fn arp(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(PEER_MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(PEER_MAC);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
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
    let to_peer = frame[..6] == PEER_MAC && frame[30..34] == FAR;
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
        1 if sum(body) == 0xffff && body[0] != 0 => {
            Some(format!("icmp type={} code={}", body[0], body[1]))
        }
        17 => {
            let dst = if to_all { EVERYBODY } else { FAR };
            let is_right = checksum_of_datagram(STACK, dst, body) == 0xffff
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
            is_right.then_some(shown)
        }
        _ => None,
    }
}
