//! The services that the peer of the calls offers, over the kernel's sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;

/// The address of the stack under test.
const OURS: &str = "10.78.0.1";
const PEER: &str = "10.78.0.2";

/// Serves until the process is killed.
pub(crate) fn serve() {
    let udp = UdpSocket::bind((PEER, 7)).expect("a port");
    thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok((len, from)) = udp.recv_from(&mut bytes) {
            let _ = udp.send_to(&bytes[..len], from);
        }
    });
    listen(7, echo);
    // Reads nothing until the connection is over.
    listen(9, |stream| {
        thread::park();
        drop(stream);
    });
    listen(13, |mut stream| {
        let _ = stream.write_all(b"hello");
    });
    listen(19, |stream| reset(&stream));
    // Sends, waits for a byte, then resets.
    listen(22, |mut stream| {
        let _ = stream.write_all(b"hello");
        let _ = stream.read(&mut [0]);
        reset(&stream);
    });
    let summons = UdpSocket::bind((PEER, 21)).expect("a port");
    println!("ready");
    let mut bytes = [0; 64];
    while let Ok((len, from)) = summons.recv_from(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
        let mut words = text.split(' ');
        let port: u16 = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let what = words.next().unwrap_or_default().to_owned();
        thread::spawn(move || call(port, &what));
        let _ = summons.send_to(b"done", from);
    }
}

fn listen(port: u16, serve: fn(TcpStream)) {
    let listener = TcpListener::bind((PEER, port)).expect("a port");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
}

fn echo(mut stream: TcpStream) {
    let mut bytes = [0; 65_536];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        let _ = stream.write_all(&bytes[..len]);
    }
}

/// Closes with a reset.
fn reset(stream: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let (fd, len) = (stream.as_raw_fd(), size_of::<libc::linger>());
    // SAFETY: the structure lives during the call.
    unsafe {
        let place = (&raw const linger).cast();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, place, len as u32);
    }
}

/// Connects to the stack under test.
fn call(port: u16, what: &str) {
    let Ok(mut stream) = TcpStream::connect((OURS, port)) else {
        return;
    };
    match what {
        "hello" => {
            let _ = stream.write_all(b"hello");
            // Until the other end closes.
            while let Ok(1..) = stream.read(&mut [0; 4096]) {}
        }
        "echo" => echo(stream),
        "reset" => reset(&stream),
        _ => {}
    }
}
