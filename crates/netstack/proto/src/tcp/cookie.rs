//! SYN cookies: handshakes that store nothing until they are complete (RFC 4987 section 3.6).
//!
//! The initial sequence number of the SYN-ACK is computed from the peer's number and from a keyed
//! hash, so an acknowledgment that returns it proves that its sender received the SYN-ACK, and
//! when. Three of its bits encode the MSS of the SYN. If the SYN had timestamps, the low bits of
//! ours encode the other options; without timestamps, window scaling and SACK are not negotiated.
//!
//! # A cookie is valid for one initial number of the peer
//!
//! The number before the first byte of a segment is the peer's initial one only if the segment
//! is the first after the SYN. A connection that began with any other segment would skip the
//! bytes between, and acknowledge them. So a cookie is `irs + hash(flow) + period * 2^26 +
//! (block % 2) * 2^25 + low`. `block` is `irs / 2^17`. The 24 bits of `low` are a hash of flow,
//! period and block, plus the index of the MSS times 2^21. Suppose the assumed `irs` is wrong
//! by less than 2^17. If its block is right, the error shifts the sum by less than the distance
//! of two indices. Otherwise its block is the neighbouring one, and the sums of the two are at
//! least 2^24 apart, as are those of two periods. In both cases the cookie does not decode. If
//! the error is larger, the hash differs.
//!
//! Segments of a peer whose first segment was lost or is late are recognized: data within the
//! window of the SYN-ACK, and a keepalive probe from one byte before. Their sender may regard
//! the connection as established, and a reset would end it. So these segments are dropped, and
//! the peer retransmits its first byte.

use super::arrive::MSS_DEFAULT;
use super::retransmit::timestamp;
use super::{Cx, Tcb};
use crate::config::Limits;
use crate::log::effect::{Effect, EffectSink, FrameNumbers};
use crate::log::request::{ConnId, Flags, Flow, IpFields, Mac, Options, Segment, SynOptions};
use crate::seqnum::SeqNum;
use crate::time::{Duration, Instant};

/// A cookie is valid in the period in which it was made and in the next one: 64 s to 128 s.
const PERIOD: Duration = Duration::from_secs(64);

/// The longest validity of a cookie.
pub const COOKIE_LIFE: Duration = Duration::from_secs(128);

/// The MSS values that a cookie can encode; an MSS is rounded down to one of them.
const MSS: [u16; 8] = [64, 216, 536, 1220, 1360, 1440, 1460, 8960];

/// The low bits of a cookie: hash and MSS. The high bits count periods.
const LOW: u32 = (1 << 24) - 1;

/// If two cookies of one period differ in MSS, their distance is a multiple of this.
const MSS_STEP: u32 = 1 << 21;

/// Cookies of neighbouring blocks differ by this, minus [`LOW`] at most.
const BLOCK_STEP: u32 = 1 << 25;

/// Cookies of neighbouring periods differ by this, minus [`BLOCK_STEP`] and [`LOW`] at most.
const PERIOD_STEP: u32 = 1 << 26;

/// A block of 2^17 initial sequence numbers of a peer shares one hash.
const BLOCK_SHIFT: u32 = 17;

/// Bytes that the peer may send before our first window update: the window of a SYN is not scaled.
const FIRST_WINDOW: u32 = 0xffff;

/// Distance of a keepalive probe before a peer's first byte (RFC 1122 section 4.2.3.6).
const BEFORE: u32 = 1;

const _: () = assert!(FIRST_WINDOW + BEFORE < 1 << BLOCK_SHIFT && 1 << BLOCK_SHIFT < MSS_STEP);

/// Bits of our timestamp that hold options.
const BITS: u32 = 6;
/// No window scale, in the low four of these bits.
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// The period of `now`.
const fn period(now: Instant) -> u32 {
    (now.as_nanos() / PERIOD.as_nanos()) as u32
}

/// The cookies of one period for peers whose initial numbers are in one block, minus `hash(0)`
/// and those numbers: one for each MSS.
fn sums(block: u32, period: u32, hash: &impl Fn(u64) -> u64) -> [u32; MSS.len()] {
    let tail = hash(1 + u64::from(period) + (u64::from(block) << 33)) as u32;
    let high = PERIOD_STEP.wrapping_mul(period) + BLOCK_STEP * (block % 2);
    core::array::from_fn(|index| high + (tail.wrapping_add(MSS_STEP * index as u32) & LOW))
}

/// The sequence number of a SYN-ACK for a SYN numbered `irs` with this MSS.
fn encode(mss: u16, irs: SeqNum, period: u32, hash: &impl Fn(u64) -> u64) -> SeqNum {
    let index = MSS.partition_point(|known| *known <= mss).saturating_sub(1);
    let sum = sums(irs.0 >> BLOCK_SHIFT, period, hash)[index];
    irs + (hash(0) as u32).wrapping_add(sum)
}

/// The meaning of the number `cookie`, which is acknowledged by a segment that begins at `irs` + 1.
fn decode(cookie: SeqNum, irs: SeqNum, now: u32, hash: &impl Fn(u64) -> u64) -> Decoded {
    let rest = cookie.since(irs).wrapping_sub(hash(0) as u32);
    let mut meaning = Decoded::None;
    for made in [now, now.wrapping_sub(1)] {
        // The peer's initial number may be a nearby one, in one of two blocks.
        let lowest = irs - FIRST_WINDOW;
        let blocks = [lowest, irs + BEFORE].map(|near| near.0 >> BLOCK_SHIFT);
        for (i, block) in blocks.into_iter().enumerate() {
            if i > 0 && block == blocks[0] {
                break;
            }
            for (sum, mss) in sums(block, made, hash).into_iter().zip(MSS) {
                let is = irs + rest.wrapping_sub(sum);
                if is.0 >> BLOCK_SHIFT != block {
                    continue;
                }
                if is == irs {
                    return Decoded::Mss(mss);
                }
                if is.since(lowest) <= FIRST_WINDOW + BEFORE {
                    meaning = Decoded::NotFirst;
                }
            }
        }
    }
    meaning
}

/// The meaning of an acknowledged number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoded {
    /// It is not a recent cookie.
    None,
    /// It is a cookie with this MSS.
    Mss(u16),
    /// It is a cookie, but the segment is not the first one after the handshake.
    NotFirst,
}

/// The low bits of a timestamp, which encode the other options of `syn`.
fn encode_options(options: &SynOptions, ecn: bool) -> u32 {
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

/// ECE and CWR, with which a SYN offers ECN (RFC 3168 section 6.1.1).
const ECN_SETUP: Flags = Flags::ECE.with(Flags::CWR);

fn options_of(syn: &Segment<'_>) -> SynOptions {
    match syn.options {
        Options::Syn(options) => *options,
        _ => SynOptions::default(),
    }
}

/// Answers a SYN for a listening port with a SYN-ACK that carries a cookie, and stores nothing.
/// Returns whether it was sent; without room for a frame it is not. `hash` is a keyed hash of
/// `flow`, with one argument for each of several uses; `offset` is the offset of the
/// connection's timestamps.
pub fn answer_with_cookie<S: EffectSink>(
    syn: &Segment<'_>,
    (flow, mac, offset): (Flow, Mac, u32),
    (ip, hash): (IpFields, &impl Fn(u64) -> u64),
    cx: &mut Cx<'_, S>,
) -> bool {
    if cx.frames.room() == 0 {
        return false;
    }
    let mut options = options_of(syn);
    let bits = encode_options(&options, syn.flags.has(ECN_SETUP));
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
    tcb.common.ip = ip;
    let mut one = OnlyTransmit(None);
    tcb.finish(&mut Cx::new(cx.now, cx.frames, cx.limits, &mut one));
    let Some(mut effect) = one.0 else {
        return false;
    };
    if let Effect::Transmit(transmit) = &mut effect
        && let Some((value, _)) = &mut transmit.timestamps
    {
        *value = stamped(cx.now, bits).wrapping_add(offset);
    }
    cx.out.push(effect);
    true
}

/// A sink that keeps only the frame of a SYN-ACK.
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

/// A sink that discards all effects.
struct Nothing;

impl EffectSink for Nothing {
    fn push(&mut self, _: Effect) {}

    fn mark(&self) -> usize {
        0
    }

    fn take_back(&mut self, _: usize) {}
}

/// The result of the cookie check of a segment without a connection.
#[derive(Debug)]
pub enum ReturnedCookie {
    /// No cookie.
    Nothing,
    /// A cookie, but the segment is not the first one after the handshake, as it must be.
    NotFirst,
    /// A cookie, and the connection as if it had been stored: in SYN-RECEIVED after the
    /// SYN-ACK. The caller still has to process the segment.
    Connection(Box<Tcb>),
}

/// Checks whether `ack`, which has no connection, returns one of our cookies. The other
/// arguments are as in [`answer_with_cookie`]; the connection has no name yet.
pub fn restore_from_cookie(
    ack: &Segment<'_>,
    (flow, mac, offset): (Flow, Mac, u32),
    hash: &impl Fn(u64) -> u64,
    limits: &Limits,
    now: Instant,
) -> ReturnedCookie {
    if !ack.flags.has(Flags::ACK) || ack.flags.any(Flags::SYN.with(Flags::RST)) {
        return ReturnedCookie::Nothing;
    }
    let (irs, iss) = (ack.seq - 1, ack.ack - 1);
    let mss = match decode(iss, irs, period(now), hash) {
        Decoded::Mss(mss) => mss,
        Decoded::NotFirst => return ReturnedCookie::NotFirst,
        Decoded::None => return ReturnedCookie::Nothing,
    };
    let mut options = SynOptions {
        mss: Some(mss),
        ..SynOptions::default()
    };
    let mut flags = Flags::SYN;
    if let Some((_, ts_ecr)) = ack.timestamps {
        let echoed = ts_ecr.wrapping_sub(offset);
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
    let mut tcb = Tcb::passive(ConnId::NONE, flow, mac, iss, &syn, limits, now);
    tcb.set_timestamp_offset(offset);
    // Builds the SYN-ACK once more without sending it. The time of the first one is unknown, so
    // its acknowledgment measures nothing.
    let mut frames = FrameNumbers {
        limit: 1,
        ..FrameNumbers::default()
    };
    tcb.finish(&mut Cx::new(now, &mut frames, limits, &mut Nothing));
    tcb.retransmit.on_resent();
    ReturnedCookie::Connection(Box::new(tcb))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::request::{Address, Endpoint};

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
            assert_eq!(at(300), Decoded::Mss(remembered));
            assert_eq!(at(301), Decoded::Mss(remembered));
            assert_eq!(at(302), Decoded::None);
            assert_eq!(at(299), Decoded::None);
        }
    }

    #[test]
    fn a_cookie_belongs_to_its_connection() {
        let irs = SeqNum(77);
        for period in [0, 9, 255, 256, 1 << 25] {
            let cookie = encode(1460, irs, period, &hash(1));
            let of_others = (2..10_000).filter(|key| {
                let meaning = decode(cookie, irs, period, &hash(*key));
                matches!(meaning, Decoded::Mss(_))
            });
            assert_eq!(of_others.count(), 0);
        }
    }

    /// Distances from a number: all small ones, and some others.
    fn distances() -> impl Iterator<Item = i32> {
        let far = (-70_000..=70_000).step_by(61);
        let edges = [-65_537, -65_536, -65_535, 65_535, 65_536, 65_537];
        (-8..=8).chain(far).chain(edges)
    }

    /// Initial numbers of a peer: inside a block, at its edges, at the wrap.
    const INITIAL: [u32; 7] = [
        77,
        0x1_0000,
        0x1_ffff,
        0x2_0000,
        0x7fff_ffff,
        0xffff_fff0,
        0xffff_ffff,
    ];

    #[test]
    fn only_the_initial_number_of_the_peer_makes_a_connection_of_a_cookie() {
        for (key, irs) in (0..).zip(INITIAL.map(SeqNum)) {
            for (mss, made) in MSS
                .into_iter()
                .zip([0, 1, 63, 64, 255, 300, 1 << 25, u32::MAX])
            {
                let hash = hash(1 + key);
                let cookie = encode(mss, irs, made, &hash);
                for (by, now) in distances().flat_map(|by| [(by, made), (by, made.wrapping_add(1))])
                {
                    let is = decode(cookie, irs + by as u32, now, &hash);
                    let what = (key, irs, mss, made, now, by);
                    match by {
                        0 => assert_eq!(is, Decoded::Mss(mss), "{what:?}"),
                        -1 | 1..=0xffff => assert_eq!(is, Decoded::NotFirst, "{what:?}"),
                        _ => assert!(!matches!(is, Decoded::Mss(_)), "{what:?}"),
                    }
                }
            }
        }
    }

    /// A SYN of flow number `key`, and the SYN-ACK with a cookie that answers it.
    fn answered(
        irs: SeqNum,
        options: SynOptions,
        ts: Option<u32>,
        key: u64,
    ) -> (SeqNum, Option<u32>) {
        let (limits, now) = (Limits::default(), Instant::from_millis(77_777));
        let mut frames = FrameNumbers {
            limit: 9,
            ..FrameNumbers::default()
        };
        let mut out = Vec::new();
        let mut cx = Cx::new(now, &mut frames, &limits, &mut out);
        let options = Options::Syn(options);
        let syn = Segment {
            timestamps: ts.map(|value| (value, 0)),
            ..segment(irs, SeqNum(0), Flags::SYN, &options)
        };
        let whose = (flow(), Mac::default(), offset(key));
        assert!(answer_with_cookie(
            &syn,
            whose,
            (IpFields::DEFAULT, &hash(key)),
            &mut cx
        ));
        match out[..] {
            [Effect::Transmit(t)] => (t.seq, t.timestamps.map(|(value, _)| value)),
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_plain_acknowledgment_returns_a_cookie() {
        let (irs, key) = (SeqNum(77), 3);
        let (iss, _) = answered(irs, SynOptions::default(), None, key);
        for (flags, is_one) in [
            (Flags::ACK, true),
            (Flags::ACK.with(Flags::SYN), false),
            (Flags::ACK.with(Flags::RST), false),
            (Flags::default(), false),
        ] {
            let ack = segment(irs + 1, iss + 1, flags, &Options::None);
            let whose = (flow(), Mac::default(), offset(key));
            let now = Instant::from_millis(77_777);
            let returned = restore_from_cookie(&ack, whose, &hash(key), &Limits::default(), now);
            let is = matches!(returned, ReturnedCookie::Connection(_));
            assert_eq!(is, is_one, "{flags:?}: {returned:?}");
        }
    }

    /// The timestamp offset of flow number `key`.
    fn offset(key: u64) -> u32 {
        hash(key)(u64::MAX) as u32
    }

    fn flow() -> Flow {
        let end = Endpoint::new(Address::ipv4(127, 0, 0, 1), 1);
        Flow {
            local: end,
            remote: end,
        }
    }

    fn segment(seq: SeqNum, ack: SeqNum, flags: Flags, options: &Options) -> Segment<'_> {
        Segment {
            seq,
            ack,
            len: 0,
            run_offset: 0,
            count: 1,
            wnd: 5000,
            flags,
            timestamps: None,
            ce: false,
            followed: false,
            options,
        }
    }

    #[test]
    fn an_acknowledgment_makes_a_connection_only_if_it_begins_behind_the_syn() {
        let with = SynOptions {
            mss: Some(1460),
            window_scale: Some(14),
            sack_permitted: true,
        };
        for (key, irs) in (0..).zip(INITIAL.map(SeqNum)) {
            for (options, ts) in [(SynOptions::default(), None), (with, None), (with, Some(9))] {
                let (iss, echoed) = answered(irs, options, ts, key);
                for by in distances() {
                    for len in [0, 1, 1000] {
                        let ack = Segment {
                            len,
                            timestamps: echoed.map(|echoed| (10, echoed)),
                            ..segment(irs + 1 + by as u32, iss + 1, Flags::ACK, &Options::None)
                        };
                        let whose = (flow(), Mac::default(), offset(key));
                        let now = Instant::from_millis(77_999);
                        let limits = Limits::default();
                        match restore_from_cookie(&ack, whose, &hash(key), &limits, now) {
                            ReturnedCookie::Connection(tcb) => {
                                assert_eq!((by, tcb.rcv.nxt), (0, irs + 1));
                                let scaled = ts.map_or(0, |_| 14);
                                assert_eq!((tcb.snd.shift, tcb.rcv.irs), (scaled, irs));
                                assert_eq!(tcb.rcv.ts_offset, offset(key));
                                assert_eq!(tcb.rcv.sack_permitted, ts.is_some());
                            }
                            ReturnedCookie::NotFirst => {
                                assert!(matches!(by, -1 | 1..=0xffff), "{by}");
                            }
                            ReturnedCookie::Nothing => {
                                assert!(!matches!(by, -1..=0xffff), "{by}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn an_echoed_timestamp_says_each_option_that_was_offered() {
        let (irs, key) = (SeqNum(77), 3);
        let (iss, echoed) = answered(irs, SynOptions::default(), Some(9), key);
        let echoed = echoed.expect("a timestamp").wrapping_sub(offset(key)) & !63;
        for window_scale in [None, Some(0), Some(7), Some(14)] {
            for (sack_permitted, ecn) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let options = SynOptions {
                    mss: None,
                    window_scale,
                    sack_permitted,
                };
                let echoed = (echoed | encode_options(&options, ecn)).wrapping_add(offset(key));
                let ack = Segment {
                    timestamps: Some((10, echoed)),
                    ..segment(irs + 1, iss + 1, Flags::ACK, &Options::None)
                };
                let whose = (flow(), Mac::default(), offset(key));
                let now = Instant::from_millis(77_777);
                let limits = Limits::default();
                let returned = restore_from_cookie(&ack, whose, &hash(key), &limits, now);
                let ReturnedCookie::Connection(tcb) = returned else {
                    panic!("{options:?}, {ecn}: {returned:?}");
                };
                let scale = window_scale.unwrap_or(0);
                let is = (
                    tcb.snd.scaled,
                    tcb.snd.shift,
                    tcb.rcv.sack_permitted,
                    tcb.snd.ecn,
                );
                assert_eq!(is, (window_scale.is_some(), scale, sack_permitted, ecn));
            }
        }
    }

    #[test]
    fn a_timestamp_is_never_newer_than_the_clock_and_says_what_was_offered() {
        let options = SynOptions {
            mss: None,
            window_scale: Some(7),
            sack_permitted: true,
        };
        let bits = encode_options(&options, false);
        for millis in 100..400 {
            let now = Instant::from_millis(millis);
            let stamp = stamped(now, bits);
            assert_eq!(stamp & 63, bits);
            assert!(timestamp(now).wrapping_sub(stamp) < 64);
        }
        assert_eq!(encode_options(&SynOptions::default(), true), NO_SCALE | ECN);
    }
}
