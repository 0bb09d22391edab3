//! Files over TLS from and to the example `https_server`: with each client, on each device, with
//! one, two and four replicas that fail meanwhile, with both versions, in both directions. With TLS
//! 1.3 either end changes its keys after every megabyte; with GnuTLS less often, since it accepts
//! only 8 KeyUpdates per second.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use sha2::{Digest, Sha256};

use crate::fixture::{Device, Fixture, Hash, OURS, Program, Temporary, host_bytes, longer};
use crate::same;

/// The first argument of this program as the client with rustls. The others are the version, the
/// direction, the trusted certificate, the file to send, and the file for the answer.
pub(crate) const PEER: &str = "--tls-peer";

/// Bytes of a file without `HOST_BYTES`.
const BYTES: usize = 4_000_000;
/// Files of this many bytes take long enough that replicas fail during the transfer.
const LONG: usize = 1_000_000_000;
/// The most bytes of a file for a client that writes byte by byte.
const SLOW: usize = 10_000_000;
/// Bytes between two KeyUpdates.
const UPDATES: u64 = 1_000_000;
/// The name in the certificates.
const NAME: &str = "server.test";
const HTTPS: u16 = 443;
/// Bytes moved at once.
const CHUNK: usize = 64 << 10;
/// Interval of polling.
const GLANCE: Duration = Duration::from_millis(1);
/// The longest head of an answer, in bytes.
const HEAD: u64 = 16 << 10;

/// Bytes of each file.
pub(crate) fn bytes() -> Result<usize, Failed> {
    Ok(host_bytes()?.map_or(Ok(BYTES), usize::try_from)?)
}

/// The client of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    Curl,
    OpenSsl,
    /// `gnutls-cli`.
    GnuTls,
    /// `wget`, if it uses GnuTLS.
    Wget,
    /// rustls in this program, over a socket of the kernel.
    Rustls,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Client::Curl => "curl",
            Client::OpenSsl => "openssl",
            Client::GnuTls => "gnutls",
            Client::Wget => "wget",
            Client::Rustls => "rustls",
        }
    }

    /// Bytes between two KeyUpdates of the server. GnuTLS ends a connection with more than 8 per
    /// second (`KEY_UPDATES_PER_WINDOW`), so it gets at most 4 per file.
    fn updates(self, bytes: usize) -> u64 {
        match self {
            Client::GnuTls | Client::Wget => (bytes as u64 / 4).max(UPDATES),
            _ => UPDATES,
        }
    }

    /// Bytes of the file that the client downloads; most download `bytes`. `gnutls-cli` writes each
    /// byte with one system call, about a megabyte per second.
    fn download(self, bytes: usize) -> usize {
        match self {
            Client::GnuTls => (bytes / 16).min(SLOW),
            _ => bytes,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Tls13,
    Tls12,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::Tls13 => "1.3",
            Version::Tls12 => "1.2",
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Download,
    Upload,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Download => "download",
            Direction::Upload => "upload",
        })
    }
}

/// The device, its name, and the replicas of each server. All of [`CLIENTS`] use each server.
pub(crate) const SERVERS: [(Device, &str, &str); 7] = [
    (Device::Tap, "tap", "1"),
    (Device::Tap, "tap", "2"),
    (Device::Tap, "tap", "4"),
    (Device::Packet, "packet", "1"),
    (Device::Packet, "packet", "2"),
    (Device::Packet, "packet", "4"),
    (Device::Xdp, "xdp", "2"),
];

pub(crate) const CLIENTS: [Client; 5] = [
    Client::Curl,
    Client::OpenSsl,
    Client::GnuTls,
    Client::Wget,
    Client::Rustls,
];

/// With one replica, the state would be lost.
pub(crate) fn kills(replicas: &str) -> &'static [&'static str] {
    match replicas {
        "1" => &[],
        _ => &["--kill-every", "0.1"],
    }
}

/// The figures of one transfer.
pub(crate) struct Transfer<'a> {
    pub(crate) client: &'a str,
    pub(crate) version: &'a str,
    pub(crate) direction: &'a str,
    pub(crate) bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) deaths: u64,
    pub(crate) equal: bool,
}

impl fmt::Display for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:9} {} {:8} {} bytes {:6.2} s {:3} deaths, SHA-256 {}",
            self.client,
            self.version,
            self.direction,
            self.bytes,
            self.seconds,
            self.deaths,
            if self.equal { "equal" } else { "another" }
        )
    }
}

/// The number of replicas that failed, from an example's output.
pub(crate) fn deaths(said: &str) -> u64 {
    let mut lines = said.lines().rev();
    let last = lines.find(|line| line.starts_with("replicas after "));
    let before = last.and_then(|line| line.split(" failed").next());
    let number = before.and_then(|words| words.rsplit(' ').next());
    number.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// All transfers of one client from and to one server.
pub(crate) fn run(
    device: Device,
    replicas: &str,
    client: Client,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let updates = client.updates(bytes()?).to_string();
    let common = ["--replicas", replicas, "--update-keys", &updates];
    let mut fixture = Fixture::https(device, &[&common, kills(replicas)].concat())?;
    transfers(&fixture, client, !kills(replicas).is_empty(), figure)
        .and_then(|()| fixture.check())
        .map_err(|failed| fixture.explain(&failed))
}

fn transfers(
    fixture: &Fixture,
    client: Client,
    dying: bool,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let bytes = bytes()?;
    let peers = Temporary::new()?;
    let down = fixture.root.write("down", client.download(bytes), 1)?;
    let up = peers.write("up", bytes, 2)?;
    for version in [Version::Tls13, Version::Tls12] {
        for direction in [Direction::Download, Direction::Upload] {
            let ask = Ask {
                fixture,
                peers: &peers,
                version,
                direction,
            };
            let before = deaths(&fixture.said());
            let start = Instant::now();
            match client {
                Client::Curl => ask.curl()?,
                Client::OpenSsl => ask.openssl()?,
                Client::GnuTls => ask.gnutls()?,
                Client::Wget => ask.wget()?,
                Client::Rustls => ask.rustls()?,
            }
            let seconds = start.elapsed().as_secs_f64();
            let deaths = deaths(&fixture.said()) - before;
            let (status, body) = answer(&peers.file("answer"))?;
            let wanted = match direction {
                Direction::Download => "200",
                Direction::Upload => "201",
            };
            if status != wanted {
                return Err(format!("{direction} by TLS {version}: status {status}").into());
            }
            let equal = match direction {
                Direction::Download => body == down,
                Direction::Upload => {
                    let equal = fixture.root.hash("taken")? == up;
                    std::fs::remove_file(fixture.root.file("taken"))?;
                    equal
                }
            };
            let bytes = match direction {
                Direction::Download => client.download(bytes),
                Direction::Upload => bytes,
            };
            let (version, direction) = (version.to_string(), direction.to_string());
            figure(
                Transfer {
                    client: client.name(),
                    version: &version,
                    direction: &direction,
                    bytes,
                    seconds,
                    deaths,
                    equal,
                }
                .to_string(),
            );
            same(equal, &format!("the {direction} by TLS {version}"))?;
            if dying && bytes >= LONG && deaths == 0 {
                return Err(format!("no replica died during the {direction}").into());
            }
        }
    }
    Ok(())
}

/// The last status of an answer, and the hash of its body.
fn answer(path: &str) -> Result<(String, Hash), Failed> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    (&mut file).take(HEAD).read_to_end(&mut start)?;
    let mut rest = &start[..];
    loop {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.ok_or("no head of an answer")?;
        let head = String::from_utf8_lossy(&rest[..end]);
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        rest = &rest[end + 4..];
        if status != "100" {
            let mut hash = Sha256::new();
            hash.update(rest);
            io::copy(&mut file, &mut hash)?;
            return Ok((status, hash.finalize()));
        }
    }
}

/// The head of a request after which the server closes the connection.
fn head(direction: Direction, len: u64) -> String {
    let rest = format!("Host: {NAME}\r\nConnection: close\r\n");
    match direction {
        Direction::Download => format!("GET /down HTTP/1.1\r\n{rest}\r\n"),
        Direction::Upload => {
            format!("PUT /taken HTTP/1.1\r\n{rest}Content-Length: {len}\r\n\r\n")
        }
    }
}

/// One transfer.
struct Ask<'a> {
    fixture: &'a Fixture,
    /// Has the file `up`, and receives the `answer`.
    peers: &'a Temporary,
    version: Version,
    direction: Direction,
}

impl Ask<'_> {
    fn curl(&self) -> Result<(), Failed> {
        let [ca, up] = [self.fixture.root.file("ca.pem"), self.peers.file("up")];
        let version = self.version.to_string();
        let least = format!("--tlsv{version}");
        let place = format!("{NAME}:{HTTPS}:{OURS}");
        let answer = self.peers.file("answer");
        let tls = ["--cacert", &ca, &least, "--tls-max", &version];
        let rest = ["--resolve", &place, "--include", "--output", &answer];
        let url = match self.direction {
            Direction::Download => format!("https://{NAME}/down"),
            Direction::Upload => format!("https://{NAME}/taken"),
        };
        let what = match self.direction {
            Direction::Download => &[&*url][..],
            Direction::Upload => &["--upload-file", &up, &url],
        };
        let arguments = [&crate::CURL[..], &tls, &rest, what].concat();
        self.fixture.run("curl", &arguments)?;
        Ok(())
    }

    /// `K` at the start of a read updates the keys of both ends. With `-brief`, standard output
    /// contains only the received data.
    fn openssl(&self) -> Result<(), Failed> {
        let ca = self.fixture.root.file("ca.pem");
        let at = format!("{OURS}:{HTTPS}");
        let version = match self.version {
            Version::Tls13 => "-tls1_3",
            Version::Tls12 => "-tls1_2",
        };
        let trust = ["s_client", "-brief", "-CAfile", &ca, "-verify_return_error"];
        let name = ["-servername", NAME, "-verify_hostname", NAME];
        let rest = ["-alpn", "http/1.1", "-connect", &at, version];
        let spoken = Spoken {
            most: 8 << 10,
            special: b"BKQRkq",
            update: Some(b"K\n"),
        };
        self.speak("openssl", &[&trust[..], &name, &rest].concat(), &spoken)
    }

    fn gnutls(&self) -> Result<(), Failed> {
        let ca = format!("--x509cafile={}", self.fixture.root.file("ca.pem"));
        let log = format!("--logfile={}", self.peers.file("log"));
        let hostname = format!("--verify-hostname={NAME}");
        let sni = format!("--sni-hostname={NAME}");
        let priority = format!("--priority=NORMAL:-VERS-ALL:+VERS-TLS{}", self.version);
        let rest = ["--alpn=http/1.1", "--port=443", OURS];
        let arguments = [&[&*ca, &log, &hostname, &sni, &priority][..], &rest].concat();
        let spoken = Spoken {
            most: 4000,
            special: b"",
            update: None,
        };
        self.speak("gnutls-cli", &arguments, &spoken)
    }

    /// `--ciphers` is the priority string of GnuTLS. The URL has the server's address, not its
    /// name.
    fn wget(&self) -> Result<(), Failed> {
        let ca = format!("--ca-certificate={}", self.fixture.root.file("ca.pem"));
        let ciphers = format!("--ciphers=NORMAL:-VERS-ALL:+VERS-TLS{}", self.version);
        let answer = self.peers.file("answer");
        let up = format!("--body-file={}", self.peers.file("up"));
        let common = ["--no-verbose", "--no-proxy", "--no-config", "--tries=1"];
        let tls = [&*ca, &ciphers, "--save-headers", "-O", &answer];
        let url = match self.direction {
            Direction::Download => format!("https://{OURS}/down"),
            Direction::Upload => format!("https://{OURS}/taken"),
        };
        let what = match self.direction {
            Direction::Download => &[&*url][..],
            Direction::Upload => &["--method=PUT", &up, &url],
        };
        self.fixture
            .run("wget", &[&common, &tls[..], what].concat())?;
        Ok(())
    }

    fn rustls(&self) -> Result<(), Failed> {
        let [ca, up] = [self.fixture.root.file("ca.pem"), self.peers.file("up")];
        let (version, direction) = (self.version.to_string(), self.direction.to_string());
        let program = std::env::current_exe()?.display().to_string();
        let answer = self.peers.file("answer");
        let arguments = [PEER, &version, &direction, &ca, &up, &answer];
        self.fixture.run(&program, &arguments)?;
        Ok(())
    }

    /// Starts a client that sends its standard input, and writes the answer to a file.
    fn speak(&self, program: &str, arguments: &[&str], spoken: &Spoken) -> Result<(), Failed> {
        // The client reads one datagram at a time.
        let (ours, theirs) = UnixDatagram::pair()?;
        let mut command = self.fixture.peer().command(program);
        command.args(arguments);
        let answer = self.peers.file("answer");
        let out = File::create(&answer)?;
        let stdin = Stdio::from(OwnedFd::from(theirs));
        let running = Program::start_between(command, stdin, out.into())?.allow(longer());
        // `theirs` was moved into the command, so sending fails once the client has ended.
        let update = spoken.update.filter(|_| self.version == Version::Tls13);
        let spoke = match self.direction {
            Direction::Download => {
                ours.send(head(self.direction, 0).as_bytes())?;
                let mut next = UPDATES;
                while !running.has_ended()? {
                    let got = std::fs::metadata(&answer)?.len();
                    while let Some(update) = update.filter(|_| got >= next) {
                        next += UPDATES;
                        // The line feed is data, not a request: the server accepts only 32
                        // KeyUpdates in a row. Ignores errors, since the client may have ended.
                        let _ = ours.send(update).and_then(|_| ours.send(b"\n"));
                    }
                    thread::sleep(GLANCE);
                }
                Ok(())
            }
            Direction::Upload => {
                let up = File::open(self.peers.file("up"))?;
                let head = head(self.direction, up.metadata()?.len());
                spoken.send(&ours, head.as_bytes().chain(up), update)
            }
        };
        // The client's own error explains more than a failed write to it.
        running.finish()?;
        Ok(spoke?)
    }
}

/// The input of a client that sends its standard input.
struct Spoken {
    /// The most bytes of one read.
    most: usize,
    /// A read that begins with one of these bytes may be a command.
    special: &'static [u8],
    /// The command that updates the keys, if any.
    update: Option<&'static [u8]>,
}

impl Spoken {
    /// Lets the client send all of `from`, with the command `update` after every megabyte.
    fn send(
        &self,
        to: &UnixDatagram,
        mut from: impl Read,
        update: Option<&[u8]>,
    ) -> io::Result<()> {
        let (mut waiting, mut chunk) = (Vec::new(), vec![0; CHUNK]);
        let (mut sent, mut next) = (0, UPDATES);
        loop {
            // Reads one byte more than it sends.
            while waiting.len() <= self.most {
                match from.read(&mut chunk)? {
                    0 => break,
                    len => waiting.extend_from_slice(&chunk[..len]),
                }
            }
            if waiting.is_empty() {
                return Ok(());
            }
            // The byte after the sent ones must not begin a command.
            let is_plain =
                |at: &usize| !waiting.get(*at).is_some_and(|it| self.special.contains(it));
            let most = waiting.len().min(self.most);
            let len = (1..=most).rev().find(is_plain);
            let len = len.ok_or_else(|| io::Error::other("every byte may begin a command"))?;
            to.send(&waiting[..len])?;
            waiting.drain(..len);
            sent += len as u64;
            if let Some(update) = update.filter(|_| sent >= next) {
                next += UPDATES;
                to.send(update)?;
            }
        }
    }
}

// The client of rustls
// ---------------------------------------------------------------------------------------------

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The client program; `arguments` follow [`PEER`].
pub(crate) fn peer(arguments: &[String]) -> Outcome {
    let [version, direction, ca, up, answer] = arguments else {
        return Err("five arguments".into());
    };
    let version: &SupportedProtocolVersion = match &**version {
        "1.3" => &rustls::version::TLS13,
        _ => &rustls::version::TLS12,
    };
    let updates = version.version == rustls::ProtocolVersion::TLSv1_3;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let session = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME)?)?;
    let mut stream = StreamOwned::new(session, TcpStream::connect((OURS, HTTPS))?);
    let answer = File::create(answer)?;
    match &**direction {
        "download" => {
            stream.write_all(head(Direction::Download, 0).as_bytes())?;
            receive(&mut stream, answer, updates)?;
        }
        _ => {
            let up = File::open(up)?;
            stream.write_all(head(Direction::Upload, up.metadata()?.len()).as_bytes())?;
            send(&mut stream, up, updates)?;
            receive(&mut stream, answer, false)?;
        }
    }
    let session = &stream.conn;
    if session.protocol_version() != Some(version.version)
        || session.alpn_protocol() != Some(b"http/1.1")
    {
        return Err("another version, or another protocol".into());
    }
    Ok(())
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn send(stream: &mut Stream, mut from: impl Read, updates: bool) -> Outcome {
    let mut chunk = vec![0; CHUNK];
    let (mut sent, mut next) = (0, UPDATES);
    loop {
        let len = from.read(&mut chunk)?;
        if len == 0 {
            stream.flush()?;
            return Ok(());
        }
        stream.write_all(&chunk[..len])?;
        sent += len as u64;
        if updates && sent >= next {
            next += UPDATES;
            stream.conn.refresh_traffic_keys()?;
        }
    }
}

/// Receives until the server sends close_notify; a stream that ends without it is an error.
fn receive(stream: &mut Stream, mut to: impl Write, updates: bool) -> Outcome {
    let mut chunk = vec![0; CHUNK];
    let (mut got, mut next) = (0, UPDATES);
    loop {
        let len = stream.read(&mut chunk)?;
        if len == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..len])?;
        got += len as u64;
        if updates && got >= next {
            next += UPDATES;
            stream.conn.refresh_traffic_keys()?;
            // Data between KeyUpdates, since the server accepts only 32 in a row.
            stream.write_all(b"\n")?;
        }
    }
}
