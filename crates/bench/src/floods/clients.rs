//! Clients that are slow, or many: sockets of the kernel, in a separate process.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_bench::namespaces::Outcome;
use nix::sys::socket::{setsockopt, sockopt::RcvBuf};

use super::{PORT, SERVER};

/// Bytes of the answer that a slow reader asks for, and its receive buffer.
const LONG: u64 = 1 << 20;
const RECEIVE_BUFFER: usize = 4 << 10;
/// Threads that open short connections.
const THREADS: u64 = 32;
/// A connection that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(5);

fn connect() -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&(SERVER, PORT).into(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Holds `count` connections, and reads one byte of each per second until `ends`. Prints `ready`
/// when all are open.
pub(crate) fn read_slowly(count: usize, ends: &AtomicBool) -> Outcome<String> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = connect()?;
        setsockopt(&stream, RcvBuf, &RECEIVE_BUFFER)?;
        write!(stream, "GET /bytes/{LONG} HTTP/1.1\r\nHost: x\r\n\r\n")?;
        streams.push(stream);
    }
    println!("ready");
    let (mut bytes, mut failed) = (0, 0);
    let start = Instant::now();
    let mut rounds = 0;
    while !ends.load(Relaxed) {
        if start.elapsed() < Duration::from_secs(rounds) {
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        rounds += 1;
        for stream in &mut streams {
            match stream.read(&mut [0]) {
                Ok(1) => bytes += 1,
                _ => failed += 1,
            }
        }
    }
    Ok(format!(
        "{count} readers, {bytes} bytes read, {failed} reads failed"
    ))
}

/// Opens `per_second` connections, and fetches 100 bytes on each to the end, until `ends`.
pub(crate) fn open_and_close(per_second: u64, ends: &Arc<AtomicBool>) -> Outcome<String> {
    println!("ready");
    let start = Instant::now();
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (ends, counts) = (Arc::clone(ends), Arc::clone(&counts));
            let begun = per_second / THREADS;
            thread::spawn(move || {
                let mut done = 0;
                while !ends.load(Relaxed) {
                    if start.elapsed().as_millis() as u64 * begun / 1_000 <= done {
                        thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    done += 1;
                    let failed = fetch().is_err();
                    counts[usize::from(failed)].fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a client panicked")?;
    }
    let [served, failed] = [0, 1].map(|i: usize| counts[i].load(Relaxed));
    let rate = served as f64 / start.elapsed().as_secs_f64();
    Ok(format!(
        "{rate:.0} connections/s of {per_second}, {failed} failed"
    ))
}

fn fetch() -> io::Result<()> {
    let mut stream = connect()?;
    stream.write_all(b"GET /bytes/100 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let len = stream.read_to_end(&mut Vec::new())?;
    if len > 100 {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}
