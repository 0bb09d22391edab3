//! The examples `https_server` and `https_get` over a TAP and a packet socket: `curl`, `openssl` and
//! `gnutls-cli` at the other end, while replicas die.

use std::process::Command;

use libtest_mimic::Failed;

use crate::fixture::{Device, Dialogue, Ends, Fixture, OURS, Running, THEIRS, Temporary};
use crate::same;

/// Name, device, replicas, further arguments of the server, and the test.
pub(crate) type Case = (
    &'static str,
    Device,
    &'static str,
    &'static [&'static str],
    fn(&Fixture, &dyn Fn(String)) -> Result<(), Failed>,
);

/// With one replica the state would die with it.
const DYING: &[&str] = &["--kill-every", "0.1", "--update-keys", "1000000"];
const STEADY: &[&str] = &["--update-keys", "1000000"];

/// Those that ask `https_server`.
pub(crate) const SERVED: &[Case] = &[
    (
        "tap_1::curl_gets_and_sends_the_same",
        Device::Tap,
        "1",
        STEADY,
        curl,
    ),
    (
        "tap_2::curl_gets_and_sends_the_same",
        Device::Tap,
        "2",
        DYING,
        curl,
    ),
    (
        "tap_4::curl_gets_and_sends_the_same",
        Device::Tap,
        "4",
        DYING,
        curl,
    ),
    (
        "packet_1::curl_gets_and_sends_the_same",
        Device::Packet,
        "1",
        STEADY,
        curl,
    ),
    (
        "packet_2::curl_gets_and_sends_the_same",
        Device::Packet,
        "2",
        DYING,
        curl,
    ),
    (
        "packet_4::curl_gets_and_sends_the_same",
        Device::Packet,
        "4",
        DYING,
        curl,
    ),
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

/// The same, if GnuTLS is there.
pub(crate) const GNUTLS: Case = ("gnutls_verifies_and_gets", Device::Tap, "2", STEADY, gnutls);

/// Name, device and replicas of `https_get`, and whether they die.
pub(crate) const ASKING: &[(&str, Device, &str, bool)] = &[
    ("tap_1::openssl_serves_and_takes", Device::Tap, "1", false),
    ("tap_2::openssl_serves_and_takes", Device::Tap, "2", true),
    (
        "packet_4::openssl_serves_and_takes",
        Device::Packet,
        "4",
        true,
    ),
];

/// Bytes of a file, unless `HOST_BYTES` says otherwise.
const BYTES: usize = 20_000_000;
/// The name that certificates are for.
const NAME: &str = "server.test";
/// Where `openssl` listens.
const PORT: &str = "4433";
/// Lines that `openssl` takes for KeyUpdates.
const UPDATES: usize = 3;

fn bytes() -> Result<usize, Failed> {
    Ok(std::env::var("HOST_BYTES").map_or(Ok(BYTES), |text| text.parse())?)
}

/// A download and an upload with each version.
fn curl(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let bytes = bytes()?;
    let peers = Temporary::new()?;
    let ours = fixture.root.write("down", bytes, 1)?;
    let theirs = peers.write("up", bytes, 2)?;
    for (version, seen) in [("1.3", "TLSv1.3"), ("1.2", "TLSv1.2")] {
        let least = format!("--tlsv{version}");
        let common = [&crate::CURL, &["-k", &least, "--tls-max", version][..]].concat();
        let got = peers.file("got");
        let url = format!("https://{OURS}/down");
        let speed = ["--write-out", "%{speed_download} %{speed_upload}"];
        let download = [&common, &speed[..], &["--output", &got, &url]].concat();
        let down = fixture.run("curl", &download)?;
        same(
            peers.hash("got")? == ours,
            &format!("what curl got by {seen}"),
        )?;
        let (from, url) = (peers.file("up"), format!("https://{OURS}/taken"));
        let upload = [&common, &speed[..], &["--upload-file", &from, &url]].concat();
        let up = fixture.run("curl", &upload)?;
        let taken = fixture.root.hash("taken")?;
        same(taken == theirs, &format!("what the server got by {seen}"))?;
        let rate = |said: &str, at: usize| {
            let word = said.split(' ').nth(at).unwrap_or_default();
            word.parse().unwrap_or(0.0) * 8e-9
        };
        figure(format!(
            "{seen}: {:.2} Gbit/s ours, {:.2} Gbit/s theirs",
            rate(&down, 0),
            rate(&up, 1)
        ));
    }
    Ok(())
}

/// What `openssl s_client` asks for, and the end of the connection.
fn request(path: &str) -> String {
    format!("GET /{path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n")
}

/// Starts `openssl s_client`, which trusts the server's certificate alone.
fn s_client(fixture: &Fixture, more: &[&str]) -> Result<Dialogue, Failed> {
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

/// Fails unless all of `wanted` was said.
fn contains(said: &str, wanted: &[&str]) -> Result<(), Failed> {
    match wanted.iter().find(|words| !said.contains(**words)) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing:?} in:\n{said}").into()),
    }
}

/// The certificate is for the name, and for no other; the protocol is the one that both know.
fn openssl_agrees(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    fixture.root.write("file", 100_000, 3)?;
    for (version, seen) in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")] {
        let verified = ["-verify_hostname", NAME, "-alpn", "h2,http/1.1", "-ign_eof"];
        let mut asked = s_client(fixture, &[&verified[..], &[version]].concat())?;
        asked.say(&request("file"))?;
        let said = asked.finish()?;
        let protocol = "ALPN protocol: http/1.1";
        let verified = "Verification: OK";
        contains(&said, &[protocol, verified, seen, "HTTP/1.1 200 OK"])?;

        let other = ["-verify_hostname", "another.test", version];
        let said = s_client(fixture, &other)?.fail()?;
        contains(&said, &["hostname mismatch"])?;
        let said = s_client(fixture, &["-alpn", "h2", version])?.fail()?;
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
            contains(&asked.finish()?, &[wanted, "HTTP/1.1 200 OK"])?;
        }
    }
    Ok(())
}

/// Each `K` asks us for another key, too.
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
    contains(&asked.finish()?, &["HTTP/1.1 404 Not Found"])
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
        let said = asked.finish()?;
        let trusted = "certificate is trusted";
        contains(
            &said,
            &[seen, trusted, "protocol: http/1.1", "HTTP/1.1 200 OK"],
        )?;
    }
    Ok(())
}

/// A certificate that vouches for itself, and its key, in `cert.pem` and `key.pem`.
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
    Running::start(command)?.finish()?;
    Ok(())
}

/// `openssl s_server` serves a file twice, the second time in a session that is resumed, and takes
/// one. Certificates go both ways.
pub(crate) fn openssl_serves(
    device: Device,
    replicas: &str,
    dying: bool,
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
    if dying {
        common.extend(["--kill-every", "0.1"]);
    }
    for (tls12, seen) in [(&[][..], "TLSv1_3"), (&["--tls12"][..], "TLSv1_2")] {
        let serve = |more: &str| -> Result<Dialogue, Failed> {
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
        let what = format!("what https_get got by {seen}");
        same(folder.hash("got")? == down, &what)?;
        let wanted = [seen, "protocol http/1.1", "new session", "resumed"];
        contains(&said, &wanted)?;

        // With a name it has another context, which knows no protocols.
        let named = format!("-servername {NAME} -servername_fatal -cert2 cert.pem -key2 key.pem");
        let mut taking = serve(&format!("-naccept 1 {named}"))?;
        // A pipe holds what is said to it before somebody connects.
        taking.say("HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")?;
        let put = [&common[..], tls12, &["--upload", &from, &url]].concat();
        let said = ends.https_get(&put)?;
        let taken = taking.finish_bytes()?;
        contains(&said, &["201, "])?;
        contains(
            &String::from_utf8_lossy(&taken),
            &["Hostname in TLS extension: \"server.test\""],
        )?;
        let what = format!("what openssl took by {seen}");
        same(holds(&taken, &std::fs::read(&from)?), &what)?;
        figure(said.lines().last().unwrap_or_default().to_owned());
    }
    Ok(())
}

/// Lines that `openssl` prints amid the text: when it has read a record that is none, and others that
/// come late on a busy machine. The bytes of a test hold none of them.
const NOTICES: [&[u8]; 6] = [
    b"Read BLOCK\n",
    b"depth=0 CN = server.test\n",
    b"depth=0 CN=server.test\n",
    b"verify return:1\n",
    b"Hostname in TLS extension: \"server.test\"\n",
    b"Switching server context.\n",
];

fn find(within: &[u8], what: &[u8]) -> Option<usize> {
    let mut windows = within.windows(what.len());
    windows.position(|window| window == what)
}

/// Whether `body` stands in `said` behind the head of a request.
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

/// The server for [`client_certificates`]; the folder holds what the client needs.
pub(crate) fn with_client_ca() -> Result<(Fixture, Temporary), Failed> {
    let folder = Temporary::new()?;
    certify(&folder)?;
    let ca = folder.file("cert.pem");
    let arguments = ["--replicas", "2", "--client-ca", &ca];
    Ok((Fixture::https(Device::Tap, &arguments)?, folder))
}

/// A client without a certificate is refused where one is asked for.
pub(crate) fn client_certificates(fixture: &Fixture, folder: &Temporary) -> Result<(), Failed> {
    fixture.root.write("file", 1000, 3)?;
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.file(name));
    let url = format!("https://{OURS}/file");
    let own = ["--cert", &cert, "--key", &key];
    for version in ["1.3", "1.2"] {
        let versions = ["-k", "--output", "/dev/null", "--tls-max", version, &url];
        let common = [&crate::CURL, &versions[..]].concat();
        fixture.run("curl", &[&common[..], &own].concat())?;
        if fixture.run("curl", &common).is_ok() {
            return Err("a client without a certificate is served".into());
        }
    }
    // What `curl` sends besides may turn the alert into a reset; this one sends nothing.
    let said = s_client(fixture, &["-tls1_3"])?.fail()?;
    contains(&said, &["certificate required"])?;
    let said = s_client(fixture, &["-tls1_2"])?.fail()?;
    contains(&said, &["alert"])
}
