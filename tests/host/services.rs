//! The example `services` on each kind of device, with `iperf3` and `curl` as clients, while
//! `tshark` captures.

use dominoes_testkit::mix;
use libtest_mimic::Failed;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::fixture::{Device, Fixture, OURS, Temporary};
use crate::{CURL, Test, same};

/// Each kind of device: its name, the device, and arguments for the example.
pub(crate) const DEVICES: [(&str, Device, &[&str]); 10] = [
    ("tap", Device::Tap, &[]),
    ("tap_queues", Device::Tap, &QUEUES),
    ("tun_queues", Device::Tun, &QUEUES),
    ("packet_queues", Device::Packet, &QUEUES),
    ("tun", Device::Tun, &[]),
    ("tun_no_offloads", Device::Tun, &["--no-offloads"]),
    ("packet_copies", Device::Packet, &["--ring", "none"]),
    ("packet_slots", Device::Packet, &["--ring", "slots"]),
    ("packet_blocks", Device::Packet, &["--ring", "blocks"]),
    ("xdp", Device::Xdp, &[]),
];

/// Two queues of the device, and a replica for each.
const QUEUES: [&str; 4] = ["--queues", "2", "--replicas", "2"];

pub(crate) const TESTS: &[(&str, Test)] = &[
    ("iperf3_runs_each_way", iperf3_runs_each_way),
    ("curl_gets_and_sends_the_same", curl_gets_and_sends_the_same),
    ("no_frame_is_malformed", no_frame_is_malformed),
    (
        "ping_with_8000_bytes_loses_nothing",
        ping_with_8000_bytes_loses_nothing,
    ),
    ("datagrams_are_echoed", datagrams_are_echoed),
    ("nobody_at_a_port_is_told", a_closed_port_is_reported),
];

/// Bytes that must have arrived of the 256 MiB that `iperf3` sends: windows hold far less than the
/// rest.
const LEAST: f64 = (128u32 << 20) as f64;
/// Frames to capture.
const FRAMES: &str = "2000";

/// Bounded by bytes, not by seconds: a machine that stalls for a second causes no failure.
pub(crate) fn iperf3_runs_each_way(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    for (direction, more) in [
        ("theirs", &[][..]),
        ("ours", &["-R"]),
        ("both", &["--bidir"]),
        ("4 streams", &["-P", "4"]),
        ("4 streams of ours", &["-P", "4", "-R"]),
    ] {
        let arguments = [&["-c", OURS, "-n", "256M", "-J"], more].concat();
        let said = fixture.run("iperf3", &arguments)?;
        let end = serde_json::from_str::<Value>(&said)?["end"].take();
        // Received bytes of both ends. With both directions at once, the test ends when one of them
        // is done.
        let received = |what| {
            ["sum_received", "sum_received_bidir_reverse"]
                .iter()
                .filter_map(|sum| end[sum][what].as_f64())
                .sum::<f64>()
        };
        // The rest may be in flight when the client reports that it has sent everything.
        if received("bytes") < LEAST {
            return Err(format!("{direction}: too little was received\n{said}").into());
        }
        figure(format!(
            "{direction}: {:.2} Gbit/s (kernel: {})",
            received("bits_per_second") / 1e9,
            fixture.congestion_control()
        ));
    }
    Ok(())
}

fn curl_gets_and_sends_the_same(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    figure(curl_gets_and_sends(fixture, OURS)?);
    Ok(())
}

/// Transfers `HOST_BYTES` bytes each way, 200 MB by default, and returns the speeds.
pub(crate) fn curl_gets_and_sends(fixture: &Fixture, host: &str) -> Result<String, Failed> {
    let bytes = std::env::var("HOST_BYTES").map_or(Ok(200_000_000), |text| text.parse())?;
    let folder = Temporary::new()?;
    let got = folder.file("got");
    let speed = |said: &str| {
        let rate: f64 = said.parse().unwrap_or(0.0);
        format!("{:.2} Gbit/s ({:.2} s)", rate * 8e-9, bytes as f64 / rate)
    };
    let url = format!("http://{host}/bytes/{bytes}");
    let down = curl(
        fixture,
        &["--output", &got, "--write-out", "%{speed_download}", &url],
    )?;
    let length = std::fs::metadata(&got)?.len();
    if length != bytes {
        return Err(format!("{length} bytes of {bytes}").into());
    }
    same(folder.hash("got")? == expected(bytes), "what curl got")?;

    let url = format!("http://{host}/sum");
    let said = curl(
        fixture,
        &[
            "--upload-file",
            &got,
            "--write-out",
            "%{speed_upload}",
            &url,
        ],
    )?;
    let (theirs, up) = said.split_once('\n').ok_or("no answer")?;
    same(theirs == folder.hex("got")?, "what the server got")?;
    Ok(format!(
        "{bytes} bytes, equal hashes: down {}, up {}",
        speed(&down),
        speed(up)
    ))
}

/// The hash of the answer to `/bytes/N` (splitmix64 of each word's position).
pub(crate) fn expected(bytes: u64) -> crate::fixture::Hash {
    let mut hash = Sha256::new();
    let mut chunk = Vec::with_capacity(1 << 20);
    let mut at = 0;
    while at < bytes {
        chunk.clear();
        while chunk.len() < 1 << 20 && at < bytes {
            let word = mix((at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
            let len = 8.min(bytes - at);
            chunk.extend(&word[..len as usize]);
            at += len;
        }
        hash.update(&chunk);
    }
    hash.finalize()
}

/// Requests and replies of six fragments each, and of 45.
fn ping_with_8000_bytes_loses_nothing(
    fixture: &Fixture,
    figure: &dyn Fn(String),
) -> Result<(), Failed> {
    for size in ["8000", "65507"] {
        figure(ping_singly(fixture, &["-s", size, OURS], 50)?);
    }
    Ok(())
}

/// Pings one at a time, since `ping` waits for the last of several replies only twice as long as
/// for the slowest one before, and on a busy machine queues overflow. Returns the last time.
pub(crate) fn ping_singly(
    fixture: &Fixture,
    arguments: &[&str],
    count: u32,
) -> Result<String, Failed> {
    let arguments = [&["-q", "-c", "1", "-W", "60"][..], arguments].concat();
    let mut said = String::new();
    for _ in 0..count {
        // Fails without a reply.
        said = fixture.run("ping", &arguments)?;
    }
    let last = said.lines().last().unwrap_or_default();
    Ok(format!("{}: {last}", arguments.join(" ")))
}

/// A command line: `client` sends the `len` bytes of a file as a datagram, and is ended when as many
/// have come back, since it cannot know that these are all.
pub(crate) fn until_echoed(client: &str, len: usize, (sent, got): (&str, &str)) -> String {
    format!(
        "rm -f {got}; {client} < {sent} > {got} & \
         until [ \"$(wc -c < {got})\" -ge {len} ]; do sleep 0.01; done; kill $!"
    )
}

/// `socat` sends datagrams of several sizes; so does `nc`.
fn datagrams_are_echoed(fixture: &Fixture, _figure: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let socat = format!("socat -b 65507 -t 120 - UDP4:{OURS}:7");
    let nc = format!("nc -u -w 120 {OURS} 7");
    for (client, len) in [1, 1472, 1473, 8_000, 60_000]
        .map(|len| (&socat, len))
        .into_iter()
        .chain([(&nc, 6)])
    {
        let written = folder.write("sent", len, 3)?;
        let ask = until_echoed(client, len, (&folder.file("sent"), &folder.file("got")));
        fixture.run("sh", &["-c", &ask])?;
        same(folder.hash("got")? == written, client)?;
    }
    Ok(())
}

fn a_closed_port_is_reported(fixture: &Fixture, _figure: &dyn Fn(String)) -> Result<(), Failed> {
    let ask = format!("echo hello | socat -t 60 - UDP4:{OURS}:77 2>&1 || true");
    let said = fixture.run("sh", &["-c", &ask])?;
    same(said.contains("Connection refused"), "what socat was told")
}

pub(crate) fn curl(fixture: &Fixture, arguments: &[&str]) -> Result<String, Failed> {
    fixture.run("curl", &[&CURL[..], arguments].concat())
}

/// Captures at the kernel's end and causes more traffic until there are enough frames.
fn no_frame_is_malformed(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = Temporary::new()?;
    let file = folder.file("capture");
    let interface = fixture.interface();
    let watching = fixture.start(
        "tshark",
        &["-q", "-i", interface, "-c", FRAMES, "-w", &file],
    )?;
    while !watching.has_ended()? {
        let got = folder.file("got");
        curl(
            fixture,
            &["--output", &got, &format!("http://{OURS}/bytes/3000000")],
        )?;
        curl(
            fixture,
            &["--upload-file", &got, &format!("http://{OURS}/sum")],
        )?;
    }
    watching.finish()?;
    let looked_at = fixture.run("tshark", &["-r", &file, "-T", "fields", "-e", "ip.len"])?;
    let bad = "_ws.malformed || tcp.flags.reset == 1 || ip.checksum.status == 0";
    // When the capture misses the first segment of a connection, `tshark` would parse random bytes
    // as HTTP; so it must not parse the data of TCP.
    let opaque = "tcp.port==80,data";
    let check = [
        "-o",
        "ip.check_checksum:TRUE",
        "-d",
        opaque,
        "-r",
        &file,
        "-Y",
        bad,
    ];
    let said = fixture.run("tshark", &check)?;
    if !said.trim().is_empty() {
        return Err(format!("these should not be there:\n{said}").into());
    }
    figure(format!("{} frames looked at", looked_at.lines().count()));
    same(
        looked_at.lines().count().to_string() == FRAMES,
        "the capture",
    )
}
