//! The far side: a small TCP that does little and trusts nothing.
//!
//! It sends an endless stream and checks every byte at once when it arrives. It keeps no copies,
//! since both streams are functions of the offset. It accepts from the stack exactly the segments
//! that RFC 9293 permits.

use std::collections::BTreeMap;

use dominoes_testkit::packet::odd::ILLEGAL_OPTIONS;
use dominoes_testkit::packet::{ACK, FIN, PSH, RST, SYN, Segment};
use dominoes_testkit::{Rng, mix};

use super::plan::{LinkFaults, Peers};
use super::wire::Coverage;

/// The first port of the far side. Port numbers count from here.
pub(crate) const FIRST_PORT: u16 = 2000;
/// The port at which the stack listens.
pub(crate) const SERVER: u16 = 80;

/// Keys of the streams of one port of the far side: of the stream that it receives, and of the one
/// that it sends. Successive connections of a port have equal keys, so an old segment that is taken
/// for a new one has bytes of another offset.
pub(crate) fn keys(seed: u64, port: usize) -> (u64, u64) {
    let port = 2 * port as u64;
    (mix(seed ^ port), mix(seed ^ (port + 1)))
}

/// The bytes of a stream from `offset`.
pub(crate) fn pattern(key: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 16);
    let first = offset / 8;
    for word in first..(offset + len as u64).div_ceil(8) {
        out.extend(mix(key.wrapping_add(word.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le_bytes());
    }
    out.drain(..((offset - first * 8) as usize).min(out.len()));
    out.truncate(len);
    out
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for the stack's SYN.
    Listening,
    /// Our SYN is sent, or will be.
    SynSent,
    /// Our SYN-ACK is sent, or will be.
    SynReceived,
    Open,
    /// Reset by either side.
    Reset,
    /// Over; another connection has its port.
    Replaced,
}

/// One connection of the far side. Stream offsets begin after the SYN.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) index: usize,
    pub(crate) port: usize,
    pub(crate) phase: Phase,
    /// Whether our side sent the reset.
    pub(crate) reset_by_us: bool,
    rto_ns: u64,
    stack_port: u16,
    iss: u32,
    irs: u32,
    key_in: u64,
    key_out: u64,
    una: u64,
    nxt: u64,
    /// The end of our stream, once decided.
    end: Option<u64>,
    /// Sends nothing new, and no FIN.
    quiet: bool,
    fin_sent: bool,
    fin_acked: bool,
    reset_after: Option<u64>,
    /// The offset up to which the stack lets us send.
    allowed: u64,
    their_scale: u8,
    /// Whether both sides scale their windows.
    scales: bool,
    mss: u64,
    rto_at: u64,
    rcv: u64,
    /// Received ranges after a gap.
    beyond: BTreeMap<u64, u64>,
    their_end: Option<u64>,
    read: u64,
    buffer: u64,
    /// The offset up to which we let the stack send.
    edge: u64,
    scale: u8,
    ack_due: bool,
    sack: bool,
    timestamps: bool,
    ts_recent: u32,
}

/// The maximum segment size in the far side's SYN.
const MSS: u16 = 1460;

impl Peer {
    pub(crate) fn new(
        index: usize,
        port: usize,
        seed: u64,
        opens: bool,
        style: &Peers,
        rng: &mut Rng,
    ) -> Peer {
        let (key_in, key_out) = keys(seed, port);
        Peer {
            index,
            port,
            phase: if opens {
                Phase::SynSent
            } else {
                Phase::Listening
            },
            reset_by_us: false,
            rto_ns: style.rto_ms * 1_000_000,
            stack_port: SERVER,
            // Often a stream that crosses the end of the sequence space.
            iss: if rng.per_mille(300) {
                (rng.below(4000) as u32).wrapping_sub(6000)
            } else {
                rng.next() as u32
            },
            irs: 0,
            key_in,
            key_out,
            una: 0,
            nxt: 0,
            end: rng.per_mille(style.short).then(|| rng.below(6000)),
            quiet: false,
            fin_sent: false,
            fin_acked: false,
            reset_after: rng.per_mille(style.resets).then(|| rng.below(6000)),
            allowed: 0,
            their_scale: 0,
            scales: style.scale.is_some(),
            mss: 536,
            rto_at: 0,
            rcv: 0,
            beyond: BTreeMap::new(),
            their_end: None,
            read: 0,
            buffer: style.buffer,
            edge: 0,
            scale: style.scale.unwrap_or(0),
            ack_due: false,
            sack: style.sack,
            timestamps: style.timestamps,
            ts_recent: 0,
        }
    }

    /// Bytes received without a gap.
    pub(crate) fn received(&self) -> u64 {
        self.rcv
    }

    /// Bytes sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.nxt
    }

    /// Whether the stack finished its stream, and all of it has arrived.
    pub(crate) fn saw_the_end(&self) -> bool {
        self.their_end == Some(self.rcv)
    }

    /// Whether all that we had to send is sent and acknowledged.
    pub(crate) fn is_content(&self) -> bool {
        self.una == self.nxt && !self.wants_more() && !self.wants_fin() && !self.ack_due
    }

    /// Whether both streams have ended, as far as this side knows.
    pub(crate) fn is_finished(&self) -> bool {
        self.saw_the_end() && self.fin_acked
    }

    /// The stack's initial sequence number, once known.
    pub(crate) fn irs(&self) -> Option<u32> {
        self.is_open().then_some(self.irs)
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::SynReceived)
    }

    /// Ends our stream at the bytes sent so far, with a FIN if `finish`.
    pub(crate) fn stop(&mut self, finish: bool) {
        self.reset_after = None;
        let end = self.end.map_or(self.nxt, |end| end.min(self.nxt));
        if finish || self.fin_sent {
            self.end = Some(end);
        } else {
            self.quiet = true;
        }
    }

    /// Reads up to `len` bytes, which makes room for as many more.
    pub(crate) fn read(&mut self, len: u64) {
        let before = self.window();
        self.read = self.rcv.min(self.read + len);
        let gain = self.window() - before;
        self.ack_due |= gain > 0 && (before < self.mss || gain >= self.buffer / 2);
    }

    pub(crate) fn next_deadline(&self) -> u64 {
        let waits = match self.phase {
            Phase::SynSent | Phase::SynReceived => true,
            Phase::Open => self.una < self.nxt || self.wants_more() || self.wants_fin(),
            Phase::Listening | Phase::Reset | Phase::Replaced => false,
        };
        if waits { self.rto_at } else { u64::MAX }
    }

    fn wants_more(&self) -> bool {
        !self.quiet && self.end.is_none_or(|end| self.nxt < end)
    }

    fn wants_fin(&self) -> bool {
        !self.quiet && self.end == Some(self.nxt) && !self.fin_acked
    }

    /// The receive window, in bytes from `rcv`.
    fn window(&self) -> u64 {
        self.edge.max(self.read + self.buffer) - self.rcv
    }

    // Sending.

    fn segment(
        &mut self,
        flags: u8,
        offset: u64,
        len: u64,
        now: u64,
        seen: &mut Coverage,
    ) -> Segment {
        let scale = if self.scales && flags & SYN == 0 {
            self.scale
        } else {
            0
        };
        let field = (self.window() >> scale).min(0xffff);
        self.edge = self.edge.max(self.rcv + (field << scale));
        if flags & (RST | SYN) == 0 && field == 0 {
            seen.peer_window_closed = true;
        }
        self.ack_due = false;
        let mut sack = Vec::new();
        if self.sack && flags & (SYN | RST) == 0 {
            let seq = |offset: u64| self.irs.wrapping_add(1).wrapping_add(offset as u32);
            let ranges = self.beyond.iter().take(2);
            sack.extend(ranges.map(|(from, to)| (seq(*from), seq(*to))));
        }
        let ended = u32::from(self.saw_the_end());
        let ack = self.irs.wrapping_add(1).wrapping_add(self.rcv as u32);
        Segment {
            src_port: FIRST_PORT + self.port as u16,
            dst_port: self.stack_port,
            seq: self.iss.wrapping_add(1).wrapping_add(offset as u32),
            ack: if flags & ACK != 0 {
                ack.wrapping_add(ended)
            } else {
                0
            },
            flags,
            wnd: field as u16,
            timestamps: (self.timestamps && flags & RST == 0)
                .then_some(((now >> 20) as u32, self.ts_recent)),
            sack,
            payload: pattern(self.key_out, offset, len as usize),
            ..Segment::default()
        }
    }

    fn syn(&mut self, flags: u8, style: &Peers, now: u64, seen: &mut Coverage) -> Segment {
        let answers = flags & ACK != 0;
        let mut syn = self.segment(flags, 0, 0, now, seen);
        syn.seq = self.iss;
        syn.mss = Some(MSS);
        syn.scale = style.scale.filter(|_| !answers || self.scales);
        syn.sack_permitted = self.sack;
        self.rto_at = now + 1_000_000_000;
        syn
    }

    /// Adds data to a SYN. A listener ignores it, so it is sent again.
    fn add_text(&mut self, syn: &mut Segment, rng: &mut Rng) {
        let end = if self.quiet { Some(self.nxt) } else { self.end };
        let len = rng.below(100).min(end.unwrap_or(u64::MAX));
        syn.payload = pattern(self.key_out, 0, len as usize);
        self.nxt = self.nxt.max(len);
    }

    /// Sends if there is a reason to, and sometimes something odd.
    pub(crate) fn emit(
        &mut self,
        now: u64,
        style: &Peers,
        bad: &LinkFaults,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) -> Vec<Segment> {
        let mut out = self.emit_plain(now, style, bad, rng, seen);
        if !rng.per_mille(bad.oddities) {
            return out;
        }
        match &mut out[..] {
            [] if self.phase == Phase::Open => {
                let next = self.nxt + u64::from(self.fin_sent);
                let owed = self.ack_due;
                out.push(self.segment(ACK, next.wrapping_sub(1), 0, now, seen));
                self.ack_due = owed;
            }
            [] => return out,
            [syn] if syn.has(SYN) && rng.per_mille(700) => self.add_text(syn, rng),
            [.., segment] => {
                segment.more_options = ILLEGAL_OPTIONS[rng.index(ILLEGAL_OPTIONS.len())].to_vec();
            }
        }
        seen.odd = true;
        out
    }

    /// Sends overdue data, old data with other segment boundaries, new data, or a bare
    /// acknowledgment.
    /// acknowledgment.
    fn emit_plain(
        &mut self,
        now: u64,
        style: &Peers,
        bad: &LinkFaults,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) -> Vec<Segment> {
        match self.phase {
            Phase::Listening | Phase::Reset | Phase::Replaced => Vec::new(),
            Phase::SynSent if now >= self.rto_at => vec![self.syn(SYN, style, now, seen)],
            Phase::SynReceived if now >= self.rto_at => {
                vec![self.syn(SYN | ACK, style, now, seen)]
            }
            Phase::SynSent | Phase::SynReceived => Vec::new(),
            Phase::Open if self.reset_after.is_some_and(|after| self.nxt >= after) => {
                self.phase = Phase::Reset;
                self.reset_by_us = true;
                vec![self.segment(RST | ACK, self.nxt, 0, now, seen)]
            }
            Phase::Open if now >= self.rto_at && self.next_deadline() != u64::MAX => {
                self.rto_at = now + self.rto_ns;
                vec![self.again(self.una, now, rng, seen)]
            }
            Phase::Open if self.una < self.nxt && rng.per_mille(bad.overlap) => {
                seen.overlap = true;
                let from = rng.between(self.una, self.nxt - 1);
                vec![self.again(from, now, rng, seen)]
            }
            Phase::Open => {
                let mut out = self.new_data(now, style, rng, seen);
                if out.is_empty() && self.ack_due && rng.per_mille(1000 - bad.delayed_acks) {
                    out.push(self.segment(ACK, self.nxt + u64::from(self.fin_sent), 0, now, seen));
                }
                out
            }
        }
    }

    /// Some of the bytes from `from` that the window allows, sent before or not; at least one byte
    /// if the stream has one, even into a closed window.
    fn again(&mut self, from: u64, now: u64, rng: &mut Rng, seen: &mut Coverage) -> Segment {
        let last = if self.quiet {
            self.nxt
        } else {
            self.end.unwrap_or(u64::MAX)
        };
        let most = self.allowed.max(self.nxt).min(last).saturating_sub(from);
        let probe = u64::from(from < last);
        let len = rng.between(1, self.mss).min(most).max(probe);
        self.data(from, len, now, rng, seen)
    }

    fn data(
        &mut self,
        from: u64,
        len: u64,
        now: u64,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) -> Segment {
        self.nxt = self.nxt.max(from + len);
        let mut flags = ACK;
        if rng.per_mille(100) {
            flags |= PSH;
        }
        if !self.quiet
            && self.end == Some(from + len)
            && (self.fin_sent || len == 0 || rng.per_mille(500))
        {
            flags |= FIN;
            self.fin_sent = true;
        }
        self.segment(flags, from, len, now, seen)
    }

    fn new_data(
        &mut self,
        now: u64,
        style: &Peers,
        rng: &mut Rng,
        seen: &mut Coverage,
    ) -> Vec<Segment> {
        let mut out = Vec::new();
        let idle = self.una == self.nxt;
        for _ in 0..if style.bulk { rng.between(1, 8) } else { 1 } {
            let until = self.allowed.min(self.end.unwrap_or(u64::MAX));
            if !self.wants_more() || self.nxt >= until {
                break;
            }
            let full = style.bulk && rng.per_mille(900);
            let len = if full {
                self.mss
            } else {
                rng.between(1, self.mss)
            };
            let len = len.min(until - self.nxt);
            out.push(self.data(self.nxt, len, now, rng, seen));
        }
        if self.wants_fin() && !self.fin_sent {
            out.push(self.data(self.nxt, 0, now, rng, seen));
        }
        if idle && !out.is_empty() {
            self.rto_at = now + self.rto_ns;
        }
        out
    }

    // Receiving.

    /// Handles a segment that arrived undamaged. Returns a segment that must be sent at once.
    ///
    /// # Errors
    /// If the stack did something that it must not do.
    pub(crate) fn arrive(&mut self, seg: &Segment, now: u64) -> Result<Option<Segment>, String> {
        match self.phase {
            Phase::Reset | Phase::Replaced => return Ok(self.refuse(seg)),
            Phase::Listening => {
                if !seg.has(SYN) || seg.has(ACK) {
                    return Ok(self.refuse(seg));
                }
                self.stack_port = seg.src_port;
                self.greeted(seg);
                self.phase = Phase::SynReceived;
                self.rto_at = now;
                return Ok(None);
            }
            Phase::SynSent => {
                let is_answer = seg.has(ACK) && seg.ack == self.iss.wrapping_add(1);
                if !is_answer {
                    // From an earlier connection.
                    return Ok(if seg.has(ACK) { self.refuse(seg) } else { None });
                }
                if seg.has(RST) {
                    return Err(format!("peer {}: our SYN was refused", self.index));
                }
                if seg.has(SYN) {
                    self.greeted(seg);
                    self.phase = Phase::Open;
                    self.allowed = u64::from(seg.wnd);
                    self.ack_due = true;
                    self.rto_at = now + self.rto_ns;
                }
                return Ok(None);
            }
            Phase::SynReceived | Phase::Open => {}
        }
        if seg.src_port != self.stack_port {
            return Ok(self.refuse(seg));
        }
        if seg.has(SYN) {
            self.ack_due = self.phase == Phase::Open;
            if self.phase == Phase::SynReceived {
                self.rto_at = now;
            }
            return Ok(None);
        }
        let expected = self.irs.wrapping_add(1).wrapping_add(self.rcv as u32);
        let offset = self.rcv as i64 + i64::from(seg.seq.wrapping_sub(expected) as i32);
        if seg.has(RST) {
            let end = self.edge as i64 + 1;
            // The stack may have removed a finished connection before the last duplicate arrives.
            if !self.is_finished() && (self.rcv as i64 - 1..=end).contains(&offset) {
                self.phase = Phase::Reset;
            }
            return Ok(None);
        }
        if !seg.has(ACK) {
            return Err(format!(
                "peer {}: a segment without ACK: {seg:?}",
                self.index
            ));
        }
        self.acknowledged(seg, now)?;
        self.taken(seg, offset)?;
        Ok(None)
    }

    /// RST in answer to a segment of no connection (RFC 9293 section 3.10.7.1).
    fn refuse(&self, seg: &Segment) -> Option<Segment> {
        if seg.has(RST) {
            return None;
        }
        let len = seg.payload.len() as u32 + u32::from(seg.has(SYN)) + u32::from(seg.has(FIN));
        let answers = seg.has(ACK);
        Some(Segment {
            src_port: FIRST_PORT + self.port as u16,
            dst_port: seg.src_port,
            seq: if answers { seg.ack } else { 0 },
            ack: if answers {
                0
            } else {
                seg.seq.wrapping_add(len)
            },
            flags: if answers { RST } else { RST | ACK },
            ..Segment::default()
        })
    }

    fn greeted(&mut self, seg: &Segment) {
        self.irs = seg.seq;
        self.mss = u64::from(seg.mss.unwrap_or(536));
        self.sack &= seg.sack_permitted;
        if let Some((value, _)) = seg.timestamps {
            self.ts_recent = value;
        } else {
            self.timestamps = false;
        }
        if self.timestamps {
            self.mss -= 12;
        }
        match seg.scale {
            Some(scale) => self.their_scale = scale,
            None => self.scales = false,
        }
    }

    fn acknowledged(&mut self, seg: &Segment, now: u64) -> Result<(), String> {
        let expected = self.iss.wrapping_add(1).wrapping_add(self.una as u32);
        let ack = self.una as i64 + i64::from(seg.ack.wrapping_sub(expected) as i32);
        let most = self.nxt + u64::from(self.fin_sent);
        if ack > most as i64 {
            return Err(format!(
                "peer {}: byte {ack} acknowledged, {most} sent",
                self.index
            ));
        }
        if self.phase == Phase::SynReceived && ack >= 0 {
            self.phase = Phase::Open;
            self.rto_at = now + self.rto_ns;
        }
        let scale = if self.scales { self.their_scale } else { 0 };
        let ack = ack.max(0) as u64;
        self.allowed = self
            .allowed
            .max(ack.min(self.nxt) + (u64::from(seg.wnd) << scale));
        if ack > self.una {
            self.una = ack.min(self.nxt);
            self.fin_acked |= self.fin_sent && ack == most;
            self.rto_at = now + self.rto_ns;
        }
        Ok(())
    }

    fn taken(&mut self, seg: &Segment, offset: i64) -> Result<(), String> {
        let len = seg.payload.len() as u64;
        // Timestamps wrap around (RFC 7323 section 5.2).
        if let Some((value, _)) = seg.timestamps
            && offset <= self.rcv as i64
            && value.wrapping_sub(self.ts_recent) as i32 > 0
        {
            self.ts_recent = value;
        }
        if len == 0 && !seg.has(FIN) {
            // Below the next expected byte: a keepalive, which wants an acknowledgment.
            self.ack_due |= offset < self.rcv as i64;
            return Ok(());
        }
        self.ack_due = true;
        if offset < 0 {
            return Err(format!(
                "peer {}: text before the stream begins",
                self.index
            ));
        }
        let from = offset as u64;
        if from + len > self.edge + 1 {
            return Err(format!(
                "peer {}: bytes {from}..{} sent, {} allowed",
                self.index,
                from + len,
                self.edge
            ));
        }
        let expected = pattern(self.key_in, from, len as usize);
        if let Some(at) = (0..expected.len()).find(|&i| expected[i] != seg.payload[i]) {
            return Err(format!(
                "peer {}: byte {} of the stream is {:#04x}, should be {:#04x}",
                self.index,
                from + at as u64,
                seg.payload[at],
                expected[at]
            ));
        }
        if seg.has(FIN) {
            let end = from + len;
            if self.their_end.is_some_and(|known| known != end) {
                return Err(format!("peer {}: the stream ends twice", self.index));
            }
            self.their_end = Some(end);
        }
        if self.their_end.is_some_and(|end| from + len > end) {
            return Err(format!("peer {}: text behind the end", self.index));
        }
        self.gather(from, (from + len).min(self.edge));
        Ok(())
    }

    fn gather(&mut self, from: u64, to: u64) {
        if to <= from {
            return;
        }
        let known = self.beyond.entry(from).or_insert(to);
        *known = to.max(*known);
        while let Some((&from, &to)) = self.beyond.first_key_value() {
            if from > self.rcv {
                break;
            }
            self.rcv = self.rcv.max(to);
            self.beyond.remove(&from);
        }
    }
}
