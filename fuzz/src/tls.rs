//! Tests a TLS stream whose peer has the right keys and breaks every rule: it sends records of
//! any content and length, changed records and raw bytes, while our end reads, writes and
//! replaces its keys.
//!
//! Our end reads a prefix of the bytes that the peer sealed before the first changed record. An
//! ended stream stays ended. No frame of ours carries plaintext. The keys are random, so an input
//! repeats its finding, but not its bytes.

use std::sync::{Arc, OnceLock};

use arbitrary::{Arbitrary, Unstructured};
use dominoes_drivers::RxMeta;
use dominoes_drivers::memory::MemoryConfig;
use dominoes_netstack::time::{Duration, Instant};
use dominoes_netstack::tls::{PreparedTls, RecordKey, TlsError, TlsStream};
use dominoes_netstack::{SocketError, TcpStream};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::frames::pause;
use crate::input::{Input, assert_overflow_panics};
use crate::packets::{FAR, FAR_MAC, Family, STACK, STACK_MAC};
use crate::stack::{Kind, Stack, limits};
use crate::tally;

/// Operations after which the rest of an input is ignored.
const STEPS: u64 = 400;
/// The most rounds of exchanged frames at one moment.
const ROUNDS: usize = 200;
/// The text that our end writes repeatedly.
const MARK: [u8; 8] = *b"Unsealed";
/// Types of records (RFC 8446 section 5.1), and 0, which marks padding.
const CONTENTS: [u8; 8] = [23, 23, 23, 23, 22, 21, 20, 0];

#[derive(Clone, Copy, Debug)]
enum Op {
    /// The peer seals this many bytes of a content type; the input gives some of the bytes.
    Record {
        content: u8,
        len: u16,
        bytes: [u8; 6],
    },
    /// Like `Record`, with one bit changed.
    Changed {
        len: u8,
        at: u8,
        bit: u8,
    },
    /// A header that may announce more or fewer bytes than follow.
    Header([u8; 5]),
    Read(u16),
    Write(u16),
    UpdateKeys,
    Shutdown,
    PeerShutdown,
    Wire(u8),
    Wait(Duration),
    Step(u8),
}

impl<'a> Arbitrary<'a> for Op {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let kind: u8 = u.arbitrary()?;
        Ok(match kind & 0x3f {
            0..20 => Op::Record {
                content: CONTENTS[usize::from(kind & 7)],
                len: 1 + u16::from(u.arbitrary::<u8>()?),
                bytes: u.arbitrary()?,
            },
            20 | 21 => Op::Record {
                content: 23,
                len: u.arbitrary::<u16>()? % (RecordKey::MAX_TEXT as u16 + 1),
                bytes: u.arbitrary()?,
            },
            22 => Op::Record {
                content: u.arbitrary()?,
                len: 0,
                bytes: [0; 6],
            },
            23 => Op::Changed {
                len: u.arbitrary()?,
                at: u.arbitrary()?,
                bit: u.arbitrary()?,
            },
            24 => Op::Header(u.arbitrary()?),
            25..36 => Op::Read(u.arbitrary()?),
            36..44 => Op::Write(u.arbitrary()?),
            44 | 45 => Op::UpdateKeys,
            46 => Op::Shutdown,
            47 => Op::PeerShutdown,
            48..57 => Op::Wire(0),
            57 => Op::Wire(u.arbitrary()?),
            58..61 => Op::Wait(pause(u.arbitrary()?)),
            _ => Op::Step(u.arbitrary()?),
        })
    }
}

struct World {
    /// Our stack, and the peer's.
    stacks: [Stack; 2],
    now: Instant,
    ours: TlsStream,
    peer: TcpStream,
    key: RecordKey,
    seq: u64,
    /// Bytes that the peer has no room for yet.
    out: Vec<u8>,
    /// The text that our end may read: the contents before the first record that is not data.
    text: Vec<u8>,
    read: usize,
    is_changed: bool,
    ended: Option<Result<(), TlsError>>,
}

fn configs() -> &'static (Arc<ServerConfig>, Arc<ClientConfig>) {
    static CONFIGS: OnceLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let root = &include_bytes!("../../crates/netstack/tests/data/tls/ca.der")[..];
        let leaf = &include_bytes!("../../crates/netstack/tests/data/tls/leaf.der")[..];
        let key = &include_bytes!("../../crates/netstack/tests/data/tls/leaf.key.der")[..];
        let leaf = vec![CertificateDer::from(leaf)];
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(leaf, PrivatePkcs8KeyDer::from(key).into())
            .expect("the certificate is for the key");
        let mut roots = RootCertStore::empty();
        let added = roots.add(CertificateDer::from(root));
        added.expect("it is a certificate");
        let mut client = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        // No handshake resumes a session.
        client.resumption = rustls::client::Resumption::disabled();
        (Arc::new(server), Arc::new(client))
    })
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let kind: u8 = input.any();
    let Some(mut world) = World::new(kind) else {
        panic!("the connection opens");
    };
    let (mut steps, mut records) = (0, 0);
    while steps < STEPS
        && let Some(op) = input.next()
    {
        steps += 1;
        records += u64::from(matches!(
            op,
            Op::Record { .. } | Op::Changed { .. } | Op::Header(_)
        ));
        world.step(op);
    }
    world.wire(0);
    while world.read(1 << 14) {}
    world.stacks.iter().for_each(Stack::check);
    tally::add("steps", steps);
    tally::add("records", records);
}

impl World {
    fn new(kind: u8) -> Option<World> {
        let kind =
            [Kind::Single, Kind::Pair(16), Kind::Pair(64), Kind::Locked][usize::from(kind & 3)];
        let limits = limits().receive_buffer(1 << 15).send_buffer(1 << 14);
        let mut stacks = [
            Stack::at(
                (STACK, STACK_MAC),
                Family::V4,
                kind,
                limits,
                MemoryConfig::default(),
            ),
            Stack::at(
                (FAR, FAR_MAC),
                Family::V4,
                Kind::Single,
                limits,
                MemoryConfig::default(),
            ),
        ];
        let (server, client) = configs();
        let name = ServerName::try_from("server.test").ok()?;
        let (prepared, secrets) = PreparedTls::new(server, client, name).ok()?;
        let listener = stacks[0].sockets.listen(443, 1).ok()?;
        let to = (STACK, 443).into();
        let mut opening = stacks[1].sockets.begin_connect(to).ok()?;
        let now = Instant::from_millis(1);
        wire(&mut stacks, now, 0);
        let (stream, _) = listener.try_accept().ok()?;
        let peer = opening.try_finish().ok()??;
        Some(World {
            stacks,
            now,
            ours: prepared.attach(stream).ok()?,
            peer,
            key: RecordKey::new(&secrets.tx.1)?,
            seq: secrets.tx.0,
            out: Vec::new(),
            text: Vec::new(),
            read: 0,
            is_changed: false,
            ended: None,
        })
    }

    fn wire(&mut self, lost: u8) {
        wire(&mut self.stacks, self.now, lost);
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Record {
                content,
                len,
                bytes,
            } => {
                let filled = bytes.into_iter().cycle().take(usize::from(len));
                let text: Vec<u8> = filled.collect();
                self.record(content, &text, None);
            }
            Op::Changed { len, at, bit } => {
                let text = vec![len; usize::from(len)];
                self.record(23, &text, Some((at, bit)));
            }
            Op::Header(header) => {
                self.is_changed = true;
                self.send(&header);
            }
            Op::Read(len) => drop(self.read(usize::from(len))),
            Op::Write(len) => {
                let text = MARK.repeat(usize::from(len) / MARK.len() + 1);
                let _ = self.ours.try_write(&text);
            }
            Op::UpdateKeys => drop(self.ours.update_keys()),
            Op::Shutdown => self.ours.shutdown_write(),
            Op::PeerShutdown => self.peer.shutdown_write(),
            Op::Wire(lost) => self.wire(lost),
            Op::Wait(span) => {
                self.now += span;
                self.wire(0);
            }
            Op::Step(which) => self.stacks[0].step(which, self.now),
        }
        self.send(&[]);
        // The peer reads and discards what arrives.
        while let Ok(1..) = self.peer.try_read(&mut [0; 4096]) {}
    }

    /// The peer seals a record and sends it.
    fn record(&mut self, content: u8, text: &[u8], change: Option<(u8, u8)>) {
        let mut record = vec![0; text.len() + RecordKey::OVERHEAD];
        self.key.seal_as(self.seq, content, text, &mut record);
        if let Some((at, bit)) = change {
            let at = usize::from(at) % record.len();
            record[at] ^= 1 << (bit & 7);
        }
        self.send(&record);
        self.seq += 1;
        self.is_changed |= change.is_some();
        let padded = text.iter().rposition(|byte| *byte != 0);
        match (content, padded) {
            _ if self.is_changed => {}
            (23, _) => self.text.extend_from_slice(text),
            (0, Some(end)) if text[end] == 23 => self.text.extend_from_slice(&text[..end]),
            _ => {}
        }
    }

    /// The peer sends as many bytes as there is room for, and the rest later.
    fn send(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        let sent = match self.peer.try_write(&self.out) {
            Ok(sent) => sent,
            Err(SocketError::WouldBlock) => 0,
            // The connection has ended.
            Err(_) => self.out.len(),
        };
        self.out.drain(..sent);
    }

    /// Our end reads. Returns whether it read anything.
    fn read(&mut self, len: usize) -> bool {
        let mut buffer = vec![0; len.clamp(1, 1 << 14)];
        let read = match self.ours.try_read(&mut buffer) {
            Err(TlsError::Socket(SocketError::WouldBlock)) => {
                assert!(self.ended.is_none(), "the end of the stream is no end");
                return false;
            }
            Ok(0) => Err(Ok(())),
            Ok(read) => Ok(read),
            Err(error) => Err(Err(error)),
        };
        match read {
            Ok(read) => {
                assert!(self.ended.is_none(), "something is read behind the end");
                let text = &self.text[self.read..];
                assert!(text.starts_with(&buffer[..read]), "it was not written so");
                self.read += read;
                true
            }
            Err(end) => {
                let is_tls = |end: &Result<(), TlsError>| !matches!(end, Err(TlsError::Socket(_)));
                if let Some(before) = &self.ended
                    && is_tls(before)
                {
                    assert_eq!(*before, end, "the stream ends in another way");
                }
                self.ended = Some(end);
                false
            }
        }
    }
}

/// Exchanges frames until nothing happens; `lost` selects frames of the peer to lose.
fn wire(stacks: &mut [Stack; 2], now: Instant, mut lost: u8) {
    for _ in 0..ROUNDS {
        let mut done = 0;
        for from in 0..2 {
            stacks[from].run_until_idle(now);
            for frame in stacks[from].take_sent() {
                done += 1;
                let mut parts = frame.windows(MARK.len());
                assert!(!parts.any(|part| part == MARK), "a frame carries text");
                lost = lost.rotate_right(1);
                if lost & 0x80 == 0 {
                    stacks[1 - from].push(frame, RxMeta::default());
                }
            }
        }
        if done == 0 {
            return;
        }
    }
}
