//! HTTP: serves bytes, and answers with the SHA-256 of received bytes.

use std::io::{self, BufRead, BufWriter, Read, Write};

use sha2::{Digest, Sha256};

use crate::CHUNK;
use crate::http::{Answer, Body, Lasts, Request, Status};
use crate::net::Connection;

/// Bytes read and discarded after a final answer, so that the client can receive it.
const LINGER: u64 = 16 << 20;

/// Answers requests until the connection ends.
pub(crate) fn serve(stream: Connection) -> io::Result<()> {
    let (mut reader, writer) = stream.split()?;
    let mut writer = BufWriter::with_capacity(CHUNK, writer);
    loop {
        let request = match Request::read(&mut reader) {
            Ok(Some(request)) => request,
            Ok(None) => break,
            Err(status) => {
                Answer::from(status).send(&mut writer, false, Lasts::No)?;
                break;
            }
        };
        let mut body = Body::new(&mut reader, request.framing);
        let answer = answer(&request, &mut body, &mut writer);
        let lasts = request.lasts.if_read(body.is_read());
        match answer {
            Ok(Some(len)) => send(&mut writer, len, request.method == "HEAD", lasts)?,
            Ok(None) => {}
            Err(status) => {
                Answer::from(status).send(&mut writer, request.method == "HEAD", lasts)?
            }
        }
        if lasts == Lasts::No {
            break;
        }
    }
    writer.get_mut().shutdown();
    // If unread bytes remained at closing, the connection would be reset, and the client could
    // lose the answer.
    io::copy(&mut reader.take(LINGER), &mut io::sink())?;
    Ok(())
}

/// Answers a request, or returns the number of bytes to send.
fn answer(
    request: &Request,
    body: &mut Body<'_, impl BufRead>,
    writer: &mut impl Write,
) -> Result<Option<u64>, Status> {
    match &*request.method {
        "GET" | "HEAD" => {
            let number = request
                .path
                .strip_prefix("/bytes/")
                .ok_or(Status::NOT_FOUND)?;
            number.parse().map(Some).map_err(|_| Status::BAD)
        }
        "POST" | "PUT" if request.path == "/sum" => {
            if request.expects_continue && !body.is_read() {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                writer.flush()?;
            }
            let mut hash = Sha256::new();
            io::copy(body, &mut hash)?;
            Answer::text(Status::OK, format!("{}\n", hex(&hash.finalize()))).send(
                writer,
                false,
                request.lasts,
            )?;
            Ok(None)
        }
        "POST" | "PUT" => Err(Status::NOT_FOUND),
        _ => Err(Status::NOT_IMPLEMENTED),
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

fn send(writer: &mut impl Write, len: u64, head_only: bool, lasts: Lasts) -> io::Result<()> {
    write!(
        writer,
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {len}\r\n{}\r\n",
        lasts.line()
    )?;
    let mut chunk = vec![
        0;
        if head_only {
            0
        } else {
            CHUNK.min(len as usize)
        }
    ];
    let mut at = if head_only { len } else { 0 };
    while at < len {
        let now = chunk
            .len()
            .min(usize::try_from(len - at).unwrap_or(usize::MAX));
        fill_pattern(at, &mut chunk[..now]);
        writer.write_all(&chunk[..now])?;
        at += now as u64;
    }
    writer.flush()
}
