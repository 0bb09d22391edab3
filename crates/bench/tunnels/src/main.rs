//! netstack-smoltcp over a TUN interface: accepts connections, and moves bytes in the direction
//! that their first byte names; see `benches/tun.rs`.

use std::{env, io};

use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CHUNK: usize = 128 << 10;

/// Set up like the example in the README of netstack-smoltcp.
#[tokio::main]
async fn main() -> io::Result<()> {
    let interface = env::args().nth(1).ok_or(io::ErrorKind::InvalidInput)?;
    let mut options = tun2::Configuration::default();
    options
        .tun_name(interface)
        .mtu(1500)
        .layer(tun2::Layer::L3)
        .up();
    let device = tun2::create_as_async(&options).map_err(io::Error::other)?;
    let builder = netstack_smoltcp::StackBuilder::default();
    // A full queue would lose a packet, or stop the stack for good: nothing wakes its writer.
    let builder = builder.stack_buffer_size(1 << 16).tcp_buffer_size(1 << 16);
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
    println!("ready");
    while let Some((mut stream, _, _)) = listener.next().await {
        tokio::spawn(async move {
            let (mut way, mut bytes) = ([0], vec![0; CHUNK]);
            let mut step = stream.read_exact(&mut way).await.map(|_| 1);
            while let Ok(1..) = step {
                step = match way[0] {
                    b'r' => stream.read(&mut bytes).await,
                    _ => stream.write(&bytes).await,
                };
            }
        });
    }
    Ok(())
}
