//! One end of connections over `tun0`: a stack that accepts them, or the kernel, which opens them
//! and measures.
//!
//! The kernel's first byte is the direction of a connection: with `s` the kernel sends.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use dominoes_drivers::tun::Tun;
use dominoes_netstack::{Limits, Stack};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const INTERFACE: &str = "tun0";
const PORT: u16 = 5001;
const CHUNK: usize = 256 << 10;
/// The beginning of each connection, which does not count, and the time that does.
const TIMES: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(2000)];

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["kernel", way, flows] => kernel(way, flows.parse().expect("a number")),
        ["ours", replicas, offloads] => ours(replicas, *offloads == "offloads"),
        ["netstack-smoltcp"] => netstack_smoltcp(),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Moves bytes until the connection ends.
fn carry(mut stream: impl Read + Write) {
    let (mut way, mut bytes) = ([0], vec![0; CHUNK]);
    let begun = stream.read_exact(&mut way);
    let step = |stream: &mut dyn ReadWrite| match way[0] {
        b's' => stream.read(&mut bytes),
        _ => stream.write(&bytes),
    };
    let mut step = step;
    while begun.is_ok() && matches!(step(&mut stream), Ok(1..)) {}
}

trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

/// Opens connections, and prints their rate in Gbit/s.
fn kernel(way: &str, flows: usize) -> io::Result<()> {
    let moved = AtomicU64::new(0);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..flows {
            scope.spawn(|| -> io::Result<()> {
                let mut stream = TcpStream::connect(("10.80.0.1", PORT))?;
                stream.write_all(way.as_bytes())?;
                let mut bytes = vec![0; CHUNK];
                while begin.elapsed() < TIMES[0] + TIMES[1] {
                    let len = match way {
                        "s" => stream.write(&bytes)?,
                        _ => stream.read(&mut bytes)?,
                    };
                    if begin.elapsed() > TIMES[0] {
                        moved.fetch_add(len as u64, Relaxed);
                    }
                }
                Ok(())
            });
        }
    });
    println!(
        "{:.2}",
        moved.into_inner() as f64 * 8e-9 / TIMES[1].as_secs_f64()
    );
    Ok(())
}

fn ours(replicas: &str, offloads: bool) -> io::Result<()> {
    let device = Tun::options().offloads(offloads).open(INTERFACE);
    let limits = Limits::default()
        .receive_buffer(4 << 20)
        .send_buffer(4 << 20);
    let builder = Stack::builder("10.80.0.1/24").limits(limits);
    let builder = match replicas {
        "auto" => builder.replicas_up_to(thread::available_parallelism()?.get()),
        number => builder.replicas(number.parse().expect("a number")),
    };
    let stack = builder
        .start(device.map_err(io::Error::other)?)
        .map_err(io::Error::other)?;
    let listener = stack.listen(PORT, 256)?;
    loop {
        let (stream, _) = listener.accept()?;
        thread::spawn(|| carry(stream));
    }
}

/// As its README says.
#[tokio::main]
async fn netstack_smoltcp() -> io::Result<()> {
    let mut options = tun2::Configuration::default();
    options
        .tun_name(INTERFACE)
        .mtu(1500)
        .layer(tun2::Layer::L3)
        .up();
    let device = tun2::create_as_async(&options).map_err(io::Error::other)?;
    let builder = netstack_smoltcp::StackBuilder::default();
    let builder = builder.stack_buffer_size(2048).tcp_buffer_size(2048);
    let (stack, runner, _, listener) = builder.enable_tcp(true).build()?;
    let (mut listener, runner) = (listener.expect("it has TCP"), runner.expect("it has TCP"));
    tokio::spawn(runner);
    let (mut to_stack, mut from_stack) = stack.split();
    let (mut to_device, mut from_device) = device.into_framed().split();
    tokio::spawn(async move {
        while let Some(packet) = from_stack.next().await {
            if let Ok(packet) = packet {
                let _ = to_device.send(packet).await;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(packet) = from_device.next().await {
            if let Ok(packet) = packet {
                let _ = to_stack.send(packet).await;
            }
        }
    });
    while let Some((mut stream, _, _)) = listener.next().await {
        tokio::spawn(async move {
            let (mut way, mut bytes) = ([0], vec![0; CHUNK]);
            let mut step = stream.read_exact(&mut way).await.map(|_| 1);
            while let Ok(1..) = step {
                step = match way[0] {
                    b's' => stream.read(&mut bytes).await,
                    _ => stream.write(&bytes).await,
                };
            }
        });
    }
    Ok(())
}
