//! The self-test without a device: all services on one stack, a client of each on another stack,
//! joined in memory.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{Stack, TcpStream};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::iperf::{
    ACCESS_DENIED, COOKIE, CREATE_STREAMS, DISPLAY_RESULTS, EXCHANGE_RESULTS, IPERF_DONE,
    PARAM_EXCHANGE, SERVER_ERROR, TEST_END, TEST_RUNNING, TEST_START, read_json, write_json,
};
use crate::program::Outcome;
use crate::{DISCARD, ECHO, HTTP, IPERF, Services, Threads, read_array, stack, web};

/// Bytes in each direction in a test.
const BYTES: usize = 20_000_000;
/// The duration of an iperf3 test, and the least bytes of a stream: more than both rings hold, so
/// the receiver has read some, however busy the machine is.
const RUN: Duration = Duration::from_millis(300);
const LEAST: u64 = 8 << 20;

/// Tests each service.
pub(crate) fn run(threads: Threads) -> Outcome<()> {
    let (near, far) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
    let server = threads.builder("10.78.0.1/24").start(near)?;
    let one = Threads {
        variant: None,
        threads: stack::Threads::fixed(1),
    };
    let client = one.builder("10.78.0.2/24").start(far)?;
    let services = Services::start(&server, &[], None)?;
    println!("{}, devices in memory", threads.name());
    for (name, test) in TESTS {
        let begin = Instant::now();
        let said = test(&client).map_err(|error| format!("{name}: {error}"))?;
        println!("{name:20} {said} ({} ms)", begin.elapsed().as_millis());
    }
    server.compare()?;
    if server.shares().iter().any(|share| share.diverged > 0) {
        return Err("replicas differ in the work they found to do".into());
    }
    server.shutdown();
    services.join()?;
    client.shutdown();
    Ok(())
}

type Test = fn(&Stack) -> Outcome<String>;

const TESTS: &[(&str, Test)] = &[
    ("echo", echo),
    ("discard", discard),
    ("echo, UDP", echo_datagrams),
    ("http /bytes", fetch),
    ("http /sum", sum),
    ("http, HTTP/1.0", old_clients),
    ("http, what is wrong", mistakes),
    ("echo, many at once", many),
    ("iperf3", |stack| {
        iperf(stack, json!({"tcp": true, "parallel": 2}), &[1, 3])
    }),
    ("iperf3 -R", |stack| {
        iperf(
            stack,
            json!({"tcp": true, "parallel": 1, "reverse": true}),
            &[1],
        )
    }),
    ("iperf3 --bidir", |stack| {
        iperf(
            stack,
            json!({"tcp": true, "parallel": 1, "bidirectional": 1}),
            &[1, 3],
        )
    }),
    ("iperf3 -u", no_datagrams),
];

fn connect(stack: &Stack, port: u16) -> Outcome<TcpStream> {
    Ok(stack.connect(SocketAddr::new([10, 78, 0, 1].into(), port))?)
}

fn expect(holds: bool, what: impl Into<String>) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(what.into().into())
    }
}

fn sample(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    web::fill_pattern(0, &mut bytes);
    bytes
}

fn echo_datagrams(stack: &Stack) -> Outcome<String> {
    let socket = stack.bind_udp(0)?;
    socket.connect(SocketAddr::new([10, 78, 0, 1].into(), ECHO))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut got = vec![0; 65_507];
    let lens = [0, 1, 1472, 1473, 8000, 65_507];
    for len in lens {
        let sent = sample(len);
        socket.send(&sent)?;
        let len = socket.recv(&mut got)?;
        expect(got[..len] == sent, "another datagram came back")?;
    }
    Ok(format!("{} datagrams, up to 65507 bytes", lens.len()))
}

fn echo(stack: &Stack) -> Outcome<String> {
    let (mut reader, mut writer) = connect(stack, ECHO)?.split();
    let sent = sample(BYTES);
    let mut got = Vec::new();
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let written = writer.write_all(&sent);
            writer.shutdown();
            written
        });
        reader.read_to_end(&mut got)?;
        sender
            .join()
            .map_err(|_| io::Error::other("the sender panicked"))?
    })?;
    expect(got == sent, format!("{} bytes came back", got.len()))?;
    Ok(format!("{BYTES} bytes came back"))
}

fn discard(stack: &Stack) -> Outcome<String> {
    let (mut reader, mut writer) = connect(stack, DISCARD)?.split();
    writer.write_all(&sample(BYTES))?;
    writer.shutdown();
    let mut got = Vec::new();
    reader.read_to_end(&mut got)?;
    expect(got.is_empty(), "something came back")?;
    Ok(format!("{BYTES} bytes are gone"))
}

/// Sends a request; returns the status line and the body.
fn ask(stream: &mut BufReader<TcpStream>, head: &str, body: &[u8]) -> Outcome<(String, Vec<u8>)> {
    stream.get_mut().write_all(head.as_bytes())?;
    stream.get_mut().write_all(body)?;
    let mut status = String::new();
    stream.read_line(&mut status)?;
    let mut len = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
            len = number.trim().parse()?;
        }
    }
    let mut got = vec![0; len];
    stream.read_exact(&mut got)?;
    Ok((status.trim().to_owned(), got))
}

fn fetch(stack: &Stack) -> Outcome<String> {
    let mut stream = BufReader::new(connect(stack, HTTP)?);
    for len in [0, 1, 4097, BYTES] {
        let head = format!("GET /bytes/{len} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (status, got) = ask(&mut stream, &head, &[])?;
        expect(status == "HTTP/1.1 200 OK", status)?;
        expect(got == sample(len), format!("{len} bytes are others"))?;
    }
    Ok(format!("{BYTES} bytes as they should be"))
}

fn sum(stack: &Stack) -> Outcome<String> {
    let mut stream = BufReader::new(connect(stack, HTTP)?);
    let bytes = sample(BYTES);
    let expected = web::hex(&Sha256::digest(&bytes));
    for method in ["POST", "PUT"] {
        let head = format!("{method} /sum HTTP/1.1\r\nHost: x\r\nContent-Length: {BYTES}\r\n\r\n");
        let (status, got) = ask(&mut stream, &head, &bytes)?;
        expect(status == "HTTP/1.1 200 OK", status)?;
        expect(
            got == format!("{expected}\n").as_bytes(),
            "the sum is another",
        )?;
    }
    Ok(format!("{BYTES} bytes summed"))
}

/// Checks that HTTP/1.0 connections persist if the client asks for it, and that the answer states
/// it.
fn old_clients(stack: &Stack) -> Outcome<String> {
    let mut stream = BufReader::new(connect(stack, HTTP)?);
    let said = |stream: &mut BufReader<TcpStream>, field: &str| -> Outcome<String> {
        let head = format!("GET /bytes/4097 HTTP/1.0\r\n{field}\r\n");
        stream.get_mut().write_all(head.as_bytes())?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            expect(stream.read_line(&mut head)? > 0, "no whole head")?;
        }
        let mut body = [0; 4097];
        stream.read_exact(&mut body)?;
        expect(body[..] == sample(4097), "the bytes are others")?;
        Ok(head)
    };
    for _ in 0..2 {
        let head = said(&mut stream, "Connection: Keep-Alive\r\n")?;
        expect(head.contains("\r\nConnection: keep-alive\r\n"), head)?;
    }
    let head = said(&mut stream, "")?;
    expect(head.contains("\r\nConnection: close\r\n"), head)?;
    let after = stream.read(&mut [0])?;
    expect(after == 0, "the connection stays")?;
    Ok("kept when asked".to_owned())
}

/// Opens more connections than a service once had threads.
fn many(stack: &Stack) -> Outcome<String> {
    const MANY: usize = 200;
    let streams = (0..MANY).map(|_| connect(stack, ECHO));
    let mut streams = streams.collect::<Outcome<Vec<_>>>()?;
    for stream in &mut streams {
        stream.write_all(b"hello")?;
    }
    for stream in &mut streams {
        expect(read_array(stream)? == *b"hello", "something else came back")?;
    }
    Ok(format!("{MANY} connections"))
}

fn mistakes(stack: &Stack) -> Outcome<String> {
    for (line, code) in [
        ("GET /", "404"),
        ("GET /bytes/many", "400"),
        ("GET /bytes/-1", "400"),
        ("GET /bytes/99999999999999999999", "400"),
        ("POST /", "404"),
        ("DELETE /sum", "501"),
        ("GET /bytes/1\r\nx: y", "400"),
    ] {
        let mut stream = BufReader::new(connect(stack, HTTP)?);
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (status, _) = ask(&mut stream, &head, &[])?;
        expect(
            status.split(' ').nth(1) == Some(code),
            format!("{line:?}: {status}"),
        )?;
    }
    Ok("told what is wrong".to_owned())
}

/// Behaves as a client of iperf3.
fn iperf(stack: &Stack, mut parameters: serde_json::Value, numbers: &[u64]) -> Outcome<String> {
    let cookie = [b'x'; COOKIE];
    let mut control = connect(stack, IPERF)?;
    control.write_all(&cookie)?;
    expect_state(&mut control, PARAM_EXCHANGE)?;
    parameters["len"] = json!(128 << 10);
    write_json(&mut control, &parameters)?;
    expect_state(&mut control, CREATE_STREAMS)?;
    // The server must refuse a second client for now.
    let mut other = connect(stack, IPERF)?;
    other.write_all(&[b'y'; COOKIE])?;
    expect_state(&mut other, ACCESS_DENIED)?;

    let both = parameters["bidirectional"] == 1;
    let reverse = parameters["reverse"] == true;
    let mut streams = Vec::new();
    for at in 0..numbers.len() {
        let mut stream = connect(stack, IPERF)?;
        stream.write_all(&cookie)?;
        // A server may accept streams in another order than the client opened them.
        streams.push((stream, if both { at == 1 } else { !reverse }));
    }
    expect_state(&mut control, TEST_START)?;
    expect_state(&mut control, TEST_RUNNING)?;
    let end = Instant::now() + RUN;
    let mut workers = Vec::new();
    for (mut stream, we_send) in streams {
        workers.push(thread::spawn(move || {
            let mut block = vec![7; 128 << 10];
            let mut bytes = 0;
            while Instant::now() < end || bytes < LEAST {
                let len = match we_send {
                    true => stream.write(&block)?,
                    false => stream.read(&mut block)?,
                };
                if len == 0 {
                    break;
                }
                bytes += len as u64;
            }
            Ok::<_, io::Error>((stream, we_send, bytes))
        }));
    }
    let mut done = Vec::new();
    for worker in workers {
        done.push(worker.join().map_err(|_| "a stream panicked")??);
    }
    done.sort_by_key(|(_, we_send, _)| !*we_send);
    control.write_all(&[TEST_END])?;
    expect_state(&mut control, EXCHANGE_RESULTS)?;
    write_json(&mut control, &json!({"streams": []}))?;
    let results = read_json(&mut control)?;
    expect_state(&mut control, DISPLAY_RESULTS)?;
    control.write_all(&[IPERF_DONE])?;
    let theirs = results["streams"].as_array().ok_or("no streams")?;
    expect(theirs.len() == numbers.len(), "streams are missing")?;
    let mut total = 0;
    for ((theirs, number), (_, we_send, bytes)) in theirs.iter().zip(numbers).zip(&done) {
        expect(theirs["id"] == *number, format!("{theirs}"))?;
        let counted = theirs["bytes"].as_u64().ok_or("no count")?;
        // The sender alone counts bytes under way.
        let (sent, received) = if *we_send {
            (*bytes, counted)
        } else {
            (counted, *bytes)
        };
        expect(
            received > 0 && received <= sent,
            format!("{received} bytes received of {sent}"),
        )?;
        total += received;
    }
    Ok(format!(
        "{:.1} Gbit/s",
        total as f64 * 8e-9 / RUN.as_secs_f64()
    ))
}

fn no_datagrams(stack: &Stack) -> Outcome<String> {
    let mut control = connect(stack, IPERF)?;
    control.write_all(&[b'x'; COOKIE])?;
    expect_state(&mut control, PARAM_EXCHANGE)?;
    write_json(&mut control, &json!({"udp": true}))?;
    expect_state(&mut control, SERVER_ERROR)?;
    read_array::<8>(&mut control)?;
    Ok("refused".to_owned())
}

fn expect_state(control: &mut TcpStream, expected: u8) -> Outcome<()> {
    let [state] = read_array::<1>(control)?;
    expect(
        state == expected,
        format!("state {state} instead of {expected}"),
    )
}
