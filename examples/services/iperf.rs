//! The server of iperf3, for TCP: one test at a time.
//!
//! The only specification of the protocol is its source (`iperf_server_api.c`, `iperf_api.c`).
//! The client opens a control connection and sends a cookie. Then each side reports its state in
//! one byte. Three times a length and a JSON text follow: the parameters of the test, and the
//! results of both sides. Connections for data begin with the same cookie.

use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::TcpPolicy;
use serde_json::{Value, json};

use crate::http::Writer;
use crate::net::{Connection, Listener};
use crate::process::{Process, Work};
use crate::{drain, read_array};

// States (`iperf_api.h`).
pub(crate) const TEST_START: u8 = 1;
pub(crate) const TEST_RUNNING: u8 = 2;
pub(crate) const TEST_END: u8 = 4;
pub(crate) const PARAM_EXCHANGE: u8 = 9;
pub(crate) const CREATE_STREAMS: u8 = 10;
pub(crate) const CLIENT_TERMINATE: u8 = 12;
pub(crate) const EXCHANGE_RESULTS: u8 = 13;
pub(crate) const DISPLAY_RESULTS: u8 = 14;
pub(crate) const IPERF_DONE: u8 = 16;
/// -1: another test is running.
pub(crate) const ACCESS_DENIED: u8 = 0xff;
/// -2: two numbers follow, of iperf3's error and of the system's.
pub(crate) const SERVER_ERROR: u8 = 0xfe;

/// iperf3's number for an unsupported option (`IEUNIMP`).
const UNIMPLEMENTED: u32 = 13;

/// Bytes of a cookie: 36 characters and a zero.
pub(crate) const COOKIE: usize = 37;
/// The longest accepted JSON text, in bytes.
const LONGEST: u32 = 1 << 20;
/// How long a stream pauses when it exceeds its rate, as in iperf3.
const PACING_INTERVAL: Duration = Duration::from_millis(1);

/// How long we wait for the first bytes of a stream. A client that sends little uses only some.
const BEGINNING: Duration = Duration::from_secs(1);

/// The most streams of a test, as in iperf3.
const STREAMS: u64 = 128;

/// Runs tests one after another until the stack goes down; `process`: on the bytes of streams.
pub(crate) fn serve(listener: &Listener, process: Option<Process>) {
    while let Ok(control) = listener.accept() {
        // The client notices if a test breaks off.
        if let Err(error) = test(control, listener, process) {
            println!("iperf3: {error}");
        }
    }
}

/// The parameters that the client sent.
struct Parameters {
    streams: u64,
    /// Bytes per write.
    block: usize,
    /// The most bytes per second that each of our streams sends; 0: no limit.
    rate: u64,
    /// Whether the client sends, and whether we send.
    directions: (bool, bool),
}

impl Parameters {
    fn understand(text: &Value) -> Option<Parameters> {
        let flag = |name: &str| match &text[name] {
            Value::Bool(set) => *set,
            number => number.as_i64().is_some_and(|number| number != 0),
        };
        let (reverse, both) = (flag("reverse"), flag("bidirectional"));
        let streams = text["parallel"].as_u64().unwrap_or(1);
        let block = text["len"].as_u64().unwrap_or(128 << 10);
        let known = !flag("udp") && !flag("sctp") && (1..=STREAMS).contains(&streams);
        known.then_some(Parameters {
            streams,
            block: block.clamp(1, 1 << 20) as usize,
            // Option `-b`, in bits per second.
            rate: text["bandwidth"].as_u64().unwrap_or(0) / 8,
            directions: (!reverse || both, reverse || both),
        })
    }
}

/// One connection for data.
#[derive(Default)]
struct Stream {
    we_send: AtomicBool,
    bytes: AtomicU64,
}

fn test(control: Connection, listener: &Listener, process: Option<Process>) -> io::Result<()> {
    let (mut from, mut to) = control.split()?;
    let cookie: [u8; COOKIE] = read_array(&mut from)?;
    send_state(&mut to, PARAM_EXCHANGE)?;
    let Some(parameters) = Parameters::understand(&read_json(&mut from)?) else {
        send_state(&mut to, SERVER_ERROR)?;
        to.write_all(&UNIMPLEMENTED.to_be_bytes())?;
        return to.write_all(&0u32.to_be_bytes());
    };
    send_state(&mut to, CREATE_STREAMS)?;
    let over = Arc::new(AtomicBool::new(false));
    let count = parameters.streams as usize;
    let (they, we) = parameters.directions;
    let of_them = if they { count } else { 0 };
    let mut accepted = Vec::new();
    for _ in 0..of_them + if we { count } else { 0 } {
        accepted.push(accept(listener, &cookie)?);
    }
    send_state(&mut to, TEST_START)?;
    send_state(&mut to, TEST_RUNNING)?;
    let start = Instant::now();
    let (begun, beginnings) = mpsc::channel();
    let mut idle = Vec::new();
    // The threads end when the client closes, after it has received the results.
    for (number, connection) in accepted.into_iter().enumerate() {
        let mut work = process.map(Work::new).transpose()?;
        let (reader, writer) = match &work {
            Some(work) => connection.units(work.processor())?,
            None => connection.split()?,
        };
        let stream = Arc::new(Stream::default());
        let mut unread = Some(reader);
        if they && let Some(reader) = unread.take() {
            let (begun, stream) = (begun.clone(), Arc::clone(&stream));
            thread::Builder::new().spawn(move || {
                let begin = || _ = begun.send(number);
                let _ = empty(reader, &stream, begin, |payload| match &mut work {
                    Some(work) => work.take(payload),
                    None => payload.len(),
                });
            })?;
        }
        idle.push((number, writer, unread, stream));
    }
    // With both directions the client opens those first on which it sends. They may be accepted in
    // another order, so we look where bytes arrive.
    let mut theirs = Vec::new();
    while we
        && theirs.len() < of_them
        && let Ok(number) = beginnings.recv_timeout(BEGINNING)
    {
        theirs.push(number);
    }
    idle.sort_by_key(|(number, ..)| !theirs.contains(number));
    let streams: Vec<_> = idle.iter().map(|(.., stream)| Arc::clone(stream)).collect();
    for (_, writer, unread, stream) in idle.drain(of_them..) {
        // ORDERING: Relaxed, because only this thread reads it.
        stream.we_send.store(true, Relaxed);
        let over = Arc::clone(&over);
        let (block, rate) = (parameters.block, parameters.rate);
        thread::Builder::new().spawn(move || {
            let _ = fill(writer, &stream, &over, block, rate);
            drop(unread);
        })?;
    }
    let state = read_state(&mut from)?;
    let seconds = start.elapsed().as_secs_f64();
    over.store(true, Relaxed);
    if state != TEST_END {
        return Err(unexpected(state));
    }
    let results = results(&streams, seconds);
    send_state(&mut to, EXCHANGE_RESULTS)?;
    read_json(&mut from)?;
    write_json(&mut to, &results)?;
    send_state(&mut to, DISPLAY_RESULTS)?;
    print(&streams, seconds);
    match read_state(&mut from)? {
        IPERF_DONE => Ok(()),
        state => Err(unexpected(state)),
    }
}

/// Accepts a connection with this cookie. Refuses clients with another cookie for now.
fn accept(listener: &Listener, cookie: &[u8; COOKIE]) -> io::Result<Connection> {
    loop {
        let mut connection = listener.accept()?;
        match read_array::<COOKIE>(&mut connection) {
            Ok(theirs) if theirs == *cookie => return Ok(connection),
            Ok(_) => {
                let _ = connection.write_all(&[ACCESS_DENIED]);
            }
            // This client gave up; another may still connect.
            Err(_) => {}
        }
    }
}

/// Sends until the test is over, at most at `rate`.
fn fill(
    mut writer: Box<dyn Writer + Send>,
    stream: &Stream,
    over: &AtomicBool,
    block: usize,
    rate: u64,
) -> io::Result<()> {
    let mut bytes = vec![0; block];
    crate::web::fill_pattern(0, &mut bytes);
    let start = Instant::now();
    // ORDERING: Relaxed, because it may be seen late.
    while !over.load(Relaxed) {
        let allowed = start.elapsed().as_secs_f64() * rate as f64;
        if rate > 0 && stream.bytes.load(Relaxed) as f64 > allowed {
            thread::sleep(PACING_INTERVAL);
            continue;
        }
        let len = writer.write(&bytes)?;
        // ORDERING: Relaxed, because it only counts for display.
        stream.bytes.fetch_add(len as u64, Relaxed);
    }
    Ok(())
}

/// Reads until the client closes. Calls `begin` when the first bytes arrive. `take` returns how many
/// bytes of the stream it was given.
fn empty(
    reader: Box<dyn BufRead + Send>,
    stream: &Stream,
    begin: impl FnOnce(),
    mut take: impl FnMut(&[u8]) -> usize,
) -> io::Result<()> {
    let mut begin = Some(begin);
    drain(reader, |bytes| {
        if let Some(begin) = begin.take() {
            begin();
        }
        stream.bytes.fetch_add(take(bytes) as u64, Relaxed);
    })
}

/// Our results, for the client. It identifies streams by number: 1, 3, 4, 5 and so on.
fn results(streams: &[Arc<Stream>], seconds: f64) -> Value {
    let numbers = std::iter::once(1).chain(3..);
    let streams: Vec<Value> = streams
        .iter()
        .zip(numbers)
        .map(|(stream, number)| {
            json!({
                "id": number,
                "bytes": stream.bytes.load(Relaxed),
                "retransmits": -1,
                "jitter": 0,
                "errors": 0,
                "omitted_errors": 0,
                "packets": 0,
                "omitted_packets": 0,
                "start_time": 0,
                "end_time": seconds,
            })
        })
        .collect();
    let congestion = format!("{:?}", TcpPolicy::default().congestion);
    json!({
        "cpu_util_total": 0,
        "cpu_util_user": 0,
        "cpu_util_system": 0,
        "sender_has_retransmits": 0,
        "congestion_used": congestion.to_lowercase(),
        "streams": streams,
    })
}

fn print(streams: &[Arc<Stream>], seconds: f64) {
    for (we_send, verb) in [(false, "received"), (true, "sent")] {
        let these = streams.iter();
        let these = these.filter(|stream| stream.we_send.load(Relaxed) == we_send);
        let bytes: u64 = these.map(|stream| stream.bytes.load(Relaxed)).sum();
        if bytes > 0 {
            let rate = bytes as f64 * 8e-9 / seconds;
            println!("iperf3: {verb} {bytes} bytes in {seconds:.1} s, {rate:.2} Gbit/s");
        }
    }
}

fn send_state(to: &mut impl Write, state: u8) -> io::Result<()> {
    to.write_all(&[state])
}

/// The next state of the client.
fn read_state(from: &mut impl Read) -> io::Result<u8> {
    read_array::<1>(from).map(|[state]| state)
}

fn unexpected(state: u8) -> io::Error {
    let text = if state == CLIENT_TERMINATE {
        "the client ended the test".to_owned()
    } else {
        format!("the client went to state {state}")
    };
    io::Error::other(text)
}

pub(crate) fn read_json(from: &mut impl Read) -> io::Result<Value> {
    let len = u32::from_be_bytes(read_array(from)?);
    if len > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = vec![0; len as usize];
    from.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

pub(crate) fn write_json(to: &mut impl Write, value: &Value) -> io::Result<()> {
    let text = value.to_string();
    to.write_all(&(text.len() as u32).to_be_bytes())?;
    to.write_all(text.as_bytes())
}
