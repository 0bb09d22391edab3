//! Serves a folder on connections of any kind, with one thread each.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use crate::files::{self, Put};
use crate::http::{self, Answer, Body, Lasts, Request, Status, Writer};

/// The most simultaneous connections, with one thread each, by default. `--connections` accepts
/// up to twice as many, since the stack has 2048. The server turns further clients away.
pub(crate) const CONNECTIONS: usize = 1000;
/// Starts threads for connections, up to `most` at a time.
pub(crate) struct Threads {
    /// Of messages.
    pub(crate) name: &'static str,
    pub(crate) most: usize,
    busy: Arc<AtomicUsize>,
}

impl Threads {
    pub(crate) fn new(name: &'static str, most: usize) -> Threads {
        let busy = Arc::default();
        Threads { name, most, busy }
    }

    /// Serves the halves that `begin` returns, on a separate thread, or turns the client away.
    pub(crate) fn serve<R: BufRead, W: Writer>(
        &self,
        root: &Arc<Path>,
        begin: impl FnOnce() -> io::Result<(R, W)> + Send + 'static,
    ) {
        let (root, busy) = (Arc::clone(root), Arc::clone(&self.busy));
        // Only one thread increments, so the bound holds.
        let full = busy.fetch_add(1, Relaxed) >= self.most;
        let slot = Slot(busy);
        let spawned = thread::Builder::new()
            .name("connection".to_owned())
            .spawn(move || {
                // The client notices if its connection breaks.
                let _ = begin().and_then(|(reader, writer)| {
                    if full {
                        turn_away(writer)
                    } else {
                        http::serve(reader, writer, |request, body, writer| {
                            answer(request, body, writer, &root)
                        })
                    }
                });
                drop(slot);
            });
        if let Err(error) = spawned {
            eprintln!("{}: no thread for a connection: {error}", self.name);
        }
    }
}

/// Accepts connections by `accept` until it returns `None`, and serves each on a separate thread,
/// which calls `begin` first. Serves up to `most` at a time and turns others away. Messages begin
/// with `name`.
pub(crate) fn accept<S: Send + 'static, R: BufRead, W: Writer>(
    (name, most): (&'static str, usize),
    mut accept: impl FnMut() -> Option<S>,
    begin: impl Fn(S) -> io::Result<(R, W)> + Clone + Send + 'static,
    root: &Path,
) {
    let root: Arc<Path> = Arc::from(root);
    let threads = Threads::new(name, most);
    while let Some(stream) = accept() {
        let begin = begin.clone();
        threads.serve(&root, move || begin(stream));
    }
}

/// Counts a served connection while it exists.
struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn turn_away(mut writer: impl Writer) -> io::Result<()> {
    Answer::from(Status::UNAVAILABLE).send(&mut writer, false, Lasts::No)
}

fn answer(
    request: &Request,
    body: &mut Body<'_, impl BufRead>,
    writer: &mut impl Write,
    root: &Path,
) -> Result<Answer, Status> {
    match &*request.method {
        // A body of GET or HEAD has no meaning (RFC 9110 section 9.3.1).
        "GET" | "HEAD" => files::get(root, &request.path),
        "PUT" => {
            let (folder, name) = files::place(root, &request.path)?;
            let put = Put::begin(&folder, &name)?;
            if request.expects_continue && !body.is_read() {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                writer.flush()?;
            }
            put.finish(body)
        }
        _ => Err(Status::METHOD),
    }
}
