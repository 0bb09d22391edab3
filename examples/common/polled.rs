//! Serves HTTP on all connections of a stack with one thread, to which a poller reports the ready
//! ones. A connection with a request that has a body moves to a separate thread.
//!
//! A connection that waits for a request holds no buffer. Short answers are kept for a second, so
//! a popular one is not made for each request.

use std::collections::HashMap;
use std::io::{self, Read};
use std::mem;
use std::time::{Duration, Instant};

use dominoes_netstack::poller::{Interest, Poller, Token, Trigger};
use dominoes_netstack::{SocketError, TcpListener, TcpStream};

use crate::http::{Answer, Content, Framing, HEAD, LINGER, Lasts, Request, Status};

/// The most bytes per read, from a connection or a content.
const PIECE: usize = 64 << 10;
/// The most bytes of an answer that is kept, the most of these, and how long.
const KEPT: u64 = 16 << 10;
const MOST_KEPT: usize = 1024;
const FRESH: Duration = Duration::from_secs(1);

/// The served contents.
pub(crate) trait Site {
    /// The answer to `GET` or `HEAD`.
    fn get(&self, path: &str) -> Result<Answer, Status>;

    /// Serves a connection from a request with a body on, of which `input` has arrived.
    fn serve_body(&self, stream: TcpStream, input: Vec<u8>);
}

/// The connections of one thread. The tokens from `first` on are theirs.
pub(crate) struct Server<S> {
    poller: Poller,
    first: usize,
    connections: Vec<Option<Connection>>,
    /// Unused places in `connections`.
    free: Vec<usize>,
    site: S,
    piece: Vec<u8>,
    /// Empty buffers, of which connections take one at a time.
    buffers: [Vec<u8>; 2],
    /// Recent answers to `GET` on connections that last, by path.
    answers: HashMap<String, (Instant, Vec<u8>)>,
}

/// What happens to a connection next.
enum Next {
    /// A call would block: the poller reports when it no longer would.
    Wait,
    /// Another thread serves it.
    Move,
    End,
}

impl<S: Site> Server<S> {
    pub(crate) fn new(first: usize, site: S) -> io::Result<Server<S>> {
        Ok(Server {
            poller: Poller::new()?,
            first,
            connections: Vec::new(),
            free: Vec::new(),
            site,
            piece: vec![0; PIECE],
            buffers: [Vec::new(), Vec::new()],
            answers: HashMap::new(),
        })
    }

    /// Reports the connections, and whatever else the thread waits for.
    pub(crate) fn poller(&self) -> &Poller {
        &self.poller
    }

    /// Accepts all connections that wait.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> Result<(), SocketError> {
        loop {
            let (stream, _) = match listener.try_accept() {
                Err(SocketError::WouldBlock) => return Ok(()),
                accepted => accepted?,
            };
            let place = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let (token, both) = (Token(self.first + place), Interest::BOTH);
            if self
                .poller
                .register(&stream, token, both, Trigger::Edge)
                .is_ok()
            {
                self.connections[place] = Some(Connection::new(stream));
            } else {
                self.free.push(place);
            }
        }
    }

    /// Reads, answers and writes on the connection with this token until a call would block.
    pub(crate) fn go_on(&mut self, token: usize) {
        let place = token - self.first;
        let connection = self.connections.get_mut(place);
        let Some(mut connection) = connection.and_then(Option::take) else {
            return;
        };
        connection.swap_buffers(&mut self.buffers);
        let next = connection.go_on(self);
        let next = next.unwrap_or_else(|error| match error {
            SocketError::WouldBlock => Next::Wait,
            // The client notices if its connection ends here.
            _ => Next::End,
        });
        if let Next::Move = next {
            let Connection { stream, input, .. } = connection;
            if self.poller.deregister(&stream).is_ok() {
                self.site.serve_body(stream, input);
            }
            self.free.push(place);
            return;
        }
        connection.swap_buffers(&mut self.buffers);
        match next {
            Next::Wait => self.connections[place] = Some(connection),
            _ => self.free.push(place),
        }
    }

    fn kept(&self, path: &str) -> Option<&[u8]> {
        let (since, answer) = self.answers.get(path)?;
        (since.elapsed() < FRESH).then_some(answer)
    }

    fn keep(&mut self, path: String, answer: &[u8]) {
        if self.answers.len() >= MOST_KEPT {
            self.answers.clear();
        }
        self.answers.insert(path, (Instant::now(), answer.to_vec()));
    }
}

struct Connection {
    stream: TcpStream,
    /// Bytes read that are not a whole request yet.
    input: Vec<u8>,
    /// Bytes to write.
    output: Vec<u8>,
    /// How many bytes of `output` are written.
    written: usize,
    /// The content to send after `output`, and its remaining bytes.
    content: Option<(Box<dyn Read + Send>, u64)>,
    /// After the last answer: how many more bytes to read and discard.
    lingers: Option<u64>,
    has_ended: bool,
}

impl Connection {
    fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            content: None,
            lingers: None,
            has_ended: false,
        }
    }

    /// Takes empty buffers for its own ones while it is served, and gives them back.
    fn swap_buffers(&mut self, empty: &mut [Vec<u8>; 2]) {
        for (own, empty) in [&mut self.input, &mut self.output].into_iter().zip(empty) {
            if own.is_empty() {
                mem::swap(own, empty);
            }
        }
    }

    fn go_on<S: Site>(&mut self, server: &mut Server<S>) -> Result<Next, SocketError> {
        loop {
            self.write()?;
            if self.read_content(&mut server.piece) {
                continue;
            }
            if self.lingers.is_none() {
                match self.answer(server) {
                    Some(Next::Wait) => continue,
                    Some(next) => return Ok(next),
                    None => {}
                }
            }
            if self.lingers.is_some() && !self.has_ended {
                self.has_ended = true;
                self.stream.shutdown_write();
            }
            match self.stream.try_read(&mut server.piece)? {
                0 => return Ok(Next::End),
                len => match &mut self.lingers {
                    None => self.input.extend_from_slice(&server.piece[..len]),
                    Some(left) => {
                        *left = left.checked_sub(len as u64).ok_or(SocketError::Aborted)?;
                    }
                },
            }
        }
    }

    /// Writes pending output.
    fn write(&mut self) -> Result<(), SocketError> {
        while self.written < self.output.len() {
            self.written += self.stream.try_write(&self.output[self.written..])?;
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads a piece of the content that is being sent. Returns false if there is none.
    fn read_content(&mut self, piece: &mut [u8]) -> bool {
        let Some((content, left)) = &mut self.content else {
            return false;
        };
        let most = piece
            .len()
            .min(usize::try_from(*left).unwrap_or(usize::MAX));
        match content.read(&mut piece[..most]) {
            Ok(len) if len > 0 => {
                self.output.extend_from_slice(&piece[..len]);
                *left -= len as u64;
                if *left == 0 {
                    self.content = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The content became shorter, so the connection has to end early.
            _ => (self.content, self.lingers) = (None, Some(LINGER)),
        }
        true
    }

    /// Answers a request. Returns `None` if no whole request has arrived.
    fn answer<S: Site>(&mut self, server: &mut Server<S>) -> Option<Next> {
        let is_whole = self.input.windows(4).any(|end| end == b"\r\n\r\n");
        if !is_whole && self.input.len() < HEAD {
            return None;
        }
        let mut rest = &self.input[..];
        let request = Request::read(&mut rest);
        let len = self.input.len() - rest.len();
        let (answer, head_only, lasts, path) = match request {
            Ok(Some(request)) if !matches!(request.framing, Framing::Length(0)) => {
                return Some(Next::Move);
            }
            Ok(Some(request)) => {
                let Request {
                    method,
                    path,
                    lasts,
                    ..
                } = request;
                let may_keep = method == "GET" && lasts == Lasts::UnlessClosed;
                if may_keep && let Some(kept) = server.kept(&path) {
                    self.output.extend_from_slice(kept);
                    self.input.drain(..len);
                    return Some(Next::Wait);
                }
                match &*method {
                    "GET" | "HEAD" => {
                        let answer = server.site.get(&path).unwrap_or_else(Answer::from);
                        (answer, method == "HEAD", lasts, may_keep.then_some(path))
                    }
                    // The empty body of another method.
                    _ => return Some(Next::Move),
                }
            }
            Ok(None) => return None,
            Err(status) => (Answer::from(status), false, Lasts::No, None),
        };
        self.input.drain(..len);
        // Writing to memory does not fail.
        let _ = answer.write_head(&mut self.output, lasts);
        match answer.content {
            _ if head_only => {}
            Content::Text(text) => self.output.extend_from_slice(text.as_bytes()),
            Content::Bytes(_, 0) => {}
            Content::Bytes(bytes, len) => self.content = Some((bytes, len)),
        }
        if lasts == Lasts::No {
            self.lingers = Some(LINGER);
        }
        let left = self.content.as_ref().map_or(0, |(_, len)| *len);
        if let Some(path) = path
            && answer.status == Status::OK
            && left < KEPT
        {
            while self.read_content(&mut server.piece) {}
            if self.lingers.is_none() {
                server.keep(path, &self.output);
            }
        }
        Some(Next::Wait)
    }
}
