//! Rare frames, and harmless changes to frames.

use dominoes_testkit::Rng;
use dominoes_testkit::packet::odd::{self, Advertisement, ILLEGAL_OPTIONS};
use dominoes_testkit::packet::{ACK, Family, Header, Path, SYN, Segment, TCP};

/// Frames up to this length may grow: they still fit the MTU of any link.
const SHORT: usize = 500;
/// The most Packet Too Big messages of a case.
const TOO_BIG: u64 = 8;

/// Counts of the rare events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) tags: u64,
    pub(super) atomic: u64,
    pub(super) illegal_options: u64,
    pub(super) texts_on_syns: u64,
    pub(super) too_big: u64,
    pub(super) redirects: u64,
    pub(super) advertisements: u64,
    /// Advertisements that differ from the previous one.
    pub(super) changed: u64,
}

/// Changes frames, and adds messages of neighbours and routers.
#[derive(Debug)]
pub(super) struct Meddler {
    rng: Rng,
    family: Family,
    /// Rates per million frames.
    tags: u32,
    atomic: u32,
    options: u32,
    texts: u32,
    too_big: u32,
    redirects: u32,
    advertisements: u32,
    advertised: Advertisement,
    pub(super) seen: Seen,
}

impl Meddler {
    pub(super) fn new(family: Family, mut rng: Rng) -> Self {
        // A case has only some of the events, or it would test little of each.
        let mut part = |ppm| if rng.chance(250_000) { ppm } else { 0 };
        Meddler {
            family,
            tags: part(300_000),
            atomic: part(100_000),
            options: part(50_000),
            texts: part(500_000),
            too_big: part(20_000),
            redirects: part(20_000),
            advertisements: part(20_000),
            advertised: Advertisement {
                hop_limit: 64,
                lifetime: 1800,
                reachable: 0,
                mtu: 1500,
                prefix: 0,
            },
            rng,
            seen: Seen::default(),
        }
    }

    /// May change a frame. Returns messages for its sender.
    pub(super) fn meddle(&mut self, frame: &mut Vec<u8>) -> Vec<Vec<u8>> {
        let answers = self.answers(frame);
        self.change_segment(frame);
        if frame.len() < SHORT && self.is_tcp(frame) && self.rng.chance(self.atomic) {
            self.seen.atomic += u64::from(odd::make_atomic(frame));
        }
        if self.rng.chance(self.tags) {
            odd::tag(frame, self.rng.below(8) as u8, 0);
            self.seen.tags += 1;
        }
        answers
    }

    fn is_tcp(&self, frame: &[u8]) -> bool {
        let at = match self.family {
            Family::V4 => 23,
            Family::V6 => 20,
        };
        frame.get(at) == Some(&TCP)
    }

    fn answers(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        if self.is_tcp(frame) && self.seen.too_big < TOO_BIG && self.rng.chance(self.too_big) {
            let least = match self.family {
                Family::V4 => 576,
                Family::V6 => 1280,
            };
            let mtu = least + self.rng.below(300) as u16;
            answers.extend(odd::too_big(frame, mtu));
            self.seen.too_big += 1;
        }
        if self.family == Family::V4 {
            return answers;
        }
        if self.is_tcp(frame) && self.rng.chance(self.redirects) {
            answers.extend(odd::redirect(frame));
            self.seen.redirects += 1;
        }
        if self.rng.chance(self.advertisements) {
            if self.rng.chance(300_000) {
                self.advertised = Advertisement {
                    hop_limit: 30 + self.rng.below(200) as u8,
                    lifetime: [0, 1800][self.rng.below(2) as usize],
                    reachable: 5_000 + self.rng.below(60_000) as u32,
                    mtu: 1280 + self.rng.below(300) as u32,
                    prefix: self.rng.below(4) as u16,
                };
                self.seen.changed += 1;
            }
            answers.push(self.advertised.frame());
            self.seen.advertisements += 1;
        }
        answers
    }

    /// Adds options or data to a segment.
    fn change_segment(&mut self, frame: &mut Vec<u8>) {
        if frame.len() >= SHORT || !self.is_tcp(frame) {
            return;
        }
        let is_odd = self.rng.chance(self.options);
        let has_text = self.rng.chance(self.texts);
        if !is_odd && !has_text {
            return;
        }
        let Some(plain) = self.family.read(frame) else {
            return;
        };
        let (Some(header), Some(mut segment)) = (Header::read(&plain), Segment::read(&plain))
        else {
            return;
        };
        // A listener drops this data, so no application reads it.
        let has_text = has_text && header.has(SYN) && !header.has(ACK);
        if has_text {
            segment.payload = vec![0x5a; 1 + self.rng.below(100) as usize];
            self.seen.texts_on_syns += 1;
        }
        if is_odd {
            let which = self.rng.below(ILLEGAL_OPTIONS.len() as u64) as usize;
            segment.more_options = ILLEGAL_OPTIONS[which].to_vec();
            self.seen.illegal_options += 1;
        }
        if !has_text && !is_odd {
            return;
        }
        let mac = |at: usize| {
            let mut mac = [0; 6];
            mac.copy_from_slice(&plain[at..at + 6]);
            mac
        };
        let path = Path::new(header.from, header.to);
        let changed = segment.frame(path.from_mac(mac(6)).to_mac(mac(0)));
        if let Some(changed) = self.family.write(&changed) {
            *frame = changed;
        }
    }
}
