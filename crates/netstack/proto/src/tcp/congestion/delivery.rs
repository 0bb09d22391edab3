//! Delivery rate (draft-ietf-ccwg-bbr-06 section 4.1): how fast the network delivers data.
//!
//! The scoreboard stores when each range was sent. The other values of an estimate are equal for all
//! data of one instant, so there is one record for each sending instant.

use std::collections::VecDeque;

use crate::seqnum::SeqNum;
use crate::tcp::fields::fields;
use crate::tcp::scoreboard::SentRange;
use crate::time::{Duration, Instant};

/// Maximum number of records. Above it, every second one is dropped: data of its instant then
/// counts as sent a little earlier, which lowers an estimate.
const MAX_RECORDS: usize = 1024;

/// Below this number, old records are not looked for.
const FEW_RECORDS: usize = 64;

/// Not measured.
pub(super) const UNKNOWN: Duration = Duration::from_nanos(u64::MAX);

/// The connection when data was sent: the per-packet state of section 4.1.2.1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SendRecord {
    /// P.send_time.
    at: Instant,
    /// P.delivered.
    delivered: u64,
    /// P.lost.
    pub(super) lost: u64,
    /// P.delivered_time.
    delivered_at: Instant,
    /// P.first_send_time.
    first_sent_at: Instant,
    /// P.tx_in_flight.
    pub(super) in_flight: u32,
    /// P.is_app_limited.
    pub(super) app_limited: bool,
}

fields!(SendRecord, "delivery.record", {
    at, delivered, lost, delivered_at, first_sent_at, in_flight, app_limited,
});

/// The rate that one acknowledgment shows: RS of section 4.1.2.1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateSample {
    /// Bytes newly known to have arrived (RS.newly_acked).
    pub(super) acked: u32,
    /// The record of the newest data among them.
    pub(super) record: Option<SendRecord>,
    /// When that data was sent, and its end.
    sent_at: Instant,
    end: SeqNum,
    /// RS.rtt.
    pub(super) rtt: Duration,
    /// RS.delivery_rate in bytes per second; 0: none.
    pub(super) rate: u64,
    /// RS.delivered.
    pub(super) delivered: u64,
    /// RS.lost: bytes lost since the newest data was sent.
    pub(super) lost: u64,
}

fields!(RateSample, "delivery.sample", { acked, record, sent_at, end, rtt, rate, delivered, lost });

impl Default for RateSample {
    fn default() -> Self {
        RateSample {
            acked: 0,
            record: None,
            sent_at: Instant::ZERO,
            end: SeqNum(0),
            rtt: UNKNOWN,
            rate: 0,
            delivered: 0,
            lost: 0,
        }
    }
}

impl RateSample {
    /// RS.prior_delivered.
    pub(super) fn prior_delivered(&self) -> Option<u64> {
        self.record.map(|record| record.delivered)
    }

    /// RS.is_app_limited.
    pub(super) fn is_app_limited(&self) -> bool {
        self.record.is_some_and(|record| record.app_limited)
    }

    /// RS.tx_in_flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.record.map_or(0, |record| record.in_flight)
    }
}

/// The per-connection state of section 4.1.2.1.1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivery {
    /// C.delivered, bytes.
    pub(super) delivered: u64,
    /// C.delivered_time.
    delivered_at: Instant,
    /// C.first_send_time.
    first_sent_at: Instant,
    /// C.lost, bytes.
    pub(super) lost: u64,
    /// C.app_limited; 0: not limited by the application.
    app_limited: u64,
    /// One record for each sending instant, in order.
    records: VecDeque<SendRecord>,
    /// The sample of the acknowledgment that is being processed.
    sample: RateSample,
}

fields!(Delivery, "delivery", {
    delivered, delivered_at, first_sent_at, lost, app_limited, records, sample,
});

impl Delivery {
    /// `len` bytes are sent, with which `in_flight` are in flight (section 4.1.2.2). `oldest`
    /// yields when the oldest data in flight was sent.
    pub(super) fn on_sent(
        &mut self,
        now: Instant,
        len: u32,
        in_flight: u32,
        oldest: impl FnOnce() -> Instant,
    ) {
        if in_flight <= len {
            self.first_sent_at = now;
            self.delivered_at = now;
        }
        if let Some(last) = self.records.back_mut()
            && last.at == now
        {
            last.in_flight = in_flight;
            return;
        }
        let count = self.records.len();
        if count >= FEW_RECORDS && count.is_power_of_two() {
            self.forget_before(oldest());
        }
        if self.records.len() >= MAX_RECORDS {
            let mut keep = false;
            self.records.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.records.push_back(SendRecord {
            at: now,
            delivered: self.delivered,
            lost: self.lost,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            in_flight,
            app_limited: self.is_app_limited(),
        });
    }

    /// Drops the records of instants before the last one that is not after `oldest`.
    fn forget_before(&mut self, oldest: Instant) {
        let old = self.records.partition_point(|record| record.at <= oldest);
        self.records.drain(..old.saturating_sub(1));
    }

    /// The record of data that was sent at `at`.
    pub(super) fn record(&self, at: Instant) -> Option<SendRecord> {
        let after = self.records.partition_point(|record| record.at <= at);
        self.records.get(after.checked_sub(1)?).copied()
    }

    /// `range` has arrived: UpdateRateSample() of section 4.1.2.3.
    pub(super) fn on_delivered(&mut self, range: &SentRange, now: Instant) {
        let (len, record) = (range.len(), self.record(range.sent_at));
        self.delivered = self.delivered.saturating_add(u64::from(len));
        self.delivered_at = now;
        let sample = &mut self.sample;
        sample.acked = sample.acked.saturating_add(len);
        let newer = (range.sent_at, range.end.after(sample.end)) > (sample.sent_at, false);
        if record.is_some() && (sample.record.is_none() || newer) {
            sample.record = record;
            sample.sent_at = range.sent_at;
            sample.end = range.end;
            self.first_sent_at = range.sent_at;
        }
        if !range.retransmitted {
            // The acknowledgment of a retransmission may be for the first copy.
            sample.rtt = sample.rtt.min(now.since(range.sent_at));
        }
    }

    /// Whether the application limits the rate.
    pub(super) const fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// There was nothing to send, with `in_flight` bytes in flight: MarkConnectionAppLimited() of
    /// section 4.1.2.4.
    pub(super) fn mark_app_limited(&mut self, in_flight: u32) {
        self.app_limited = self.delivered.saturating_add(u64::from(in_flight)).max(1);
    }

    /// The sample of this acknowledgment: GenerateRateSample() of section 4.1.2.3. `in_flight`
    /// bytes remain in flight.
    pub(super) fn take_sample(&mut self, in_flight: u32, min_rtt: Duration) -> RateSample {
        let mut sample = core::mem::take(&mut self.sample);
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        if let Some(record) = sample.record {
            let send_elapsed = sample.sent_at.since(record.first_sent_at);
            let ack_elapsed = self.delivered_at.since(record.delivered_at);
            let interval = send_elapsed.max(ack_elapsed);
            sample.delivered = self.delivered.saturating_sub(record.delivered);
            sample.lost = self.lost.saturating_sub(record.lost);
            let is_plausible = min_rtt == UNKNOWN || interval >= min_rtt;
            if is_plausible && interval != Duration::ZERO {
                sample.rate = sample.delivered.saturating_mul(1_000_000_000) / interval.as_nanos();
            }
        }
        if in_flight == 0 {
            self.records = VecDeque::new();
        }
        sample
    }
}
