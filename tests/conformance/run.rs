//! Plays the peer and the application of a script.

mod network;

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::SocketAddr;

use dominoes_netstack::config::{CongestionControl, Ecn};
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::Setup;
use dominoes_netstack::{
    Connecting, Ipv6Config, Keepalive, SocketError, TcpListener, TcpStream, UdpSocket,
};
use dominoes_testkit::packet::v6::{ICMPV6, Packet};
use dominoes_testkit::packet::{
    self, ACK, FAR, FIN, Family, ICMP, PSH, RST, Right, STACK, SYN, Segment, TCP, TO_STACK, sum,
};
use dominoes_testkit::{Host, Stalls, Variant};

use super::script::Script;

const URG: u8 = 0x20;
const ECE: u8 = 0x40;
const CWR: u8 = 0x80;
const FLAGS: [(&str, u8); 8] = [
    ("FIN", FIN),
    ("SYN", SYN),
    ("RST", RST),
    ("PSH", PSH),
    ("ACK", ACK),
    ("URG", URG),
    ("ECE", ECE),
    ("CWR", CWR),
];
const PEER_MAC: packet::Mac = TO_STACK.from_mac;
/// Port of the stack, source port of the peer, and port at which the peer listens.
const PORT: u16 = 7;
const PEER_PORT: u16 = 40_000;
const PEER_LISTENS: u16 = 9;
/// A window that limits nothing.
const WIDE: u16 = 60_000;

/// Byte `offset` of a stream.
fn pattern(offset: u32) -> u8 {
    (offset.wrapping_mul(2_654_435_761) >> 13) as u8
}

fn payload(offset: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| pattern(offset.wrapping_add(i)))
        .collect()
}

#[derive(Clone, Debug)]
enum Sent {
    Tcp(Segment),
    ArpRequest,
    ArpReply,
    EchoReply {
        id: u16,
        len: usize,
    },
    /// Any other frame that has a textual form.
    Shown(String),
    Other(Vec<u8>),
}

struct Runner {
    host: Host,
    /// The IP version of the frames on the wire. Steps are written for IPv4.
    family: Family,
    now: Instant,
    /// When the last step ended.
    since: Instant,
    sent: VecDeque<(Instant, Sent)>,
    irs: u32,
    iss: Option<u32>,
    /// Ports of the peer and of the stack.
    ports: (u16, u16),
    /// TSval of the newest segment of the stack.
    echo: u32,
    answers_arp: bool,
    udp: Option<UdpSocket>,
    listener: Option<TcpListener>,
    connecting: Option<Connecting>,
    stream: Option<TcpStream>,
    read: u32,
    written: u32,
    log: String,
}

/// Runs a script. An error names the step that failed, and the frame or result that came instead.
pub(crate) fn run(
    script: &Script,
    variant: Variant,
    family: Family,
    seed: u64,
    verbose: bool,
) -> Result<(), String> {
    let mut setup = Setup::new(STACK.into(), 24, [seed, 2]);
    // A run creates thousands of stacks, and most of their memory is for connections.
    setup.limits.connections = 256;
    for (name, &value) in &script.limits {
        let limits = &mut setup.limits;
        match name.as_str() {
            "connections" => limits.connections = value,
            "receive_buffer" => limits.receive_buffer = value,
            "receive_window" => limits.tcp.receive_window = value,
            "send_buffer" => limits.send_buffer = value,
            "tx_slots" => limits.tx_slots = value,
            "mtu" => limits.mtu = value as u16,
            "newreno" => limits.tcp.congestion = CongestionControl::NewReno,
            "bbr" => limits.tcp.congestion = CongestionControl::Bbr,
            "syn_queue" => limits.syn_queue = value,
            "resets_per_second" => limits.resets_per_second = value,
            "challenges_per_second" => limits.challenges_per_second = value,
            "ecn" => {
                limits.tcp.ecn = [Ecn::Never, Ecn::Accept, Ecn::Request][value as usize % 3];
            }
            _ => return Err(format!("there is no limit `{name}`")),
        }
    }
    if family == Family::V6 {
        // Without duplicate address detection, the stack sends no packets about its address.
        let config = Ipv6Config::default().autoconfigure(script.routers);
        let (address, prefix) = (packet::v6_of(STACK), if script.routers { 128 } else { 120 });
        setup = setup.ipv6(config.duplicate_probes(0).address(address, prefix));
        setup.limits.mtu += family.longer();
    }
    let host = Host::new(variant, setup, seed).map_err(|error| error.to_string())?;
    let mut runner = Runner {
        host,
        family,
        now: Instant::from_millis(1_000),
        since: Instant::from_millis(1_000),
        sent: VecDeque::new(),
        irs: script.irs,
        iss: None,
        ports: (PEER_PORT, PORT),
        echo: 0,
        answers_arp: true,
        udp: None,
        listener: None,
        connecting: None,
        stream: None,
        read: 0,
        written: 0,
        log: String::new(),
    };
    runner.host.set_stalls(Stalls::default());
    let result = runner.play(script);
    if verbose {
        println!("{} [{variant}, {family}]\n{}", script.name, runner.log);
    }
    result
}

impl Runner {
    fn play(&mut self, script: &Script) -> Result<(), String> {
        for (place, line) in &script.steps {
            let _ = writeln!(self.log, "{:>12.6}  {line}", seconds(self.now));
            self.step(line)
                .map_err(|what| format!("{place}, `{line}`: {what}"))?;
            self.since = self.now;
        }
        self.run_until_idle();
        if let Some((_, sent)) = self.sent.front() {
            return Err(format!("at the end, {} came besides", self.show(sent)));
        }
        self.host.check().map(|_| ())
    }

    fn step(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(done) = self.network_step(&words) {
            return done;
        }
        match *words.as_slice() {
            ["listen"] => self.listen(PORT),
            ["unlisten"] => {
                self.listener = None;
                Ok(())
            }
            ["connect"] => {
                self.ports = (PEER_LISTENS, 0);
                let to = SocketAddr::new(self.family.address(FAR), PEER_LISTENS);
                self.connecting = Some(self.host.sockets().begin_connect(to).map_err(error_text)?);
                Ok(())
            }
            ["connected"] => {
                self.run_until_idle();
                let connecting = self.connecting.as_mut().ok_or("nothing is being opened")?;
                match connecting.try_finish() {
                    Ok(Some(stream)) => {
                        self.stream = Some(stream);
                        Ok(())
                    }
                    Ok(None) => Err("not yet".to_owned()),
                    Err(error) => Err(error_text(error)),
                }
            }
            ["connect-error", error] => {
                self.run_until_idle();
                let connecting = self.connecting.as_mut().ok_or("nothing is being opened")?;
                match connecting.try_finish() {
                    Ok(Some(_)) => Err("it succeeded".to_owned()),
                    Ok(None) => Err("nothing has happened yet".to_owned()),
                    Err(is) => same(&format!("{is:?}"), error),
                }
            }
            ["give-up"] => {
                self.connecting = None;
                Ok(())
            }
            ["accept", ref rest @ ..] => self.accept(rest),
            ["write", ref rest @ ..] => self.write(rest),
            ["read", ref rest @ ..] => self.read(rest),
            ["ended", how] => {
                let ended = self.stream()?.take_error().map_err(|e| e.to_string())?;
                let ended = ended.and_then(|error| SocketError::of(&error));
                same(
                    &ended.map_or("none".to_owned(), |how| format!("{how:?}")),
                    how,
                )
            }
            ["shutdown"] => {
                self.stream()?.shutdown_write();
                Ok(())
            }
            ["set", ref what @ ..] => self.set(what),
            ["close"] => {
                self.stream()?;
                self.stream = None;
                Ok(())
            }
            ["abort"] => {
                let stream = self.stream.take().ok_or("there is no connection")?;
                stream.abort();
                Ok(())
            }
            ["wait", time] => {
                self.run_until_idle();
                self.wait_until(self.now + span(time)?);
                Ok(())
            }
            ["drain"] => {
                self.run_until_idle();
                self.sent.clear();
                Ok(())
            }
            ["state", state] => {
                self.run_until_idle();
                same(&self.state(), state)
            }
            ["arp", "manual"] => {
                self.answers_arp = false;
                Ok(())
            }
            ["<", "arp", "request"] => self.inject(packet::arp_request(TO_STACK)),
            ["<", "arp", "reply"] => self.inject(packet::arp_reply(TO_STACK)),
            [">", "arp", what, ref rest @ ..] => {
                let sent = self.next_sent(rest)?;
                match (what, &sent) {
                    ("request", Sent::ArpRequest) | ("reply", Sent::ArpReply) => Ok(()),
                    _ => Err(format!("{} came instead", self.show(&sent))),
                }
            }
            ["<", "echo", ref rest @ ..] => self.echo(rest),
            ["<", "icmp", numbers, ref rest @ ..] => self.network_error(numbers, rest),
            [">", "echo-reply", ref rest @ ..] => self.expect_echo(rest),
            [">", "nothing", ref rest @ ..] => {
                self.run_until_idle();
                if let [time] = *rest {
                    self.wait_until(self.now + span(time)?);
                }
                match self.sent.front() {
                    None => Ok(()),
                    Some((_, sent)) => Err(format!("{} came", self.show(sent))),
                }
            }
            [">", "text", range, ref rest @ ..] => self.expect_payload(range, rest),
            ["<", flags, ref rest @ ..] => self.inject_segment(flags, rest),
            [">", flags, ref rest @ ..] => self.expect_segment(flags, rest),
            _ => Err("there is no such step".to_owned()),
        }
    }

    // Time and frames.

    fn run_until_idle(&mut self) {
        loop {
            self.host.turn(self.now);
            let sent = self.host.take_sent();
            if sent.is_empty() {
                return;
            }
            for frame in sent {
                if is_report(&frame) {
                    continue;
                }
                let sent = match self.family.read(&frame) {
                    Some(frame) => self.parse(&frame),
                    None => Sent::Other(frame),
                };
                if matches!(sent, Sent::ArpRequest) && self.answers_arp {
                    let reply = self.family.write(&packet::arp_reply(TO_STACK));
                    self.host.inject(reply.expect("every family has it"));
                    continue;
                }
                let shown = self.show(&sent);
                let _ = writeln!(self.log, "{:>12.6}      sent {shown}", seconds(self.now));
                self.sent.push_back((self.now, sent));
            }
        }
    }

    fn wait_until(&mut self, until: Instant) {
        while self.now < until {
            self.now = self.host.next_event(self.now).min(until);
            self.run_until_idle();
        }
    }

    fn parse(&mut self, frame: &[u8]) -> Sent {
        if packet::asked(frame) == Some(FAR) {
            return Sent::ArpRequest;
        }
        if frame.len() >= 42 && frame[12..14] == [8, 6] {
            let good = frame[..6] == PEER_MAC && frame[20..22] == [0, 2] && frame[28..32] == STACK;
            return if good {
                Sent::ArpReply
            } else {
                shown_or_other(frame)
            };
        }
        if let Some(len) = echo_reply(frame) {
            let id = u16::from_be_bytes([frame[38], frame[39]]);
            return Sent::EchoReply { id, len };
        }
        let Some(segment) = Segment::sent(frame) else {
            return shown_or_other(frame);
        };
        if segment.has(SYN) {
            self.iss = Some(segment.seq);
            if self.ports.1 == 0 {
                self.ports.1 = segment.src_port;
            }
        }
        if let Some((value, _)) = segment.timestamps {
            self.echo = value;
        }
        Sent::Tcp(segment)
    }

    fn inject(&mut self, frame: Vec<u8>) -> Result<(), String> {
        self.run_until_idle();
        let family = self.family;
        let frame = family.write(&frame);
        let frame = frame.ok_or_else(|| format!("{family} has no such packet"))?;
        self.host.inject(frame);
        self.run_until_idle();
        Ok(())
    }

    /// The next frame of the stack, if it arrives within the bounds of `times`.
    fn next_sent(&mut self, times: &[&str]) -> Result<Sent, String> {
        self.run_until_idle();
        let (mut earliest, mut latest) = (Instant::ZERO, self.now);
        for word in times {
            match word.split_once('=') {
                Some(("within", time)) => latest = self.since + span(time)?,
                Some(("after", times)) => {
                    let (first, last) = times.split_once("..").ok_or("write after=1s..2s")?;
                    earliest = self.since + span(first)?;
                    latest = self.since + span(last)?;
                }
                _ => return Err(format!("`{word}` means nothing here")),
            }
        }
        while self.sent.is_empty() && self.now < latest {
            self.now = self.host.next_event(self.now).min(latest);
            self.run_until_idle();
        }
        let Some((at, sent)) = self.sent.pop_front() else {
            return Err("nothing came".to_owned());
        };
        if at < earliest {
            let shown = self.show(&sent);
            return Err(format!("{shown} came {:?} too early", earliest.since(at)));
        }
        Ok(sent)
    }

    // Segments.

    fn inject_segment(&mut self, flags: &str, fields: &[&str]) -> Result<(), String> {
        self.run_until_idle();
        let mut segment = Segment {
            src_port: self.ports.0,
            dst_port: self.ports.1,
            wnd: WIDE,
            flags: flags_of(flags)?,
            ..Segment::default()
        };
        let iss = self.iss.unwrap_or(0);
        let (mut seq, mut len, mut bad, mut urgent) = (0, 0, false, 0_u16);
        for field in fields {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            match name {
                "seq" => seq = number(value)? as u32,
                "ack" => segment.ack = iss.wrapping_add(number(value)? as u32),
                "win" => segment.wnd = number(value)? as u16,
                "len" => len = number(value)? as usize,
                "mss" => segment.mss = Some(number(value)? as u16),
                "wscale" => segment.scale = Some(number(value)? as u8),
                "sackok" => segment.sack_permitted = true,
                "ts" => {
                    let (value, echo) = value.split_once('/').ok_or("write ts=value/echo")?;
                    let echo = match echo {
                        "last" => self.echo,
                        echo => match echo.strip_prefix("last-") {
                            Some(before) => self.echo.wrapping_sub(number(before)? as u32),
                            None => number(echo)? as u32,
                        },
                    };
                    segment.timestamps = Some((number(value)? as u32, echo));
                }
                "sack" => {
                    for block in value.split(',') {
                        let (left, right) = block.split_once('-').ok_or("write sack=1-2,3-4")?;
                        segment.sack.push((
                            iss.wrapping_add(number(left)? as u32),
                            iss.wrapping_add(number(right)? as u32),
                        ));
                    }
                }
                "options" => segment.more_options = bytes(value)?,
                "urg" => urgent = number(value)? as u16,
                "srcport" => segment.src_port = number(value)? as u16,
                "port" => segment.dst_port = number(value)? as u16,
                "bad-checksum" => bad = true,
                "ce" => segment.ecn = 0b11,
                _ => return Err(format!("`{field}` is no field")),
            }
        }
        segment.seq = self.irs.wrapping_add(seq);
        // Data begins after the SYN; offset 0 is the byte with sequence number 1.
        let first = seq.wrapping_add(u32::from(segment.has(SYN)));
        segment.payload = payload(first.wrapping_sub(1), len);
        let mut frame = segment.frame(TO_STACK);
        if urgent > 0 {
            frame[packet::LOWER + 18..][..2].copy_from_slice(&urgent.to_be_bytes());
            packet::finish(&mut frame, Right::ALL);
        }
        if bad {
            frame[packet::LOWER + 16] ^= 0x55;
        }
        self.inject(frame)
    }

    fn expect_segment(&mut self, flags: &str, fields: &[&str]) -> Result<(), String> {
        let is_time = |field: &&&str| field.starts_with("within=") || field.starts_with("after=");
        let times: Vec<&str> = fields.iter().filter(is_time).copied().collect();
        let sent = self.next_sent(&times)?;
        let shown = self.show(&sent);
        let instead = |what: String| format!("{what}: {shown} came");
        let Sent::Tcp(segment) = sent else {
            return Err(format!("{shown} came instead"));
        };
        let mut right = false;
        for wanted in flags.split('|') {
            let wanted = flags_of(wanted)?;
            let ignored = if wanted & PSH == 0 { PSH } else { 0 };
            right |= segment.flags & !ignored == wanted;
        }
        if !right {
            return Err(instead("other flags".to_owned()));
        }
        let (irs, iss) = (self.irs, self.iss.unwrap_or(0));
        let seq = segment.seq.wrapping_sub(iss);
        for field in fields {
            if is_time(&field) {
                continue;
            }
            let at_least = field.split_once(">=");
            let (name, value) = at_least.or(field.split_once('=')).unwrap_or((field, ""));
            let is: i64 = match name {
                "seq" => i64::from(seq),
                "ack" => i64::from(segment.ack.wrapping_sub(irs)),
                "win" => i64::from(segment.wnd),
                "len" => segment.payload.len() as i64,
                "mss" => segment.mss.map_or(-1, i64::from),
                "wscale" => segment.scale.map_or(-1, i64::from),
                "sackok" if segment.sack_permitted => continue,
                "ts" if value.is_empty() && segment.timestamps.is_some() => continue,
                "tsecr" => segment.timestamps.map_or(-1, |(_, echo)| i64::from(echo)),
                "ect" if segment.ecn == 0b10 => continue,
                "no-ect" if segment.ecn == 0 => continue,
                "dscp" => i64::from(segment.dscp),
                "ttl" => i64::from(segment.ttl),
                "no-ts" if segment.timestamps.is_none() => continue,
                "no-sackok" if !segment.sack_permitted => continue,
                "no-wscale" if segment.scale.is_none() => continue,
                "sack" => {
                    let edge = |edge: u32| edge.wrapping_sub(irs).to_string();
                    let blocks = segment.sack.iter();
                    let blocks: Vec<_> = blocks
                        .map(|(left, right)| format!("{}-{}", edge(*left), edge(*right)))
                        .collect();
                    if blocks.join(",") == value {
                        continue;
                    }
                    return Err(instead(format!("SACK blocks are `{}`", blocks.join(","))));
                }
                "sackok" | "ts" | "no-ts" | "no-sackok" | "no-wscale" | "ect" | "no-ect" => {
                    return Err(instead(format!("not {field}")));
                }
                _ => return Err(format!("`{field}` is no field")),
            };
            let wanted = number(value)?;
            if at_least.is_some() && is < wanted || at_least.is_none() && is != wanted {
                return Err(instead(format!("{name} is {is}, not {value}")));
            }
        }
        let first = seq.wrapping_add(u32::from(segment.has(SYN)));
        if segment.payload != payload(first.wrapping_sub(1), segment.payload.len()) {
            return Err(instead("wrong text".to_owned()));
        }
        Ok(())
    }

    /// Expects segments that carry exactly the bytes of a range, in order.
    fn expect_payload(&mut self, range: &str, times: &[&str]) -> Result<(), String> {
        let (from, to) = range.split_once("..").ok_or("write 1..1001")?;
        let (mut at, to) = (number(from)?, number(to)?);
        let mut times = times;
        while at < to {
            let sent = self.next_sent(times);
            times = &[];
            let sent = sent.map_err(|what| format!("at {at}: {what}"))?;
            let shown = self.show(&sent);
            let Sent::Tcp(segment) = sent else {
                return Err(format!("at {at}: {shown} came instead"));
            };
            let seq = segment.seq.wrapping_sub(self.iss.unwrap_or(0));
            let right = segment.flags & !PSH == ACK
                && i64::from(seq) == at
                && !segment.payload.is_empty()
                && segment.payload == payload(seq.wrapping_sub(1), segment.payload.len());
            at += segment.payload.len() as i64;
            if !right || at > to {
                return Err(format!("{shown} came instead"));
            }
        }
        Ok(())
    }

    fn show(&self, sent: &Sent) -> String {
        let segment = match sent {
            Sent::Tcp(segment) => segment,
            Sent::Other(frame) => return format!("{frame:02x?}"),
            Sent::Shown(shown) => return shown.clone(),
            known => return format!("{known:?}"),
        };
        let names = FLAGS.iter().filter(|(_, bit)| segment.flags & bit != 0);
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        let mut shown = format!(
            "{} seq={} ack={} win={} len={}",
            names.join("-"),
            segment.seq.wrapping_sub(self.iss.unwrap_or(0)),
            segment.ack.wrapping_sub(self.irs),
            segment.wnd,
            segment.payload.len()
        );
        if let Some((value, echo)) = segment.timestamps {
            let _ = write!(shown, " ts={value}/{echo}");
        }
        shown
    }

    // The application.

    fn listen(&mut self, port: u16) -> Result<(), String> {
        self.listener = Some(self.host.sockets().listen(port, 4).map_err(error_text)?);
        self.run_until_idle();
        Ok(())
    }

    fn accept(&mut self, rest: &[&str]) -> Result<(), String> {
        self.run_until_idle();
        let listener = self.listener.as_ref().ok_or("nobody listens")?;
        match (listener.try_accept(), rest) {
            (Ok((stream, _)), []) => {
                self.stream = Some(stream);
                (self.read, self.written) = (0, 0);
                Ok(())
            }
            (Ok(_), _) => Err("there is a connection".to_owned()),
            (Err(SocketError::WouldBlock), ["none"]) => Ok(()),
            (Err(error), _) => Err(error_text(error)),
        }
    }

    fn stream(&mut self) -> Result<&mut TcpStream, String> {
        self.run_until_idle();
        self.stream
            .as_mut()
            .ok_or_else(|| "there is no connection".to_owned())
    }

    fn set(&mut self, what: &[&str]) -> Result<(), String> {
        let stream = self.stream()?;
        let done = match *what {
            ["nodelay"] => {
                stream.set_nodelay(true).map_err(|e| e.to_string())?;
                Ok(())
            }
            ["nodelay", "off"] => {
                stream.set_nodelay(false).map_err(|e| e.to_string())?;
                Ok(())
            }
            ["ttl", ttl] => {
                stream
                    .set_ttl(number(ttl)? as u32)
                    .map_err(|e| e.to_string())?;
                Ok(())
            }
            ["tos", tos] => {
                stream.set_tos(number(tos)? as u8);
                Ok(())
            }
            ["keepalive"] => stream.set_keepalive(Some(Keepalive::default())),
            ["keepalive", "off"] => stream.set_keepalive(None),
            ["keepalive", idle, interval, probes] => {
                let wish = Keepalive::default();
                let wish = wish.idle(span(idle)?).interval(span(interval)?);
                stream.set_keepalive(Some(wish.probes(number(probes)? as u8)))
            }
            ["user-timeout", time] => stream.set_user_timeout(Some(span(time)?.into())),
            ["cork"] => {
                stream.set_cork(true);
                Ok(())
            }
            ["cork", "off"] => {
                stream.set_cork(false);
                Ok(())
            }
            ["max-segment", most] => {
                stream.set_tuning(stream.tuning().max_segment(number(most)? as u16))
            }
            ["newreno" | "bbr"] => {
                let control = match what {
                    ["bbr"] => CongestionControl::Bbr,
                    _ => CongestionControl::NewReno,
                };
                stream.set_tuning(stream.tuning().congestion(Some(control)))
            }
            ["linger", time] => {
                stream.set_linger(Some(span(time)?.into()));
                Ok(())
            }
            _ => return Err("set what?".to_owned()),
        };
        self.run_until_idle();
        done.map_err(error_text)
    }

    fn write(&mut self, rest: &[&str]) -> Result<(), String> {
        let written = self.written;
        let stream = self.stream()?;
        match *rest {
            ["error", error] => match stream.try_write(&[0]) {
                Ok(_) => Err("it was written".to_owned()),
                Err(is) => same(&format!("{is:?}"), error),
            },
            ["none"] => match stream.try_write(&[pattern(written)]) {
                Ok(_) => Err("it was written".to_owned()),
                Err(is) => same(&format!("{is:?}"), "WouldBlock"),
            },
            [len] => {
                let len = number(len)? as usize;
                let bytes = payload(written, len);
                let mut done = 0;
                while done < len {
                    done += stream
                        .try_write(&bytes[done..])
                        .map_err(|error| format!("{error:?} after {done} bytes"))?;
                }
                self.written += len as u32;
                self.run_until_idle();
                Ok(())
            }
            _ => Err("write how many?".to_owned()),
        }
    }

    fn read(&mut self, rest: &[&str]) -> Result<(), String> {
        let read = self.read;
        let stream = self.stream()?;
        let mut buffer = vec![0; 1 << 16];
        match *rest {
            ["none"] => match stream.try_read(&mut buffer) {
                Ok(len) => Err(format!("there were {len} bytes")),
                Err(is) => same(&format!("{is:?}"), "WouldBlock"),
            },
            ["eof"] => match stream.try_read(&mut buffer) {
                Ok(0) => Ok(()),
                Ok(len) => Err(format!("there were {len} bytes")),
                Err(is) => Err(format!("{is:?}")),
            },
            ["error", error] => match stream.try_read(&mut buffer) {
                Ok(len) => Err(format!("there were {len} bytes")),
                Err(is) => same(&format!("{is:?}"), error),
            },
            [len] => {
                let len = number(len)? as usize;
                let mut got: Vec<u8> = Vec::new();
                while got.len() < len {
                    let most = (len - got.len()).min(buffer.len());
                    match stream.try_read(&mut buffer[..most]) {
                        Ok(0) => return Err(format!("the end came after {}", got.len())),
                        Ok(more) => got.extend(&buffer[..more]),
                        Err(error) => {
                            return Err(format!("{error:?} after {} bytes", got.len()));
                        }
                    }
                }
                if got != payload(read, len) {
                    return Err("other bytes than were sent".to_owned());
                }
                self.read += len as u32;
                self.run_until_idle();
                Ok(())
            }
            _ => Err("read how many?".to_owned()),
        }
    }

    /// The state of the connection with the peer's port, by the RFC's name.
    fn state(&mut self) -> String {
        let ports = self.ports;
        let found = self.host.inspect(|replica| {
            let mut tcbs = replica.connections().map(|(_, tcb)| tcb);
            let tcb = tcbs.find(|tcb| {
                let flow = tcb.flow();
                flow.remote.port == ports.0 && (ports.1 == 0 || flow.local.port == ports.1)
            });
            tcb.map(|tcb| format!("{:?}", tcb.state()))
        });
        let name = found[0].clone().unwrap_or("Closed".to_owned());
        let mut shown = String::new();
        for (at, c) in name.char_indices() {
            if at > 0 && (c.is_ascii_uppercase() || c.is_ascii_digit()) {
                shown.push('-');
            }
            shown.push(c.to_ascii_uppercase());
        }
        shown
    }

    // ICMP.

    fn echo(&mut self, fields: &[&str]) -> Result<(), String> {
        let (mut len, mut id, mut bad, mut mac) = (0, 1, false, None);
        for field in fields {
            match field.split_once('=') {
                Some(("len", value)) => len = number(value)? as usize,
                Some(("id", value)) => id = number(value)? as u16,
                Some(("mac", value)) => mac = Some(number(value)? as u8),
                None if *field == "bad-checksum" => bad = true,
                _ => return Err(format!("`{field}` is no field")),
            }
        }
        let mut request = message(packet::echo(id, &payload(0, len)), bad);
        // As if another neighbour had forwarded the packet.
        if let Some(mac) = mac {
            request[11] = mac;
        }
        self.inject(request)
    }

    /// A router reports an error about a segment of the stack.
    fn network_error(&mut self, numbers: &str, fields: &[&str]) -> Result<(), String> {
        self.run_until_idle();
        let (kind, code) = numbers.split_once('/').ok_or("write icmp 3/4")?;
        let (mut mtu, mut seq, mut bad) = (0, 0, false);
        let mut ports = (self.ports.1, self.ports.0);
        for field in fields {
            match field.split_once('=') {
                Some(("mtu", value)) => mtu = number(value)? as u16,
                Some(("seq", value)) => seq = number(value)? as u32,
                Some(("srcport", value)) => ports.0 = number(value)? as u16,
                None if *field == "bad-checksum" => bad = true,
                _ => return Err(format!("`{field}` is no field")),
            }
        }
        let numbers = [number(kind)? as u8, number(code)? as u8];
        let seq = self.iss.unwrap_or(0).wrapping_add(seq);
        let about = packet::quote(TO_STACK.reversed(), TCP, 1500, ports, seq);
        self.inject(message(packet::icmp_error(numbers, mtu, &about), bad))
    }

    fn expect_echo(&mut self, fields: &[&str]) -> Result<(), String> {
        let sent = self.next_sent(&[])?;
        let Sent::EchoReply { id, len } = sent else {
            return Err(format!("{} came instead", self.show(&sent)));
        };
        for field in fields {
            let is = match field.split_once('=') {
                Some(("len", value)) => (len as i64, number(value)?),
                Some(("id", value)) => (i64::from(id), number(value)?),
                _ => return Err(format!("`{field}` is no field")),
            };
            if is.0 != is.1 {
                return Err(format!("{field}, but it is {}", is.0));
            }
        }
        Ok(())
    }
}

/// Whether the frame is a report of the groups that the stack has joined (RFC 3810), the only
/// packet of the stack with hop-by-hop options, or a router solicitation.
fn is_report(frame: &[u8]) -> bool {
    let is = |packet: Packet<'_>| {
        packet.next == 0 || packet.next == ICMPV6 && packet.payload.first() == Some(&133)
    };
    Packet::read(frame).is_some_and(|packet| packet.is_right() && is(packet))
}

/// A frame with an ICMP message from the peer, with a wrong checksum if it is `bad`.
fn message(mut icmp: Vec<u8>, bad: bool) -> Vec<u8> {
    icmp[2] ^= if bad { 0x11 } else { 0 };
    packet::ip(TO_STACK, ICMP, &icmp)
}

fn shown_or_other(frame: &[u8]) -> Sent {
    match network::shown(frame) {
        Some(shown) => Sent::Shown(shown),
        None => Sent::Other(frame.to_vec()),
    }
}

/// Length of the data of an echo reply to the peer, if all fields of the reply are right.
fn echo_reply(frame: &[u8]) -> Option<usize> {
    let total = usize::from(u16::from_be_bytes([*frame.get(16)?, *frame.get(17)?]));
    let icmp = frame.get(34..14 + total)?;
    let right = frame[..6] == PEER_MAC
        && frame[12..15] == [8, 0, 0x45]
        && frame[23] == 1
        && frame[26..30] == STACK
        && frame[30..34] == FAR
        && sum(&frame[14..34]) == 0xffff
        && icmp.len() >= 8
        && icmp[..2] == [0, 0]
        && sum(icmp) == 0xffff
        && icmp[8..] == payload(0, icmp.len() - 8);
    right.then(|| icmp.len() - 8)
}

fn flags_of(names: &str) -> Result<u8, String> {
    if names == "none" {
        return Ok(0);
    }
    let bit = |name: &str| FLAGS.iter().find(|(known, _)| *known == name);
    names.split('-').try_fold(0, |all, name| match bit(name) {
        Some((_, bit)) => Ok(all | bit),
        None => Err(format!("`{name}` is no flag")),
    })
}

/// A sum of numbers, such as `1+1460`.
fn number(text: &str) -> Result<i64, String> {
    text.split('+').try_fold(0, |sum, part| {
        let number: Result<i64, _> = part.parse();
        Ok(sum + number.map_err(|_| format!("`{text}` is no number"))?)
    })
}

/// Bytes written as hexadecimal digits.
fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2).map(std::str::from_utf8);
    let bytes = digits.map(|two| u8::from_str_radix(two.unwrap_or(""), 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes.ok_or_else(|| format!("`{text}` are no bytes"))
}

fn span(text: &str) -> Result<Duration, String> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(|| format!("`{text}` has no unit"))?;
    let count: u64 = text[..at]
        .parse()
        .map_err(|_| format!("`{text}` is no time"))?;
    match &text[at..] {
        "us" => Ok(Duration::from_micros(count)),
        "ms" => Ok(Duration::from_millis(count)),
        "s" => Ok(Duration::from_secs(count)),
        unit => Err(format!("`{unit}` is no unit")),
    }
}

fn same(is: &str, wanted: &str) -> Result<(), String> {
    if is == wanted {
        Ok(())
    } else {
        Err(format!("it is {is}"))
    }
}

fn error_text(error: SocketError) -> String {
    format!("{error:?}")
}

fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 / 1e9
}
