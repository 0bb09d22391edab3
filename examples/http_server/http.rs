//! The parts of HTTP/1.1 that serving files needs: heads (parsed by `httparse`), bodies, answers.

use std::io::{self, BufRead, BufWriter, Read, Write};

/// Longest head of a request, and longest line within a chunked body, in bytes.
pub(crate) const HEAD: usize = 16 << 10;
/// The most header fields of a request.
pub(crate) const FIELDS: usize = 64;

/// The most bytes per copy between a file and a connection.
pub(crate) const CHUNK: usize = 256 << 10;
/// Bytes read and discarded after a final answer, so that the client can receive it.
pub(crate) const LINGER: u64 = 16 << 20;

/// The writing half of a connection.
pub(crate) trait Writer: Write {
    /// Ends writing.
    fn shutdown(&mut self);
}

/// Answers requests by `answer` until the connection ends.
pub(crate) fn serve<R: BufRead, W: Writer>(
    mut reader: R,
    writer: W,
    answer: impl Fn(&Request, &mut Body<'_, R>, &mut BufWriter<W>) -> Result<Answer, Status>,
) -> io::Result<()> {
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
        let answer = answer(&request, &mut body, &mut writer).unwrap_or_else(Answer::from);
        let lasts = request.lasts.if_read(body.is_read());
        answer.send(&mut writer, request.method == "HEAD", lasts)?;
        if lasts == Lasts::No {
            break;
        }
    }
    // If unread bytes remained at closing, the connection would be reset, and the client could
    // lose the answer.
    writer.get_mut().shutdown();
    io::copy(&mut reader.take(LINGER), &mut io::sink())?;
    Ok(())
}

/// A status code with its phrase (RFC 9110 section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16, pub(crate) &'static str);

impl Status {
    pub(crate) const OK: Status = Status(200, "OK");
    pub(crate) const CREATED: Status = Status(201, "Created");
    pub(crate) const NO_CONTENT: Status = Status(204, "No Content");
    pub(crate) const BAD: Status = Status(400, "Bad Request");
    pub(crate) const FORBIDDEN: Status = Status(403, "Forbidden");
    pub(crate) const NOT_FOUND: Status = Status(404, "Not Found");
    pub(crate) const METHOD: Status = Status(405, "Method Not Allowed");
    pub(crate) const CONFLICT: Status = Status(409, "Conflict");
    pub(crate) const LENGTH_REQUIRED: Status = Status(411, "Length Required");
    pub(crate) const TOO_LONG: Status = Status(431, "Request Header Fields Too Large");
    pub(crate) const INTERNAL: Status = Status(500, "Internal Server Error");
    pub(crate) const NOT_IMPLEMENTED: Status = Status(501, "Not Implemented");
    pub(crate) const UNAVAILABLE: Status = Status(503, "Service Unavailable");
    pub(crate) const FULL: Status = Status(507, "Insufficient Storage");
}

impl From<io::Error> for Status {
    /// The status to send, if the client is still there.
    fn from(error: io::Error) -> Status {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Status::NOT_FOUND,
            io::ErrorKind::PermissionDenied => Status::FORBIDDEN,
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => Status::BAD,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::FULL,
            _ => Status::INTERNAL,
        }
    }
}

/// The contents of a request's head.
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) framing: Framing,
    pub(crate) expects_continue: bool,
    pub(crate) lasts: Lasts,
}

/// Whether the connection serves another request (RFC 9112 section 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lasts {
    No,
    /// Yes, and the answer must state it, because the client speaks HTTP/1.0.
    IfSaid,
    /// Yes, as the client expects.
    UnlessClosed,
}

impl Lasts {
    /// The same, or `No` if a part of the request's body is unread.
    pub(crate) fn if_read(self, is_read: bool) -> Lasts {
        if is_read { self } else { Lasts::No }
    }

    /// The header line that states it.
    pub(crate) fn line(self) -> &'static str {
        match self {
            Lasts::No => "Connection: close\r\n",
            Lasts::IfSaid => "Connection: keep-alive\r\n",
            Lasts::UnlessClosed => "",
        }
    }
}

/// The length of a request's body (RFC 9112 section 6).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    Length(u64),
    Chunks,
}

impl Request {
    /// Reads a head. `None`: the client sends no more requests.
    pub(crate) fn read(reader: &mut impl BufRead) -> Result<Option<Request>, Status> {
        let mut head = Vec::new();
        loop {
            let bytes = reader.fill_buf()?;
            if bytes.is_empty() {
                return if head.is_empty() {
                    Ok(None)
                } else {
                    Err(Status::BAD)
                };
            }
            let (before, more) = (head.len(), bytes.len().min(HEAD - head.len()));
            head.extend_from_slice(&bytes[..more]);
            let mut fields = [httparse::EMPTY_HEADER; FIELDS];
            let mut parsed = httparse::Request::new(&mut fields);
            match parsed.parse(&head) {
                Ok(httparse::Status::Complete(len)) => {
                    let request = Request::understand(&parsed);
                    reader.consume(len - before);
                    return request.map(Some);
                }
                Ok(httparse::Status::Partial) if head.len() < HEAD => reader.consume(more),
                Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                    return Err(Status::TOO_LONG);
                }
                Err(_) => return Err(Status::BAD),
            }
        }
    }

    fn understand(parsed: &httparse::Request<'_, '_>) -> Result<Request, Status> {
        let method = parsed.method.unwrap_or_default();
        // Removes the query, and scheme and host if present (RFC 9112 section 3.2.2).
        let target = parsed.path.unwrap_or_default();
        let target = target.split(['?', '#']).next().unwrap_or_default();
        let absolute = target.strip_prefix("http://");
        let path = match absolute.or_else(|| target.strip_prefix("https://")) {
            Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
            None => target,
        };
        let (mut length, mut chunks) = (None, false);
        let mut expects_continue = false;
        // By default HTTP/1.1 connections persist, and older ones close (RFC 9112 section 9.3).
        let (mut close, mut keep_alive) = (false, false);
        for field in parsed.headers.iter() {
            let value = str::from_utf8(field.value).map_err(|_| Status::BAD)?.trim();
            match &*field.name.to_ascii_lowercase() {
                "content-length" => {
                    // `parse` alone would accept a sign.
                    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                    let value: u64 = value.parse().map_err(|_| Status::BAD)?;
                    if !digits || length.is_some_and(|length| length != value) {
                        return Err(Status::BAD);
                    }
                    length = Some(value);
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => chunks = true,
                "transfer-encoding" => return Err(Status::NOT_IMPLEMENTED),
                "expect" => expects_continue = value.eq_ignore_ascii_case("100-continue"),
                "connection" => {
                    let names = |name| {
                        let mut options = value.split(',');
                        options.any(|option| option.trim().eq_ignore_ascii_case(name))
                    };
                    close |= names("close");
                    keep_alive |= names("keep-alive");
                }
                _ => {}
            }
        }
        let framing = match (length, chunks) {
            // With two lengths the body is ambiguous, which attacks exploit (RFC 9112 section
            // 6.1).
            (Some(_), true) => return Err(Status::BAD),
            (None, true) => Framing::Chunks,
            (Some(length), false) => Framing::Length(length),
            (None, false) if method == "PUT" => return Err(Status::LENGTH_REQUIRED),
            (None, false) => Framing::Length(0),
        };
        let lasts = match parsed.version {
            Some(1) => Lasts::UnlessClosed,
            _ if keep_alive && !chunks => Lasts::IfSaid,
            _ => Lasts::No,
        };
        Ok(Request {
            method: method.to_owned(),
            path: path.to_owned(),
            framing,
            expects_continue,
            lasts: if close { Lasts::No } else { lasts },
        })
    }
}

/// The body of a request, read until its end.
pub(crate) struct Body<'a, R> {
    reader: &'a mut R,
    /// Bytes left in the current chunk, or in the body if it has no chunks.
    left: u64,
    /// Another chunk follows.
    more: bool,
}

impl<'a, R: BufRead> Body<'a, R> {
    pub(crate) fn new(reader: &'a mut R, framing: Framing) -> Self {
        let (left, more) = match framing {
            Framing::Length(left) => (left, false),
            Framing::Chunks => (0, true),
        };
        Body { reader, left, more }
    }

    /// Whether the whole body has been read.
    pub(crate) fn is_read(&self) -> bool {
        self.left == 0 && !self.more
    }

    /// Reads the size of the next chunk, or the trailers after the last one (RFC 9112 section
    /// 7.1).
    fn next_chunk(&mut self) -> io::Result<()> {
        match httparse::parse_chunk_size(&self.line()?) {
            Ok(httparse::Status::Complete((_, size))) => self.left = size,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        if self.left == 0 {
            for _ in 0..FIELDS {
                if self.line()? == b"\r\n" {
                    self.more = false;
                    return Ok(());
                }
            }
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        self.reader.take(HEAD as u64).read_until(b'\n', &mut line)?;
        if line.ends_with(b"\r\n") {
            Ok(line)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

impl<R: BufRead> Read for Body<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && self.more {
            self.next_chunk()?;
        }
        let room = into
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if room == 0 {
            return Ok(0);
        }
        let len = self.reader.read(&mut into[..room])?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= len as u64;
        if self.left == 0 && self.more && self.line()? != b"\r\n" {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(len)
    }
}

/// An answer to the client.
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) kind: &'static str,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    Text(String),
    /// So many bytes.
    Bytes(Box<dyn Read + Send>, u64),
}

impl From<Status> for Answer {
    fn from(status: Status) -> Answer {
        Answer::text(status, format!("{} {}\n", status.0, status.1))
    }
}

impl Answer {
    pub(crate) fn text(status: Status, text: String) -> Answer {
        Answer {
            status,
            kind: "text/plain; charset=utf-8",
            content: Content::Text(text),
        }
    }

    /// Writes everything before the content.
    pub(crate) fn write_head(&self, writer: &mut impl Write, lasts: Lasts) -> io::Result<()> {
        let Answer {
            status: Status(code, phrase),
            kind,
            content,
        } = self;
        let code = *code;
        write!(writer, "HTTP/1.1 {code} {phrase}\r\n")?;
        if code == Status::METHOD.0 {
            write!(writer, "Allow: GET, HEAD, PUT\r\n")?;
        }
        write!(writer, "{}", lasts.line())?;
        let len = match content {
            Content::Text(text) => text.len() as u64,
            Content::Bytes(_, len) => *len,
        };
        if code != Status::NO_CONTENT.0 {
            write!(writer, "Content-Type: {kind}\r\nContent-Length: {len}\r\n")?;
        }
        write!(writer, "\r\n")
    }

    pub(crate) fn send(
        self,
        writer: &mut impl Write,
        head_only: bool,
        lasts: Lasts,
    ) -> io::Result<()> {
        self.write_head(writer, lasts)?;
        match self.content {
            _ if head_only => {}
            Content::Text(text) => writer.write_all(text.as_bytes())?,
            Content::Bytes(bytes, len) => {
                if io::copy(&mut bytes.take(len), writer)? < len {
                    // A file became shorter, so the connection has to be broken.
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        writer.flush()
    }
}
