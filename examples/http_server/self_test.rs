//! What the example does without a device: two stacks joined in memory, a server on one and a
//! client on the other.

use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::{ReadHalf, Stack, WriteHalf};
use sha2::{Digest, Sha256};

use crate::http::{FIELDS, HEAD, Status};
use crate::{CHUNK, Outcome, accept, builder, open_root, polled};

/// What the files of the self-test are called, and their lengths.
const FILES: [(&str, u64); 4] = [
    ("/empty", 0),
    ("/one", 1),
    ("/mebibyte", 1 << 20),
    ("/twenty_mebibytes", 20 << 20),
];

/// A server and a client, a stack each, joined in memory.
pub(crate) fn run(replicas: usize) -> Outcome<()> {
    let folder = Temporary::new()?;
    let root = folder.0.join("root");
    fs::create_dir(&root)?;
    fs::write(folder.0.join("secret"), "not to be seen")?;
    std::os::unix::fs::symlink("..", root.join("up"))?;
    for (path, len) in FILES {
        let mut file = File::create(root.join(&path[1..]))?;
        io::copy(&mut Pattern::new(len), &mut file)?;
    }
    let root = open_root(&root)?;

    let (near, far) = memory::pair(MemoryConfig::default());
    let server = builder("10.78.0.1/24", replicas, false).start(near)?;
    let client = builder("10.78.0.2/24", 1, false).start(far)?;
    let listener = server.listen(80, 64)?;
    println!(
        "listening on {}, {replicas} replicas, device in memory",
        listener.local_addr()?
    );
    let serving = {
        let root = root.clone();
        thread::spawn(move || accept(&listener, &root))
    };

    let mut client = Client::connect(&client)?;
    println!(
        "{:4} {:20} {:>10} {:>7} {:>9} {:>9}",
        "", "", "bytes", "status", "ms", "SHA-256"
    );
    for (path, len) in FILES {
        client.get(path, len)?;
    }
    for chunked in [false, true] {
        for (path, len) in FILES {
            let path = format!("{path}.{}", if chunked { "chunked" } else { "put" });
            client.put(&path, len, chunked, &root)?;
        }
    }
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/up/secret",
        "//etc/hostname",
    ] {
        client.refused(path, Status::FORBIDDEN)?;
    }
    client.refused("/missing", Status::NOT_FOUND)?;
    drop(client);
    let compared = server.compare()?;
    server.shutdown();
    serving
        .join()
        .map_err(|_| "the server panicked, see above")?;
    println!("all as it should be; the log's {compared} last fingerprints agree");
    run_polled(replicas, &root)
}

/// Connections that the server has on one thread.
const POLLED: usize = 500;

/// The server that has all connections on one thread: each asks twice, and waits in between.
fn run_polled(replicas: usize, root: &Path) -> Outcome<()> {
    let (near, far) = memory::pair(MemoryConfig::default());
    let server = builder("10.78.0.1/24", replicas, true).start(near)?;
    let client = builder("10.78.0.2/24", 1, true).start(far)?;
    let listener = server.listen(80, 64)?;
    let serving = {
        let root = root.to_owned();
        thread::spawn(move || polled::serve(&listener, &root))
    };
    let start = Instant::now();
    let clients = (0..POLLED).map(|_| Client::connect(&client));
    let mut clients: Vec<Client> = clients.collect::<Outcome<_>>()?;
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

/// The client of the self-test: one connection, which all requests share.
struct Client {
    reader: ReadHalf,
    writer: BufWriter<WriteHalf>,
}

impl Client {
    fn connect(stack: &Stack) -> Outcome<Client> {
        let (reader, writer) = stack.connect("10.78.0.1:80")?.split();
        Ok(Client {
            reader,
            writer: BufWriter::with_capacity(CHUNK, writer),
        })
    }

    fn get(&mut self, path: &str, len: u64) -> Outcome<()> {
        let start = Instant::now();
        self.ask("GET", path, "")?;
        let (status, answered) = self.answer()?;
        let mut hash = Sha256::new();
        io::copy(&mut self.reader.by_ref().take(answered), &mut hash)?;
        let equal = answered == len && hash.finalize() == Pattern::new(len).hash()?;
        report("GET", path, answered, status, start.elapsed(), Some(equal));
        expect(status == Status::OK.0 && equal, "GET", path)
    }

    /// Writes a file, and looks at it on the server's disk.
    fn put(&mut self, path: &str, len: u64, chunked: bool, root: &Path) -> Outcome<()> {
        let start = Instant::now();
        let framing = match chunked {
            true => "Transfer-Encoding: chunked".to_owned(),
            false => format!("Content-Length: {len}"),
        };
        if chunked || len > 0 {
            let fields = format!("{framing}\r\nExpect: 100-continue\r\n");
            self.ask("PUT", path, &fields)?;
            let (go_on, _) = self.answer()?;
            expect(go_on == 100, "PUT", path)?;
        } else {
            self.ask("PUT", path, &format!("{framing}\r\n"))?;
        }
        let mut bytes = Pattern::new(len);
        if chunked {
            let mut chunk = vec![0; 10_000];
            loop {
                let len = bytes.read(&mut chunk)?;
                write!(self.writer, "{len:x}\r\n")?;
                self.writer.write_all(&chunk[..len])?;
                write!(self.writer, "\r\n")?;
                if len == 0 {
                    break;
                }
            }
        } else {
            io::copy(&mut bytes, &mut self.writer)?;
        }
        self.writer.flush()?;
        let (status, answered) = self.answer()?;
        let took = start.elapsed();
        let mut hash = Sha256::new();
        let stored = io::copy(&mut File::open(root.join(&path[1..]))?, &mut hash)?;
        let equal = stored == len && hash.finalize() == Pattern::new(len).hash()?;
        report("PUT", path, stored, status, took, Some(equal));
        expect(
            status == Status::CREATED.0 && answered == 0 && equal,
            "PUT",
            path,
        )
    }

    fn refused(&mut self, path: &str, expected: Status) -> Outcome<()> {
        let start = Instant::now();
        self.ask("GET", path, "")?;
        let (status, answered) = self.answer()?;
        io::copy(&mut self.reader.by_ref().take(answered), &mut io::sink())?;
        report("GET", path, answered, status, start.elapsed(), None);
        expect(status == expected.0, "GET", path)
    }

    /// Sends the head of a request.
    fn ask(&mut self, method: &str, path: &str, fields: &str) -> Outcome<()> {
        write!(
            self.writer,
            "{method} {path} HTTP/1.1\r\nHost: 10.78.0.1\r\n{fields}\r\n"
        )?;
        Ok(self.writer.flush()?)
    }

    /// Reads the head of an answer: its status, and how long its content is.
    fn answer(&mut self) -> Outcome<(u16, u64)> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if self
                .reader
                .by_ref()
                .take(HEAD as u64)
                .read_until(b'\n', &mut head)?
                == 0
            {
                return Err("the server closed the connection".into());
            }
        }
        let mut fields = [httparse::EMPTY_HEADER; FIELDS];
        let mut answer = httparse::Response::new(&mut fields);
        answer.parse(&head)?;
        let status = answer.code.unwrap_or_default();
        let length = answer
            .headers
            .iter()
            .find(|field| field.name == "Content-Length");
        let length = match length {
            Some(field) => str::from_utf8(field.value)?.parse()?,
            None => 0,
        };
        Ok((status, length))
    }
}

fn report(method: &str, path: &str, len: u64, status: u16, took: Duration, equal: Option<bool>) {
    let millis = took.as_secs_f64() * 1e3;
    let equal = match equal {
        Some(true) => "equal",
        Some(false) => "DIFFERENT",
        None => "",
    };
    println!("{method:4} {path:26} {len:>10} {status:>7} {millis:>9.1} {equal:>9}");
}

fn expect(holds: bool, method: &str, path: &str) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("{method} {path} went wrong, see above").into())
    }
}

/// So many bytes without a pattern, the same for the same length (Marsaglia's xorshift64).
struct Pattern {
    state: u64,
    left: u64,
}

impl Pattern {
    fn new(len: u64) -> Pattern {
        Pattern {
            state: len + 1,
            left: len,
        }
    }

    fn hash(mut self) -> io::Result<sha2::digest::Output<Sha256>> {
        let mut hash = Sha256::new();
        io::copy(&mut self, &mut hash)?;
        Ok(hash.finalize())
    }
}

impl Read for Pattern {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        for byte in &mut into[..len] {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            *byte = (self.state >> 32) as u8;
        }
        self.left -= len as u64;
        Ok(len)
    }
}

/// A folder that goes when its owner does.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> io::Result<Temporary> {
        let path = std::env::temp_dir().join(format!("dominoes-http-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("http_server: {} stays: {error}", self.0.display());
        }
    }
}
