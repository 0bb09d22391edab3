//! The stack: a connection that receives or sends, in every variant.
//!
//! A count per segment includes everything on the one core: the stack, the peer
//! in the device (which patches and reads headers), and the application.

use std::sync::Arc;

use dominoes_drivers::Device;
use dominoes_drivers::memory::peer::headers::{self, Ends, HEADERS_LEN, flags};
use dominoes_netstack::group::{Layout, ReplicatedGroup, ReplicatedWorker};
use dominoes_netstack::stats::PumpStats;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{Setup, Worker as _, kernel};
use dominoes_netstack::{Ipv6Config, ReadHalf, SocketError, Sockets, TcpListener, WriteHalf};
use dominoes_proto::log::request::MAX_RUN;
use dominoes_testkit::packet::Family;

use crate::drivers::Direction;
use crate::instructions::Case;
use crate::instructions::fixture::{self, Link, Plan};
use crate::workload;

/// Segments of the shorter measurement.
pub(super) const SEGMENTS: u64 = 1024;
/// Bytes that are written at once, and read at once at most.
const CHUNK: usize = 64 << 10;
const PORT: u16 = 5_001;
/// What follows the first word of a case's name over IPv6.
pub(super) const OVER_IPV6: &str = " over IPv6";

/// What the application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Copies received bytes into its own buffer.
    Read,
    /// Looks at them in place.
    InPlace,
    /// Sends the bytes of the send ring again.
    Send,
}

impl Use {
    fn name(self) -> &'static str {
        match self {
            Use::Read => "read",
            Use::InPlace => "in place",
            Use::Send => "send",
        }
    }

    pub(super) fn direction(self) -> Direction {
        match self {
            Use::Read | Use::InPlace => Direction::Receive,
            Use::Send => Direction::Send,
        }
    }
}

/// The properties of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) family: Family,
    pub(super) using: Use,
    pub(super) segment: u32,
    /// Whether segments that arrive together are merged; otherwise each has PSH, so it is a run by
    /// itself.
    pub(super) merge: bool,
    pub(super) timestamps: bool,
    /// Whether the device verifies and completes checksums.
    pub(super) verifies_checksums: bool,
}

impl Setting {
    pub(super) fn plan(&self) -> Plan {
        Plan {
            family: self.family,
            direction: self.using.direction(),
            segment: self.segment,
            timestamps: self.timestamps,
            verifies_checksums: self.verifies_checksums,
            pushed: !self.merge,
        }
    }

    pub(super) fn setup(&self) -> Setup {
        let mut setup = Setup::new(self.family.address([10, 0, 0, 1]), 24, [1, 2]);
        setup.limits.connections = 4;
        if self.family == Family::V6 {
            // There is neither a router nor another host.
            let config = Ipv6Config::default().autoconfigure(false);
            setup = setup.ipv6(config.duplicate_probes(0));
        }
        setup
    }

    /// Words of a case's name.
    fn name(&self) -> String {
        let runs = if self.merge { "merged" } else { "alone" };
        format!(
            "{}{}/{}/{runs}/{}/{}",
            self.using.name(),
            if self.family == Family::V6 {
                OVER_IPV6
            } else {
                ""
            },
            self.segment,
            if self.timestamps {
                "timestamps"
            } else {
                "plain"
            },
            if self.verifies_checksums {
                "vouched"
            } else {
                "checksum"
            },
        )
    }

    /// The figure that is asked for on one core without a log, if one is.
    fn target(&self) -> Option<u64> {
        if self.segment != 1448 || self.timestamps || self.merge {
            return None;
        }
        Some(match (self.using, self.verifies_checksums) {
            (Use::Read | Use::Send, false) => 1500,
            (Use::Read | Use::Send, true) => 900,
            (Use::InPlace, false) => 1300,
            (Use::InPlace, true) => 700,
        })
    }
}

/// A variant as it is driven here.
pub(super) trait Stack {
    fn make(setup: Setup, device: Box<dyn Device>) -> Self;
    fn sockets(&self) -> Sockets;
    /// Everything that can be done now, once. Returns how much that was.
    fn turn(&mut self, now: Instant) -> usize;
    fn pump_stats(&self) -> PumpStats;
    fn bad_checksums(&self) -> u64;
}

impl Stack for Single {
    fn make(setup: Setup, device: Box<dyn Device>) -> Self {
        Single::new(setup, device).expect("the bounds are right")
    }

    fn sockets(&self) -> Sockets {
        Single::sockets(self)
    }

    fn turn(&mut self, now: Instant) -> usize {
        Single::turn(self, now)
    }

    fn pump_stats(&self) -> PumpStats {
        Single::pump_stats(self)
    }

    fn bad_checksums(&self) -> u64 {
        self.replica().stats().bad_checksum
    }
}

/// One replica that is driven by turns, and so does without a log while it is alone.
const SOLO: u8 = 0;
/// One that keeps its log.
const LOGGED: u8 = 1;
/// The same, driven step by step.
const STEP_BY_STEP: u8 = 2;

/// A group of one.
struct Replicated<const HOW: u8> {
    sockets: Sockets,
    worker: ReplicatedWorker,
}

impl<const HOW: u8> Stack for Replicated<HOW> {
    fn make(setup: Setup, device: Box<dyn Device>) -> Self {
        let mut layout = Layout::default();
        layout.replicas = 1;
        layout.tuning.always_log = HOW != SOLO;
        let group = ReplicatedGroup::new(setup, layout, device).expect("the bounds are right");
        Replicated {
            sockets: group.sockets(),
            worker: group.into_workers().pop().expect("there is one"),
        }
    }

    fn sockets(&self) -> Sockets {
        self.sockets.clone()
    }

    fn turn(&mut self, now: Instant) -> usize {
        let worker = &mut self.worker;
        if HOW != STEP_BY_STEP {
            return worker.turn(now);
        }
        counted_pump(worker, now)
            + counted_prepare(worker)
            + counted_apply(worker)
            + counted_perform(worker)
            + counted_send(worker)
    }

    fn pump_stats(&self) -> PumpStats {
        self.worker.pump_stats().expect("nobody else has the pump")
    }

    fn bad_checksums(&self) -> u64 {
        self.worker.replica().stats().bad_checksum
    }
}

#[inline(never)]
fn counted_pump(worker: &mut ReplicatedWorker, now: Instant) -> usize {
    worker.pump(now).unwrap_or(0)
}

#[inline(never)]
fn counted_prepare(worker: &mut ReplicatedWorker) -> usize {
    worker.prepare_ahead()
}

#[inline(never)]
fn counted_apply(worker: &mut ReplicatedWorker) -> usize {
    worker.apply_all()
}

#[inline(never)]
fn counted_perform(worker: &mut ReplicatedWorker) -> usize {
    worker.perform_all()
}

#[inline(never)]
fn counted_send(worker: &mut ReplicatedWorker) -> usize {
    worker.send().unwrap_or(0)
}

/// The application.
struct App {
    using: Use,
    segment: usize,
    reader: ReadHalf,
    writer: WriteHalf,
    buffer: Vec<u8>,
    /// Bytes that the send ring has room for when everything was acknowledged.
    ring: usize,
    /// Bytes that were read, or written.
    done: u64,
    /// ... and how many shall be.
    upto: u64,
}

#[inline(never)]
fn counted_app(app: &mut App) -> Result<(), SocketError> {
    match app.using {
        Use::Read => loop {
            app.done += app.reader.try_read(&mut app.buffer)? as u64;
        },
        Use::InPlace => loop {
            let len = app.reader.try_fill()?.len();
            app.reader.consume(len);
            app.done += len as u64;
        },
        Use::Send => {
            let left = (app.upto - app.done) as usize;
            // Whole segments, so that their number is known.
            let room = app.writer.room()? / app.segment * app.segment;
            let len = left.min(room);
            if len > 0 && (len == left || len >= CHUNK) {
                app.done += app.writer.write_again(len)? as u64;
            }
            Ok(())
        }
    }
}

impl App {
    fn turn(&mut self) {
        match counted_app(self) {
            Ok(()) | Err(SocketError::WouldBlock) => {}
            Err(other) => panic!("the connection ended: {other}"),
        }
    }

    fn is_done(&self) -> bool {
        match self.using {
            Use::Send => self.done == self.upto && self.writer.room() == Ok(self.ring),
            _ => self.done == self.upto,
        }
    }
}

/// A stack with one connection.
pub(super) struct Lane<S> {
    pub(super) stack: S,
    setting: Setting,
    link: Arc<Link>,
    app: App,
    now: Instant,
    /// Whether nothing came through yet.
    warming: bool,
    /// What the pump had seen before the segments of this time.
    before: PumpStats,
    _listener: TcpListener,
}

impl<S: Stack> Lane<S> {
    pub(super) fn new(setting: Setting) -> Self {
        Self::with_setup(setting, setting.setup())
    }

    pub(super) fn with_setup(setting: Setting, setup: Setup) -> Self {
        let (device, link) = fixture::device(setting.plan());
        let ring = setup.limits.send_buffer as usize;
        let mut stack = S::make(setup, device);
        let listener = stack.sockets().listen(PORT, 1).expect("the port is free");
        let mut now = Instant::ZERO;
        for _ in 0..1000 {
            now += Duration::from_micros(1);
            stack.turn(now);
            if let Ok((stream, _)) = listener.try_accept() {
                let (reader, writer) = stream.split();
                let app = App {
                    using: setting.using,
                    segment: setting.segment as usize,
                    reader,
                    writer,
                    buffer: vec![0; CHUNK],
                    ring,
                    done: 0,
                    upto: 0,
                };
                let mut lane = Lane {
                    before: stack.pump_stats(),
                    stack,
                    setting,
                    link,
                    app,
                    now,
                    warming: true,
                    _listener: listener,
                };
                if setting.using == Use::Send {
                    lane.fill();
                }
                return lane;
            }
        }
        panic!("the connection was not established");
    }

    /// Writes as much as the send ring holds, once: only what the connection wrote may be written
    /// again.
    fn fill(&mut self) {
        let segments = self.app.ring.div_ceil(self.app.segment).next_multiple_of(2);
        let bytes = vec![0; segments * self.app.segment];
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.now += Duration::from_micros(1);
            self.stack.turn(self.now);
            let room = self.app.writer.room().expect("the connection is open");
            let whole = (room / self.app.segment * self.app.segment).min(rest.len());
            if whole > 0 {
                let taken = self.app.writer.try_write(&rest[..whole]);
                rest = &rest[taken.expect("there is room")..];
            }
        }
        (self.app.done, self.app.upto) = (bytes.len() as u64, bytes.len() as u64);
        while !self.app.is_done() {
            self.now += Duration::from_micros(1);
            self.stack.turn(self.now);
        }
    }

    /// Moves this number of segments, which is even, so that none waits for
    /// its acknowledgment.
    pub(super) fn run(&mut self, segments: u64) {
        assert!(segments.is_multiple_of(2), "{segments} segments");
        let bytes = segments * u64::from(self.setting.segment);
        self.app.upto += bytes;
        if self.setting.using != Use::Send {
            self.link.allow(bytes);
        }
        let mut idle = 0;
        loop {
            self.now += Duration::from_micros(1);
            let done = self.stack.turn(self.now);
            self.app.turn();
            if self.app.is_done() && done == 0 {
                return self.check(segments);
            }
            idle = if done == 0 { idle + 1 } else { 0 };
            assert!(
                idle < 1000,
                "{:?} stands still with {} bytes done of {}, {} at the peer",
                self.setting,
                self.app.done,
                self.app.upto,
                self.link.received()
            );
        }
    }

    /// Checks that the intended segments were counted.
    fn check(&mut self, segments: u64) {
        let setting = self.setting;
        assert_eq!(self.link.faults(), 0, "{setting:?}: unexpected frames");
        assert_eq!(self.stack.bad_checksums(), 0, "{setting:?}: bad checksums");
        if setting.using == Use::Send {
            assert_eq!(
                self.link.received(),
                self.app.done,
                "{setting:?}: bytes lost"
            );
            return;
        }
        let stats = self.stack.pump_stats();
        let seen = stats.segments - self.before.segments;
        let runs = stats.runs - self.before.runs;
        self.before = stats;
        assert_eq!(seen, segments, "{setting:?}: segments");
        // The window that a SYN-ACK can announce is small, so the first run of all may end early.
        let early = std::mem::replace(&mut self.warming, false);
        // A claim has at least a run of 32, and the last claim may have a short one.
        let (least, most) = match setting.merge {
            true => (segments.div_ceil(MAX_RUN as u64), segments / 32),
            false => (segments, segments),
        };
        let are_full = (least..=most).contains(&runs);
        assert!(early || are_full, "{setting:?}: {runs} runs");
    }
}

/// The shares that every variant reports.
const SHARES: &[(&str, &str)] = &[
    ("peer", " as dominoes_drivers::Device"),
    ("application", "::counted_app"),
    ("memcpy", "_avx_unaligned"),
];

/// The shares of a worker's steps.
const STEPS: &[(&str, &str)] = &[
    ("pump", "::counted_pump"),
    ("prepare", "::counted_prepare"),
    ("apply", "::counted_apply"),
    ("perform", "::counted_perform"),
    ("send", "::counted_send"),
    ("application", "::counted_app"),
    ("peer", " as dominoes_drivers::Device"),
];

fn case<S: Stack + 'static>(variant: &str, setting: Setting) -> Case {
    Case::new(
        format!("{variant}/{}", setting.name()),
        "segment",
        SEGMENTS,
        move || {
            let mut lane = Lane::<S>::new(setting);
            move |segments| lane.run(segments)
        },
    )
}

/// A case of `single`.
pub(super) fn single(setting: Setting) -> Case {
    case::<Single>("single", setting)
}

/// All settings of a variant.
fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for using in [Use::Read, Use::InPlace, Use::Send] {
        for segment in [64, 512, 1448] {
            // Acknowledgments have no PSH.
            let merges = [false, true].into_iter();
            for merge in merges.filter(|merge| *merge || using != Use::Send) {
                for timestamps in [false, true] {
                    for verifies_checksums in [false, true] {
                        settings.push(Setting {
                            family: Family::V4,
                            using,
                            segment,
                            merge,
                            timestamps,
                            verifies_checksums,
                        });
                    }
                }
            }
        }
    }
    settings
}

/// All cases of the stack.
pub fn cases() -> Vec<Case> {
    let mut cases = kernels();
    let is_key = |setting: &Setting| setting.segment == 1448 && !setting.timestamps;
    for setting in settings() {
        let case = case::<Single>("single", setting);
        cases.push(
            case.shares(SHARES)
                .target(setting.target())
                .key_if(is_key(&setting)),
        );
    }
    for setting in settings() {
        let case = case::<Replicated<SOLO>>("replicated", setting);
        cases.push(case.shares(SHARES).key_if(is_key(&setting)));
    }
    for setting in settings() {
        let case = case::<Replicated<LOGGED>>("logged", setting);
        cases.push(case.shares(SHARES).key_if(is_key(&setting)));
    }
    // The same cases as over IPv4, and no more of them: each variant calls the same `tcp` and `io`.
    let family = Family::V6;
    for setting in settings().into_iter().filter(is_key) {
        let setting = Setting { family, ..setting };
        cases.push(case::<Single>("single", setting).shares(SHARES).key());
        cases.push(
            case::<Replicated<SOLO>>("replicated", setting)
                .shares(SHARES)
                .key(),
        );
    }
    for setting in settings() {
        if is_key(&setting) && setting.using != Use::Read {
            cases.push(
                case::<Replicated<STEP_BY_STEP>>("logged, step by step", setting).shares(STEPS),
            );
        }
    }
    cases
}

#[inline(never)]
fn counted_verify(frame: &[u8]) -> bool {
    kernel::verify(frame)
}

#[inline(never)]
fn counted_copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[inline(never)]
fn counted_fill(frame: &mut [u8], payload: &[u8]) {
    kernel::fill(frame, payload);
}

/// The costly steps with no protocol around them.
fn kernels() -> Vec<Case> {
    let mut cases = Vec::new();
    for segment in [64, 512, 1448] {
        let frame = move || {
            let payload = workload::bytes(1, segment);
            headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &payload)
        };
        let name = |what| format!("kernel/{what}/{segment}");
        cases.push(
            Case::new(name("verify"), "segment", 64, move || {
                let frame = frame();
                move |units| (0..units).for_each(|_| assert!(counted_verify(&frame)))
            })
            .within("::counted_verify")
            .key_if(segment == 1448),
        );
        cases.push(
            Case::new(name("copy"), "segment", 64, move || {
                let (frame, mut to) = (frame(), vec![0; segment]);
                move |units| (0..units).for_each(|_| counted_copy(&frame[HEADERS_LEN..], &mut to))
            })
            .within("::counted_copy"),
        );
        cases.push(
            Case::new(name("fill"), "segment", 64, move || {
                let payload = workload::bytes(1, segment);
                let mut frame = frame();
                frame[50..52].fill(0);
                move |units| (0..units).for_each(|_| counted_fill(&mut frame, &payload))
            })
            .within("::counted_fill")
            .key_if(segment == 1448),
        );
    }
    cases
}
