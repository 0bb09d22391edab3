//! A client that requests files with known contents, and the folder that a server needs for it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::http::{CHUNK, FIELDS, HEAD, Status};
use crate::{Outcome, files};

/// Names and lengths of the files.
pub(crate) const FILES: [(&str, u64); 4] = [
    ("/empty", 0),
    ("/one", 1),
    ("/mebibyte", 1 << 20),
    ("/twenty_mebibytes", 20 << 20),
];

/// The client of the self-test: it makes all requests on one connection.
pub(crate) struct Client<R, W: Write> {
    pub(crate) reader: R,
    writer: BufWriter<W>,
}

impl<R: BufRead, W: Write> Client<R, W> {
    pub(crate) fn new(reader: R, writer: W) -> Client<R, W> {
        Client {
            reader,
            writer: BufWriter::with_capacity(CHUNK, writer),
        }
    }

    /// Fetches all files, writes them back, and makes requests that must be refused. `root` is
    /// the served folder, made by [`Temporary::with_files`].
    pub(crate) fn ask_for_all(&mut self, root: &Path) -> Outcome<()> {
        println!(
            "{:4} {:20} {:>10} {:>7} {:>9} {:>9}",
            "", "", "bytes", "status", "ms", "SHA-256"
        );
        for (path, len) in FILES {
            self.get(path, len)?;
        }
        for chunked in [false, true] {
            for (path, len) in FILES {
                let path = format!("{path}.{}", if chunked { "chunked" } else { "put" });
                self.put(&path, len, chunked, root)?;
                fs::remove_file(root.join(&path[1..]))?;
            }
        }
        for path in [
            "/../secret",
            "/%2e%2e/secret",
            "/up/secret",
            "//etc/hostname",
        ] {
            self.refused(path, Status::FORBIDDEN)?;
        }
        self.refused("/missing", Status::NOT_FOUND)
    }

    pub(crate) fn get(&mut self, path: &str, len: u64) -> Outcome<()> {
        let start = Instant::now();
        self.ask("GET", path, "")?;
        let (status, answered) = self.answer()?;
        let mut hash = Sha256::new();
        io::copy(&mut self.reader.by_ref().take(answered), &mut hash)?;
        let equal = answered == len && hash.finalize() == Pattern::new(len).hash()?;
        report("GET", path, answered, status, start.elapsed(), Some(equal));
        expect(status == Status::OK.0 && equal, "GET", path)
    }

    /// Writes a file, and compares it with the server's disk.
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

    pub(crate) fn refused(&mut self, path: &str, expected: Status) -> Outcome<()> {
        let start = Instant::now();
        self.ask("GET", path, "")?;
        let (status, answered) = self.answer()?;
        io::copy(&mut self.reader.by_ref().take(answered), &mut io::sink())?;
        report("GET", path, answered, status, start.elapsed(), None);
        expect(status == expected.0, "GET", path)
    }

    /// Sends the head of a request.
    pub(crate) fn ask(&mut self, method: &str, path: &str, fields: &str) -> Outcome<()> {
        write!(
            self.writer,
            "{method} {path} HTTP/1.1\r\nHost: 10.78.0.1\r\n{fields}\r\n"
        )?;
        Ok(self.writer.flush()?)
    }

    /// Reads the head of an answer; returns its status and the length of its content.
    pub(crate) fn answer(&mut self) -> Outcome<(u16, u64)> {
        let (status, len) = read_head(&mut self.reader)?;
        Ok((status, len.unwrap_or(0)))
    }
}

/// Reads the head of an answer; returns its status and, if present, the length of its content.
pub(crate) fn read_head(reader: &mut impl BufRead) -> Outcome<(u16, Option<u64>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut line = reader.take(HEAD as u64);
        if line.read_until(b'\n', &mut head)? == 0 || head.len() > HEAD {
            return Err("the server's answer has no end of its head".into());
        }
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut answer = httparse::Response::new(&mut fields);
    answer.parse(&head)?;
    let length = answer
        .headers
        .iter()
        .find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = match length {
        Some(field) => Some(str::from_utf8(field.value)?.trim().parse()?),
        None => None,
    };
    Ok((answer.code.unwrap_or_default(), length))
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

pub(crate) fn expect(holds: bool, method: &str, path: &str) -> Outcome<()> {
    if holds {
        Ok(())
    } else {
        Err(format!("{method} {path} went wrong, see above").into())
    }
}

/// Bytes without a pattern, equal for equal lengths (Marsaglia's xorshift64).
pub(crate) struct Pattern {
    state: u64,
    left: u64,
}

impl Pattern {
    pub(crate) fn new(len: u64) -> Pattern {
        Pattern {
            state: len + 1,
            left: len,
        }
    }

    pub(crate) fn hash(mut self) -> io::Result<sha2::digest::Output<Sha256>> {
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

/// A folder that is removed on drop.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// Makes a folder, and in it a folder to serve, returned by its real name. The served folder
    /// contains [`FILES`] and a link to the outside; a file is outside it.
    pub(crate) fn with_files() -> Outcome<(Temporary, PathBuf)> {
        let path = std::env::temp_dir().join(format!("dominoes-http-{}", std::process::id()));
        fs::create_dir(&path)?;
        let folder = Temporary(path);
        let root = folder.0.join("root");
        fs::create_dir(&root)?;
        fs::write(folder.0.join("secret"), "not to be seen")?;
        std::os::unix::fs::symlink("..", root.join("up"))?;
        for (path, len) in FILES {
            let mut file = File::create(root.join(&path[1..]))?;
            io::copy(&mut Pattern::new(len), &mut file)?;
        }
        let root = files::open_root(&root)?;
        Ok((folder, root))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
