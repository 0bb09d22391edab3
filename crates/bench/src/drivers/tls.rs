//! One TLS stream: the rows of the experiment `tls`.
//!
//! The handshake is done in memory, by `rustls` at both ends. What the peer sends are prebuilt
//! frames, whose records were sealed once: after [`RECORDS`] of them the numbers of records begin
//! with 0 again, on both sides. That is nothing to a benchmark, and would be the end of any
//! secrecy. A connection of `rustls` cannot be made to do that. So the rows with its name do
//! the same work on each record, by its own [`MessageDecrypter`] and [`MessageEncrypter`] in the
//! thread of the application: copy from the receive ring, open in place, copy the text; seal into a
//! new vector, copy into the send ring. Its other work, to find records and keep its state, is left
//! out, in its favour.
//!
//! `cipher` opens and seals records from memory to memory and does nothing else; `limit` also
//! verifies or computes the checksums of their segments and copies those, which come from and go to
//! the same device as in the other rows, with their acknowledgments and no protocol. The
//! received text is compared before anything is measured. The sent records are not opened by the
//! peer, which verifies its checksums only; `crates/netstack/tests/tls.rs` looks at such bytes.

use core::fmt::Display;
use core::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dominoes_drivers::memory::peer::headers::{self, Ends, HEADERS_LEN, flags};
use dominoes_drivers::memory::peer::{Payload, PeerHandle, PeerRx, PeerTx, Role};
use dominoes_drivers::{Device, DeviceRx, DeviceTx, Frame, TxFrame, TxMeta, TxPrepare};
use dominoes_netstack::group::{Layout, ReplicatedGroup};
use dominoes_netstack::stats::{PumpStats, StateStats};
use dominoes_netstack::time::Instant;
use dominoes_netstack::tls::{PreparedTls, RecordKey, TlsError, TlsReadHalf, TlsWriteHalf};
use dominoes_netstack::variants::kernel;
use dominoes_netstack::variants::single::Single;
use dominoes_netstack::variants::{ByHand, Setup, Worker};
use dominoes_netstack::{ReadHalf, SocketError, TcpListener, TcpStream, WriteHalf};
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suites};
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ConnectionTrafficSecrets, ContentType, ExtractedSecrets, ProtocolVersion,
    RootCertStore, ServerConfig, SupportedCipherSuite,
};

use super::worker::{self, Application};
use super::{Direction, Driver, Row, Variant, app, limit as plain, smoltcp};
use crate::peer;
use crate::workload::tls::{LONGEST, RECORDS};
use crate::workload::{self, Processing, Workload};

/// Bytes that the application writes before others have a turn. It seals some of that itself, so
/// more would keep its worker from frames that the other one waits for.
const WRITE: usize = 64 << 10;
/// Records that the application reads before others have a turn.
const BURST: usize = 16;
/// Bytes of a transmit slot of `limit`.
const SLOT: usize = 1600;
const NAME: &str = "server.test";

/// One way, one connection, software checksums.
fn can(direction: Direction, workload: &Workload) -> bool {
    direction != Direction::Both
        && workload.connections == 1
        && workload.processing.is_tls()
        && workload.checksum
        && !workload.timestamps
}

/// The rows of the experiment, in the order of the table.
pub(crate) const VARIANTS: &[Variant] = &[
    Variant::new(
        "cipher",
        "the cipher alone, from memory to memory",
        |direction, workload, cores| limit("cipher", false, direction, workload, cores),
    )
    .scales()
    .can(can),
    Variant::new(
        "limit",
        "the same, checksums and copies of segments, the device, with no protocol",
        |direction, workload, cores| limit("limit", true, direction, workload, cores),
    )
    .scales()
    .can(can),
    Variant::new(
        "smoltcp",
        "records by rustls in the application's thread, over smoltcp",
        over_smoltcp,
    )
    .can(can),
    Variant::new(
        "rustls",
        "records by rustls in the application's thread, over our TCP on one core, no log",
        rustls_on_single,
    )
    .can(can),
    Variant::new(
        "single",
        "records by the stack, on one core, no log",
        single,
    )
    .can(can),
    Variant::new("replicated", "records by all replicas, one log", replicated)
        .scales()
        .can(can),
];

// Keys and records
// ----------------------------------------------------------------------------------------------------

fn suite(workload: &Workload) -> Result<SupportedCipherSuite, String> {
    match workload.processing {
        Processing::TlsAes128Gcm => Ok(suites::TLS13_AES_128_GCM_SHA256),
        Processing::TlsAes256Gcm => Ok(suites::TLS13_AES_256_GCM_SHA384),
        Processing::TlsChaCha20Poly1305 => Ok(suites::TLS13_CHACHA20_POLY1305_SHA256),
        _ => Err("the workload has no TLS".to_owned()),
    }
}

/// A certificate of the stack's tests, or its key: making one would take a crate that takes long to
/// compile.
macro_rules! certificate {
    ($file:literal) => {
        &include_bytes!(concat!("../../../netstack/tests/data/tls/", $file))[..]
    };
}

/// A handshake in memory: our end, and the peer's secrets.
fn handshake(workload: &Workload) -> Result<(PreparedTls, ExtractedSecrets), String> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![suite(workload)?];
    let provider = Arc::new(provider);
    let versions = &[&rustls::version::TLS13];
    let key = PrivatePkcs8KeyDer::from(certificate!("leaf.key.der"));
    let certificate = CertificateDer::from(certificate!("leaf.der"));
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from(certificate!("ca.der"));
    roots.add(root).map_err(|e| e.to_string())?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .and_then(|builder| {
            builder
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key.into())
        });
    let mut server = server.map_err(|e| e.to_string())?;
    // A record that is no text would be the first.
    server.send_tls13_tickets = 0;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|e| e.to_string())?;
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = true;
    let name = ServerName::try_from(NAME).map_err(|e| e.to_string())?;
    PreparedTls::new(&Arc::new(server), &Arc::new(client), name).map_err(|e| e.to_string())
}

fn key(secrets: &ConnectionTrafficSecrets) -> Result<RecordKey, String> {
    RecordKey::new(secrets).ok_or_else(|| "a cipher that is not known here".to_owned())
}

/// Bytes of a record of the peer: whole segments.
fn record_len(workload: &Workload) -> Result<usize, String> {
    match LONGEST / workload.segment_bytes * workload.segment_bytes {
        len if len > RecordKey::OVERHEAD => Ok(len),
        _ => Err("segments are too long for whole ones of them in a record".to_owned()),
    }
}

/// The text of each record of the peer.
fn text(workload: &Workload) -> Result<Vec<u8>, String> {
    let len = record_len(workload)? - RecordKey::OVERHEAD;
    Ok(workload::bytes(workload.seed, len))
}

/// The records of the peer, until their numbers repeat.
fn records(workload: &Workload, key: &RecordKey) -> Result<Vec<Vec<u8>>, String> {
    let text = text(workload)?;
    let len = record_len(workload)?;
    let one = |seq| {
        let mut record = vec![0; len];
        key.seal(seq, &text, &mut record);
        record
    };
    Ok((0..RECORDS as u64).map(one).collect())
}

/// The payload of the peer's segments.
fn payload(workload: &Workload, secrets: &ExtractedSecrets) -> Result<Payload, String> {
    let records = records(workload, &key(&secrets.tx.1)?)?;
    let segments = records
        .iter()
        .flat_map(|record| record.chunks_exact(workload.segment_bytes));
    Ok(Payload::Round(segments.map(Vec::from).collect()))
}

// Ours
// ----------------------------------------------------------------------------------------------------------------

/// The application, and its counters.
struct App<S> {
    stream: S,
    sends: bool,
    /// What each record should be, while that is compared.
    expected: Option<Vec<u8>>,
    workload: Workload,
    /// The text to write.
    text: Vec<u8>,
    read: u64,
    wrong: u64,
    failed: Option<String>,
    peer: PeerHandle,
    /// Kept so that the port stays open.
    _listener: TcpListener,
}

/// A stream with TLS, of whichever kind.
trait Stream: Send {
    /// Takes the text of the next record; false if there is none yet.
    fn receive(&mut self, take: impl FnOnce(&[u8])) -> Result<bool, String>;
    /// Sends of `text`; false if there is no room.
    fn send(&mut self, text: &[u8]) -> Result<bool, String>;
}

impl<S: Stream> App<S> {
    fn new(
        direction: Direction,
        workload: &Workload,
        (listener, stream): (TcpListener, S),
        peer: PeerHandle,
    ) -> App<S> {
        App {
            stream,
            sends: direction.sends(),
            expected: None,
            workload: *workload,
            text: workload::bytes(workload.seed, WRITE),
            read: 0,
            wrong: 0,
            failed: None,
            peer,
            _listener: listener,
        }
    }

    fn step(&mut self) -> Result<bool, String> {
        if self.sends {
            return self.stream.send(&self.text);
        }
        let App {
            expected,
            read,
            wrong,
            ..
        } = self;
        self.stream.receive(|text| {
            *read += text.len() as u64;
            if let Some(expected) = expected {
                *wrong += u64::from(text != expected);
            }
        })
    }
}

impl<S: Stream> Application for App<S> {
    fn turn(&mut self) -> bool {
        let burst = if self.sends { 1 } else { BURST };
        for i in 0..burst {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return i > 0,
                Err(failed) => {
                    self.failed.get_or_insert(failed);
                    return false;
                }
            }
        }
        true
    }

    fn bytes(&self) -> u64 {
        if self.sends {
            self.peer.received_bytes(0)
        } else {
            self.read
        }
    }

    fn verify(&mut self, on: bool) {
        self.peer.verify(on);
        self.expected = if on { text(&self.workload).ok() } else { None };
    }

    fn sent_again(&self) -> u64 {
        self.peer.sent_again()
    }

    fn out_of_order(&self) -> u64 {
        self.peer.out_of_order()
    }

    fn check(&self) -> Result<(), String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        match self.wrong {
            0 => self.peer.check().map_err(|e| e.to_string()),
            wrong => Err(format!("{wrong} records had another text")),
        }
    }

    fn seen(pump: &PumpStats) -> u64 {
        app::App::seen(pump)
    }

    fn complaints(state: &StateStats) -> Vec<(u64, &'static str)> {
        app::App::complaints(state)
    }
}

/// The stack that `make` builds, with a peer that sends sealed records, and the application on the
/// stream that `attach` makes of its connection.
fn stack<W: Worker + 'static, S: Stream, E: Display>(
    direction: Direction,
    workload: &Workload,
    make: impl FnOnce(Setup, Box<dyn Device>) -> Result<ByHand<W>, E>,
    attach: impl FnOnce(PreparedTls, ExtractedSecrets, TcpStream) -> Result<S, String>,
) -> Result<(ByHand<W>, App<S>), String> {
    let (prepared, secrets) = handshake(workload)?;
    let payload = payload(workload, &secrets)?;
    let (device, peer) = peer::with_payload(app::role(direction), workload, payload)?;
    let stack = make(app::setup(direction, workload)?, Box::new(device));
    let mut stack = stack.map_err(|error| error.to_string())?;
    let listener = stack.sockets().listen(peer::port(), 1);
    let listener = listener.map_err(|e| e.to_string())?;
    for now in 0..super::SETUP_NS {
        stack.turn(Instant::from_nanos(now));
        match listener.try_accept() {
            Ok((stream, _)) => {
                let stream = attach(prepared, secrets, stream)?;
                let app = App::new(direction, workload, (listener, stream), peer);
                return Ok((stack, app));
            }
            Err(SocketError::WouldBlock) => {}
            Err(other) => return Err(other.to_string()),
        }
    }
    Err("the peer's connection was not established".to_owned())
}

/// Records by the stack.
struct Ours {
    reader: TlsReadHalf,
    writer: TlsWriteHalf,
}

impl Ours {
    fn new(prepared: PreparedTls, _: ExtractedSecrets, stream: TcpStream) -> Result<Ours, String> {
        let stream = prepared.attach(stream).map_err(|e| e.to_string())?;
        let (mut reader, writer) = stream.split();
        reader.repeat_numbers(RECORDS as u64);
        Ok(Ours { reader, writer })
    }
}

/// Whether it was done; false if it would have to wait.
fn done<T>(result: Result<T, TlsError>) -> Result<bool, String> {
    match result {
        Ok(_) => Ok(true),
        Err(TlsError::Socket(SocketError::WouldBlock)) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

impl Stream for Ours {
    fn receive(&mut self, take: impl FnOnce(&[u8])) -> Result<bool, String> {
        let len = match self.reader.try_fill() {
            Ok([]) => return Err("the stream ended".to_owned()),
            Ok(text) => {
                take(text);
                text.len()
            }
            Err(error) => return done::<()>(Err(error)),
        };
        self.reader.consume(len);
        Ok(true)
    }

    fn send(&mut self, text: &[u8]) -> Result<bool, String> {
        done(self.writer.try_write(text))
    }
}

fn single(direction: Direction, workload: &Workload, _cores: usize) -> Result<Row, String> {
    let (single, app) = stack(direction, workload, Single::new, Ours::new)?;
    Ok(worker::row("single", single.into_workers(), [app]))
}

fn replicated(direction: Direction, workload: &Workload, cores: usize) -> Result<Row, String> {
    let mut layout = Layout::default();
    layout.replicas = cores;
    layout.tuning.log = workload.log_requests;
    let make = |setup, device| {
        ReplicatedGroup::new(setup, layout, device).map(ReplicatedGroup::into_by_hand)
    };
    let (group, app) = stack(direction, workload, make, Ours::new)?;
    Ok(worker::row("replicated", group.into_workers(), [app]))
}

// rustls
// --------------------------------------------------------------------------------------------------------------

/// What `rustls` does with records, over any stream of bytes.
pub(crate) struct RustlsRecords {
    decrypter: Box<dyn MessageDecrypter>,
    encrypter: Box<dyn MessageEncrypter>,
    received: u64,
    sent: u64,
    /// Bytes that were read and not opened.
    incoming: Vec<u8>,
    filled: usize,
    /// A record that is being written, and how much of it is.
    outgoing: Vec<u8>,
    written: usize,
}

/// Bytes of the header of a record.
const HEADER: usize = 5;

impl RustlsRecords {
    /// With the peer's secrets.
    fn new(workload: &Workload, secrets: ExtractedSecrets) -> Result<RustlsRecords, String> {
        let suite = suite(workload)?.tls13().ok_or("a suite of TLS 1.2")?;
        let parts = |secrets| match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
            _ => Err("a cipher that is not known here".to_owned()),
        };
        let ((their, their_iv), (our, our_iv)) = (parts(secrets.tx.1)?, parts(secrets.rx.1)?);
        Ok(RustlsRecords {
            decrypter: suite.aead_alg.decrypter(their, their_iv),
            encrypter: suite.aead_alg.encrypter(our, our_iv),
            received: 0,
            sent: 0,
            incoming: vec![0; LONGEST],
            filled: 0,
            outgoing: Vec::new(),
            written: 0,
        })
    }

    /// Reads by `read`, opens a record, and lends its text to `take`. False if there is none.
    pub(crate) fn receive(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> usize,
        take: impl FnOnce(&[u8]),
    ) -> Result<bool, String> {
        let end = loop {
            if let [_, _, _, high, low, ..] = self.incoming[..self.filled] {
                let end = HEADER + usize::from(u16::from_be_bytes([high, low]));
                if self.filled >= end {
                    break end;
                }
            }
            match read(&mut self.incoming[self.filled..]) {
                0 => return Ok(false),
                len => self.filled += len,
            }
        };
        let record = InboundOpaqueMessage::new(
            ContentType::ApplicationData,
            ProtocolVersion::TLSv1_2,
            &mut self.incoming[HEADER..end],
        );
        let opened = self.decrypter.decrypt(record, self.received);
        // As it is queued for the application.
        let text = opened.map_err(|e| e.to_string())?.payload.to_vec();
        take(&text);
        self.received = (self.received + 1) % RECORDS as u64;
        self.incoming.copy_within(end..self.filled, 0);
        self.filled -= end;
        Ok(true)
    }

    /// Seals `text` as a record, unless one is under way, and writes of that by `write`. False if
    /// there is no room.
    pub(crate) fn send(
        &mut self,
        text: &[u8],
        mut write: impl FnMut(&[u8]) -> usize,
    ) -> Result<bool, String> {
        if self.written == self.outgoing.len() {
            let plain = OutboundPlainMessage {
                typ: ContentType::ApplicationData,
                version: ProtocolVersion::TLSv1_2,
                payload: OutboundChunks::Single(&text[..text.len().min(RecordKey::MAX_TEXT)]),
            };
            let sealed = self.encrypter.encrypt(plain, self.sent);
            self.outgoing = sealed.map_err(|e| e.to_string())?.encode();
            self.written = 0;
            self.sent += 1;
        }
        let len = write(&self.outgoing[self.written..]);
        self.written += len;
        Ok(len > 0)
    }
}

/// Records by `rustls`, over our TCP.
struct Rustls {
    records: RustlsRecords,
    reader: ReadHalf,
    writer: WriteHalf,
}

/// How many bytes; none if the call would have to wait, or the connection ended, which is noted.
fn moved(result: Result<usize, SocketError>, ended: &mut Option<SocketError>) -> usize {
    result.unwrap_or_else(|error| {
        if error != SocketError::WouldBlock {
            *ended = Some(error);
        }
        0
    })
}

fn unless_ended(ended: Option<SocketError>, done: bool) -> Result<bool, String> {
    ended.map_or(Ok(done), |error| Err(error.to_string()))
}

impl Stream for Rustls {
    fn receive(&mut self, take: impl FnOnce(&[u8])) -> Result<bool, String> {
        let mut ended = None;
        let Rustls {
            records, reader, ..
        } = self;
        let done = records.receive(|into| moved(reader.try_read(into), &mut ended), take)?;
        unless_ended(ended, done)
    }

    fn send(&mut self, text: &[u8]) -> Result<bool, String> {
        let mut ended = None;
        let Rustls {
            records, writer, ..
        } = self;
        let done = records.send(text, |from| moved(writer.try_write(from), &mut ended))?;
        unless_ended(ended, done)
    }
}

fn rustls_on_single(direction: Direction, workload: &Workload, _: usize) -> Result<Row, String> {
    let attach = |_, secrets, stream: TcpStream| {
        let (reader, writer) = stream.split();
        Ok(Rustls {
            records: RustlsRecords::new(workload, secrets)?,
            reader,
            writer,
        })
    };
    let (single, app) = stack(direction, workload, Single::new, attach)?;
    Ok(worker::row("rustls", single.into_workers(), [app]))
}

/// What smoltcp's driver needs to know.
pub(crate) struct OverSmoltcp {
    pub(crate) payload: Payload,
    pub(crate) records: RustlsRecords,
    /// The text to write, and the expected text of each record.
    pub(crate) text: Vec<u8>,
    pub(crate) expected: Vec<u8>,
}

fn over_smoltcp(direction: Direction, workload: &Workload, _: usize) -> Result<Row, String> {
    let (_, secrets) = handshake(workload)?;
    let tls = OverSmoltcp {
        payload: payload(workload, &secrets)?,
        records: RustlsRecords::new(workload, secrets)?,
        text: workload::bytes(workload.seed, RecordKey::MAX_TEXT),
        expected: text(workload)?,
    };
    smoltcp::tls_row("smoltcp", direction, workload, tls)
}

// No protocol
// ---------------------------------------------------------------------------------------------------------

/// Shared by the drivers of `cipher` and `limit`: a counter, and the bytes that they read.
struct Shared {
    key: RecordKey,
    next: AtomicU64,
    /// Received records of `cipher`.
    records: Vec<Vec<u8>>,
    /// Sent: text.
    ring: Vec<u8>,
    segment: usize,
    /// Of `limit`.
    device: Option<SharedDevice>,
    header: [u8; HEADERS_LEN],
}

/// The device of `limit`, which moves frames and acknowledgments and does nothing to them.
struct SharedDevice {
    rx: Mutex<Source>,
    tx: Mutex<PeerTx>,
    preparer: Arc<dyn TxPrepare>,
    peer: PeerHandle,
}

/// Where frames come from, and which record the next ones are.
struct Source {
    rx: PeerRx,
    next: u64,
}

struct LimitDriver {
    shared: Arc<Shared>,
    sends: bool,
    record: Vec<u8>,
    text: Vec<u8>,
    /// Received frames that are in use, or acknowledgments.
    frames: Vec<Frame>,
    /// Memory of its transmit slots, the number of the first, and the next one in it.
    slots: Vec<u8>,
    first_slot: usize,
    slot: usize,
    expected: Vec<u8>,
    verifies: bool,
    bytes: u64,
    wrong: u64,
}

/// The variants on `cores` cores.
fn limit(
    name: &'static str,
    moves_frames: bool,
    direction: Direction,
    workload: &Workload,
    cores: usize,
) -> Result<Row, String> {
    let (_, secrets) = handshake(workload)?;
    let sends = direction.sends();
    let slots = workload.transmit_slots() as usize / cores;
    let records = match sends || moves_frames {
        true => Vec::new(),
        false => {
            let records = records(workload, &key(&secrets.tx.1)?)?;
            let all = (workload.pool_bytes / record_len(workload)?).max(1);
            let all = all.next_multiple_of(RECORDS);
            records.into_iter().cycle().take(all).collect()
        }
    };
    let device = match moves_frames {
        true => Some(SharedDevice::new(workload, &secrets, sends, slots * cores)?),
        false => None,
    };
    let empty = headers::tcp_frame(&Ends::default(), flags::ACK, u16::MAX, &[], &[]);
    let shared = Arc::new(Shared {
        key: key(if sends { &secrets.rx.1 } else { &secrets.tx.1 })?,
        next: AtomicU64::new(0),
        records,
        ring: workload::bytes(workload.seed, workload.ring_bytes as usize),
        segment: workload.segment_bytes,
        device,
        header: plain::header_of(&empty),
    });
    let (expected, received_len) = (text(workload)?, record_len(workload)?);
    let driver = |core| -> Box<dyn Driver> {
        Box::new(LimitDriver {
            shared: Arc::clone(&shared),
            sends,
            record: vec![0; if sends { LONGEST } else { received_len }],
            text: vec![0; LONGEST],
            frames: Vec::new(),
            slots: vec![
                0;
                if sends && moves_frames {
                    slots * SLOT
                } else {
                    0
                }
            ],
            first_slot: core * slots,
            slot: 0,
            expected: expected.clone(),
            verifies: false,
            bytes: 0,
            wrong: 0,
        })
    };
    Ok(Row::new(name, (0..cores).map(driver).collect()))
}

impl SharedDevice {
    fn new(
        workload: &Workload,
        secrets: &ExtractedSecrets,
        sends: bool,
        slots: usize,
    ) -> Result<SharedDevice, String> {
        let payload = payload(workload, secrets)?;
        let role = match sends {
            true => Role::FreeReceiver,
            false => Role::Free,
        };
        let (device, peer) = peer::with_payload(role, workload, payload)?;
        let (rx, mut tx) = device.into_halves();
        let preparer = tx.preparer(slots);
        Ok(SharedDevice {
            rx: Mutex::new(Source { rx, next: 0 }),
            tx: Mutex::new(tx),
            preparer: preparer.ok_or("the simulated device cannot be prepared for")?,
            peer,
        })
    }
}

impl LimitDriver {
    /// Opens some records.
    fn receive(&mut self) {
        let shared = Arc::clone(&self.shared);
        let Some(device) = &shared.device else {
            for _ in 0..BURST {
                // ORDERING: Relaxed, a number.
                let next = shared.next.fetch_add(1, Ordering::Relaxed);
                let record = &shared.records[next as usize % shared.records.len()];
                // They are whole rounds.
                self.open(next, record);
            }
            return;
        };
        let each = self.record.len() / shared.segment;
        let mut source = plain::lock(&device.rx);
        source.rx.release(&mut self.frames);
        // A simulated device cannot be down.
        let claimed = source.rx.claim(BURST * each, &mut self.frames).unwrap_or(0);
        let first = source.next;
        source.next += BURST as u64;
        drop(source);
        self.wrong += u64::from(claimed != BURST * each);
        let (mut record, frames) = (take(&mut self.record), take(&mut self.frames));
        for (frames, next) in frames.chunks_exact(each).zip(first..) {
            let places = record.chunks_exact_mut(shared.segment);
            for (frame, to) in frames.iter().zip(places) {
                self.wrong += u64::from(!kernel::verify_and_copy(frame.bytes(), to));
            }
            self.open(next, &record);
        }
        plain::acknowledge(&mut *plain::lock(&device.tx), &shared.header, frames.len());
        (self.record, self.frames) = (record, frames);
    }

    fn open(&mut self, number: u64, record: &[u8]) {
        let seq = number % RECORDS as u64;
        match self.shared.key.open(seq, record, &mut self.text) {
            Some(len) => {
                self.bytes += len as u64;
                if self.verifies {
                    self.wrong += u64::from(self.text[..len] != self.expected);
                }
            }
            None => self.wrong += 1,
        }
    }

    /// Seals a record, and sends it in segments.
    fn send(&mut self) {
        let shared = &*self.shared;
        // ORDERING: Relaxed, a number.
        let next = shared.next.fetch_add(1, Ordering::Relaxed);
        let all = (shared.ring.len() / RecordKey::MAX_TEXT).max(1);
        let from = next as usize % all * RecordKey::MAX_TEXT;
        let text = &shared.ring[from..(from + RecordKey::MAX_TEXT).min(shared.ring.len())];
        let record = &mut self.record[..text.len() + RecordKey::OVERHEAD];
        shared.key.seal(next, text, record);
        self.bytes += record.len() as u64;
        let Some(device) = &shared.device else { return };
        let count = record.len().div_ceil(shared.segment);
        if (self.slot + count) * SLOT > self.slots.len() {
            self.slot = 0;
        }
        let first = self.first_slot + self.slot;
        let slots = &mut self.slots[self.slot * SLOT..][..count * SLOT];
        self.slot += count;
        for (payload, slot) in record
            .chunks(shared.segment)
            .zip(slots.chunks_exact_mut(SLOT))
        {
            slot[..HEADERS_LEN].copy_from_slice(&shared.header);
            // Where the segment is in the stream, as if all records were as long.
            slot[38..42].copy_from_slice(&(next as u32).to_be_bytes());
            kernel::fill(&mut slot[..HEADERS_LEN + payload.len()], payload);
        }
        let frames: Vec<TxFrame<'_>> = record
            .chunks(shared.segment)
            .zip(slots.chunks_exact(SLOT))
            .map(|(payload, slot)| {
                let (head, payload) = slot[..HEADERS_LEN + payload.len()].split_at(HEADERS_LEN);
                let meta = TxMeta::default();
                TxFrame {
                    head,
                    payload,
                    meta,
                }
            })
            .collect();
        device.preparer.prepare(first, &frames);
        let taken = plain::lock(&device.tx).transmit_prepared(first, count);
        self.wrong += u64::from(taken.unwrap_or(0) != count);
    }
}

impl Driver for LimitDriver {
    fn turn(&mut self, _now: Instant) -> usize {
        if self.sends {
            if let Some(device) = &self.shared.device {
                plain::claim_acks(&mut plain::lock(&device.rx).rx, &mut self.frames);
                self.wrong += plain::count_bad(&self.frames);
            }
            (0..BURST).for_each(|_| self.send());
        } else {
            self.receive();
        }
        BURST
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn verify(&mut self, on: bool) {
        self.verifies = on;
        if let Some(device) = &self.shared.device {
            device.peer.verify(on);
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(device) = &self.shared.device {
            device.peer.check().map_err(|e| e.to_string())?;
        }
        match self.wrong {
            0 => Ok(()),
            wrong => Err(format!("{wrong} segments or records were wrong")),
        }
    }
}
