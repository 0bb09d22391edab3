//! The examples `https_server` and `https_get` over a TAP and over a packet socket, against `curl`,
//! `openssl` and `gnutls-cli`, while replicas die.

use std::process::Command;

use libtest_mimic::Failed;

use crate::fixture::{Device, Ends, Fixture, OURS, Program, THEIRS, Temporary, start};
use crate::same;
use crate::transfers::{self, Transfer, bytes};

/// Name, device, replicas, further arguments of the server, and the test.
pub(crate) type Case = (
    &'static str,
    Device,
    &'static str,
    &'static [&'static str],
    fn(&Fixture, &dyn Fn(String)) -> Result<(), Failed>,
);

const STEADY: &[&str] = &["--update-keys", "1000000"];

/// Tests of `https_server` with `openssl s_client`.
pub(crate) const SERVED: &[Case] = &[
    (
        "openssl_agrees_on_name_and_protocol",
        Device::Tap,
        "2",
        &[],
        openssl_agrees,
    ),
    (
        "openssl_resumes_its_session",
        Device::Tap,
        "2",
        &[],
        openssl_resumes,
    ),
    (
        "openssl_updates_its_keys",
        Device::Tap,
        "2",
        &[],
        openssl_updates_its_keys,
    ),
];

/// A test of `https_server` with `gnutls-cli`, if that is installed.
pub(crate) const GNUTLS: Case = ("gnutls_verifies_and_gets", Device::Tap, "2", STEADY, gnutls);

/// Tests of `https_get`: name, device and replicas.
pub(crate) const ASKING: &[(&str, Device, &str)] = &[
    ("tap_1::openssl_serves_and_takes", Device::Tap, "1"),
    ("tap_2::openssl_serves_and_takes", Device::Tap, "2"),
    ("tap_4::openssl_serves_and_takes", Device::Tap, "4"),
    ("packet_1::openssl_serves_and_takes", Device::Packet, "1"),
    ("packet_2::openssl_serves_and_takes", Device::Packet, "2"),
    ("packet_4::openssl_serves_and_takes", Device::Packet, "4"),
];

/// The name in the certificates.
const NAME: &str = "server.test";
/// The port at which `openssl` listens.
const PORT: &str = "4433";
/// Key updates that the client asks for before its first request.
const UPDATES: usize = 3;

/// An HTTP request for `path` that asks the server to close the connection.
fn request(path: &str) -> String {
    format!("GET /{path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n")
}

/// Starts `openssl s_client`, which trusts only the server's certificate.
fn s_client(fixture: &Fixture, more: &[&str]) -> Result<Program, Failed> {
    let ca = fixture.root.file("ca.pem");
    let at = format!("{OURS}:443");
    let common = [
        "s_client",
        "-connect",
        &at,
        "-CAfile",
        &ca,
        "-verify_return_error",
        "-servername",
        NAME,
    ];
    fixture.speak("openssl", &[&common, more].concat())
}

/// Fails unless the output contains all of `wanted`.
fn contains(said: &str, wanted: &[&str]) -> Result<(), Failed> {
    match wanted.iter().find(|words| !said.contains(**words)) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing:?} in:\n{said}").into()),
    }
}

/// The certificate is valid for its own name and for no other; ALPN selects the protocol that both
/// ends support.
fn openssl_agrees(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    fixture.root.write("file", 100_000, 3)?;
    for (version, seen) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let verified = ["-verify_hostname", NAME, "-alpn", "h2,http/1.1", "-ign_eof"];
        let mut asked = s_client(fixture, &[&verified[..], &[version]].concat())?;
        asked.say(&request("file"))?;
        let said = asked.finish_all(false)?;
        let protocol = "ALPN protocol: http/1.1";
        let verified = "Verification: OK";
        contains(&said, &[protocol, verified, seen, "HTTP/1.1 200 OK"])?;

        let other = ["-verify_hostname", "another.test", version];
        let said = s_client(fixture, &other)?.finish_all(true)?;
        contains(&said, &["hostname mismatch"])?;
        let said = s_client(fixture, &["-alpn", "h2", version])?.finish_all(true)?;
        contains(&said, &["no application protocol"])?;
    }
    Ok(())
}

fn openssl_resumes(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    fixture.root.write("file", 1000, 3)?;
    for version in ["-tls1_3", "-tls1_2"] {
        let session = fixture.root.file("session");
        for (option, wanted) in [("-sess_out", "New, TLSv1"), ("-sess_in", "Reused, TLSv1")] {
            let mut asked = s_client(fixture, &[option, &session, "-ign_eof", version])?;
            asked.say(&request("file"))?;
            contains(&asked.finish_all(false)?, &[wanted, "HTTP/1.1 200 OK"])?;
        }
    }
    Ok(())
}

/// Each `K` updates the client's key and asks the server to update its own.
fn openssl_updates_its_keys(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    fixture.root.write("file", 100_000, 3)?;
    let mut asked = s_client(fixture, &["-tls1_3"])?;
    asked.wait_for("Verify return code: 0 (ok)", 1)?;
    for update in 1..=UPDATES {
        asked.say("K\n")?;
        asked.wait_for("KEYUPDATE", update)?;
    }
    asked.say(&request("file").replace("\r\nConnection: close", ""))?;
    asked.wait_for("HTTP/1.1 200 OK", 1)?;
    asked.say("K\n")?;
    asked.wait_for("KEYUPDATE", UPDATES + 1)?;
    asked.say(&request("missing"))?;
    contains(&asked.finish_all(false)?, &["HTTP/1.1 404 Not Found"])
}

fn gnutls(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    fixture.root.write("file", 100_000, 3)?;
    let ca = format!("--x509cafile={}", fixture.root.file("ca.pem"));
    let hostname = format!("--verify-hostname={NAME}");
    for (priority, seen) in [("+VERS-TLS1.3", "(TLS1.3"), ("+VERS-TLS1.2", "(TLS1.2")] {
        let priority = format!("--priority=NORMAL:-VERS-ALL:{priority}");
        let common = [
            "--alpn=http/1.1",
            "--port=443",
            &*ca,
            &hostname,
            &priority,
            OURS,
        ];
        let mut asked = fixture.speak("gnutls-cli", &common)?;
        asked.wait_for("Handshake was completed", 1)?;
        asked.say(&request("file"))?;
        let said = asked.finish_all(false)?;
        let trusted = "certificate is trusted";
        contains(
            &said,
            &[seen, trusted, "protocol: http/1.1", "HTTP/1.1 200 OK"],
        )?;
    }
    Ok(())
}

/// Writes a self-signed certificate and its key to `cert.pem` and `key.pem`.
fn certify(folder: &Temporary) -> Result<(), Failed> {
    let config = format!(
        "[req]\ndistinguished_name=name\nx509_extensions=v3\nprompt=no\n[name]\nCN={NAME}\n\
         [v3]\nsubjectAltName=DNS:{NAME}\nbasicConstraints=critical,CA:FALSE\n"
    );
    std::fs::write(folder.file("config"), config)?;
    let files = ["config", "key.pem", "cert.pem"].map(|name| folder.file(name));
    let new = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
    ];
    let named = [
        "-config", &files[0], "-keyout", &files[1], "-out", &files[2],
    ];
    let mut command = Command::new("openssl");
    command.args([&new[..], &["-days", "2"], &named].concat());
    start(&mut command)?.finish()?;
    Ok(())
}

/// `openssl s_server` serves a file twice, the second time in a resumed session, and receives one.
/// Both ends verify certificates.
pub(crate) fn openssl_serves(
    device: Device,
    replicas: &str,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    let ends = Ends::new(device)?;
    let folder = Temporary::new()?;
    certify(&folder)?;
    let bytes = bytes()?;
    let down = folder.write("down", bytes, 1)?;
    folder.write("up", bytes, 2)?;
    let [ca, key, from, got] = ["cert.pem", "key.pem", "up", "got"].map(|name| folder.file(name));
    let mut common = vec!["--replicas", replicas, "--ca", &ca, "--name", NAME];
    common.extend(["--cert", &ca, "--key", &key, "--update-keys", "1000000"]);
    common.extend(transfers::kills(replicas));
    let note = |version: &str, direction: &str, said: &str, equal: bool| -> Result<(), Failed> {
        for seconds in seconds(said) {
            let transfer = Transfer {
                client: "s_server",
                version,
                direction,
                bytes,
                seconds,
                deaths: transfers::deaths(said),
                equal,
            };
            figure(transfer.to_string());
        }
        same(equal, &format!("the {direction} by TLS {version}"))
    };
    let versions = [
        ("1.3", &[][..], "TLSv1_3"),
        ("1.2", &["--tls12"], "TLSv1_2"),
    ];
    for (version, tls12, seen) in versions {
        let serve = |more: &str| -> Result<Program, Failed> {
            let line = format!(
                "cd {} && exec openssl s_server -accept {PORT} -cert cert.pem -key key.pem \
                 -CAfile cert.pem -Verify 1 -verify_return_error {more}",
                folder.file("")
            );
            let server = ends.speak("sh", &["-c", &line])?;
            server.wait_for("ACCEPT", 1)?;
            Ok(server)
        };
        let serving = serve("-WWW -alpn http/1.1 -naccept 2")?;
        let url = format!("https://{THEIRS}:{PORT}/down");
        let get = [&common[..], tls12, &["--again", "--output", &got, &url]].concat();
        let said = ends.https_get(&get)?;
        serving.finish()?;
        note(version, "download", &said, folder.hash("got")? == down)?;
        let wanted = [seen, "protocol http/1.1", "new session", "resumed"];
        contains(&said, &wanted)?;

        // With a server name, `s_server` uses a second context, which has no ALPN protocols.
        let named = format!("-servername {NAME} -servername_fatal -cert2 cert.pem -key2 key.pem");
        // Standard error goes to a file: `s_server` prints certificates there in pieces, amid the
        // text.
        let mut taking = serve(&format!("-naccept 1 {named} 2>said"))?;
        // The pipe holds this answer until a client connects.
        taking.say("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")?;
        let put = [&common[..], tls12, &["--upload", &from, &url]].concat();
        let said = ends.https_get(&put)?;
        let taken = taking.finish_bytes()?;
        contains(&said, &["201, "])?;
        contains(
            &String::from_utf8_lossy(&taken),
            &["Hostname in TLS extension: \"server.test\""],
        )?;
        let equal = holds(&taken, &std::fs::read(&from)?);
        note(version, "upload", &said, equal)?;
    }
    Ok(())
}

/// Lines that `openssl` prints within the text: one after it has read an empty record, and others
/// that come late on a busy machine. The bytes of a test contain none of them.
const NOTICES: [&[u8]; 3] = [
    b"Read BLOCK\n",
    b"Hostname in TLS extension: \"server.test\"\n",
    b"Switching server context.\n",
];

/// The seconds of each transfer that `https_get` reports.
fn seconds(said: &str) -> Vec<f64> {
    let lines = said.lines().filter(|line| line.contains(" bytes got in "));
    let words = lines.filter_map(|line| line.rsplit(' ').next());
    let numbers = words.filter_map(|word| {
        let milliseconds = word
            .strip_suffix("ms")
            .and_then(|word| word.parse::<f64>().ok());
        milliseconds
            .map(|number| number / 1e3)
            .or_else(|| word.strip_suffix('s')?.parse().ok())
    });
    numbers.collect()
}

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut from = 0;
    loop {
        // Most of a long text is skipped here.
        from += within[from..].iter().position(|byte| *byte == first)?;
        if within[from..].starts_with(what) {
            return Some(from);
        }
        from += 1;
    }
}

/// Whether the output has `body` directly after the head of a request.
fn holds(said: &[u8], body: &[u8]) -> bool {
    let mut said = said.to_vec();
    for notice in NOTICES {
        let (mut kept, mut rest) = (Vec::with_capacity(said.len()), &said[..]);
        while let Some(at) = find(rest, notice) {
            kept.extend_from_slice(&rest[..at]);
            rest = &rest[at + notice.len()..];
        }
        kept.extend_from_slice(rest);
        said = kept;
    }
    let end = b"\r\n\r\n";
    find(&said, end).is_some_and(|at| said[at + end.len()..].starts_with(body))
}

/// The server for [`client_certificates`], and the folder with the client's files.
pub(crate) fn with_client_ca() -> Result<(Fixture, Temporary), Failed> {
    let folder = Temporary::new()?;
    certify(&folder)?;
    let ca = folder.file("cert.pem");
    let arguments = ["--replicas", "2", "--client-ca", &ca];
    Ok((Fixture::https(Device::Tap, &arguments)?, folder))
}

/// A server that asks for client certificates refuses a client without one.
pub(crate) fn client_certificates(fixture: &Fixture, folder: &Temporary) -> Result<(), Failed> {
    fixture.root.write("file", 1000, 3)?;
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.file(name));
    let url = format!("https://{OURS}/file");
    let own = ["--cert", &cert, "--key", &key];
    for version in ["1.3", "1.2"] {
        let versions = ["-k", "--output", "/dev/null", "--tls-max", version, &url];
        let common = [&crate::CURL[..], &versions].concat();
        fixture.run("curl", &[&common[..], &own].concat())?;
        if fixture.run("curl", &common).is_ok() {
            return Err("a client without a certificate is served".into());
        }
    }
    // The data that `curl` sends may turn the alert into a reset; `s_client` sends none here.
    let said = s_client(fixture, &["-tls1_3"])?.finish_all(true)?;
    contains(&said, &["certificate required"])?;
    let said = s_client(fixture, &["-tls1_2"])?.finish_all(true)?;
    contains(&said, &["alert"])
}
