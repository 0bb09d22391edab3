//! TCP as plain data: the state of a connection, and how requests change it (RFC 9293).
//!
//! A [`Tcb`] never sees a payload byte, a clock, a thread or a socket. Its caller reports events,
//! and the [`Tcb`] answers through a [`Cx`]: `Effect::Deliver` names received bytes,
//! `Effect::Transmit` names frames to build. The same calls with the same arguments always produce
//! equal states and effects, so several replicas can keep equal copies of one connection.
//!
//! # Calls
//!
//! | when | call |
//! |---|---|
//! | a connection begins | [`Tcb::open`] (active), [`Tcb::passive`] (a SYN for a listening port) |
//! | a request concerns the connection | [`Tcb::progress`], then any of [`Tcb::on_time`], [`Tcb::segment`] (once for every piece of the run), [`Tcb::shutdown`], [`Tcb::orphan`], [`Tcb::abort`] |
//! | the request holds nothing more for the connection | [`Tcb::finish`], once; only it sends frames, except answers to segments that no connection accepts |
//! | a deadline ([`Tcb::next_deadline`]) is due | [`Tcb::on_time`], [`Tcb::finish`] |
//! | an ICMP error quotes one of its segments | [`Tcb::network_error`], [`Tcb::finish`] |
//! | transmit credit is available again, or frames were sent | [`Tcb::finish`], if the last one asked for it |
//! | no connection accepts a segment | [`reset_for`] |
//!
//! # Invariants after every call
//!
//! - `snd_una <= snd_nxt <= snd_max <= end of the written data`, in sequence space.
//! - The right edge of the receive window never moves left, nor past `read + receive_buffer`.
//! - Every byte of the receive stream has been named by at most one `Deliver`; every byte before
//!   `rcv_nxt` by exactly one.
//! - Frames are numbered in order, none at or past the limit.
//! - No content of a segment makes a call panic.
//!
//! # Files
//!
//! `arrive.rs` is SEGMENT ARRIVES in the order of the RFC. `fast_path.rs` is an equivalent shortcut
//! for the segments of a bulk transfer. `ack.rs` processes acceptable acknowledgments,
//! `receive_space.rs` bounds what the peer may send, and widens that, `send_space.rs` bounds what we
//! may send, and `send.rs` numbers the frames. `recovery.rs` detects loss and schedules retransmissions, with the
//! scoreboard in `scoreboard.rs` and the times in `rack.rs`; `undo.rs` reverts a reduction of the
//! window if nothing was lost. `pmtu.rs` handles ICMP errors and the path MTU, `cookie.rs` does
//! handshakes without state, `pacing.rs` spreads what is sent over time. `retransmit.rs` estimates
//! the timeout, handles every timer that is due, and ends a connection that failed; `keepalive.rs`
//! has the rules of the keepalive timer. `delayed_ack.rs` decides when received data is
//! acknowledged, `ecn.rs` handles congestion marks.
//! `reassembly.rs` and `congestion` are arithmetic; `user.rs` holds the calls of the application,
//! `fields.rs` the list of all fields.
//!
//! # Departures from the RFCs
//!
//! - The retransmission timeout may fall to 200 ms; RFC 6298 section 2.4 requires 1 s
//!   ([`RTO_MIN`]).
//! - A segment without data that begins exactly at the right edge of an open window is
//!   acceptable, although RFC 9293 section 3.10.7.4 requires a number before the edge: such a
//!   segment carries the acknowledgments of a peer that has filled the window.
//! - If a segment without data begins before RCV.NXT, by one window at most, its acknowledgment
//!   counts when it is new, although the same table drops the segment: a peer that overran the
//!   window sends from the window's edge (an older window update may overtake a newer one, and
//!   the byte of a window probe is past every edge). If both sides overran, each would
//!   otherwise ignore the other.
//! - A segment that begins before the window and ends after it is trimmed at both ends; the
//!   table in that section drops it, but devices merge segments.
//! - The urgent pointer is ignored and urgent data is taken inline (RFC 6093 advises new
//!   applications not to use it).
//! - Data on a SYN for a listening port is not taken; the peer retransmits it after the handshake.
//! - CLOSE in SYN-SENT keeps the written data and sends FIN after it, where RFC 9293 section
//!   3.10.4 deletes the connection. A connection without a socket is deleted.
//! - A SYN-ACK is retransmitted for a minute, where RFC 9293 section 3.8.3 requires three
//!   minutes for every SYN: a half-open connection occupies an entry of the SYN queue, and most
//!   that wait so long come from forged SYNs.
//! - An active OPEN fails when an ICMP error reports the peer unreachable and three
//!   retransmissions of the SYN brought no answer; RFC 1122 section 4.2.3.9 would wait for the
//!   whole timeout (RFC 5461 section 4 describes both).
//! - An ICMP error that quotes a keepalive probe counts, although RFC 5927 section 4.1 requires
//!   a number at or after SND.UNA and the probe has the one before: nothing else would report
//!   why the peer does not answer.
//! - After a spurious timeout, the next measurements set the retransmission timer; RFC 4015
//!   section 3.3 would restart the estimate.
//! - After a timeout, lost data is retransmitted at once, where F-RTO would try new data first
//!   (RFC 5682 section 3.1, step 2.b); and F-RTO is used with SACK too.
//! - BBR follows draft-ietf-ccwg-bbr-06, and needs SACK: a peer without it gets CUBIC (section
//!   4.1.3.5.1 would estimate). Loss without a queue counts as the path's, up to 5 %; the draft
//!   (section 5.5.10) takes each loss for congestion, and so keeps a third of the bandwidth at 5 %
//!   of random loss. The pacing margin does not lower a rate that loss has lowered: otherwise
//!   random loss would cost more in each round trip. A paced send that is late makes up for half
//!   of its own duration, as on Linux, because timers do not fire early. A congestion mark (RFC
//!   3168) counts as a lost segment.
//! - Without timestamps there are too few measurements for HyStart++ (RFC 9406), so slow start
//!   ends with a loss.
//! - FIN-WAIT-2 of a connection without a socket ends after [`FIN_WAIT_2`]; the RFC would wait
//!   forever.
//! - A small segment waits only while another small one is in flight (a form of Nagle's
//!   algorithm, RFC 9293 section 3.7.4, that sends the end of every large write at once).
//! - One acknowledgment covers one run or several: RFC 9293 section 3.8.6.3 wants one for at least
//!   every second full-sized segment. A run of up to 60 segments, or a frame that a device merged,
//!   is acknowledged once. Of those that were claimed from the device together, full runs (120
//!   segments by default) and merged frames (up to 512 KiB) are acknowledged with the last
//!   ([`Digest::FOLLOWED`](crate::log::request::Digest::FOLLOWED)). The delay is harmless because
//!   the later segments have already arrived. Linux also acknowledges several merged frames at once
//!   while the application reads.
//! - Every frame has the don't-fragment bit and identification 0 (RFC 6864 section 4.1). That
//!   is allowed; a frame that may be fragmented would need a unique number, and `pmtu.rs`
//!   another rule.
//! - SACK blocks are sent in segments without payload. RFC 2018 section 4 wants them in every
//!   acknowledgment that does not cover everything. If payload leaves while blocks are owed, a
//!   separate segment with the blocks follows it; so payload is always cut at the full segment
//!   size.
//! - A tail loss probe waits for at least 10 ms. RFC 8985 section 7.2 requires two round trips;
//!   a busy peer nearby may take longer.
//! - If a SACK block reports a retransmission, RACK ignores TSecr, which RFC 8985 section 6.2,
//!   step 2 compares: beyond a gap it is always older (RFC 7323 section 4.3, case (B)), so
//!   neither a probe nor a later retransmission would show a loss. Linux does likewise.
//! - After a timeout all data in flight that was not reported as received counts as lost (RFC
//!   6675 section 5.1). RFC 8985 section 6.3 would except data sent within the last round trip.
//! - The reply path is the arrival path: a connection that a peer opened answers to the
//!   link-layer address of its SYN until ARP reports another.
//! - SYN cookies lose options. While the SYN queue is full, initial sequence numbers do not
//!   follow the clock of RFC 9293 section 3.4.1, an MSS is rounded down to one of eight,
//!   windows are scaled and acknowledgments selective only with timestamps, and payload that
//!   overtakes the first segment after the handshake is dropped (RFC 4987 section 3.6).
//! - A path MTU below 296 bytes is ignored, although RFC 791 allows 68: such an error is more
//!   likely an attack than a network.
//! - TIME-WAIT ends early when the connection table is nearly full (7 of 8 entries), the oldest
//!   first. RFC 9293 section 3.6.1 wants two segment lifetimes; a server that closes first
//!   would otherwise refuse all connections for a minute.
//!
//! [`ip`](crate::ip) lists the departures of IPv4, ARP, ICMP and UDP.

mod ack;
mod arrive;
mod congestion;
mod cookie;
mod delayed_ack;
mod ecn;
mod fast_path;
pub mod fields;
mod keepalive;
mod pacing;
mod pmtu;
mod rack;
mod reassembly;
mod receive_space;
mod recovery;
mod retransmit;
mod scoreboard;
mod send;
mod send_space;
#[cfg(test)]
mod tests;
mod undo;
mod user;

use crate::config::{Limits, Settings, Tuning};
use crate::log::effect::{CommonHeaders, Deliver, Effect, EffectSink, FrameNumbers};
use crate::log::request::{ConnId, Flow, Mac, Segment};
use crate::seqnum::SeqNum;
use crate::stats::StateStats;
use crate::time::{Duration, Instant};

use congestion::Congestion;
use fast_path::FastPath;
#[cfg(any(test, feature = "testkit"))]
use fields::Fields;
use fields::{field_variants, fields};
use keepalive::KeepaliveTimer;
use pmtu::PathMtu;
use reassembly::Reassembly;
use receive_space::{Autotune, ReceiveSpace};
use recovery::Recovery;
use retransmit::{Retransmit, Timers};
use scoreboard::Scoreboard;
use send_space::SendSpace;
use undo::Undo;

pub use arrive::{reset_at, reset_for};
pub use cookie::{COOKIE_LIFE, ReturnedCookie, answer_with_cookie, restore_from_cookie};
pub use delayed_ack::DELAYED_ACK;
pub use retransmit::{RTO_INITIAL, RTO_MAX, RTO_MIN};
pub use send::Finish;

/// Maximum segment lifetime, 30 s; TIME-WAIT lasts twice as long. RFC 9293 section 3.4.2 proposes
/// two minutes and leaves it to experience.
pub const MSL: Duration = Duration::from_secs(30);

/// How long a connection without a socket stays in FIN-WAIT-2, 60 s.
pub const FIN_WAIT_2: Duration = Duration::from_secs(60);

/// Transmissions of a SYN beyond the first before the open fails, after 183 s (RFC 9293 section
/// 3.8.3: at least three minutes).
pub const SYN_RETRIES: u8 = 7;

/// Transmissions of a SYN-ACK beyond the first before a half-open connection is closed, after 63 s.
pub const SYN_ACK_RETRIES: u8 = 5;

/// Transmissions of a byte beyond the first before the connection fails: R2 of RFC 9293 section
/// 3.8.3.
pub const DATA_RETRIES: u8 = 15;

/// Maximum number of challenge acknowledgments (RFC 5961) of one connection within a second. The
/// same number of answers may leave to segments without data that the peer itself probably sent.
pub const CHALLENGES_PER_SECOND: u8 = 10;

/// The context of a request: everything that a [`Tcb`] needs from outside while it handles one.
///
/// It serves one connection at a time: call that connection's [`Tcb::finish`] before passing it
/// to another.
#[derive(Debug)]
pub struct Cx<'a, S: EffectSink> {
    /// When the request was published.
    pub now: Instant,
    /// Numbers outgoing frames.
    pub frames: &'a mut FrameNumbers,
    /// The limits that all replicas share.
    pub limits: &'a Limits,
    /// Receives the effects.
    pub out: &'a mut S,
    /// The newest delivery, kept back because only the last one of a request is marked as last.
    pending_delivery: PendingDelivery,
}

impl<'a, S: EffectSink> Cx<'a, S> {
    /// Creates the context of one request.
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
            pending_delivery: PendingDelivery::NONE,
        }
    }

    /// Returns a copy of the context, without a pending delivery, for a part of the request
    /// outside the fast path. A borrowed value cannot stay in registers; the copy keeps the
    /// pending delivery in them.
    #[inline(always)]
    fn outside_fast_path(&mut self) -> Cx<'_, S> {
        debug_assert!(self.pending_delivery.len == 0);
        Cx::new(self.now, self.frames, self.limits, self.out)
    }

    /// Pushes the pending delivery.
    #[inline(always)]
    fn push_pending_delivery(&mut self, conn: ConnId, delivery: u64, end: u64, last: bool) {
        let PendingDelivery {
            stream_offset,
            run_offset,
            len,
        } = self.pending_delivery;
        self.pending_delivery.len = 0;
        self.out.make_room();
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

/// The parts of a delivery that its connection does not store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingDelivery {
    stream_offset: u64,
    run_offset: u32,
    /// 0: there is no pending delivery.
    len: u32,
}

impl PendingDelivery {
    const NONE: PendingDelivery = PendingDelivery {
        stream_offset: 0,
        run_offset: 0,
        len: 0,
    };
}

/// Declares the states and `State::ALL`.
macro_rules! states {
    ($($(#[$doc:meta])* $state:ident,)*) => {
        /// RFC 9293 section 3.3.2. `Tcb::enter` is the only writer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum State {
            $($(#[$doc])* $state,)*
        }

        field_variants!(State in State::ALL);

        impl State {
            /// All states, in the order of the RFC.
            pub const ALL: [State; 11] = [$(State::$state,)*];
        }
    };
}

states! {
    /// There is no connection, or it is closed.
    Closed,
    /// Waiting for any peer. No [`Tcb`] is ever in it: listening is a table of ports.
    Listen,
    /// Our SYN is out, or waits for room.
    SynSent,
    /// Both SYNs are known; ours is not acknowledged.
    SynReceived,
    /// The usual state of a data transfer.
    Established,
    /// We sent FIN, or will once all data is sent; the peer has neither sent FIN nor
    /// acknowledged ours.
    FinWait1,
    /// The peer acknowledged our FIN and has sent none.
    FinWait2,
    /// The peer sent FIN; we have not.
    CloseWait,
    /// Both sent FIN; the peer has not acknowledged ours.
    Closing,
    /// The peer sent FIN first; we wait for the acknowledgment of ours.
    LastAck,
    /// Both directions are closed; old segments may still arrive.
    TimeWait,
}

impl State {
    /// The edges of the connection diagram (RFC 9293 figure 5, with the additions of its notes
    /// and of section 3.10: every connection may be reset or aborted).
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

    /// Whether data may flow in at least one direction.
    #[inline]
    const fn carries_data(self) -> bool {
        self.is_synchronized() && !matches!(self, State::TimeWait)
    }

    /// Whether data from the peer is still accepted.
    const fn accepts_data(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }
}

/// One connection: the transmission control block of RFC 9293 section 3.3.1.
///
/// The fields that every segment uses come first and are adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Tcb {
    rcv: ReceiveSpace,
    snd: SendSpace,
    state: State,
    /// The segments that [`Tcb::try_fast_path`] may take.
    fast_path: FastPath,
    /// The connection has no socket any more; this implies that our side is shut down.
    orphan: bool,
    /// The connection began with a passive OPEN.
    passive: bool,
    /// The counter that includes the connection.
    counted: Counted,
    /// What these segments have as [`Digest::bits`](crate::log::request::Digest::bits), without
    /// those that vary.
    expected_bits: u8,
    common: CommonHeaders,
    timers: Timers,
    congestion: Congestion,
    retransmit: Retransmit,
    scoreboard: Scoreboard,
    recovery: Recovery,
    undo: Undo,
    challenges: Challenges,
    settings: Settings,
    tuning: Tuning,
    keepalive: KeepaliveTimer,
    autotune: Autotune,
    pmtu: PathMtu,
    reassembly: Reassembly,
}

/// The counter that includes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Counted {
    /// None yet.
    Opening,
    /// `established`.
    Established,
    /// `no_longer_established` too, or `failed_opens`.
    Over,
}

field_variants!(Counted {
    Opening,
    Established,
    Over
});

fields!(Tcb, "tcb", {
    rcv, snd, state, fast_path, orphan, passive, counted, expected_bits, common, timers, congestion, retransmit,
    scoreboard, recovery, undo, challenges, settings, tuning, keepalive, autotune, pmtu, reassembly,
});

/// Statistics of a connection at one moment, as [`Tcb::info`] returns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// RTTVAR (RFC 6298 section 2); zero before the first measurement.
    pub rtt_variance: Duration,
    /// Shortest round trip within the last five minutes; zero before the first measurement.
    pub min_rtt: Duration,
    /// Retransmission timeout (RFC 6298).
    pub rto: Duration,
    /// Slow start threshold in bytes (RFC 5681 section 2); 2^30 before the first loss.
    pub ssthresh: u32,
    /// Bytes that the peer accepts from SND.UNA on (SND.WND, RFC 9293 section 3.3.1).
    pub send_window: u32,
    /// Bytes that the peer may send from RCV.NXT on (RCV.WND).
    pub receive_window: u32,
    /// Bytes that the peer may send ahead of what the application has read, as autotuned.
    pub receive_limit: u32,
    /// Largest payload of a segment that we send, in bytes.
    pub mss: u16,
    /// Bytes of the stream, each counted once, that were sent.
    pub sent: u64,
    /// Bytes in flight, except bytes that are lost or reported as received.
    pub in_flight: u32,
    /// Bytes that were reported as received beyond a gap (RFC 2018).
    pub sacked: u32,
    /// Lost bytes that are not retransmitted yet.
    pub lost: u32,
    /// Bytes that were written and not sent.
    pub unsent: u32,
    /// Bytes that arrived in order and that the application had not read at the last request.
    pub unread: u64,
    /// Retransmitted bytes.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Timeouts and window probes since the latest response.
    pub retries: u8,
    /// Bytes per second that were acknowledged in the latest measured round trip.
    pub delivery_rate: u64,
    /// Whether a loss is being recovered from.
    pub is_recovering: bool,
}

/// Counts the answers to unacceptable segments without data (RFC 5961 section 7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Challenges {
    /// The beginning of the second that both counts are for.
    since: Instant,
    /// Answers to segments that anyone may have forged.
    forged: u8,
    /// Answers to segments that only the peer is likely to send. Forgeries do not use these up.
    honest: u8,
}

fields!(Challenges, "challenges", { since, forged, honest });

impl Challenges {
    fn allow_forged(&mut self, now: Instant) -> bool {
        self.begin_second(now);
        Self::count(&mut self.forged)
    }

    fn allow_honest(&mut self, now: Instant) -> bool {
        self.begin_second(now);
        Self::count(&mut self.honest)
    }

    fn begin_second(&mut self, now: Instant) {
        if now.since(self.since) >= Duration::from_secs(1) {
            *self = Challenges {
                since: now,
                ..Challenges::default()
            };
        }
    }

    fn count(sent: &mut u8) -> bool {
        let allowed = *sent < CHALLENGES_PER_SECOND;
        *sent += u8::from(allowed);
        allowed
    }
}

/// The MSS that we announce to the peer of `flow`: at most what routers advertise for the link.
fn announced_mss(flow: &Flow, limits: &Limits, link_mtu_v6: u16) -> u16 {
    let mss = mss_for(flow, limits);
    match link_mtu_v6 {
        1.. if !flow.remote.address.is_v4() => {
            mss.min(link_mtu_v6.saturating_sub(Limits::HEADERS_V6))
        }
        _ => mss,
    }
}

/// The MSS that our MTU leaves for segments to the peer of `flow`.
const fn mss_for(flow: &Flow, limits: &Limits) -> u16 {
    match flow.remote.address.is_v4() {
        true => limits.mss(),
        false => limits.mss_v6(),
    }
}

impl Tcb {
    /// The state of the connection.
    #[inline]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Whether the connection is closed and has nothing left to send.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.snd.reset_pending()
    }

    /// RCV.NXT.
    #[cfg(feature = "locked")]
    pub const fn expected(&self) -> SeqNum {
        self.rcv.nxt
    }

    /// Both ends, ours first.
    #[inline]
    pub const fn flow(&self) -> Flow {
        self.common.flow
    }

    /// The name of the connection.
    #[inline]
    pub const fn conn(&self) -> ConnId {
        self.common.conn
    }

    /// Sets the offset of the timestamps, before the first one is sent (RFC 7323 section 5.4).
    pub const fn set_timestamp_offset(&mut self, offset: u32) {
        self.rcv.ts_offset = offset;
    }

    /// Sets the permanent name, before any effect contains it.
    pub const fn set_conn(&mut self, conn: ConnId) {
        self.common.conn = conn;
    }

    /// Pages of the receive ring that hold data after gaps.
    pub const fn gap_pages(&self) -> u64 {
        self.reassembly.pages()
    }

    /// The link-layer address to which the connection's frames are sent.
    pub const fn mac(&self) -> Mac {
        self.common.mac
    }

    /// Sets the link-layer address to which the connection's frames are sent.
    pub const fn set_mac(&mut self, mac: Mac) {
        self.common.mac = mac;
        self.common.version = self.common.version.wrapping_add(1);
    }

    /// The number after the highest that was sent. A connection that replaces this one in
    /// TIME-WAIT begins past it (RFC 9293 section 3.6.1).
    pub const fn snd_nxt(&self) -> SeqNum {
        self.snd.max
    }

    /// The sequence number of a reset that the peer accepts, in case one has to be sent.
    #[inline]
    pub fn reset_seq(&self) -> SeqNum {
        self.snd.control_seq()
    }

    /// The length of the gap-free receive stream in bytes.
    pub const fn received(&self) -> u64 {
        self.rcv.offset
    }

    /// The number of bytes of the send stream that the peer acknowledged.
    pub const fn acknowledged(&self) -> u64 {
        self.snd.una_offset
    }

    /// `cwnd`, bytes (RFC 5681 section 2).
    pub const fn cwnd(&self) -> u32 {
        self.congestion.cwnd()
    }

    /// Statistics of the connection.
    pub fn info(&self) -> Info {
        let (snd, retransmit) = (&self.snd, &self.retransmit);
        Info {
            rtt_variance: retransmit.variance(),
            min_rtt: retransmit.min_rtt,
            rto: retransmit.rto,
            ssthresh: self.congestion.ssthresh(),
            send_window: snd.wnd,
            receive_window: self.rcv.wnd(),
            receive_limit: self.rcv.limit,
            mss: snd.mss,
            sent: snd.una_offset + u64::from(snd.max.since(snd.una)),
            in_flight: self.pipe(),
            sacked: self.scoreboard.sacked(),
            lost: self.scoreboard.lost(),
            unsent: snd.data_from(snd.nxt),
            unread: self.rcv.offset.saturating_sub(self.rcv.read),
            retransmitted: retransmit.resent,
            timeouts: retransmit.timeouts,
            retries: retransmit.retries,
            delivery_rate: retransmit.delivery_rate,
            is_recovering: !self.congestion.is_open(),
        }
    }

    /// SRTT (RFC 6298 section 2); zero before the first measurement.
    pub const fn srtt(&self) -> Duration {
        self.retransmit.srtt
    }

    /// When [`Tcb::on_time`] has to be called next, or earlier, since a timer that stops or is
    /// postponed leaves this as it is; [`Instant::NEVER`] if there is no need.
    #[inline]
    pub const fn next_deadline(&self) -> Instant {
        self.timers.next()
    }

    /// SEGMENT ARRIVES (RFC 9293 section 3.10.7), called once for each piece of a run.
    #[inline]
    pub fn segment<S: EffectSink>(&mut self, seg: &Segment<'_>, cx: &mut Cx<'_, S>) {
        if !self.try_fast_path(seg, cx) {
            self.close_fast_path();
            self.on_segment(seg, cx);
        }
    }

    /// Follows an edge of the connection diagram.
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
        self.close_fast_path();
        if matches!(next, State::Closed | State::TimeWait) {
            self.timers.stop_all();
            self.snd.stop();
            self.clear_scoreboard();
        }
        if next == State::Closed {
            self.rcv.ack = delayed_ack::AckDue::None;
        }
    }

    /// Counts the beginning and end of an established connection, when the state may have changed.
    #[inline(never)]
    fn count_state(&mut self, counts: &mut StateStats) {
        let is_established = matches!(self.state, State::Established | State::CloseWait);
        if self.counted == Counted::Opening && self.state.is_synchronized() {
            self.counted = Counted::Established;
            counts.established += 1;
        }
        if self.counted == Counted::Established && !is_established {
            self.counted = Counted::Over;
            counts.no_longer_established += 1;
        }
    }

    /// Counts the end of the connection.
    pub fn count_end(&mut self, counts: &mut StateStats) {
        match self.counted {
            Counted::Opening => counts.failed_opens += 1,
            Counted::Established => counts.no_longer_established += 1,
            Counted::Over => {}
        }
        self.counted = Counted::Over;
    }

    /// A fingerprint, which almost certainly differs if any field differs.
    pub fn fingerprint(&self) -> u64 {
        fields::fingerprint(self)
    }

    /// Folds the positions of both streams, which every segment changes, into `h`: cheap enough
    /// for every request. [`Tcb::fingerprint`] covers all fields.
    #[inline(always)]
    pub fn fold(&self, h: u64) -> u64 {
        positions(h, &self.rcv, &self.snd)
    }

    /// The name of the first field whose value differs in `other`.
    pub fn first_difference(&self, other: &Tcb) -> Option<&'static str> {
        fields::first_difference(self, other)
    }
}

/// Corruption of a connection, as by failing memory, for tests that detect it.
#[cfg(any(test, feature = "testkit"))]
impl Tcb {
    /// Number of bits that [`Tcb::flip`] can change now; collections contribute their elements.
    pub fn bits(&self) -> u32 {
        fields::Flip::bits(self)
    }

    /// Flips bit `bit` of [`Tcb::bits`], and returns the name of its field; `None` if there is
    /// no such bit. An enum takes another variant, an option switches between `Some` and
    /// `None`, and a collection becomes longer or shorter by one.
    pub fn flip(&mut self, bit: u32) -> Option<&'static str> {
        let mut flip = fields::Flip::new(bit);
        Fields::flip(self, "", &mut flip);
        flip.hit()
    }
}

/// Folds the positions of both streams into `h`.
#[inline(always)]
fn positions(h: u64, rcv: &ReceiveSpace, snd: &SendSpace) -> u64 {
    // Neighbours in memory, in their order there: one load each.
    let pair = |a: SeqNum, b: SeqNum| u64::from(b.0) << 32 | u64::from(a.0);
    mix2(h, pair(rcv.nxt, rcv.edge), pair(snd.una, snd.nxt))
}

/// Mixes two values at once: the halves of a 128-bit product.
#[inline]
const fn mix2(h: u64, a: u64, b: u64) -> u64 {
    let product = ((h ^ a ^ 0x9e37_79b9_7f4a_7c15) as u128)
        * ((b ^ h.rotate_left(32) ^ 0xd1b5_4a32_d192_ed03) as u128);
    product as u64 ^ (product >> 64) as u64
}
