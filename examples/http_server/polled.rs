//! Serves all connections on one thread, with a poller that reports ready connections.
//!
//! It reads and lists files as the other mode does, but accepts no bodies, so there is no `PUT`.
//! A connection that waits for a request holds no buffer.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use dominoes_netstack::poller::{Events, Interest, Poller, Token, Trigger};
use dominoes_netstack::{SocketError, TcpListener, TcpStream};

use crate::files;
use crate::http::{Answer, Content, Framing, HEAD, Lasts, Request, Status};
use crate::serve::LINGER;

/// The most events per poll.
const EVENTS: usize = 256;
/// The most bytes per read, from a connection or a file.
const PIECE: usize = 64 << 10;
const LISTENER: Token = Token(usize::MAX);

/// Serves until the stack goes down.
pub(crate) fn serve(listener: &TcpListener, root: &Path) -> io::Result<()> {
    let poller = Poller::new()?;
    poller.register(listener, LISTENER, Interest::READABLE, Trigger::Edge)?;
    let mut connections: HashMap<usize, Connection> = HashMap::new();
    let mut events = Events::with_capacity(EVENTS);
    let mut piece = vec![0; PIECE];
    let mut next = 0;
    loop {
        poller.wait(&mut events, None);
        for event in &events {
            let Token(token) = event.token;
            if event.token != LISTENER {
                // The client notices if its connection ends here.
                let going_on = |connection: &mut Connection| connection.go_on(root, &mut piece);
                if connections.get_mut(&token).map(going_on) == Some(Next::End) {
                    connections.remove(&token);
                }
                continue;
            }
            loop {
                match listener.try_accept() {
                    Ok((stream, _)) => {
                        poller.register(&stream, Token(next), Interest::BOTH, Trigger::Edge)?;
                        connections.insert(next, Connection::new(stream));
                        next += 1;
                    }
                    Err(SocketError::WouldBlock) => break,
                    Err(_) => return Ok(()),
                }
            }
        }
    }
}

/// What happens to a connection next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A call would block: the poller reports when it no longer would.
    Wait,
    End,
}

struct Connection {
    stream: TcpStream,
    /// Bytes read that are not a whole request yet.
    input: Vec<u8>,
    /// Bytes to write.
    output: Vec<u8>,
    /// How many bytes of `output` are written.
    written: usize,
    /// The file to send after `output`, and its remaining bytes.
    file: Option<(File, u64)>,
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
            file: None,
            lingers: None,
            has_ended: false,
        }
    }

    /// Reads, answers and writes until a call would block.
    fn go_on(&mut self, root: &Path, piece: &mut [u8]) -> Next {
        match self.try_go_on(root, piece) {
            Ok(()) | Err(SocketError::WouldBlock) => Next::Wait,
            Err(_) => Next::End,
        }
    }

    /// Returns only with an error.
    fn try_go_on(&mut self, root: &Path, piece: &mut [u8]) -> Result<(), SocketError> {
        loop {
            self.write()?;
            if self.read_file(piece) {
                continue;
            }
            if self.lingers.is_none() && self.answer(root) {
                continue;
            }
            if self.lingers.is_some() && !self.has_ended {
                self.has_ended = true;
                self.stream.shutdown_write();
            }
            match self.stream.try_read(piece)? {
                0 => return Err(SocketError::ShutDown),
                len => match &mut self.lingers {
                    None => self.input.extend_from_slice(&piece[..len]),
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
        // Frees the memory, too, because most connections wait.
        (self.output, self.written) = (Vec::new(), 0);
        Ok(())
    }

    /// Reads a piece of the file that is being sent. Returns false if there is none.
    fn read_file(&mut self, piece: &mut [u8]) -> bool {
        let Some((file, left)) = &mut self.file else {
            return false;
        };
        let most = piece
            .len()
            .min(usize::try_from(*left).unwrap_or(usize::MAX));
        match file.read(&mut piece[..most]) {
            Ok(len) if len > 0 => {
                self.output.extend_from_slice(&piece[..len]);
                *left -= len as u64;
                if *left == 0 {
                    self.file = None;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The file became shorter, so the connection has to end early.
            _ => (self.file, self.lingers) = (None, Some(LINGER)),
        }
        true
    }

    /// Answers a request. Returns false if no whole request has arrived.
    fn answer(&mut self, root: &Path) -> bool {
        let is_whole = self.input.windows(4).any(|end| end == b"\r\n\r\n");
        if !is_whole && self.input.len() < HEAD {
            return false;
        }
        let mut rest = &self.input[..];
        let request = Request::read(&mut rest);
        let left = rest.len();
        self.input.drain(..self.input.len() - left);
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        let (answer, head_only, lasts) = match request {
            Ok(Some(request)) => {
                let has_body = !matches!(request.framing, Framing::Length(0));
                let answer = match &*request.method {
                    "GET" | "HEAD" => files::get(root, &request.path),
                    _ => Err(Status::NOT_IMPLEMENTED),
                };
                let answer = answer.unwrap_or_else(Answer::from);
                let lasts = request.lasts.if_read(!has_body);
                (answer, request.method == "HEAD", lasts)
            }
            Ok(None) => return false,
            Err(status) => (Answer::from(status), false, Lasts::No),
        };
        // Writing to memory does not fail.
        let _ = answer.write_head(&mut self.output, lasts);
        match answer.content {
            _ if head_only => {}
            Content::Text(text) => self.output.extend_from_slice(text.as_bytes()),
            Content::File(_, 0) => {}
            Content::File(file, len) => self.file = Some((file, len)),
        }
        if lasts == Lasts::No {
            self.lingers = Some(LINGER);
        }
        true
    }
}
