//! Names: the resolver against a server on another stack.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::time::Instant;
use dominoes_netstack::{Resolver, SocketError, Stack};

const SERVER: &str = "10.0.0.1:53";

fn stacks() -> [Stack; 2] {
    let (left, right) = memory::pair(MemoryConfig::default());
    [
        Stack::builder("10.0.0.1/24").start(left).unwrap(),
        Stack::builder("10.0.0.2/24").start(right).unwrap(),
    ]
}

/// The answer to a question: code and truncation, and addresses of IPv4.
fn answer(question: &[u8], flags: u16, addresses: &[[u8; 4]]) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2..4].copy_from_slice(&(0x8000 | flags).to_be_bytes());
    bytes[7] = addresses.len() as u8;
    for address in addresses {
        bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4]);
        bytes.extend(address);
    }
    bytes
}

/// The first label of a question, in lower case, and whether it asks for IPv4 addresses.
fn question(bytes: &[u8]) -> (String, bool) {
    let label = &bytes[13..13 + usize::from(bytes[12])];
    let label = String::from_utf8(label.to_ascii_lowercase()).unwrap();
    (label, bytes[bytes.len() - 3] == 1)
}

/// Answers questions on this stack: `www` is the stack, `big` too, but only over TCP, `forged` only
/// after answers to other questions, and nothing else has an address. Returns the ports that asked.
fn serve(stack: &Stack) -> Arc<Mutex<Vec<u16>>> {
    let ports = Arc::new(Mutex::new(Vec::new()));
    let seen = ports.clone();
    let socket = stack.bind_udp(53).unwrap();
    let listener = stack.listen(53, 4).unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 600];
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            seen.lock().unwrap().push(from.port());
            let bytes = &bytes[..len];
            let mut answers = Vec::new();
            match question(bytes) {
                (_, false) => answers.push(answer(bytes, 0, &[])),
                (name, _) if name == "www" => answers.push(answer(bytes, 0, &[[10, 0, 0, 1]])),
                (name, _) if name == "big" => answers.push(answer(bytes, 0x200, &[])),
                (name, _) if name == "forged" => {
                    let good = answer(bytes, 0, &[[10, 0, 0, 1]]);
                    // Another identifier, another case, no answer; then the right one.
                    for (at, flip) in [(0, 1), (1, 1), (14, 0x20), (2, 0x80)] {
                        let mut bad = answer(bytes, 0, &[[6, 6, 6, 6]]);
                        bad[at] ^= flip;
                        answers.push(bad);
                    }
                    answers.push(vec![0; 5]);
                    answers.push(good);
                }
                _ => answers.push(answer(bytes, 3, &[])),
            }
            for answer in answers {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut len = [0; 2];
            stream.read_exact(&mut len).unwrap();
            let mut bytes = vec![0; usize::from(u16::from_be_bytes(len))];
            stream.read_exact(&mut bytes).unwrap();
            let found = answer(&bytes, 0, &[[10, 0, 0, 1]; 20]);
            stream
                .write_all(&(found.len() as u16).to_be_bytes())
                .unwrap();
            stream.write_all(&found).unwrap();
        }
    });
    ports
}

fn resolver(client: &Stack) -> Resolver {
    let server: SocketAddr = SERVER.parse().unwrap();
    Resolver::new(client.sockets(), [server]).timeout(Duration::from_secs(60))
}

#[test]
fn names_have_the_addresses_that_the_server_says() {
    let [server, client] = stacks();
    serve(&server);
    let resolver = resolver(&client).search(["none.example", "corp.example"]);
    let ours: IpAddr = "10.0.0.1".parse().unwrap();
    assert_eq!(resolver.resolve("www"), Ok(vec![ours]));
    assert_eq!(resolver.resolve("www.example.org"), Ok(vec![ours]));
    assert_eq!(resolver.resolve("10.0.0.1"), Ok(vec![ours]));
    assert_eq!(resolver.resolve("big.example"), Ok(vec![ours; 20]));
    assert_eq!(resolver.resolve("forged.example"), Ok(vec![ours]));
    for name in ["other.example", "no name", "", "a..b"] {
        assert_eq!(
            resolver.resolve(name),
            Err(SocketError::NoAddress),
            "{name}"
        );
    }
}

#[test]
fn a_name_with_a_port_is_connected_to() {
    let [server, client] = stacks();
    serve(&server);
    let listener = server.listen(80, 4).unwrap();
    let resolver = resolver(&client);
    for remote in ["www.example.org:80", "10.0.0.1:80"] {
        let mut stream = resolver.connect(remote).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        listener.accept().unwrap().0.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }
    for remote in [
        "www.example.org",
        "www.example.org:http",
        "other.example:80",
    ] {
        let error = resolver.connect(remote).map(drop);
        assert_eq!(error, Err(SocketError::NoAddress), "{remote}");
    }
}

/// RFC 5452 section 9.2.
#[test]
fn each_question_comes_from_another_port() {
    let [server, client] = stacks();
    let ports = serve(&server);
    let resolver = resolver(&client);
    for _ in 0..20 {
        resolver.resolve("www.example.org").unwrap();
    }
    let mut ports = ports.lock().unwrap().clone();
    assert_eq!(ports.len(), 40);
    let in_order = ports.windows(2).filter(|pair| pair[1] == pair[0] + 1);
    assert!(in_order.count() < 5, "{ports:?}");
    ports.sort_unstable();
    ports.dedup();
    assert!(ports.len() >= 38, "{ports:?}");
}

/// The caller's clock decides when a question is repeated.
#[test]
fn a_server_that_does_not_answer_is_asked_as_often_as_allowed_and_then_the_next() {
    let [server, client] = stacks();
    let mut silent = server.bind_udp(5353).unwrap();
    serve(&server);
    let servers = ["10.0.0.1:5353", SERVER].map(|text| text.parse().unwrap());
    let resolver = Resolver::new(client.sockets(), servers).timeout(Duration::from_secs(1));
    let mut resolving = resolver.begin_resolve("www.example.org").unwrap();
    let mut bytes = [0; 600];
    let mut seconds = 0;
    let found = loop {
        let now = Instant::from_millis(1000 * seconds);
        if let Some(found) = resolving.try_finish(now).unwrap() {
            break found;
        }
        seconds += u64::from(silent.try_recv_from(&mut bytes).is_ok());
        thread::yield_now();
    };
    // There is a question for each family.
    assert_eq!(seconds, 2);
    assert_eq!(found, ["10.0.0.1".parse::<IpAddr>().unwrap()]);

    let nobody = Resolver::new(client.sockets(), [servers[0]]).attempts(2);
    let mut resolving = nobody.begin_resolve("www.example.org").unwrap();
    for seconds in [0, 1, 2, 4, 6] {
        let now = Instant::from_millis(1000 * seconds);
        assert_eq!(resolving.try_finish(now), Ok(None), "{seconds}");
    }
    let now = Instant::from_millis(8000);
    assert_eq!(resolving.try_finish(now), Err(SocketError::TimedOut));
}
