//! When received data is acknowledged (RFC 9293 section 3.8.6.3, RFC 5681 section 4.2).
//!
//! The rule is [`Tcb::ack_soon`]. It runs for each segment, or run of segments, that arrives in
//! order, after `rcv.nxt` and `rcv.offset` (bytes of the stream so far, which never wraps) have
//! advanced past it. [`AckDue`] records the acknowledgment that is owed: a rule that counts
//! more segments adds variants to it, in order. Each segment that may wait starts the timer
//! again. A new field belongs in `receive_space.rs`, in its `fields!`, and in `FOR_DATA` of
//! `fast_path.rs`. The tests are in `tcp/tests/arriving.rs` and `tests/data/rfc9293_data.toml`;
//! users read about the rule among the departures in the documentation of [`tcp`](super).
//!
//! Other files demand an acknowledgment at once for other reasons ([`Tcb::ack_now`]): data out of
//! order, a FIN, a window that opens; a connection that closes owes none. They ask whether one is
//! due ([`Tcb::is_ack_due`]), and report which frames carry an acknowledgment
//! ([`Tcb::ack_is_numbered`]).

use super::fields::field_variants;
use super::retransmit::Timer;
use super::{Cx, Tcb};
use crate::log::effect::EffectSink;
use crate::time::{Duration, Instant};

/// How long an acknowledgment may wait for a second segment, 40 ms (RFC 9293 section 3.8.6.3 allows
/// less than 500 ms).
pub const DELAYED_ACK: Duration = Duration::from_millis(40);

/// Whether an acknowledgment is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum AckDue {
    /// No.
    None,
    /// Yes, with the next segment or when the timer expires.
    Delayed,
    /// Yes, with this request.
    Now,
}

field_variants!(AckDue { None, Delayed, Now });

impl Tcb {
    /// A segment, or a run of `count`, arrived with `len` bytes in order. Acknowledges at once
    /// every second segment, however short (RFC 9293 section 3.8.6.3 requires it for full ones
    /// only), and a merged frame of more than one maximum segment; delays the acknowledgment of a
    /// single segment. If the batch has further segments of the flow after a run of the full length
    /// or a merged frame, they are acknowledged together with this one.
    #[inline(always)]
    pub(super) fn ack_soon<S: EffectSink>(
        &mut self,
        count: u8,
        len: u32,
        is_followed: bool,
        cx: &Cx<'_, S>,
    ) {
        let is_due = match self.rcv.ack {
            AckDue::Now => true,
            AckDue::Delayed => !is_followed,
            AckDue::None => !is_followed && (count >= 2 || len > cx.limits.mss_len()),
        };
        if is_due {
            self.rcv.ack = AckDue::Now;
        } else {
            // If the following segments were damaged, the timer triggers the acknowledgment.
            self.rcv.ack = AckDue::Delayed;
            self.start_delayed_ack(cx.now);
        }
    }

    /// An acknowledgment is due with this request, regardless of the rule.
    #[inline(always)]
    pub(super) fn ack_now(&mut self) {
        self.rcv.ack = AckDue::Now;
    }

    /// Whether an acknowledgment is due with this request.
    #[inline(always)]
    pub(super) fn is_ack_due(&self) -> bool {
        self.rcv.ack == AckDue::Now
    }

    /// A frame with an acknowledgment was numbered; `owed` is still due afterwards.
    #[inline(always)]
    pub(super) fn ack_is_numbered(&mut self, owed: AckDue) {
        self.rcv.ack = owed;
        self.stop_delayed_ack();
    }

    /// Starts the timer; when it expires, [`Tcb::on_time`] acknowledges.
    #[inline(always)]
    pub(super) fn start_delayed_ack(&mut self, now: Instant) {
        self.timers.start(Timer::DelayedAck, now + DELAYED_ACK);
    }

    #[inline(always)]
    pub(super) fn stop_delayed_ack(&mut self) {
        self.timers.stop(Timer::DelayedAck);
    }
}
