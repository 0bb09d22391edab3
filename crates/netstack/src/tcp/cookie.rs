//! SYN cookies: handshakes that leave nothing behind until they are complete (RFC 4987 section 3.6).
//!
//! The initial sequence number of the SYN-ACK is made of the peer's and of a keyed hash, so that the acknowledgment
//! that returns it proves that its sender was asked, and when. Three bits of it say which MSS the SYN announced. Where
//! the SYN had timestamps, the low bits of ours say the rest; where it had none, window scaling and selective
//! acknowledgments are not agreed upon.

use super::arrive::MSS_DEFAULT;
use super::retransmit::timestamp;
use super::{Cx, Tcb};
use crate::config::Limits;
use crate::digest::{ConnId, Flags, Flow, Mac, Options, Segment, SynOptions};
use crate::effect::{Effect, EffectSink, FrameNumbers};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// A cookie is good in the period in which it was made and in the next one: 64 s to 128 s.
const PERIOD: Duration = Duration::from_secs(64);

/// How long a cookie may be good.
pub const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// What a cookie remembers of an MSS: the largest of these that is not larger.
const MSS: [u16; 8] = [64, 216, 536, 1220, 1360, 1440, 1460, 8960];

/// The low bits of a cookie: hash and MSS. The high ones count periods.
const LOW: u32 = (1 << 24) - 1;

/// Bits of our timestamp that hold options.
const BITS: u32 = 6;
/// No window scale, among the low four of them.
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// Which period `now` belongs to.
const fn period(now: Instant) -> u32 {
    (now.as_nanos() / PERIOD.as_nanos()) as u32
}

/// The number of a SYN-ACK for a SYN numbered `irs` with this MSS.
fn encode(mss: u16, irs: SeqNum, period: u32, hash: &impl Fn(u64) -> u64) -> SeqNum {
    let index = MSS.partition_point(|known| *known <= mss).saturating_sub(1) as u32;
    let low = (hash(1 + u64::from(period)) as u32).wrapping_add(index) & LOW;
    irs + (hash(0) as u32)
        .wrapping_add(period << 24)
        .wrapping_add(low)
}

/// What the number `cookie`, which a segment acknowledges whose text begins `irs` + 1, stands for.
fn decode(cookie: SeqNum, irs: SeqNum, now: u32, hash: &impl Fn(u64) -> u64) -> Meaning {
    let rest = cookie.since(irs).wrapping_sub(hash(0) as u32);
    let mut meaning = Meaning::None;
    for made in [now, now.wrapping_sub(1)] {
        let tail = hash(1 + u64::from(made)) as u32;
        for (index, mss) in MSS.iter().enumerate() {
            let low = tail.wrapping_add(index as u32) & LOW;
            let ahead = (made << 24).wrapping_add(low).wrapping_sub(rest);
            if ahead == 0 {
                return Meaning::Mss(*mss);
            }
            if ahead <= FIRST_WINDOW {
                meaning = Meaning::Early;
            }
        }
    }
    meaning
}

/// What a number may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// It is no cookie of a short time ago.
    None,
    /// It is one, and this is the MSS. (Another of the eight if the text begins a few octets too late.)
    Mss(u16),
    /// It is one, but the segment is not the first behind the handshake.
    Early,
}

/// Octets that the peer may send before it hears of us again: the window of a SYN is not scaled.
const FIRST_WINDOW: u32 = 0xffff;

/// The low bits of a timestamp that say what else `syn` offered.
fn remember(options: &SynOptions, ecn: bool) -> u32 {
    let scale = options
        .window_scale
        .map_or(NO_SCALE, |shift| u32::from(shift.min(14)));
    let sack = if options.sack_permitted { SACK } else { 0 };
    scale | sack | if ecn { ECN } else { 0 }
}

/// The newest timestamp up to `now` that ends with `bits`.
const fn stamped(now: Instant, bits: u32) -> u32 {
    let now = timestamp(now);
    let low = (1 << BITS) - 1;
    let stamp = now & !low | bits;
    if stamp > now {
        stamp.wrapping_sub(1 << BITS)
    } else {
        stamp
    }
}

/// ECE and CWR, by which a SYN offers ECN (RFC 3168 section 6.1.1).
const ECN_SETUP: Flags = Flags::ECE.with(Flags::CWR);

fn options_of(syn: &Segment<'_>) -> SynOptions {
    match syn.options {
        Options::Syn(options) => *options,
        _ => SynOptions::default(),
    }
}

/// Answers a SYN for a listening port by a SYN-ACK that is numbered with a cookie, and forgets it. Returns whether
/// that left; without room for a frame it does not. `hash` is a keyed hash of `flow` for each of many uses.
pub fn answer_with_cookie<S: EffectSink>(
    syn: &Segment<'_>,
    flow: Flow,
    mac: Mac,
    hash: &impl Fn(u64) -> u64,
    cx: &mut Cx<'_, S>,
) -> bool {
    if cx.frames.room() == 0 {
        return false;
    }
    let mut options = options_of(syn);
    let bits = remember(&options, syn.flags.has(ECN_SETUP));
    let mut kept = *syn;
    if syn.timestamps.is_none() {
        options.window_scale = None;
        options.sack_permitted = false;
        kept.flags = kept.flags.without(ECN_SETUP);
    }
    let announced = options.mss.unwrap_or(MSS_DEFAULT);
    let iss = encode(announced, syn.seq, period(cx.now), hash);
    let options = Options::Syn(options);
    kept.options = &options;
    let mut tcb = Tcb::passive(ConnId::NONE, flow, mac, iss, &kept, cx.limits, cx.now);
    let mut one = OnlyTransmit(None);
    tcb.finish(&mut Cx::new(cx.now, cx.frames, cx.limits, &mut one));
    let Some(mut effect) = one.0 else {
        return false;
    };
    if let Effect::Transmit(transmit) = &mut effect
        && let Some((value, _)) = &mut transmit.timestamps
    {
        *value = stamped(cx.now, bits);
    }
    cx.out.push(effect);
    true
}

/// Keeps the one frame that a SYN-ACK is.
struct OnlyTransmit(Option<Effect>);

impl EffectSink for OnlyTransmit {
    fn push(&mut self, effect: Effect) {
        if matches!(effect, Effect::Transmit(_)) {
            self.0 = Some(effect);
        }
    }

    fn mark(&self) -> usize {
        0
    }

    fn take_back(&mut self, _: usize) {
        self.0 = None;
    }
}

/// Takes whatever is asked for, and does nothing.
struct Nothing;

impl EffectSink for Nothing {
    fn push(&mut self, _: Effect) {}

    fn mark(&self) -> usize {
        0
    }

    fn take_back(&mut self, _: usize) {}
}

/// What a segment that found no connection returns.
#[derive(Debug)]
pub enum Returned {
    /// No cookie.
    Nothing,
    /// A cookie, but the segment overtook the first one behind the handshake, without which nothing can be made of it.
    TooEarly,
    /// A cookie: this is the connection as it would stand had it been kept, in SYN-RECEIVED with the SYN-ACK out. The
    /// segment is still to arrive.
    Connection(Box<Tcb>),
}

/// Whether `ack`, which found no connection, returns a cookie of ours.
pub fn restore_from_cookie(
    ack: &Segment<'_>,
    (conn, flow, mac): (ConnId, Flow, Mac),
    hash: &impl Fn(u64) -> u64,
    limits: &Limits,
    now: Instant,
) -> Returned {
    if !ack.flags.has(Flags::ACK) || ack.flags.any(Flags::SYN.with(Flags::RST)) {
        return Returned::Nothing;
    }
    let (irs, iss) = (ack.seq - 1, ack.ack - 1);
    let mss = match decode(iss, irs, period(now), hash) {
        Meaning::Mss(mss) => mss,
        Meaning::Early => return Returned::TooEarly,
        Meaning::None => return Returned::Nothing,
    };
    let mut options = SynOptions {
        mss: Some(mss),
        ..SynOptions::default()
    };
    let mut flags = Flags::SYN;
    if let Some((_, echoed)) = ack.timestamps {
        let scale = echoed & 15;
        options.window_scale = (scale != NO_SCALE).then_some(scale as u8);
        options.sack_permitted = echoed & SACK != 0;
        if echoed & ECN != 0 {
            flags = flags.with(ECN_SETUP);
        }
    }
    let syn = Segment {
        seq: irs,
        ack: SeqNum(0),
        len: 0,
        run_offset: 0,
        count: 1,
        wnd: ack.wnd,
        flags,
        timestamps: ack.timestamps.map(|(value, _)| (value, 0)),
        ce: false,
        followed: false,
        options: &Options::Syn(options),
    };
    let mut tcb = Tcb::passive(conn, flow, mac, iss, &syn, limits, now);
    // The SYN-ACK, once more, to nobody. When it was sent is forgotten, so it measures nothing.
    let mut frames = FrameNumbers {
        limit: 1,
        ..FrameNumbers::default()
    };
    tcb.finish(&mut Cx::new(now, &mut frames, limits, &mut Nothing));
    tcb.retransmit.on_resent();
    Returned::Connection(Box::new(tcb))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> impl Fn(u64) -> u64 {
        move |purpose| {
            let x = (key ^ purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        }
    }

    #[test]
    fn a_cookie_says_its_mss_for_one_to_two_periods() {
        let hash = hash(5);
        let irs = SeqNum(0xffff_fff0);
        for (mss, remembered) in [(0, 64), (64, 64), (535, 216), (1460, 1460), (65535, 8960)] {
            let cookie = encode(mss, irs, 300, &hash);
            let at = |period| decode(cookie, irs, period, &hash);
            assert_eq!(at(300), Meaning::Mss(remembered));
            assert_eq!(at(301), Meaning::Mss(remembered));
            assert_eq!(at(302), Meaning::None);
            assert_eq!(at(299), Meaning::None);
        }
    }

    #[test]
    fn a_cookie_belongs_to_its_connection_and_to_the_number_of_the_peer() {
        let irs = SeqNum(77);
        for period in [0, 9, 255, 256, 1 << 25] {
            let cookie = encode(1460, irs, period, &hash(1));
            let is = |irs, key| decode(cookie, irs, period, &hash(key));
            let of_others = (2..10_000).filter(|key| matches!(is(irs, *key), Meaning::Mss(_)));
            assert_eq!(of_others.count(), 0);
            // A few octets further it would stand for another MSS, and further yet it is known to be early.
            let later = (1..=0xffff_u32).map(|by| is(irs + by, 1));
            assert!(
                later
                    .clone()
                    .take(6)
                    .all(|meaning| matches!(meaning, Meaning::Mss(_)))
            );
            assert!(later.skip(7).all(|meaning| meaning == Meaning::Early));
            assert_eq!(is(irs + 0x1_0010, 1), Meaning::None);
            assert_eq!(is(irs - 2, 1), Meaning::None);
        }
    }

    #[test]
    fn a_timestamp_is_never_newer_than_the_clock_and_says_what_was_offered() {
        let options = SynOptions {
            mss: None,
            window_scale: Some(7),
            sack_permitted: true,
        };
        let bits = remember(&options, false);
        for millis in 100..400 {
            let now = Instant::from_millis(millis);
            let stamp = stamped(now, bits);
            assert_eq!(stamp & 63, bits);
            assert!(timestamp(now).wrapping_sub(stamp) < 64);
        }
        assert_eq!(remember(&SynOptions::default(), true), NO_SCALE | ECN);
    }
}
