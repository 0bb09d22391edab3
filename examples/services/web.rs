//! HTTP: serves bytes, and answers with the SHA-256 of received bytes.

use std::io::{self, BufRead, Cursor, Read, Write};
use std::thread;

use dominoes_netstack::TcpStream;
use sha2::{Digest, Sha256};

use crate::http::{self, Answer, Body, Content, Request, Status};
use crate::net::Connection;
use crate::polled::Site;

/// What HTTP serves.
pub(crate) struct Web;

impl Site for Web {
    fn get(&self, path: &str) -> Result<Answer, Status> {
        let number = path.strip_prefix("/bytes/").ok_or(Status::NOT_FOUND)?;
        let len = number.parse().map_err(|_| Status::BAD)?;
        Ok(Answer {
            status: Status::OK,
            kind: "application/octet-stream",
            content: Content::Bytes(Box::new(Pattern { at: 0 }), len),
        })
    }

    fn serve_body(&self, stream: TcpStream, input: Vec<u8>) {
        let (reader, writer) = stream.split();
        // The client notices if its connection breaks.
        let serve = move || http::serve(Cursor::new(input).chain(reader), writer, answer);
        if let Err(error) = thread::Builder::new().spawn(serve) {
            eprintln!("services: no thread for a connection: {error}");
        }
    }
}

/// Answers requests until the connection ends.
pub(crate) fn serve(stream: Connection) -> io::Result<()> {
    let (reader, writer) = stream.split()?;
    http::serve(reader, writer, answer)
}

fn answer<R: BufRead, W: Write>(
    request: &Request,
    body: &mut Body<'_, R>,
    writer: &mut W,
) -> Result<Answer, Status> {
    match &*request.method {
        "GET" | "HEAD" => Web.get(&request.path),
        "POST" | "PUT" if request.path == "/sum" => {
            if request.expects_continue && !body.is_read() {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                writer.flush()?;
            }
            let mut hash = Sha256::new();
            io::copy(body, &mut hash)?;
            Ok(Answer::text(
                Status::OK,
                format!("{}\n", hex(&hash.finalize())),
            ))
        }
        "POST" | "PUT" => Err(Status::NOT_FOUND),
        _ => Err(Status::NOT_IMPLEMENTED),
    }
}

/// The bytes of `/bytes/` from a position on.
struct Pattern {
    at: u64,
}

impl Read for Pattern {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The pattern is made of words.
        let into_word = (self.at % 8) as usize;
        if into_word == 0 {
            fill_pattern(self.at, into);
            self.at += into.len() as u64;
            return Ok(into.len());
        }
        let mut word = [0; 8];
        fill_pattern(self.at - into_word as u64, &mut word);
        let len = into.len().min(8 - into_word);
        into[..len].copy_from_slice(&word[into_word..][..len]);
        self.at += len as u64;
        Ok(len)
    }
}

/// A hash as `sha256sum` prints it.
pub(crate) fn hex(sum: &[u8]) -> String {
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills `into` with the bytes of `/bytes/` from position `from` on: without a pattern, and equal
/// each time (splitmix64 of the position).
pub(crate) fn fill_pattern(from: u64, into: &mut [u8]) {
    debug_assert!(from.is_multiple_of(8));
    for (at, word) in (from / 8..).zip(into.chunks_mut(8)) {
        let mut mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bytes = (mixed ^ (mixed >> 31)).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}
