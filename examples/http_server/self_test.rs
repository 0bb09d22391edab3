//! The self-test without a device: two stacks joined in memory, one with a server and one with a
//! client.

use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::Instant;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{ReadHalf, Stack, WriteHalf};
use sha2::{Digest, Sha256};

use crate::client::{Client, FILES, Temporary, expect};
use crate::http::Status;
use crate::program::Outcome;
use crate::serve::CONNECTIONS;
use crate::stack::Threads;
use crate::{accept, builder, poll};

/// Runs a server and a client on two stacks, joined in memory.
pub(crate) fn run(threads: Threads) -> Outcome<()> {
    let (_folder, root) = Temporary::with_files()?;
    let (near, far) = memory::pair(MemoryConfig::default());
    let server = builder("10.78.0.1/24", threads, false).start(near)?;
    let client = builder("10.78.0.2/24", Threads::fixed(1), false).start(far)?;
    let listener = server.listen(80, 64)?;
    println!(
        "listening on {}, {}, device in memory",
        listener.local_addr()?,
        threads.name("replica"),
    );
    let serving = {
        let root = root.clone();
        thread::spawn(move || accept(&listener, &root, CONNECTIONS))
    };

    connect(&client, 80)?.ask_for_all(&root)?;
    let many = server.listen(81, 64)?;
    let serving_many = {
        let root = root.clone();
        thread::spawn(move || accept(&many, &root, MANY))
    };
    ask_as_many(&client)?;
    let compared = server.compare()?;
    server.shutdown();
    for serving in [serving, serving_many] {
        serving
            .join()
            .map_err(|_| "the server panicked, see above")?;
    }
    println!("all as it should be; the log's {compared} last fingerprints agree");
    run_polled(threads, &root)
}

/// Simultaneous connections of the server with one thread each.
const MANY: usize = 200;

/// Checks that the server answers each of [`MANY`] connections twice, and turns another one away
/// meanwhile.
fn ask_as_many(stack: &Stack) -> Outcome<()> {
    let clients = (0..MANY).map(|_| connect(stack, 81));
    let mut clients: Vec<_> = clients.collect::<Outcome<_>>()?;
    for _ in 0..2 {
        for client in &mut clients {
            client.ask("GET", "/one", "")?;
        }
        for client in &mut clients {
            let (status, len) = client.answer()?;
            io::copy(&mut client.reader.by_ref().take(len), &mut io::sink())?;
            expect(status == Status::OK.0 && len == 1, "GET", "/one")?;
        }
    }
    let (status, _) = connect(stack, 81)?.answer()?;
    expect(status == Status::UNAVAILABLE.0, "one more than may", "be")?;
    println!("{MANY} connections with a thread each, and one that was turned away");
    Ok(())
}

/// Simultaneous connections of the server with one thread.
const POLLED: usize = 500;

/// Tests the server with one thread: each connection sends two requests, and waits in between.
fn run_polled(threads: Threads, root: &Path) -> Outcome<()> {
    let (near, far) = memory::pair(MemoryConfig::default());
    let server = builder("10.78.0.1/24", threads, true).start(near)?;
    let client = builder("10.78.0.2/24", Threads::fixed(1), true).start(far)?;
    let listener = server.listen(80, 64)?;
    let serving = {
        let root = root.to_owned();
        thread::spawn(move || poll(&listener, &root, MANY))
    };
    let start = Instant::now();
    let clients = (0..POLLED).map(|_| connect(&client, 80));
    let mut clients: Vec<_> = clients.collect::<Outcome<_>>()?;
    let mut hash = Sha256::new();
    for round in 0..2 {
        for client in &mut clients {
            client.ask("GET", "/one", "")?;
        }
        for client in &mut clients {
            let (status, len) = client.answer()?;
            io::copy(&mut client.reader.by_ref().take(len), &mut hash)?;
            expect(status == Status::OK.0 && len == 1, "GET", "/one")?;
        }
        let client = &mut clients[round];
        for (path, len) in FILES {
            client.get(path, len)?;
        }
        client.refused("/missing", Status::NOT_FOUND)?;
    }
    let elapsed = start.elapsed();
    drop(clients);
    server.shutdown();
    serving
        .join()
        .map_err(|_| "the server panicked, see above")??;
    println!("{POLLED} connections on one thread, {elapsed:.1?}");
    Ok(())
}

fn connect(stack: &Stack, port: u16) -> Outcome<Client<ReadHalf, WriteHalf>> {
    let (reader, writer) = stack.connect(("10.78.0.1", port))?.split();
    Ok(Client::new(reader, writer))
}
