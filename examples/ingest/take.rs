//! Takes uploads, one after another.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use crate::http::{Answer, Framing, Lasts, Request, Status};
use crate::net::{Connection, Listener};
use crate::pieces::{PIECE, Pieces, Whole};
use crate::work::Search;

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;
/// Full buffers that may wait for the thread that writes.
const WAITING: usize = 4;

/// Takes uploads until the stack goes down.
pub(crate) fn serve(listener: &Listener, search: &Arc<Search>, to: &Path) {
    while let Ok(connection) = listener.accept() {
        // The client notices if its upload fails.
        if let Err(error) = upload(connection, search, to) {
            println!("upload: {error}");
        }
    }
}

/// Takes one file, and answers with its digest.
fn upload(mut connection: Connection, search: &Arc<Search>, to: &Path) -> io::Result<()> {
    let request = match Request::read(&mut connection) {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(()),
        Err(status) => return Answer::from(status).send(&mut connection, false, Lasts::No),
    };
    let status = match (&*request.method, request.framing) {
        ("PUT", Framing::Length(len)) => return take(connection, &request, len, search, to),
        ("PUT", Framing::Chunks) => Status::LENGTH_REQUIRED,
        _ => Status::METHOD,
    };
    Answer::from(status).send(&mut connection, false, Lasts::No)
}

fn take(
    mut connection: Connection,
    request: &Request,
    len: u64,
    search: &Arc<Search>,
    to: &Path,
) -> io::Result<()> {
    if request.expects_continue {
        connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let file = File::create(to);
    let search = Arc::clone(search);
    let mut whole = Whole::new(Arc::clone(&search));
    let (mut reader, mut writer) = connection.units(Arc::new(Pieces { len, search }))?;
    let taken =
        file.and_then(|file| write_while(file, |sink| read(&mut reader, len, &mut whole, sink)));
    let answer = match taken {
        Ok(()) => {
            let found = whole.found;
            let text = format!("{}  {found} strings, {len} bytes\n", whole.digest());
            Answer::text(Status::CREATED, text)
        }
        Err(error) => {
            println!("upload: {error}");
            Answer::from(Status::from(error))
        }
    };
    answer.send(&mut writer, false, Lasts::No)?;
    writer.shutdown();
    // If unread bytes remained at closing, the connection would be reset, and the client could
    // lose the answer. Now that it has the answer, it may reset the connection itself.
    let _ = io::copy(&mut reader, &mut io::sink());
    Ok(())
}

/// Reads all pieces of a file, and gives their bytes to `sink`.
fn read(
    reader: &mut impl BufRead,
    len: u64,
    whole: &mut Whole,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut left = len;
    while left > 0 {
        let payload = reader.fill_buf()?;
        let used = payload.len();
        let bytes = whole.add(payload).filter(|bytes| bytes.len() <= PIECE);
        let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        sink(bytes)?;
        left = left.saturating_sub(bytes.len() as u64);
        reader.consume(used);
    }
    Ok(())
}

/// Calls `work` with a sink whose bytes another thread writes to the file, in order.
fn write_while(
    mut file: File,
    work: impl FnOnce(&mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()>,
) -> io::Result<()> {
    let (full, to_write) = mpsc::sync_channel::<Vec<u8>>(WAITING);
    let (written, empty) = mpsc::channel::<Vec<u8>>();
    let writes = thread::Builder::new().spawn(move || {
        for mut buffer in to_write {
            file.write_all(&buffer)?;
            buffer.clear();
            // Fails at the end, when the buffer is no longer needed.
            let _ = written.send(buffer);
        }
        io::Result::Ok(())
    })?;
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut sink = |bytes: &[u8]| {
        buffer.extend_from_slice(bytes);
        if buffer.len() + PIECE > BUFFER {
            let next = empty
                .try_recv()
                .unwrap_or_else(|_| Vec::with_capacity(BUFFER));
            // Fails if writing has failed; the thread returns that error.
            let sent = full.send(std::mem::replace(&mut buffer, next));
            sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        Ok(())
    };
    let worked = work(&mut sink);
    // Fails as above.
    let _ = full.send(buffer);
    drop(full);
    let written = writes.join();
    written.unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))?;
    worked
}
