//! The self-test without a device: uploads over two stacks that are joined in memory.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::Stack;

use crate::net::Listener;
use crate::pieces::PIECE;
use crate::program::Outcome;
use crate::stack::killer::Killer;
use crate::stack::{self, Threads};
use crate::take;
use crate::while_replicas_die::while_replicas_die;
use crate::work::Search;

/// Lengths of files, in bytes: at the edges of pieces, and one that takes a while.
const LENS: [usize; 8] = [
    0,
    1,
    PIECE,
    PIECE + 1,
    2 * PIECE,
    3 * PIECE - 1,
    7 * PIECE + 5,
    20_000_000,
];
/// The strings to count. In the files they also cross the edges of pieces.
const STRINGS: [&[u8]; 3] = [b"abcabcab", b"cabc", b"bcabcabca"];

/// Uploads files of several lengths, while replicas die if there is a killer.
pub(crate) fn run(threads: Threads, killer: Option<Killer>) -> Outcome<()> {
    let (near, far) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
    let server = stack::builder("10.78.0.1/24", threads).start(near)?;
    let client = stack::builder("10.78.0.2/24", Threads::fixed(1)).start(far)?;
    let search = Arc::new(Search::new(&STRINGS.map(<[u8]>::to_vec))?);
    let listener = Listener::Ours(server.listen(80, 16)?);
    let serves = thread::spawn(move || take::serve(&listener, &search, Path::new("/dev/null")));
    println!("{}, devices in memory", threads.name("replica"));
    while_replicas_die(&server, killer, || {
        LENS.iter().try_for_each(|len| upload(&client, *len))
    })?;
    server.compare()?;
    server.shutdown();
    serves
        .join()
        .map_err(|_| "the server panicked, see above")?;
    client.shutdown();
    Ok(())
}

fn upload(client: &Stack, len: usize) -> Outcome<()> {
    let byte = |at: usize| match at % 1021 {
        at @ 0..12 => b"abc"[at % 3],
        at => b'd' + (at % 20) as u8,
    };
    let file: Vec<u8> = (0..len).map(byte).collect();
    let found: usize = STRINGS
        .iter()
        .map(|string| file.windows(string.len()).filter(|w| w == string).count())
        .sum();
    let expected = format!("{}  {found} strings, {len} bytes\n", blake3::hash(&file));
    let begin = Instant::now();
    let mut stream = client.connect(SocketAddr::new([10, 78, 0, 1].into(), 80))?;
    write!(
        stream,
        "PUT /file HTTP/1.1\r\nHost: test\r\nContent-Length: {len}\r\n\r\n"
    )?;
    stream.write_all(&file)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let took = begin.elapsed().as_millis();
    let said = answer.rsplit("\r\n").next().unwrap_or_default();
    if said != expected {
        return Err(format!("{answer:?} instead of {expected:?}").into());
    }
    print!("{took} ms: {said}");
    Ok(())
}
