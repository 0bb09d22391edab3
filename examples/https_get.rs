//! Fetches or sends a file over HTTPS: HTTP/1.1 over TLS. All replicas of the client's stack
//! (threads with a copy of the connection state) seal and open the TLS records.
//!
//! Without a device it tests itself in memory: the server then uses plain `rustls`, with TLS 1.3
//! and 1.2. With a device the server is elsewhere, here at the kernel's end of the TAP of
//! [README.md](README.md), where `openssl` serves the current folder:
//!
//! ```text
//! cargo run --release -p dominoes-tls-examples --example https_get
//! openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=server.test \
//!     -addext subjectAltName=DNS:server.test -addext basicConstraints=critical,CA:FALSE
//! openssl s_server -accept 4433 -cert cert.pem -key key.pem -WWW &
//! cargo run --release -p dominoes-tls-examples --example https_get -- --tap tap0 \
//!     --ca cert.pem --name server.test --output got https://10.78.0.2:4433/some_file
//! ```
//!
//! It writes the response to the file or the standard output, and a report to the standard error
//! stream; it fails unless the status is 2xx. With `--again` it sends a second request on a new
//! connection, which resumes the session. With `--update-keys N` it changes its key after every N
//! sent bytes. Hosts are given by address.

#[path = "tls/certificate.rs"]
mod certificate;
#[path = "http_server/client.rs"]
mod client;
#[path = "http_server/files.rs"]
mod files;
#[path = "http_server/http.rs"]
mod http;
#[path = "common/program.rs"]
mod program;
#[path = "http_server/serve.rs"]
mod serve;
// Written for servers; this example needs a part of it.
#[allow(dead_code)]
#[path = "common/stack.rs"]
mod stack;
#[path = "tls/stream.rs"]
mod stream;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use dominoes_drivers::memory::{self, MemoryConfig};
use dominoes_netstack::tls::TlsStream;
use dominoes_netstack::{Stack, TcpListener, TcpStream};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ServerConfig, ServerConnection};

use crate::certificate::SelfSigned;
use crate::client::{Client, Temporary, read_head};
use crate::http::{CHUNK, LINGER};
use crate::program::{Arguments, Outcome, VALUE};
use crate::stack::killer::Killer;
use crate::stack::{StackOptions, Threads, builder};
use crate::while_replicas_die::while_replicas_die;

/// Time for the server to acknowledge everything when the client ends.
const GRACE: Duration = Duration::from_secs(1);
/// How long the server may be silent.
const PATIENCE: Duration = Duration::from_secs(60);
const HTTPS: u16 = 443;

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        update_keys: u64::MAX,
        ..Options::default()
    };
    program::main("https_get", &usage, options, Options::take, run)
}

// Command line
// -------------------------------------------------------------------------------------------------------

const ABOUT: &str = "\
https_get [OPTION]... https://ADDRESS[:PORT]/PATH

Asks for a file over HTTPS; without a device, tests itself in memory.

";

const USAGE: &str = "  --ca FILE           certificates that are trusted, in PEM
  --name NAME         the server's name [its address]
  --cert FILE         our own certificates, ours first, in PEM [none]
  --key FILE          the key of our certificate, in PEM
  --tls12             do without TLS 1.3
  --upload FILE       send this file by PUT [GET]
  --output FILE       where to write what was got [standard output]
  --again             ask once more, on another connection
  --update-keys N     go on with another key after each N bytes that are sent [never]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    ca: Option<PathBuf>,
    name: Option<String>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    tls12: bool,
    upload: Option<PathBuf>,
    output: Option<PathBuf>,
    again: bool,
    update_keys: u64,
    url: Option<Url>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "ca" => self.ca = Some(arguments.path()?),
            "name" => self.name = Some(arguments.text()?),
            "cert" => self.cert = Some(arguments.path()?),
            "key" => self.key = Some(arguments.path()?),
            "tls12" => self.tls12 = true,
            "upload" => self.upload = Some(arguments.path()?),
            "output" => self.output = Some(arguments.path()?),
            "again" => self.again = true,
            "update-keys" => self.update_keys = arguments.number(1..=u64::MAX)?,
            VALUE if self.url.is_none() => self.url = Some(arguments.parse_with(Url::parse)?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }

    fn config(&self) -> Outcome<ClientConfig> {
        let roots = self
            .ca
            .as_deref()
            .ok_or("--ca is missing: who is trusted?")?;
        let mut config =
            certificate::client(certificate::read_roots(&std::fs::read(roots)?)?, self.tls12);
        if let Some((cert, key)) = self.cert.as_deref().zip(self.key.as_deref()) {
            let certificates = CertificateDer::pem_file_iter(cert)?;
            let certificates = certificates.collect::<Result<_, _>>()?;
            let key = PrivateKeyDer::from_pem_file(key)?;
            let own =
                rustls::sign::CertifiedKey::from_der(certificates, key, config.crypto_provider())?;
            config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(own));
        }
        Ok(config)
    }
}

/// The address of a server, and the path of a request.
struct Url {
    at: SocketAddr,
    path: String,
}

impl Url {
    fn parse(url: &str) -> Outcome<Url> {
        let rest = url.strip_prefix("https://").ok_or("not an https:// URL")?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let address = || -> Result<_, std::net::AddrParseError> {
            let alone = host.trim_start_matches('[').trim_end_matches(']');
            Ok(SocketAddr::new(alone.parse()?, HTTPS))
        };
        Ok(Url {
            at: host.parse().or_else(|_| address())?,
            path: if path.is_empty() { "/" } else { path }.to_owned(),
        })
    }
}

// Asking
// --------------------------------------------------------------------------------------------------------------

fn run(options: &Options) -> Outcome<()> {
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    let Some((device, name)) = options.stack.open()? else {
        return test(threads, killer);
    };
    let url = options.url.as_ref().ok_or("no URL; see --help")?;
    let config = Arc::new(options.config()?);
    let stack = options.stack.start(|addr| builder(addr, threads), device)?;
    eprintln!(
        "{}, {}, device {name}",
        options.stack.addresses(&stack, None)?,
        threads.name("replica"),
    );
    let done = while_replicas_die(&stack, killer, || {
        for _ in 0..1 + usize::from(options.again) {
            ask(&stack, url, options, &config)?;
        }
        Ok(())
    });
    if let Some(error) = stack
        .take_device_error()
        .filter(|error| !error.is_temporary())
    {
        return Err(error.into());
    }
    let compared = stack.compare();
    stack.close(GRACE)?;
    compared?;
    done
}

/// Opens one connection and makes one request.
fn ask(stack: &Stack, url: &Url, options: &Options, config: &Arc<ClientConfig>) -> Outcome<()> {
    let host = url.at.ip().to_string();
    let name = options.name.as_ref().unwrap_or(&host);
    let start = Instant::now();
    let stream = stack.connect(url.at)?;
    let stream = TlsStream::connect(stream, config, ServerName::try_from(name.clone())?)?;
    let info = stream.info();
    eprintln!(
        "{:?}, {:?}, protocol {}, {}",
        info.version,
        info.suite.suite(),
        String::from_utf8_lossy(info.alpn.as_deref().unwrap_or(b"-")),
        if info.is_resumed {
            "resumed"
        } else {
            "new session"
        },
    );
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut reader, writer) = stream::split(stream, options.update_keys);
    let mut writer = BufWriter::with_capacity(CHUNK, writer);
    let (method, len) = match &options.upload {
        None => ("GET", 0),
        Some(file) => ("PUT", std::fs::metadata(file)?.len()),
    };
    write!(
        writer,
        "{method} {} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n",
        url.path
    )?;
    if let Some(file) = &options.upload {
        write!(writer, "Content-Length: {len}\r\n\r\n")?;
        io::copy(&mut File::open(file)?, &mut writer)?;
    } else {
        write!(writer, "\r\n")?;
    }
    writer.flush()?;
    let (status, content) = loop {
        let (status, content) = read_head(&mut reader)?;
        if status >= 200 {
            break (status, content);
        }
    };
    let mut output: Box<dyn Write> = match &options.output {
        None => Box::new(io::stdout()),
        Some(file) => Box::new(BufWriter::with_capacity(CHUNK, File::create(file)?)),
    };
    // Without a length the content ends with the stream; close_notify confirms the end.
    let got = io::copy(
        &mut (&mut reader).take(content.unwrap_or(u64::MAX)),
        &mut output,
    )?;
    output.flush()?;
    let took = start.elapsed();
    // If our end closed while data (key updates, for instance) still arrived, it would reset the
    // connection, and the server could lose data that it has not read. Whether the stream ends
    // properly is not checked any more.
    http::Writer::shutdown(writer.get_mut());
    let _ = io::copy(&mut reader.take(LINGER), &mut io::sink());
    eprintln!("{status}, {len} bytes sent, {got} bytes got in {took:.1?}");
    if !(200..300).contains(&status) {
        return Err(format!("the server answered {status}").into());
    }
    if content.is_some_and(|content| content != got) {
        return Err("the answer is too short".into());
    }
    Ok(())
}

// Without a device
// -----------------------------------------------------------------------------------------------------

/// Bytes between two KeyUpdates of the self-test.
const UPDATES: u64 = 1 << 20;

/// Joins two stacks in memory: a server with plain `rustls`, and a client.
fn test(threads: Threads, killer: Option<Killer>) -> Outcome<()> {
    let (_folder, root) = Temporary::with_files()?;
    let own = SelfSigned::new("10.78.0.2")?;
    let (near, far) = memory::pair(MemoryConfig::default().tso4_max_bytes(65_549));
    let client = threads.set_on(Stack::builder("10.78.0.1/24"));
    let client = client.start(near)?;
    let server = Stack::builder("10.78.0.2/24").start(far)?;
    let listener = server.listen(HTTPS, 16)?;
    let config = own.server(None)?;
    println!("{}, device in memory", threads.name("replica"));
    let serving = {
        let root = root.clone();
        thread::spawn(move || accept(&listener, &config, &root))
    };
    let asked = while_replicas_die(&client, killer, || {
        for tls12 in [false, true] {
            let config = Arc::new(certificate::client(own.roots()?, tls12));
            let name = ServerName::try_from(certificate::NAME)?;
            let stream = client.connect(SocketAddr::new("10.78.0.2".parse()?, HTTPS))?;
            let stream = TlsStream::connect(stream, &config, name)?;
            let info = stream.info();
            println!(
                "\nrustls as the server, {:?}, {:?}",
                info.version,
                info.suite.suite()
            );
            let (reader, writer) = stream::split(stream, UPDATES);
            Client::new(reader, writer).ask_for_all(&root)?;
        }
        Ok(())
    });
    asked?;
    let compared = client.compare()?;
    server.shutdown();
    serving
        .join()
        .map_err(|_| "the server panicked, see above")?;
    println!("all as it should be; the log's {compared} last fingerprints agree");
    Ok(())
}

fn accept(listener: &TcpListener, config: &Arc<ServerConfig>, root: &Path) {
    let next = || Some(listener.accept().ok()?.0);
    let config = Arc::clone(config);
    let begin = move |stream: TcpStream| {
        let connection = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        Ok(stream::split_rustls(connection, stream))
    };
    serve::accept(("https_get", serve::CONNECTIONS), next, begin, root);
}
