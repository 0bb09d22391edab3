//! The example `services` over a TAP, with common clients, and with scanners.

use std::time::Instant;

use libtest_mimic::Failed;

use crate::fixture::{Fixture, OURS, OURS_ALSO, THEIRS_ALSO, Temporary};
use crate::services::ping_singly;
use crate::{Test, same};

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("fifty_curls_at_once_all_succeed", fifty_curls_at_once),
    ("curl_keeps_its_connection", curl_keeps_its_connection),
    ("wrk_sees_no_error", wrk_sees_no_error),
    ("ab_sees_no_error", ab_sees_no_error),
    (
        "nc_and_socat_hear_their_echo",
        nc_and_socat_receive_their_echo,
    ),
    ("arping_is_answered", arping_is_answered),
    ("a_second_address_is_served", a_second_address_is_served),
    ("nmap_and_hping3_do_no_harm", nmap_and_hping3_do_no_harm),
];

/// Requests of a client that sends many.
const REQUESTS: u64 = 10_000;
/// Frames that `tshark` captures: enough to contain all odd segments.
const FRAMES: &str = "4000";

fn curl(fixture: &Fixture, arguments: &[&str]) -> Result<String, Failed> {
    let bounded = [
        "--silent",
        "--show-error",
        "--fail",
        "--noproxy",
        "*",
        "--max-time",
        "60",
    ];
    fixture.run("curl", &[&bounded, arguments].concat())
}

/// The output of a shell's command line.
fn shell(fixture: &Fixture, line: &str) -> Result<String, Failed> {
    fixture.run("sh", &["-c", line])
}

/// Fails with `what` unless `fine`.
fn check(fine: bool, what: &str) -> Result<(), Failed> {
    if fine { Ok(()) } else { Err(what.into()) }
}

/// Fails unless the server runs and answers correctly.
fn still_answers(fixture: &Fixture) -> Result<(), Failed> {
    let said = curl(
        fixture,
        &[
            &format!("http://{OURS}/bytes/10"),
            "--write-out",
            "%{size_download}",
            "--output",
            "/dev/null",
        ],
    )?;
    check(said == "10", &said)
}

fn fifty_curls_at_once(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let output = folder.file("got#1");
    let urls = format!("http://{OURS}/bytes/[200000-200049]");
    let parallel = ["--parallel", "--parallel-immediate", "--parallel-max", "50"];
    curl(
        fixture,
        &[&parallel[..], &["--output", &output, &urls]].concat(),
    )?;
    let all = std::fs::read(folder.file("got200049"))?;
    for len in 200_000..200_050 {
        let got = std::fs::read(folder.file(&format!("got{len}")))?;
        same(got == all[..len], &format!("file {len}"))?;
    }
    Ok(())
}

fn curl_keeps_its_connection(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let urls = format!("http://{OURS}/bytes/[1-100]");
    let said = curl(
        fixture,
        &[
            "--write-out",
            "%{num_connects} %{size_download}\n",
            "--output",
            "/dev/null",
            &urls,
        ],
    )?;
    let wanted: String = (1..=100)
        .map(|i| format!("{} {i}\n", u8::from(i == 1)))
        .collect();
    if said == wanted {
        Ok(())
    } else {
        Err(said.into())
    }
}

/// `wrk` takes a duration, not a number of requests, so it runs until there were enough.
fn wrk_sees_no_error(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let (mut requests, mut runs) = (0, 0);
    while requests < REQUESTS {
        let url = format!("http://{OURS}/bytes/100");
        let said = fixture.run("wrk", &["-t1", "-c16", "-d1s", "--timeout", "30s", &url])?;
        let done = said
            .lines()
            .find_map(|line| line.split_once(" requests in "));
        let done: u64 = done.ok_or("no requests")?.0.trim().parse()?;
        if done == 0 || said.contains("Socket errors") || said.contains("Non-2xx") {
            return Err(said.into());
        }
        (requests, runs) = (requests + done, runs + 1);
    }
    figure(format!("{requests} requests in {runs} s"));
    Ok(())
}

/// With a connection for every request, then with keep-alive connections.
fn ab_sees_no_error(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let requests = REQUESTS.to_string();
    for keep in [&[][..], &["-k"]] {
        let start = Instant::now();
        let url = format!("http://{OURS}/bytes/100");
        let said = fixture.run(
            "ab",
            &[&["-q", "-n", &requests, "-c", "16"], keep, &[&url]].concat(),
        )?;
        let fine = said.contains("Failed requests:        0") && !said.contains("Non-2xx");
        if !fine || !said.contains(&format!("Complete requests:      {requests}")) {
            return Err(said.into());
        }
        figure(format!(
            "{requests} requests {keep:?} in {} ms",
            start.elapsed().as_millis()
        ));
    }
    Ok(())
}

fn nc_and_socat_receive_their_echo(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let written = folder.write("in", 3_000_000, 5)?;
    let (from, to) = (folder.file("in"), folder.file("out"));
    for client in [
        format!("nc -N {OURS} 7"),
        format!("socat -t 60 - TCP:{OURS}:7"),
    ] {
        shell(fixture, &format!("{client} < {from} > {to}"))?;
        same(folder.hash("out")? == written, &client)?;
    }
    Ok(())
}

fn arping_is_answered(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let answers = ["-c", "3", "-w", "60", "-I", fixture.interface(), OURS];
    let said = fixture.run("arping", &answers)?;
    if !said.contains("Received 3 response") {
        return Err(said.into());
    }
    // Duplicate address detection for our address finds us, and shows it by its exit status.
    let said = shell(
        fixture,
        &format!(
            "arping -D -c 1 -w 60 -I {} {OURS} || echo taken",
            fixture.interface()
        ),
    )?;
    check(said.contains("taken"), &said)
}

/// Checks the kernel's neighbour table, `ping` and `curl`, from an address of the second network.
fn a_second_address_is_served(fixture: &Fixture, _: &dyn Fn(String)) -> Result<(), Failed> {
    let interface = fixture.interface();
    fixture.ip(&format!("addr add {THEIRS_ALSO} dev {interface}"))?;
    ping_singly(fixture, &["-n", OURS_ALSO], 3)?;
    let said = fixture.ip(&format!("neigh show {OURS_ALSO} dev {interface}"))?;
    check(said.contains("REACHABLE"), &said)?;
    let url = format!("http://{OURS_ALSO}/bytes/200000");
    let written = "%{size_download} %{local_ip}";
    let said = curl(
        fixture,
        &["--write-out", written, "--output", "/dev/null", &url],
    )?;
    check(
        said == format!("200000 {}", THEIRS_ALSO.trim_end_matches("/24")),
        &said,
    )?;
    still_answers(fixture)
}

/// Scans ports, guesses the system, and sends invalid segments of all kinds. The counters must
/// account for all frames, `tshark` must find no error in ours, and the next client must be served.
fn nmap_and_hping3_do_no_harm(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let file = folder.file("capture");
    let capture = ["-q", "-i", fixture.interface(), "-c", FRAMES, "-w", &file];
    let watching = fixture.start("tshark", &capture)?;
    let said = fixture.run(
        "nmap",
        &[
            "-n",
            "-Pn",
            "-sS",
            "-O",
            "--osscan-limit",
            "--max-os-tries",
            "1",
            "-T5",
            "--max-retries",
            "10",
            "--max-rtt-timeout",
            "5s",
            "-p",
            "1-200",
            OURS,
        ],
    )?;
    for (port, state) in [
        ("7/tcp", "open"),
        ("9/tcp", "open"),
        ("15/tcp", "open"),
        ("80/tcp", "open"),
    ] {
        let found = said
            .lines()
            .any(|line| line.starts_with(port) && line.contains(state));
        check(found, &said)?;
    }
    let kinds = [
        "-S -p 80",
        "-S -p 81",
        "-A -p 80",
        "-F -P -U -p 80",
        "-R -p 80",
        "-Y -X -p 80",
        "-p 80",
        "-S -A -p 80",
        "-S -F -p 80",
        "-S -p 80 -d 1000",
        "-S -p 80 -b",
        "-S -p 80 -f -d 100",
        "-S -p 80 -O 3",
        "--udp -p 7",
        "--icmp -C 8 -d 500",
        "--icmp -C 13",
        "-0 -H 47 -d 50",
        "-S -p 80 -w 0 -M 1 -L 1",
        "-S -p 80 -t 1",
    ];
    for kind in kinds {
        // `hping3` fails because answers are missing, which is correct here.
        shell(
            fixture,
            &format!("hping3 -q -c 40 -i u1000 {kind} {OURS} 2>&1 || true"),
        )?;
    }
    still_answers(fixture)?;

    let said = fixture.run("nc", &["-d", OURS, "15"])?;
    let count = |name: &str| {
        let lines = &mut said.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    check(
        count("looked_at") > 500 && count("looked_at") == count("accounted_for"),
        &said,
    )?;
    for dropped in ["bad_checksum", "no_connection", "unknown"] {
        check(count(dropped) > 0, &format!("no {dropped}:\n{said}"))?;
    }

    while !watching.has_ended()? {
        let url = format!("http://{OURS}/bytes/1000000");
        curl(fixture, &["--output", "/dev/null", &url])?;
    }
    watching.finish()?;
    // Severity error; groups checksum, malformed, protocol.
    let wrong = format!(
        "ip.src == {OURS} && (_ws.expert.severity == 0x800000 || _ws.expert.group == 0x1000000 \
         || _ws.expert.group == 0x7000000 || _ws.expert.group == 0x9000000)"
    );
    let look = [
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "tcp.check_checksum:TRUE",
        "-r",
        &file,
        "-Y",
        &wrong,
    ];
    let said = fixture.run("tshark", &look)?;
    if !said.trim().is_empty() {
        return Err(format!("tshark has something to say:\n{said}").into());
    }
    let ours = fixture.run(
        "tshark",
        &[
            "-r",
            &file,
            "-Y",
            &format!("ip.src == {OURS}"),
            "-T",
            "fields",
            "-e",
            "ip.len",
        ],
    )?;
    let ours = ours.lines().count();
    figure(format!("{ours} frames of ours looked at"));
    check(ours > 1000, "too few of them")
}
