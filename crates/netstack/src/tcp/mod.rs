//! TCP as plain data: what a connection knows, and how requests change it (RFC 9293).
//!
//! A [`Tcb`] never sees a payload byte, a clock, a thread or a socket. It is told what happened, and
//! answers through a [`Cx`]: received octets are named by `Effect::Deliver`, frames to build by
//! `Effect::Transmit`. The same calls with the same arguments always leave the same state and the same
//! effects, which is what lets several replicas keep copies of one connection.
//!
//! # Which call, when
//!
//! | when | call |
//! |---|---|
//! | a connection begins | [`Tcb::open`] (active), [`Tcb::passive`] (a SYN for a listening port) |
//! | a request is about the connection | [`Tcb::progress`], then any of [`Tcb::on_time`], [`Tcb::segment`] (once for every piece of the run), [`Tcb::shutdown`], [`Tcb::orphan`], [`Tcb::abort`] |
//! | the request has been told completely | [`Tcb::finish`], once; only here do frames leave, but for answers to segments that no connection wants |
//! | a deadline ([`Tcb::next_deadline`]) is due | [`Tcb::on_time`], [`Tcb::finish`] |
//! | an ICMP error quotes a segment of it | [`Tcb::network_error`], [`Tcb::finish`] |
//! | there is transmit credit again, or frames were sent | [`Tcb::finish`], if the last one asked for it |
//! | no connection wants a segment | [`reset_for`] |
//!
//! # What holds after every call
//!
//! - `snd_una <= snd_nxt <= snd_max <= end of what was written`, in sequence space.
//! - The right edge of the receive window never moves left, nor past `read + receive_buffer`.
//! - Every octet of the receive stream has been named by at most one `Deliver`; every octet before
//!   `rcv_nxt` by exactly one.
//! - Frames are numbered in order, none at or past the limit.
//! - Nothing that the wire says makes a call panic.
//!
//! # Where the roads lie
//!
//! `arrive.rs` is SEGMENT ARRIVES in the order of the RFC; `predict.rs` is the short road through it for
//! the segments of a bulk transfer, and equal to it; `row.rs` walks it once for several of them. `ack.rs` holds what an acceptable acknowledgment
//! changes, `window.rs` what we let the peer send, `snd.rs` what it lets us send, `send.rs` the frames that
//! carry it. `recovery.rs` finds what was lost and says when it leaves again; `flight.rs` is its scoreboard, `rack.rs`
//! its sense of time, `undo.rs` sets things back if nothing was lost. `path.rs` is what the network says of the way, `cookie.rs` a handshake that leaves nothing
//! behind. `reassembly.rs`, `retransmit.rs` and `congestion` are arithmetic; `user.rs` the calls of
//! the application.
//!
//! # Departures from the RFCs
//!
//! - The retransmission timeout may fall to 200 ms; RFC 6298 section 2.4 says 1 s ([`RTO_MIN`]).
//! - A segment without text that begins right at the edge of a window that is not closed is acceptable,
//!   though RFC 9293 section 3.10.7.4 wants it before the edge: it carries the acknowledgments of a peer
//!   that has filled the window.
//! - The acknowledgment of a segment without text that begins before RCV.NXT, by a window at most, counts if it is news,
//!   though the same table drops it: who has sent more than the window seems to hold speaks from its edge (an older window
//!   may overtake a newer one, and the octet of a probe lies behind every edge). When both sides do, neither would listen.
//! - A segment that begins before a window and ends behind it is trimmed at both ends; the table in the
//!   same section drops it, but devices merge segments.
//! - The urgent pointer is ignored and urgent data taken inline (RFC 6093 says that new applications
//!   should not use it).
//! - Text on a SYN is not taken; the peer sends it again after the handshake.
//! - CLOSE in SYN-SENT keeps what was written and sends FIN behind it, where RFC 9293 section 3.10.4
//!   deletes the connection; when nobody holds the connection any more it is deleted.
//! - A SYN-ACK is sent for a minute, where RFC 9293 section 3.8.3 wants three for every SYN: what waits for
//!   its acknowledgment takes a place of the SYN queue, and most that wait so long were forged.
//! - An open ends when the network says that the peer cannot be reached and three repetitions of the SYN brought no
//!   answer; RFC 1122 section 4.2.3.9 would wait for the whole timeout (RFC 5461 section 4 describes both).
//! - An ICMP error about a question to an idle peer counts, though RFC 5927 section 4.1 wants its number at or after
//!   SND.UNA, and the question has the one before: nothing else would say why nobody answers.
//! - A timeout that was none leaves the retransmission timer as the next measurements make it; RFC 4015 section 3.3 would
//!   begin the estimate anew.
//! - After a timeout, what is lost leaves again at once, where F-RTO would try new text first (RFC 5682 section 3.1, step
//!   2.b); and it takes SACK.
//! - Without timestamps too little is measured for HyStart++ (RFC 9406): slow start ends with a loss then.
//! - FIN-WAIT-2 of a connection that nobody holds ends after [`FIN_WAIT_2`]; the RFC would wait forever.
//! - Small segments wait only for small ones in flight (a form of Nagle's algorithm, RFC 9293
//!   section 3.7.4, that lets the end of every large write leave at once).

mod ack;
mod arrive;
mod congestion;
mod cookie;
mod ecn;
mod flight;
mod keepalive;
mod path;
mod predict;
mod rack;
mod reassembly;
mod recovery;
mod retransmit;
mod row;
mod send;
mod snd;
#[cfg(test)]
mod tests;
mod tuning;
mod undo;
mod user;
pub(crate) mod walk;
mod window;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::config::{Limits, Settings};
use crate::digest::{ConnId, Flow, Mac, Segment};
use crate::effect::{Deliver, Effect, EffectSink, FrameNumbers};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

use congestion::Congestion;
use flight::Flight;
use keepalive::Keepalive;
use path::Path;
use predict::Road;
use reassembly::Reassembly;
use recovery::Recovery;
use retransmit::{Retransmit, Timers};
use snd::Snd;
use tuning::Tuning;
use undo::Undo;
#[cfg(any(test, feature = "testkit"))]
use walk::Walk;
use walk::{walk, walk_variants};
use window::Rcv;

pub use arrive::{reset_at, reset_for};
pub use cookie::{COOKIE_LIFE, Returned, answer_with_cookie, restore_from_cookie};
pub use retransmit::{RTO_INITIAL, RTO_MAX, RTO_MIN};
pub(crate) use row::Lengths;
pub use send::Finish;

/// Maximum segment lifetime, 30 s; TIME-WAIT lasts twice as long. RFC 9293 section 3.4.2 proposes two
/// minutes and leaves it to experience.
pub const MSL: Duration = Duration::from_secs(30);

/// How long an acknowledgment may wait for a second segment, 40 ms (RFC 9293 section 3.8.6.3 allows
/// less than 500 ms).
pub const DELAYED_ACK: Duration = Duration::from_millis(40);

/// How long a connection that nobody holds stays in FIN-WAIT-2, 60 s.
pub const FIN_WAIT_2: Duration = Duration::from_secs(60);

/// Transmissions of a SYN beyond the first before the open fails, after 183 s (RFC 9293 section 3.8.3: at least
/// three minutes).
pub const SYN_RETRIES: u8 = 7;

/// Transmissions of a SYN-ACK beyond the first before a half-open connection is forgotten, after 63 s.
pub const SYN_ACK_RETRIES: u8 = 5;

/// Transmissions of an octet beyond the first before the connection fails: R2 of RFC 9293 section 3.8.3.
pub const DATA_RETRIES: u8 = 15;

/// Unasked-for acknowledgments (RFC 5961) of one connection within a second, at most.
pub const CHALLENGES_PER_SECOND: u8 = 10;

/// Everything that a [`Tcb`] needs from outside while it handles one request.
///
/// It serves one connection at a time: call that connection's [`Tcb::finish`] before handing it to
/// another.
#[derive(Debug)]
pub struct Cx<'a, S: EffectSink> {
    /// When the request was published.
    pub now: Instant,
    /// Numbers outgoing frames.
    pub frames: &'a mut FrameNumbers,
    /// The bounds that all replicas share.
    pub limits: &'a Limits,
    /// Takes the effects.
    pub out: &'a mut S,
    /// The newest delivery, held back because only the last of a request says so.
    held: Held,
}

impl<'a, S: EffectSink> Cx<'a, S> {
    /// For one request.
    #[inline]
    pub fn new(
        now: Instant,
        frames: &'a mut FrameNumbers,
        limits: &'a Limits,
        out: &'a mut S,
    ) -> Self {
        Cx {
            now,
            frames,
            limits,
            out,
            held: Held::NONE,
        }
    }

    /// The same for a part of the request that is not on the short road, with nothing held back: what is lent to others
    /// cannot stay in registers, and this does.
    #[inline(always)]
    fn aside(&mut self) -> Cx<'_, S> {
        debug_assert!(self.held.len == 0);
        Cx::new(self.now, self.frames, self.limits, self.out)
    }

    /// Lets the delivery that was held back go.
    #[inline(always)]
    fn push_held(&mut self, conn: ConnId, delivery: u64, end: u64, last: bool) {
        let Held {
            stream_offset,
            run_offset,
            len,
        } = self.held;
        self.held.len = 0;
        self.out.push(Effect::Deliver(Deliver {
            conn,
            run_offset,
            len,
            stream_offset,
            delivery,
            end,
            last,
        }));
    }
}

/// What of a delivery its connection does not know by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stream_offset: u64,
    run_offset: u32,
    /// 0: nothing is held back.
    len: u32,
}

impl Held {
    const NONE: Held = Held {
        stream_offset: 0,
        run_offset: 0,
        len: 0,
    };
}

/// RFC 9293 section 3.3.2. `Tcb::enter` is the only writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(u8)]
pub enum State {
    /// No connection, or no longer one.
    Closed,
    /// Waiting for any peer. No [`Tcb`] is ever in it: listening is a table of ports.
    Listen,
    /// Our SYN is out, or waits for room.
    SynSent,
    /// Both SYNs are known, ours is not acknowledged.
    SynReceived,
    /// The usual state of a data transfer.
    Established,
    /// We said FIN, or will when all is sent; the peer did not, nor acknowledged ours.
    FinWait1,
    /// The peer acknowledged our FIN and said none.
    FinWait2,
    /// The peer said FIN; we did not.
    CloseWait,
    /// Both said FIN; the peer did not acknowledge ours.
    Closing,
    /// The peer said FIN first; we wait for the acknowledgment of ours.
    LastAck,
    /// All is done; old segments may still arrive.
    TimeWait,
}

walk_variants!(State {
    Closed,
    Listen,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
});

impl State {
    /// All of them, in the order of the RFC.
    pub const ALL: [State; 11] = [
        State::Closed,
        State::Listen,
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
        State::TimeWait,
    ];

    /// The edges of the connection diagram (RFC 9293 figure 5, with what its notes and section 3.10 add:
    /// every connection may be reset or aborted).
    pub const fn may_enter(self, next: State) -> bool {
        use State::{
            CloseWait, Closed, Closing, Established, FinWait1, FinWait2, LastAck, Listen,
            SynReceived, SynSent, TimeWait,
        };
        match self {
            Closed => matches!(next, Listen | SynSent | SynReceived),
            Listen => matches!(next, SynSent | SynReceived | Closed),
            SynSent => matches!(next, SynReceived | Established | Closed),
            SynReceived => matches!(next, Established | FinWait1 | Listen | Closed),
            Established => matches!(next, FinWait1 | CloseWait | Closed),
            FinWait1 => matches!(next, FinWait2 | Closing | TimeWait | Closed),
            FinWait2 => matches!(next, TimeWait | Closed),
            CloseWait => matches!(next, LastAck | Closed),
            Closing => matches!(next, TimeWait | Closed),
            LastAck | TimeWait => matches!(next, Closed),
        }
    }

    /// Whether the handshake is complete (RFC 9293 section 3.10.7.4 onwards).
    pub const fn is_synchronized(self) -> bool {
        !matches!(
            self,
            State::Closed | State::Listen | State::SynSent | State::SynReceived
        )
    }

    /// Whether text may flow in one direction at least.
    #[inline]
    const fn carries_text(self) -> bool {
        self.is_synchronized() && !matches!(self, State::TimeWait)
    }

    /// Whether text of the peer is still taken.
    const fn takes_text(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }
}

/// One connection: the transmission control block of RFC 9293 section 3.3.1.
///
/// Parts that every segment touches stand first and together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[repr(C)]
pub struct Tcb {
    rcv: Rcv,
    snd: Snd,
    state: State,
    /// What [`Tcb::predicted`] may take.
    road: Road,
    /// Nobody holds the connection any more; implies that our side is shut down.
    orphan: bool,
    /// It began with a passive OPEN.
    passive: bool,
    conn: ConnId,
    mac: Mac,
    flow: Flow,
    /// Counts how often something changed that the headers of all frames say.
    heading: u32,
    timers: Timers,
    congestion: Congestion,
    retransmit: Retransmit,
    flight: Flight,
    recovery: Recovery,
    undo: Undo,
    challenges: Challenges,
    settings: Settings,
    keepalive: Keepalive,
    tuning: Tuning,
    path: Path,
    reassembly: Reassembly,
}

walk!(Tcb, "tcb", {
    rcv, snd, state, road, orphan, passive, conn, mac, flow, heading, timers, congestion, retransmit,
    flight, recovery, undo, challenges, settings, keepalive, tuning, path, reassembly,
});

/// Counts unasked-for acknowledgments (RFC 5961 section 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
struct Challenges {
    /// When the second began that `sent` counts.
    since: Instant,
    sent: u8,
}

walk!(Challenges, "challenges", { since, sent });

impl Challenges {
    /// Whether one more may be sent at `now`.
    fn allow(&mut self, now: Instant) -> bool {
        if now.since(self.since) >= Duration::from_secs(1) {
            self.since = now;
            self.sent = 0;
        }
        let allowed = self.sent < CHALLENGES_PER_SECOND;
        self.sent += u8::from(allowed);
        allowed
    }
}

impl Tcb {
    /// Where the connection stands.
    #[inline]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the connection is over and nothing of it is left to be sent.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.snd.owes_reset()
    }

    /// Both ends, ours first.
    #[inline]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// Its name.
    #[inline]
    pub const fn conn(&self) -> ConnId {
        self.conn
    }

    /// Whether it began with a passive OPEN.
    #[inline]
    pub const fn is_passive(&self) -> bool {
        self.passive
    }

    /// Lets its timestamps count from `offset`, before the first one leaves (RFC 7323 section 5.4).
    pub const fn set_timestamp_offset(&mut self, offset: u32) {
        self.rcv.ts_offset = offset;
    }

    /// Gives it the name that it keeps, before anything was told of it.
    pub const fn set_conn(&mut self, conn: ConnId) {
        self.conn = conn;
    }

    /// Where its frames go.
    pub const fn mac(&self) -> Mac {
        self.mac
    }

    /// Where its frames go from now on.
    pub const fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
        self.heading = self.heading.wrapping_add(1);
    }

    /// The number after the highest that was sent. A connection that takes the place of this one in
    /// TIME-WAIT begins past it (RFC 9293 section 3.6.1).
    pub const fn snd_nxt(&self) -> SeqNum {
        self.snd.max
    }

    /// The number of a reset that the peer believes, should one have to leave.
    #[inline]
    pub(crate) fn reset_seq(&self) -> SeqNum {
        self.snd.control_seq()
    }

    /// How many octets of the receive stream are there without a gap.
    pub const fn received(&self) -> u64 {
        self.rcv.offset
    }

    /// How many octets of the send stream the peer acknowledged.
    pub const fn acknowledged(&self) -> u64 {
        self.snd.una_offset
    }

    /// `cwnd`, octets (RFC 5681 section 2).
    pub const fn cwnd(&self) -> u32 {
        self.congestion.cwnd()
    }

    /// SRTT (RFC 6298 section 2); zero before the first measurement.
    pub const fn srtt(&self) -> Duration {
        self.retransmit.srtt
    }

    /// When [`Tcb::on_time`] wants to be called next; [`Instant::NEVER`] if it does not.
    #[inline]
    pub const fn next_deadline(&self) -> Instant {
        self.timers.next()
    }

    /// SEGMENT ARRIVES (RFC 9293 section 3.10.7), for each piece of a run.
    #[inline]
    pub fn segment<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        if !self.predicted(seg, cx) {
            self.leave_road();
            self.arrives(seg, cx);
        }
    }

    /// Moves along an edge of the connection diagram.
    ///
    /// # Panics
    /// If there is no such edge.
    fn enter(&mut self, next: State) {
        assert!(
            self.state.may_enter(next),
            "{:?} has no edge to {next:?}",
            self.state
        );
        self.state = next;
        self.leave_road();
        if matches!(next, State::Closed | State::TimeWait) {
            self.timers.stop_all();
            self.snd.stop();
            self.forget_flight();
        }
        if next == State::Closed {
            self.rcv.ack = window::AckDue::None;
        }
    }

    /// A number that differs, but for bad luck, when any field differs.
    pub fn fingerprint(&self) -> u64 {
        walk::fingerprint(self)
    }

    /// Folds into `h` where both streams stand: what a segment changes, for once a request. All the rest is in
    /// [`Tcb::fingerprint`].
    #[inline(always)]
    pub fn fold(&self, h: u64) -> u64 {
        positions(h, &self.rcv, &self.snd)
    }

    /// The name of the first field whose value differs in `other`.
    pub fn first_difference(&self, other: &Tcb) -> Option<&'static str> {
        walk::first_difference(self, other)
    }
}

/// Changes behind a connection's back, as a machine that fails makes them: for tests of what finds them.
#[cfg(any(test, feature = "testkit"))]
impl Tcb {
    /// How many bits [`Tcb::flip`] knows, as the connection stands: collections have as many as are in them.
    pub fn bits(&self) -> u32 {
        walk::Flip::bits(self)
    }

    /// Changes bit `bit` of [`Tcb::bits`], and returns the name of the field that it belongs to; `None` if there is no
    /// such bit. An enum becomes another of its variants, an option one thing or nothing, a collection longer or
    /// shorter by one.
    pub fn flip(&mut self, bit: u32) -> Option<&'static str> {
        let mut flip = walk::Flip::new(bit);
        Walk::flip(self, "", &mut flip);
        flip.hit()
    }
}

/// Where both streams stand, folded into `h`.
#[inline(always)]
fn positions(h: u64, rcv: &Rcv, snd: &Snd) -> u64 {
    let pair = |a: SeqNum, b: SeqNum| u64::from(a.0) << 32 | u64::from(b.0);
    mix2(h, pair(rcv.nxt, rcv.edge), pair(snd.una, snd.nxt))
}

/// Two values in one step: halves of a 128-bit product.
#[inline]
const fn mix2(h: u64, a: u64, b: u64) -> u64 {
    let product = ((h ^ a ^ 0x9e37_79b9_7f4a_7c15) as u128)
        * ((b ^ h.rotate_left(32) ^ 0xd1b5_4a32_d192_ed03) as u128);
    product as u64 ^ (product >> 64) as u64
}
