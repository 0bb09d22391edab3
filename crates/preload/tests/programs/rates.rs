//! The rates of programs over our stack and over the kernel's: `--ignored rates`.
//!
//! Each cell of the table starts its own namespaces and programs. A cell that has been measured is a
//! line in the file `RATES` (by default `preload-rates` in the folder for temporary files), and is
//! not measured again; `RATES_ONLY` selects cells whose names contain it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use libtest_mimic::Failed;

use crate::fixture::{
    Device, Ends, Folder, OURS, OURS_V6, Program, THEIRS, THEIRS_V6, add_ipv6, ends, launcher, run,
};
use crate::tools::{bytes, nginx, redis, words};

pub(crate) const TOOLS: &[&str] = &[
    "iperf3",
    "curl",
    "wget",
    "nginx",
    "wrk",
    "redis-server",
    "redis-benchmark",
    "python3",
    "socat",
    "nc",
    "ssh",
    "dig",
    "dnsmasq",
    "openssl",
    "sha256sum",
    "ethtool",
];

/// Bytes of the two files that are transferred.
const LARGE: u64 = 1 << 30;
const MEDIUM: u64 = 1 << 28;

/// A row of the table: a title, and the function that measures.
type Row = (&'static str, fn(&Ground) -> Result<f64, Failed>);

const ROWS: [Row; 19] = [
    ("iperf3 -s receives, Gbit/s", |on| iperf3(on, true, "-t 1")),
    ("iperf3 -s sends, Gbit/s", |on| iperf3(on, true, "-t 1 -R")),
    ("iperf3 -c sends, Gbit/s", |on| iperf3(on, false, "-t 1")),
    ("iperf3 -c receives, Gbit/s", |on| {
        iperf3(on, false, "-t 1 -R")
    }),
    ("curl http, 1 GiB, Gbit/s", |on| {
        fetch(on, "curl -sSf --noproxy *", "http")
    }),
    ("curl https, 1 GiB, Gbit/s", |on| {
        fetch(on, "curl -sSfk --noproxy *", "https")
    }),
    ("wget http, 1 GiB, Gbit/s", |on| {
        fetch(on, "wget -qO- --no-proxy", "http")
    }),
    ("nginx, wrk -c 1, requests/s", |on| serve_requests(on, 1)),
    ("nginx, wrk -c 50, requests/s", |on| serve_requests(on, 50)),
    ("nginx, wrk -c 1000, requests/s", |on| {
        serve_requests(on, 1000)
    }),
    ("redis-server, GET, requests/s", answer_gets),
    ("python3 http.server, Gbit/s", python_serves),
    ("socat receives, Gbit/s", socat_receives),
    ("nc sends, Gbit/s", nc_sends),
    ("dig, questions/s", dig),
    ("openssl s_server, handshakes/s", openssl_serves),
    ("openssl s_client, runs/s", openssl_asks),
    ("curl, 6 bytes, runs/s", |on| {
        short(
            on,
            &format!("curl -sSf --noproxy * {}", on.url("http", "small")),
        )
    }),
    ("ssh -V, runs/s", |on| short(on, "ssh -V")),
];

/// A column: device (`None` is the kernel's stack over veth), family, replicas.
struct Way {
    name: String,
    device: Option<Device>,
    is_v6: bool,
    replicas: &'static str,
    /// Whether only the first rows are measured.
    is_short: bool,
}

fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    let devices = [
        ("kernel", None, &["1"][..]),
        ("packet", Some(Device::Packet), &["1", "2", "auto"]),
        ("tap", Some(Device::Tap), &["1", "2", "auto"]),
        ("tun", Some(Device::Tun), &["1"]),
        ("xdp", Some(Device::Xdp), &["1"]),
    ];
    for is_v6 in [false, true] {
        for (kind, device, all) in devices {
            for replicas in all {
                let family = if is_v6 { 6 } else { 4 };
                ways.push(Way {
                    name: match device {
                        None => format!("kernel-v{family}"),
                        Some(_) => format!("{kind}-v{family}-{replicas}"),
                    },
                    device,
                    is_v6,
                    replicas,
                    is_short: matches!(device, Some(Device::Tun | Device::Xdp)),
                });
            }
        }
    }
    ways
}

/// Measures the missing cells, and prints the table, also as JSON.
pub(crate) fn rates() -> Result<(), Failed> {
    let path = std::env::var_os("RATES").map_or_else(
        || std::env::temp_dir().join("preload-rates"),
        std::path::PathBuf::from,
    );
    let only = std::env::var("RATES_ONLY").unwrap_or_default();
    let mut known: BTreeMap<(String, String), f64> = BTreeMap::new();
    for line in std::fs::read_to_string(&path).unwrap_or_default().lines() {
        if let [row, way, rate] = *line.split('\t').collect::<Vec<_>>() {
            known.insert((row.to_owned(), way.to_owned()), rate.parse()?);
        }
    }
    let (folder, ways, mut failures) = (Files::new()?, ways(), Vec::new());
    for (row, measure) in ROWS {
        // The kernel's rate and ours are measured one after the other.
        for way in &ways {
            let key = (row.to_owned(), way.name.clone());
            let is_wanted = format!("{row} {}", way.name).contains(&only);
            if known.contains_key(&key)
                || !is_wanted
                || way.is_short && !row.contains("iperf3") && !row.contains("nginx")
            {
                continue;
            }
            match Ground::new(way, &folder).and_then(|on| measure(&on)) {
                Ok(rate) => {
                    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
                    writeln!(file, "{row}\t{}\t{rate:.3}", way.name)?;
                    known.insert(key, rate);
                }
                Err(failed) => {
                    let why = failed.message().unwrap_or_default();
                    eprintln!("{row} over {}: {why}", way.name);
                    failures.push(format!("{row} over {}", way.name));
                }
            }
        }
    }
    print(&known, &ways);
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join(", ").into()),
    }
}

fn print(known: &BTreeMap<(String, String), f64>, ways: &[Way]) {
    let rate = |row: &str, way: &Way| known.get(&(row.to_owned(), way.name.clone())).copied();
    for is_v6 in [false, true] {
        let ways: Vec<&Way> = ways.iter().filter(|way| way.is_v6 == is_v6).collect();
        print!("{:32}", "rate; the others over the kernel's");
        ways.iter()
            .for_each(|way| print!(" {:>9}", way.name.replace("-v4", "").replace("-v6", "")));
        println!(", IPv{}", if is_v6 { 6 } else { 4 });
        for (row, _) in ROWS {
            let kernels = rate(row, ways[0]).unwrap_or(f64::NAN);
            print!("{row:34} {kernels:9.1}");
            for way in &ways[1..] {
                match rate(row, way) {
                    Some(ours) => print!(" {:9.2}", ours / kernels),
                    None => print!(" {:>9}", "-"),
                }
            }
            println!();
        }
    }
    let cells = known.iter().map(|((row, way), rate)| {
        format!("  {{\"program\": \"{row}\", \"way\": \"{way}\", \"rate\": {rate:.3}}}")
    });
    println!("[\n{}\n]", cells.collect::<Vec<_>>().join(",\n"));
}

/// Files that all cells use.
struct Files {
    folder: Folder,
    /// SHA-256 of the large one.
    sum: String,
}

impl Files {
    fn new() -> Result<Files, Failed> {
        let folder = Folder::new()?;
        folder.write("small", b"hello\n")?;
        let piece = bytes(1 << 20);
        for (name, len) in [("large", LARGE), ("medium", MEDIUM)] {
            let mut file = File::create(folder.0.join(name))?;
            (0..len >> 20).try_for_each(|_| file.write_all(&piece))?;
        }
        let questions = (0..5000).map(|number| format!("{number}.test\n"));
        folder.write("questions", questions.collect::<String>().as_bytes())?;
        let mut key = Command::new("openssl");
        words(
            &mut key,
            "req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=test",
        );
        run(key
            .args(["-keyout", "key", "-out", "cert"])
            .current_dir(&folder.0))?;
        let sum = run(Command::new("sha256sum").arg(folder.0.join("large")))?;
        let sum = sum.split(' ').next().unwrap_or_default().to_owned();
        Ok(Files { folder, sum })
    }
}

/// The namespaces of one cell.
struct Ground<'a> {
    ends: Ends,
    way: &'a Way,
    files: &'a Files,
}

impl Ground<'_> {
    fn new<'a>(way: &'a Way, files: &'a Files) -> Result<Ground<'a>, Failed> {
        let ends = ends(way.device.unwrap_or(Device::Packet))?;
        if way.is_v6 {
            add_ipv6(&ends.peer, ends.interface(), THEIRS_V6)?;
        }
        if way.device.is_none() {
            ends.ours().ip(&format!("addr add {OURS}/24 dev veth0"))?;
            if way.is_v6 {
                add_ipv6(ends.ours(), "veth0", OURS_V6)?;
            }
        }
        Ok(Ground { ends, way, files })
    }

    /// Starts a command in our namespace, over the stack of this cell.
    fn ours(&self) -> Command {
        let mut command = match (self.way.device, self.way.is_v6) {
            (None, _) => self.ends.ours().command("env"),
            (Some(_), false) => launcher(&self.ends, &["--replicas", self.way.replicas]),
            (Some(_), true) => {
                let address = format!("{OURS_V6}/64");
                // The kernel's address has been checked, too, before a program starts.
                let options = [
                    "--nodad",
                    "--addr6",
                    &address,
                    "--replicas",
                    self.way.replicas,
                ];
                launcher(&self.ends, &options)
            }
        };
        command.current_dir(&self.files.folder.0);
        command
    }

    fn peers(&self) -> Command {
        let mut command = self.ends.peer.command("env");
        command.current_dir(&self.files.folder.0);
        command
    }

    /// Our address.
    fn here(&self) -> &'static str {
        if self.way.is_v6 { OURS_V6 } else { OURS }
    }

    fn there(&self) -> &'static str {
        if self.way.is_v6 { THEIRS_V6 } else { THEIRS }
    }

    fn url(&self, scheme: &str, file: &str) -> String {
        format!("{scheme}://{}/{file}", bracketed(self.there()))
    }

    fn nginx(&self, launch: Command) -> Result<Program, Failed> {
        let mut more = "listen 443 ssl; ssl_certificate cert; ssl_certificate_key key;".to_owned();
        if self.way.is_v6 {
            more += "listen [::]:80; listen [::]:443 ssl;";
        }
        nginx(launch, &self.files.folder, &more)
    }

    /// 4 or 6, for options.
    fn family(&self) -> u8 {
        if self.way.is_v6 { 6 } else { 4 }
    }
}

/// An address as URLs have it.
fn bracketed(address: &str) -> String {
    match address.contains(':') {
        true => format!("[{address}]"),
        false => address.to_owned(),
    }
}

fn gigabits(bytes: u64, seconds: f64) -> f64 {
    8.0 * bytes as f64 / 1e9 / seconds
}

fn iperf3(on: &Ground<'_>, serves: bool, more: &str) -> Result<f64, Failed> {
    let (mut server, mut client, at) = match serves {
        true => (on.ours(), on.peers(), on.here()),
        false => (on.peers(), on.ours(), on.there()),
    };
    let _server = Program::serve(words(&mut server, "iperf3 -s --forceflush"), "listening")?;
    let text = run(words(&mut client, &format!("iperf3 -c {at} -J {more}")))?;
    let sum = text.split("\"sum_received\"").nth(1).unwrap_or_default();
    Ok(number_after(sum, "\"bits_per_second\":")? / 1e9)
}

/// Loads a gigabyte from nginx. Subtracts the time of a run for a small file, in which the stack
/// starts.
fn fetch(on: &Ground<'_>, program: &str, scheme: &str) -> Result<f64, Failed> {
    let _server = on.nginx(on.peers())?;
    let time = |file| -> Result<_, Failed> {
        let program = program.replace('*', "'*'");
        let line = format!("{program} {} | sha256sum", on.url(scheme, file));
        let start = Instant::now();
        let text = run(on.ours().args(["sh", "-c", &line]))?;
        Ok((start.elapsed().as_secs_f64(), text))
    };
    let (start, _) = time("small")?;
    let (all, text) = time("large")?;
    match text.contains(&on.files.sum) {
        true => Ok(gigabits(LARGE, all - start)),
        false => Err(format!("another SHA-256: {text}").into()),
    }
}

fn serve_requests(on: &Ground<'_>, connections: usize) -> Result<f64, Failed> {
    let _server = on.nginx(on.ours())?;
    let url = format!("http://{}/small", bracketed(on.here()));
    let text = run(words(
        &mut on.peers(),
        &format!("wrk -t 1 -d 2 -c {connections} {url}"),
    ))?;
    number_after(&text, "Requests/sec:")
}

fn answer_gets(on: &Ground<'_>) -> Result<f64, Failed> {
    let _server = redis(on.ours())?;
    let line = format!(
        "redis-benchmark -h {} -n 50000 -c 50 -t get --csv",
        on.here()
    );
    number_after(&run(words(&mut on.peers(), &line))?, "\"GET\",\"")
}

fn python_serves(on: &Ground<'_>) -> Result<f64, Failed> {
    let line = format!("python3 -u -m http.server 8000 --bind {}", on.here());
    let _server = Program::serve(words(&mut on.ours(), &line), "Serving")?;
    let url = format!("http://{}:8000/medium", bracketed(on.here()));
    let line = format!("curl -sSf --noproxy * -o /dev/null -w %{{speed_download}}; {url}");
    let text = run(words(&mut on.peers(), &line))?;
    Ok(number_after(&text, "")? * 8.0 / 1e9)
}

/// The time in which a client sends a file to a server that ends with the connection.
fn transfer(server: Program, client: &mut Command) -> Result<f64, Failed> {
    let start = Instant::now();
    run(client)?;
    server.finish_all(false)?;
    Ok(gigabits(MEDIUM, start.elapsed().as_secs_f64()))
}

fn socat_receives(on: &Ground<'_>) -> Result<f64, Failed> {
    let family = on.family();
    let line = format!("socat -d -d -b 65536 -u TCP{family}-LISTEN:9000 OPEN:/dev/null");
    let server = Program::serve(words(&mut on.ours(), &line), "listening")?;
    let to = bracketed(on.here());
    let line = format!("socat -b 65536 -u OPEN:medium TCP{family}:{to}:9000");
    transfer(server, words(&mut on.peers(), &line))
}

fn nc_sends(on: &Ground<'_>) -> Result<f64, Failed> {
    let family = on.family();
    let line = format!("nc -{family} -n -v -l -p 9000 > /dev/null");
    let server = Program::serve(on.peers().args(["sh", "-c", &line]), "istening")?;
    let line = format!("nc -n -N {} 9000 < medium", on.there());
    transfer(server, on.ours().args(["sh", "-c", &line]))
}

fn dig(on: &Ground<'_>) -> Result<f64, Failed> {
    let _server = name_server(&mut on.peers(), on.there())?;
    let time = |questions: &str| -> Result<f64, Failed> {
        let start = Instant::now();
        let line = format!("dig @{} +noall +answer {questions}", on.there());
        let text = run(words(&mut on.ours(), &line))?;
        match text.contains("10.78.0.2") {
            true => Ok(start.elapsed().as_secs_f64()),
            false => Err(text.into()),
        }
    };
    let start = time("one.test")?;
    Ok(5000.0 / (time("-f questions")? - start).max(1e-3))
}

/// Starts dnsmasq, which answers each question for a name in `test`.
pub(crate) fn name_server(command: &mut Command, at: &str) -> Result<Program, Failed> {
    let line = "dnsmasq --keep-in-foreground --log-facility=- --user=root --no-resolv --no-hosts \
                --conf-file=/dev/null --bind-interfaces --address=/test/10.78.0.2 \
                --address=/both.test/10.78.0.3 --address=/both.test/fd78::2 --local=/gone/ --local=/test/ --pid-file= --cache-size=0 --listen-address=";
    Ok(Program::serve(
        words(command, &format!("{line}{at}")),
        "started",
    )?)
}

fn openssl_serves(on: &Ground<'_>) -> Result<f64, Failed> {
    let line = format!(
        "openssl s_server -{} -accept 4433 -cert cert -key key -www",
        on.family()
    );
    let _server = Program::serve(words(&mut on.ours(), &line), "ACCEPT")?;
    let to = bracketed(on.here());
    let text = run(words(
        &mut on.peers(),
        &format!("openssl s_time -connect {to}:4433 -new -time 2"),
    ))?;
    let real = text
        .lines()
        .find(|line| line.contains("real seconds"))
        .unwrap_or_default();
    Ok(number_after(real, "")? / number_after(real, "connections in ")?)
}

fn openssl_asks(on: &Ground<'_>) -> Result<f64, Failed> {
    let line = format!(
        "openssl s_server -{} -accept 4433 -cert cert -key key -www",
        on.family()
    );
    let _server = Program::serve(words(&mut on.peers(), &line), "ACCEPT")?;
    let to = bracketed(on.there());
    short(
        on,
        &format!("openssl s_client -connect {to}:4433 -quiet -no_ign_eof"),
    )
}

/// Runs a program several times, each with its own stack.
fn short(on: &Ground<'_>, line: &str) -> Result<f64, Failed> {
    const RUNS: u32 = 5;
    let _server = on.nginx(on.peers())?;
    let start = Instant::now();
    for _ in 0..RUNS {
        run(words(&mut on.ours(), line))?;
    }
    Ok(f64::from(RUNS) / start.elapsed().as_secs_f64())
}

/// The number after these words.
fn number_after(text: &str, words: &str) -> Result<f64, Failed> {
    let found = text
        .split_once(words)
        .map_or("", |(_, found)| found)
        .trim_start();
    let end = found
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(found.len());
    found[..end]
        .parse()
        .map_err(|_| format!("no number after {words}: {text}").into())
}
