//! Examples as a user starts them, with clients that others wrote, and Linux beside them.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench field -- [options]
//! ```
//!
//! Without root or a program it names its requirements, and ends with success. It builds the
//! examples first.
//!
//! | option | what | default |
//! |---|---|---|
//! | `--device packet,tap,xdp` | how our stack reaches the client | all |
//! | `--load NAME,...` | the rows, see below | the usual ones of the device |
//! | `--way receive,send` | which way the bytes go, seen from the server; for `iperf3` | both |
//! | `--frames large,small` | up to 64 KB, or no longer than the MTU: TSO and GSO off at both ends | both |
//! | `--rounds N`, `--seconds N` | rounds of all servers in turn, and how long a client runs | 5, 2 |
//! | `--quick` | one round of one second, `packet` and large frames only | |
//! | `--starts` | instead: ten starts of `services` in a row | |
//! | `--routers` | packets through a router alone, which come last otherwise (without `--load`) | |
//! | `--examples FOLDER` | where the programs are | they are built |
//! | `--store FILE` | adds the rates to what the table in the README comes from | |
//!
//! | load | client | our server | Linux' server |
//! |---|---|---|---|
//! | `iperf3`, `iperf3-zero-copy`, `iperf3-v6` | `iperf3`, with `-Z`, over IPv6 | `services` | `iperf3 -s`; for a TAP that receives, a program in C that only counts its frames |
//! | `curl` | `curl` gets bytes | `services` | `services --linux` |
//! | `https`, `openssl` | `curl` and `openssl s_client` get a file over TLS | `https_server` | `nginx` as one process |
//! | `proxy` | `curl` gets bytes over TLS, from `services --linux` beside it | `tls_proxy` | `tls_proxy --linux` |
//! | `wrk`, `wrk-1000` | `wrk` with 100 or 1000 connections | `services` | `nginx` as one process |
//! | `connects` | `wrk` with 100 connections, each for one request | `services` | `nginx` as one process |
//! | `http_server` | `wrk` with 1000 connections | `http_server --poller` | `nginx` as one process |
//! | `search`, `blocks`, `aes` | `iperf3` | `services --process NAME` | the same with `--linux`: the work in the application's thread |
//! | `ingest` | `curl -T` | `ingest` | `ingest --linux` |
//!
//! Our servers have one replica, two, and the default, which chooses (`auto`). No setting but the
//! device is given, and no thread is pinned. Each round starts every server anew, in another order.
//! The rate is the client's; the CPU is that of the whole machine (`/proc/stat`), in seconds of
//! cores for each gigabyte, or for each 100,000 requests of `wrk`. For a TAP that sends, Linux' row
//! is over a veth pair, since a TAP has one kernel only.
//!
//! The bound of a row with work is the rate at which both cores would do what the run with one
//! replica did, its client included, without waiting; but a client is one thread, and has one core
//! at most. So the bound is 8 over the client's CPU, if that is more than half of all.
//!
//! Before each client, a control runs the same loop on every core. A sample whose control took
//! more than 1.1 times the median is disturbed, and left out of ratios if others remain.
//!
//! Hosts move the cores of a virtual machine: a cache line takes some 25 ns from one to the other
//! (near), or some 190 ns (far), in phases of seconds to a minute. Whatever goes from thread to
//! thread then costs twice as much. So the distance is measured before each client and after it. A
//! sample in which it changed, or differs from the first of its round, is taken again, up to three
//! times in all. A ratio of samples with different distances counts as disturbed.
//!
//! AF_XDP does not say which checksums the peer left unfinished, so there the peer computes them
//! (`ethtool -K veth0 tx off`), as the example asks for. That turns TSO off, so `large` allows GSO
//! alone there.
//!
//! The server of an upload must answer the digest that `b3sum` computes.

#[cfg(target_os = "linux")]
mod run {
    use dominoes_bench::namespaces::{
        self, CubicAllowed, Namespace, Outcome, Process, TICK_NANOS, machine_nanos,
        requests_per_second,
    };
    use dominoes_bench::paper::Measure;
    use dominoes_bench::report::{Directory, FIELD_VALUES, Run};
    use dominoes_bench::rounds::{self, Reading};
    use dominoes_bench::routed;
    use dominoes_bench::spread::Spread;
    use dominoes_bench::start;
    use dominoes_bench::table::{Bar, Bars, Limit, Table};
    use dominoes_bench::targets;
    use dominoes_bench::topology::Distance;
    use dominoes_testkit::programs::Folder;
    use std::fs::{self, File};
    use std::hint::black_box;
    use std::io::{self, BufReader, Read};
    use std::path::{Path, PathBuf};
    use std::process::{Command, ExitCode, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    /// How long a server may take until it listens; with IPv6 it first looks for its address.
    const PATIENCE: Duration = Duration::from_secs(10);
    /// How many seconds longer than its test a client may take, before it costs its row.
    const CLIENT_BOUND: u64 = 60;
    /// The bytes of an HTTP transfer for each second that the client is to run.
    const HTTP_BYTES: u64 = 1_000_000_000;
    /// The bytes of an upload for each second.
    const UPLOADED: u64 = 500_000_000;
    /// Turns of the control's loop: some 20 ms.
    const TURNS: u64 = 20_000_000;
    /// The machine is disturbed if the control takes this many times the median.
    const CALM: f64 = 1.1;
    /// Starts in a row, with the cores as far apart.
    const STARTS: usize = 10;
    /// How often a sample is taken whose cores are further apart than others' of its round.
    const ATTEMPTS: usize = 3;
    /// A reader of a TAP that only counts.
    const COUNT: &str = include_str!("../src/count_frames.c");

    dominoes_bench::named! {
        /// How our stack reaches the client.
        enum Device { Packet = "packet", Tap = "tap", Xdp = "xdp", }
    }

    dominoes_bench::named! {
        /// A client, and what its server does.
        enum Load {
            Iperf = "iperf3",
            ZeroCopy = "iperf3-zero-copy",
            V6 = "iperf3-v6",
            Curl = "curl",
            Https = "https",
            Openssl = "openssl",
            Proxy = "proxy",
            Wrk = "wrk",
            Wrk1000 = "wrk-1000",
            Connects = "connects",
            HttpServer = "http_server",
            Search = "search",
            Blocks = "blocks",
            Aes = "aes",
            Ingest = "ingest",
        }
    }

    impl Load {
        /// Whether the client is `wrk`.
        fn is_requests(self) -> bool {
            let few = matches!(self, Load::Wrk | Load::Connects);
            few || matches!(self, Load::Wrk1000 | Load::HttpServer)
        }

        /// Whether the client speaks TLS.
        fn is_tls(self) -> bool {
            matches!(self, Load::Https | Load::Openssl | Load::Proxy)
        }

        /// Whether the server works on the bytes.
        fn is_work(self) -> bool {
            let own = matches!(self, Load::Search | Load::Blocks | Load::Aes | Load::Ingest);
            own || self.is_tls()
        }

        /// The directions that it has. No setting of an interface keeps what is written to its TAP
        /// small.
        fn ways(self, device: Device, frames: Frames) -> &'static [Way] {
            match self {
                Load::Search | Load::Blocks | Load::Ingest => &[Way::Receive],
                _ if (device, frames) == (Device::Tap, Frames::Small) => &[Way::Receive],
                Load::Iperf | Load::ZeroCopy | Load::V6 | Load::Aes => &Way::ALL,
                _ => &[Way::Send],
            }
        }

        /// The default loads of a device.
        fn usual(device: Device, frames: Frames) -> &'static [Load] {
            match (device, frames) {
                (Device::Packet, Frames::Large) => &Load::ALL,
                (Device::Packet, Frames::Small) => &[Load::Iperf, Load::V6, Load::Curl, Load::Wrk],
                (Device::Xdp, Frames::Large) => &[Load::Iperf, Load::V6, Load::Curl],
                (Device::Tap, _) | (Device::Xdp, Frames::Small) => &[Load::Iperf, Load::V6],
            }
        }
    }

    dominoes_bench::named! {
        enum Way { Receive = "receive", Send = "send", }
    }

    dominoes_bench::named! {
        enum Frames { Large = "large", Small = "small", }
    }

    dominoes_bench::named! {
        enum Server { Linux = "Linux", One = "one", Two = "two", Auto = "auto", }
    }

    #[derive(Debug, clap::Parser)]
    struct Options {
        #[arg(
            long = "device",
            value_delimiter = ',',
            default_value = "packet,tap,xdp",
            default_value_if("quick", "true", "packet")
        )]
        devices: Vec<Device>,
        /// By default the usual ones of the device.
        #[arg(long = "load", value_delimiter = ',')]
        loads: Option<Vec<Load>>,
        #[arg(long = "way", value_delimiter = ',', default_value = "receive,send")]
        ways: Vec<Way>,
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "large,small",
            default_value_if("quick", "true", "large")
        )]
        frames: Vec<Frames>,
        #[arg(long, default_value_t = 5, default_value_if("quick", "true", "1"))]
        rounds: usize,
        #[arg(long, default_value_t = 2, default_value_if("quick", "true", "1"))]
        seconds: u64,
        #[arg(long)]
        quick: bool,
        #[arg(long)]
        starts: bool,
        #[arg(long)]
        routers: bool,
        /// By default they are built.
        #[arg(long)]
        examples: Option<PathBuf>,
        #[arg(long)]
        store: Option<PathBuf>,
    }

    /// A measurement of all servers.
    #[derive(Clone, Copy, Debug, serde::Serialize)]
    struct Row {
        device: Device,
        frames: Frames,
        load: Load,
        way: Way,
    }

    /// The result of a client.
    #[derive(Clone, Copy, serde::Serialize)]
    struct Sample {
        /// Gbit/s, or thousands of requests in a second.
        rate: f64,
        /// Seconds of cores for each gigabyte, or for each 100,000 requests.
        cpu: f64,
        /// Seconds of cores that the client's process used for each gigabyte.
        client: f64,
        /// Milliseconds of the control before it.
        control: f64,
        /// Between the cores, before the client and after it; `None` if these differ.
        distance: Option<Distance>,
    }

    pub(crate) fn main() -> ExitCode {
        routed::play().unwrap_or_else(|| start::main("field", run))
    }

    fn run(options: Options) -> Outcome<()> {
        let programs = [
            "ip", "ethtool", "iperf3", "curl", "wrk", "nginx", "openssl", "b3sum", "cc",
        ];
        let needs = "CAP_NET_ADMIN and CAP_SYS_ADMIN), `ip`, `ethtool`, `iperf3`, `curl`, `wrk`, \
                     `nginx`, `openssl`, `b3sum` and a C compiler";
        let packages = "iproute2 ethtool iperf3 curl wrk nginx-light openssl b3sum gcc";
        if !targets::can_run("field", namespaces::can_run(&programs), needs, packages) {
            return Ok(());
        }
        let examples = match &options.examples {
            Some(folder) => folder.clone(),
            None => build()?,
        };
        let mut run = Run::begin("field");
        let _cubic = CubicAllowed::new()?;
        let field = Field::new(&options, &examples)?;
        if options.starts {
            return Ok(run.end(vec![field.starts()?])?);
        }
        let devices = options.devices.iter().filter(|_| !options.routers);
        for &device in devices {
            for &frames in &options.frames {
                let usual = Load::usual(device, frames);
                let loads = options.loads.as_deref().unwrap_or(usual);
                field.frames(device, frames)?;
                let table = field.measure(device, frames, loads, &mut run)?;
                run.add(table)?;
            }
        }
        if options.routers || options.loads.is_none() {
            let times = (options.rounds, options.seconds);
            run.add(routed::measure(&examples, times, (control, CALM))?)?;
        }
        run.end(Vec::new())?;
        if let Some(path) = &options.store {
            Directory::new(targets::directory()).store(path, Some("field"))?;
        }
        Ok(())
    }

    /// Builds the examples as a user does. Returns their folder.
    fn build() -> Outcome<PathBuf> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--quiet"]);
        for package in ["services", "tls-examples", "examples"] {
            command.args(["-p", &format!("dominoes-{package}")]);
        }
        for example in [
            "services",
            "http_server",
            "ingest",
            "https_server",
            "tls_proxy",
            "router",
        ] {
            command.args(["--example", example]);
        }
        // target/release/deps/NAME
        let here = std::env::current_exe()?;
        let target = here.ancestors().nth(3).ok_or("no target folder")?;
        command.arg("--target-dir").arg(target);
        let built = command.current_dir(env!("CARGO_MANIFEST_DIR")).status()?;
        match built.success() {
            true => Ok(target.join("release/examples")),
            false => Err("the examples cannot be built".into()),
        }
    }

    /// The network: `veth0` is ours at the near end, `veth1` belongs to kernels at both. And files.
    struct Field<'a> {
        options: &'a Options,
        examples: &'a Path,
        near: Namespace,
        far: Namespace,
        folder: Folder,
        /// Of the file that clients send.
        digest: String,
    }

    impl<'a> Field<'a> {
        fn new(options: &'a Options, examples: &'a Path) -> Outcome<Field<'a>> {
            let folder = Folder::new()?;
            fs::create_dir(folder.file("bytes"))?;
            fs::write(folder.file("bytes/100"), [b'x'; 100])?;
            // Without blocks, so that reading it costs a copy.
            File::create(folder.file("upload"))?.set_len(UPLOADED * options.seconds)?;
            let output = Command::new("b3sum").arg(folder.file("upload")).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let digest = said.split_once(' ').ok_or("no digest")?.0.to_owned();
            fs::write(folder.file("count.c"), COUNT)?;
            let [from, to] = ["count.c", "count"].map(|name| folder.file(name));
            namespaces::run(Command::new("cc").args(["-O2", "-o", &to, &from]))?;
            let answer = "x".repeat(100);
            let nginx = format!(
                "daemon off; master_process off; pid {0}/pid; error_log stderr;\n\
                 events {{ worker_connections 4096; }}\n\
                 http {{ access_log off; keepalive_requests 1000000000;\n\
                 client_body_temp_path {0}/body; proxy_temp_path {0}/proxy;\n\
                 fastcgi_temp_path {0}/fastcgi; uwsgi_temp_path {0}/uwsgi;\n\
                 scgi_temp_path {0}/scgi;\n\
                 server {{ listen 80 backlog=4096; location / {{ return 200 {answer}; }} }}\n\
                 server {{ listen 443 ssl; ssl_certificate {0}/cert; ssl_certificate_key {0}/key;\n\
                 root {0}; }} }}\n",
                folder.0.display()
            );
            let [cert, key] = ["cert", "key"].map(|name| folder.file(name));
            let made =
                "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=field";
            let mut openssl = Command::new("openssl");
            openssl
                .args(made.split(' '))
                .args(["-keyout", &key, "-out", &cert]);
            namespaces::run(&mut openssl)?;
            fs::write(folder.file("nginx.conf"), nginx)?;
            let [near, far] = [
                namespaces::namespace("near")?,
                namespaces::namespace("far")?,
            ];
            far.shell("echo 0 > /proc/sys/net/ipv6/conf/default/disable_ipv6")?;
            near.join(&far, "veth0")?;
            near.join(&far, "veth1")?;
            near.shell("echo 0 > /proc/sys/net/ipv6/conf/veth1/disable_ipv6")?;
            far.ip("tuntap add dev tap0 mode tap")?;
            for (namespace, interface, net, host) in [
                (&far, "veth0", 78, 2),
                (&far, "tap0", 77, 2),
                (&far, "veth1", 79, 2),
                (&near, "veth1", 79, 1),
            ] {
                namespace.ip(&format!("addr add 10.{net}.0.{host}/24 dev {interface}"))?;
                namespace.ip(&format!(
                    "addr add fd00:{net}::{host}/64 dev {interface} nodad"
                ))?;
                namespace.ip(&format!("link set {interface} up"))?;
            }
            near.ip("link set veth0 up")?;
            for nobody in ["10.77.0.9", "fd00:77::9"] {
                let them = format!("{nobody} lladdr 02:00:00:00:00:09 dev tap0");
                far.ip(&format!("neigh add {them}"))?;
            }
            Ok(Field {
                options,
                examples,
                near,
                far,
                folder,
                digest,
            })
        }

        fn frames(&self, device: Device, frames: Frames) -> Outcome<()> {
            let large = frames == Frames::Large;
            for interface in ["veth0", "veth1"] {
                for namespace in [&self.near, &self.far] {
                    namespaces::offloads(namespace, interface, large)?;
                }
            }
            namespaces::offloads(&self.far, "tap0", large)?;
            // Turning checksums off turns segmentation off, too.
            let to = if device == Device::Xdp { "off" } else { "on" };
            self.far.shell(&format!("ethtool -K veth0 tx {to}"))
        }

        /// Starts a server. Returns it with its address.
        fn start(&self, row: Row, server: Server) -> Outcome<(Process, String)> {
            let Row { device, load, .. } = row;
            let v6 = load == Load::V6;
            let example = match load {
                Load::HttpServer => "http_server",
                Load::Ingest => "ingest",
                Load::Https | Load::Openssl => "https_server",
                Load::Proxy => "tls_proxy",
                _ => "services",
            };
            let program = self.examples.join(example).display().to_string();
            let net = match (server, device) {
                (Server::Linux, _) => 79,
                (_, Device::Tap) => 77,
                _ => 78,
            };
            let address = match v6 {
                true => format!("fd00:{net}::1"),
                false => format!("10.{net}.0.1"),
            };
            let own = match load {
                Load::HttpServer => {
                    vec!["--poller".to_owned(), "--root".into(), self.folder.file("")]
                }
                Load::Search | Load::Blocks | Load::Aes => {
                    vec!["--process".to_owned(), load.name().to_owned()]
                }
                Load::Https | Load::Openssl => vec!["--root".to_owned(), self.folder.file("")],
                Load::Proxy => vec!["--to".to_owned(), format!("10.{net}.0.2:80")],
                _ => Vec::new(),
            };
            let mut arguments: Vec<&str> = own.iter().map(String::as_str).collect();
            if server == Server::Linux {
                let conf = self.folder.file("nginx.conf");
                let is_nginx =
                    |load: Load| load.is_requests() || matches!(load, Load::Https | Load::Openssl);
                let (program, arguments) = match load {
                    Load::Iperf | Load::ZeroCopy | Load::V6 => {
                        ("iperf3", vec!["-s", "--forceflush"])
                    }
                    load if is_nginx(load) => ("nginx", vec!["-c", &conf]),
                    _ => {
                        arguments.push("--linux");
                        (&*program, arguments)
                    }
                };
                let process = Process::spawn(self.near.command(program), &arguments)?;
                if !is_nginx(load) {
                    process.line(PATIENCE)?;
                }
                // `nginx` prints nothing, and others print before they listen.
                thread::sleep(Duration::from_millis(200));
                return Ok((process, address));
            }
            let (place, option, interface) = match device {
                Device::Packet => (&self.near, "--packet", "veth0"),
                Device::Xdp => (&self.near, "--xdp", "veth0"),
                Device::Tap => (&self.far, "--tap", "tap0"),
            };
            let [v4, six] = [format!("10.{net}.0.1/24"), format!("fd00:{net}::1/64")];
            arguments.extend([option, interface, "--addr", &v4]);
            if v6 {
                arguments.extend(["--addr6", &six]);
            }
            match server {
                Server::One => arguments.extend(["--replicas", "1"]),
                Server::Two => arguments.extend(["--replicas", "2"]),
                Server::Linux | Server::Auto => {}
            }
            let process = Process::spawn(place.command(&program), &arguments)?;
            process.line(PATIENCE)?;
            // Opening a TAP turns its offloads on.
            if (device, row.frames) == (Device::Tap, Frames::Small) {
                namespaces::offloads(&self.far, "tap0", false)?;
            }
            Ok((process, address))
        }

        /// Counts the frames of a TAP.
        fn count(&self, row: Row) -> Outcome<Sample> {
            let seconds = self.options.seconds.to_string();
            let (control, before, work) = (control(), Distance::now(), machine_nanos());
            let program = self.folder.file("count");
            let nobody = match row.load {
                Load::V6 => "fd00:77::9",
                _ => "10.77.0.9",
            };
            let mut command = self.far.command(&program);
            let output = command
                .args(["tap0", nobody, &seconds, row.frames.name()])
                .output()?;
            let work = machine_nanos() - work;
            let said = String::from_utf8_lossy(&output.stdout);
            let numbers: Vec<f64> = said
                .split(' ')
                .flat_map(|word| word.trim().parse())
                .collect();
            let [bytes, took] = numbers[..] else {
                let complaint = String::from_utf8_lossy(&output.stderr);
                return Err(format!("the counting reader: {}", complaint.trim()).into());
            };
            Ok(Sample {
                rate: bytes * 8e-9 / took,
                cpu: work as f64 / bytes,
                client: 0.0,
                control,
                distance: Some(before).filter(|before| *before == Distance::now()),
            })
        }

        /// Runs a client and returns its result.
        fn sample(&self, row: Row, server: Server) -> Outcome<Sample> {
            let Row { load, way, .. } = row;
            if (row.device, way, server) == (Device::Tap, Way::Receive, Server::Linux)
                && matches!(load, Load::Iperf | Load::V6)
            {
                return self.count(row);
            }
            // Where a proxy gets its bytes.
            let _behind = match load {
                Load::Proxy => {
                    let services = self.examples.join("services");
                    let services = services.display().to_string();
                    let behind = Process::spawn(self.far.command(&services), &["--linux"])?;
                    behind.line(PATIENCE)?;
                    Some(behind)
                }
                _ => None,
            };
            let (_server, address) = self.start(row, server)?;
            let seconds = self.options.seconds.to_string();
            let mut bytes = HTTP_BYTES * self.options.seconds;
            let (program, words) = match load {
                Load::Curl => {
                    let url = format!("http://{address}/bytes/{bytes}");
                    ("curl", vec!["-sfo".into(), "/dev/null".into(), url])
                }
                Load::Ingest => {
                    bytes = UPLOADED * self.options.seconds;
                    let (file, url) = (self.folder.file("upload"), format!("http://{address}/"));
                    ("curl", vec!["-sfT".into(), file, url])
                }
                Load::Https | Load::Proxy => {
                    bytes = UPLOADED * self.options.seconds;
                    let path = match load {
                        Load::Proxy => format!("bytes/{bytes}"),
                        _ => "upload".to_owned(),
                    };
                    let url = format!("https://{address}/{path}");
                    ("curl", vec!["-skfo".into(), "/dev/null".into(), url])
                }
                Load::Openssl => {
                    bytes = UPLOADED * self.options.seconds;
                    let get = "printf 'GET /upload HTTP/1.0\\r\\n\\r\\n'";
                    let client = format!("openssl s_client -quiet -connect {address}:443");
                    (
                        "sh",
                        vec!["-c".into(), format!("{get} | {client} 2>/dev/null")],
                    )
                }
                load if load.is_requests() => {
                    let url = format!("http://{address}/bytes/100");
                    let few = matches!(load, Load::Wrk | Load::Connects);
                    let number = if few { "100" } else { "1000" };
                    let mut words = vec!["-t", "2", "-c", number, "-d", &seconds, &url];
                    if load == Load::Connects {
                        words.extend(["-H", "Connection: close"]);
                    }
                    ("wrk", words.into_iter().map(String::from).collect())
                }
                _ => {
                    let fixed = ["-J", "-c", &address, "-t", &seconds].map(String::from);
                    let zero_copy = (load == Load::ZeroCopy).then(|| "-Z".to_owned());
                    let reverse = (way == Way::Send).then(|| "-R".to_owned());
                    let words = fixed.into_iter().chain(zero_copy).chain(reverse);
                    ("iperf3", words.collect())
                }
            };
            let (control, before) = (control(), Distance::now());
            let (begin, work, client) = (Instant::now(), machine_nanos(), children_nanos());
            let bound = (CLIENT_BOUND + self.options.seconds).to_string();
            let mut command = self.far.command("timeout");
            command.args([&bound, program]).args(words);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::piped()).spawn()?;
            let (mut said, mut got) = (String::new(), 0);
            if let Some(out) = child.stdout.take() {
                let mut out = BufReader::with_capacity(1 << 16, out);
                match load {
                    // The bytes themselves.
                    Load::Openssl => got = io::copy(&mut out, &mut io::sink())?,
                    _ => drop(out.read_to_string(&mut said)?),
                }
            }
            let output = child.wait_with_output()?;
            let (took, work) = (begin.elapsed().as_secs_f64(), machine_nanos() - work);
            let client = children_nanos() - client;
            let distance = Some(before).filter(|before| *before == Distance::now());
            let (rate, units) = match load {
                Load::Openssl if got <= bytes => (0.0, 1.0),
                load if load == Load::Curl || load == Load::Ingest || load.is_tls() => {
                    (bytes as f64 * 8e-9 / took, bytes as f64 / 1e9)
                }
                load if load.is_requests() => {
                    let rate = requests_per_second(&said).unwrap_or(0.0);
                    (rate / 1e3, rate * self.options.seconds as f64 / 1e5)
                }
                _ => {
                    let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
                    let sum = &said["end"]["sum_received"];
                    let of = |name: &str| sum[name].as_f64().unwrap_or(0.0);
                    (of("bits_per_second") / 1e9, of("bytes") / 1e9)
                }
            };
            let what = format!("{row:?}, {}", server.name());
            if output.status.code() == Some(124) {
                return Err(format!("{what}: {program} did not end within {bound} s").into());
            }
            let is_right = load != Load::Ingest || said.starts_with(&self.digest);
            if !output.status.success() || rate <= 0.0 || !is_right {
                let complaint = String::from_utf8_lossy(&output.stderr);
                return Err(format!("{what}: {} {said}", complaint.trim()).into());
            }
            let [cpu, client] = [work, client].map(|nanos| nanos as f64 / 1e9 / units);
            let apart = distance.map_or("changed", Distance::name);
            eprintln!(
                "{what}: {rate:.1}, CPU {cpu:.3}, client {client:.3}, control {control:.1} ms, \
                 cores {apart}"
            );
            Ok(Sample {
                rate,
                cpu,
                client,
                control,
                distance,
            })
        }

        /// Takes a sample again if the distance between the cores changed or is not `wanted`.
        fn sample_at(&self, row: Row, server: Server, wanted: Option<Distance>) -> Outcome<Sample> {
            let mut sample = self.sample(row, server)?;
            for _ in 1..ATTEMPTS {
                match sample.distance {
                    Some(distance) if wanted.is_none_or(|wanted| wanted == distance) => break,
                    _ => sample = self.sample(row, server)?,
                }
            }
            Ok(sample)
        }

        fn measure(
            &self,
            device: Device,
            frames: Frames,
            loads: &[Load],
            run: &mut Run,
        ) -> Outcome<Table> {
            let name = format!("{}, {} frames", device.name(), frames.name());
            let unit = "Gbit/s (wrk: 1000 requests/s)";
            let mut table = Table::new(
                format!("{name}: {unit}; CPU s/GB (wrk: s/100,000 requests)"),
                &[
                    "client",
                    "way",
                    "server",
                    "rate",
                    "CPU",
                    "rate/Linux'",
                    "CPU/Linux'",
                    "rate/better fixed",
                    "client's CPU",
                    "bound",
                    "rate/bound",
                ],
            );
            let mut bars = Bars {
                heading: name,
                axis: format!("{unit}, with quartiles"),
                ..Bars::default()
            };
            let (mut kept, mut controls) = (Vec::new(), Vec::new());
            for &load in loads {
                let ways = load.ways(device, frames);
                for &way in ways {
                    if ways.len() > 1 && !self.options.ways.contains(&way) {
                        continue;
                    }
                    let row = Row {
                        device,
                        frames,
                        load,
                        way,
                    };
                    let mut of_round = (0, None);
                    let samples = rounds::by_turns(
                        &mut Server::ALL.clone(),
                        self.options.rounds,
                        &mut |_, _| (),
                        |server, round| {
                            let wanted = of_round.1.filter(|_| of_round.0 == round);
                            let sample = self.sample_at(row, *server, wanted)?;
                            of_round = (round, wanted.or(sample.distance));
                            kept.push((row, *server, sample));
                            table.keep(&kept);
                            run.keep_begun(&table)?;
                            Ok(Reading::calm(sample))
                        },
                    );
                    let samples = match samples {
                        Ok(samples) => samples,
                        Err(error) => {
                            let error: Box<dyn std::error::Error + Send + Sync> = error;
                            table.note(format!("not measured: {error}"));
                            continue;
                        }
                    };
                    let samples = Samples::new(samples);
                    samples.fill(row, &mut table, &mut bars);
                    controls.extend(samples.controls());
                }
            }
            if let Some(control) = Spread::of(controls.iter().copied()) {
                let apart = controls.iter().filter(|ms| **ms > CALM * control.median);
                let (apart, all) = (apart.count(), controls.len());
                table.note(format!(
                    "control: {control} ms; {apart} of {all} samples were disturbed"
                ));
            }
            table.bars(bars);
            Ok(table)
        }

        /// Starts `services` again and again, as a new user does, and asks each once each way.
        fn starts(&self) -> Outcome<Table> {
            self.frames(Device::Packet, Frames::Large)?;
            let columns = [
                "way",
                "cores",
                "Gbit/s of each start",
                "median",
                "worst/median",
            ];
            let mut table = Table::new(format!("{STARTS} starts of services"), &columns);
            for way in Way::ALL {
                let row = Row {
                    device: Device::Packet,
                    frames: Frames::Large,
                    load: Load::Iperf,
                    way,
                };
                let mut rates = Distance::ALL.map(|_| Vec::new());
                for _ in 0..ATTEMPTS * STARTS {
                    let sample = self.sample(row, Server::Auto)?;
                    if let Some(distance) = sample.distance {
                        rates[distance as usize].push(sample.rate);
                    }
                    if rates.iter().any(|rates| rates.len() == STARTS) {
                        break;
                    }
                }
                for (distance, rates) in Distance::ALL.iter().zip(rates) {
                    let Some(all) = Spread::of(rates.iter().copied()) else {
                        continue;
                    };
                    let worst = rates.iter().copied().fold(f64::INFINITY, f64::min) / all.median;
                    let each: Vec<String> = rates.iter().map(|rate| format!("{rate:.1}")).collect();
                    table.row(vec![
                        way.name().to_owned(),
                        distance.name().to_owned(),
                        each.join(" "),
                        format!("{:.1}", all.median),
                        format!("{worst:.2}"),
                    ]);
                    let (way, distance) = (way.name(), distance.name());
                    let what = format!("{way}, {distance} cores: worst start over the median");
                    // Of a few starts the worst says nothing.
                    let worst = (rates.len() >= STARTS / 2).then(|| Spread::one(worst));
                    table.bound(&what, worst, Limit::AtLeast(0.9));
                }
            }
            Ok(table)
        }
    }

    /// Runs the same loop on every core. Returns the milliseconds that the slowest took.
    fn control() -> f64 {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let turn = |sum: u64, turn: u64| black_box(sum.wrapping_mul(31) ^ turn);
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| black_box((0..TURNS).fold(7, turn)));
            }
        });
        begin.elapsed().as_secs_f64() * 1e3
    }

    /// The work of processes that this one started and that have ended.
    fn children_nanos() -> u64 {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let words = stat.rsplit(')').next().unwrap_or_default();
        let words = words.split_whitespace().skip(13).take(2);
        words
            .map(|word| word.parse::<u64>().unwrap_or(0) * TICK_NANOS)
            .sum()
    }

    /// The rate at which all cores would do what this run did, and its client no more than one.
    fn bound(one: &Sample) -> f64 {
        let cores = thread::available_parallelism().map_or(1, usize::from) as f64;
        8.0 / (one.cpu / cores).max(one.client)
    }

    /// The samples of each server, by rounds.
    struct Samples(Vec<Vec<Reading<Sample>>>);

    impl Samples {
        /// Finds out which of them are calm.
        fn new(mut samples: Vec<Vec<Reading<Sample>>>) -> Samples {
            let controls = samples.iter().flatten().map(|one| one.value.control);
            let median = Spread::of(controls).map_or(0.0, |control| control.median);
            for one in samples.iter_mut().flatten() {
                one.is_calm = one.value.control <= CALM * median;
            }
            Samples(samples)
        }

        fn controls(&self) -> impl Iterator<Item = f64> {
            self.0.iter().flatten().map(|one| one.value.control)
        }

        fn of(&self, server: Server, of: fn(&Sample) -> f64) -> Vec<Reading<f64>> {
            let own = self.0[server as usize].iter();
            own.map(|one| Reading {
                value: of(&one.value),
                is_calm: one.is_calm,
            })
            .collect()
        }

        fn rates(&self, server: Server) -> Vec<Reading<f64>> {
            self.of(server, |one| one.rate)
        }

        /// A figure of several servers' samples, round by round: calm where all of them are, and
        /// the cores were as far apart.
        fn compare<const N: usize>(
            &self,
            servers: [Server; N],
            figure: impl Fn([&Sample; N]) -> f64,
        ) -> Vec<Reading<f64>> {
            let rounds = 0..self.0[0].len();
            rounds
                .map(|round| {
                    let all = servers.map(|server| &self.0[server as usize][round]);
                    let distance = all[0].value.distance;
                    let fits = |one: &Reading<Sample>| one.value.distance == distance;
                    Reading {
                        value: figure(all.map(|one| &one.value)),
                        is_calm: distance.is_some()
                            && all.iter().all(|one| one.is_calm && fits(one)),
                    }
                })
                .collect()
        }

        fn rate_over(&self, server: Server, other: Server) -> Vec<Reading<f64>> {
            self.compare([server, other], |[one, other]| one.rate / other.rate)
        }

        fn cpu_over_linux(&self, server: Server) -> Vec<Reading<f64>> {
            self.compare([server, Server::Linux], |[one, other]| one.cpu / other.cpu)
        }

        /// The rate over that of one replica or of two, whichever is better in the other rounds: the
        /// better of two noisy rates of the same round is too high by chance.
        fn over_better(&self, server: Server) -> Vec<Reading<f64>> {
            let fixed = [Server::One, Server::Two];
            let over = fixed.map(|fixed| self.rate_over(server, fixed));
            let elsewhere = |fixed, round| {
                let mut rates = self.rates(fixed);
                rates.rotate_left(round);
                let others = &rates[usize::from(rates.len() > 1)..];
                rounds::spread(others).map_or(0.0, |rate| rate.median)
            };
            let of_round = |round| {
                let [one, two] = fixed.map(|fixed| elsewhere(fixed, round));
                over[usize::from(two > one)][round]
            };
            (0..over[0].len()).map(of_round).collect()
        }

        fn over_bound(&self, server: Server) -> Vec<Reading<f64>> {
            self.compare([server, Server::One], |[own, one]| own.rate / bound(one))
        }

        /// Adds the lines of a row to the table, its goals, and its bars.
        fn fill(&self, row: Row, table: &mut Table, bars: &mut Bars) {
            let (load, way) = (row.load.name(), row.way.name());
            let text =
                |of: Vec<Reading<f64>>| Spread::text(rounds::kept(&of).0.into_iter().copied(), 2);
            for server in Server::ALL {
                let rates = self.rates(server);
                let mut cells = vec![
                    load.to_owned(),
                    way.to_owned(),
                    server.name().to_owned(),
                    text(rates.clone()),
                    text(self.of(server, |one| one.cpu)),
                    text(self.rate_over(server, Server::Linux)),
                    text(self.cpu_over_linux(server)),
                    text(self.over_better(server)),
                ];
                if row.load.is_work() && server != Server::Linux {
                    let client = |one: &Sample| one.client;
                    cells.push(text(self.of(Server::One, client)));
                    cells.push(text(self.of(Server::One, bound)));
                    cells.push(text(self.over_bound(server)));
                } else {
                    cells.extend([const { String::new() }; 3]);
                }
                table.row(cells);
                if let Some(rate) = rounds::spread(&rates) {
                    let name = format!("{load}, {way}: {}", server.name());
                    bars.bars.push(Bar::new(name, server.name(), rate, 2));
                }
            }
            let over = self.rate_over(Server::Auto, Server::Linux);
            let [linux, one, auto] =
                [Server::Linux, Server::One, Server::Auto].map(|server| self.rates(server));
            for (name, readings) in FIELD_VALUES.iter().zip([linux, one, auto, over]) {
                let (values, left_out) = rounds::kept(&readings);
                if let Some(ours) = rounds::spread(&readings) {
                    let measure = Measure {
                        disturbed: left_out.is_none(),
                        ..Measure::of(ours, values.len())
                    };
                    let (device, frames) = (row.device.name(), row.frames.name());
                    let name = format!("{device}, {frames}: {load}, {way}: {name}");
                    table.measure(name, measure);
                }
            }
            self.set_goals(row, table);
        }

        /// Adds the goals of a row.
        fn set_goals(&self, row: Row, table: &mut Table) {
            let cpu = self.cpu_over_linux(Server::Auto);
            let large = row.frames == Frames::Large;
            let mut goal = |what: &str, over: &[Reading<f64>], limit| {
                let what = format!("{}, {}: {what}", row.load.name(), row.way.name());
                table.bound(&what, rounds::spread(over), limit);
            };
            let over = |server| self.rate_over(Server::Auto, server);
            let (linux, one) = (over(Server::Linux), over(Server::One));
            if row.load.is_work() {
                let of_bound = self.over_bound(Server::Auto);
                goal("rate over the bound", &of_bound, Limit::AtLeast(0.9));
                let pays = self.compare([Server::One], |[one]| bound(one) / one.rate);
                if rounds::spread(&pays).is_some_and(|bound| bound.median > 1.65) {
                    goal("rate over one's", &one, Limit::AtLeast(1.5));
                    goal("rate over Linux'", &linux, Limit::AtLeast(1.5));
                } else if row.load == Load::Ingest {
                    goal("rate over Linux'", &linux, Limit::AtLeast(1.4));
                }
                return;
            }
            let of_better = self.over_better(Server::Auto);
            goal("rate over the better", &of_better, Limit::AtLeast(0.97));
            let least = match (row.device, large) {
                (Device::Tap, _) => 0.9,
                _ if row.load == Load::Connects => 0.9,
                _ if row.load.is_requests() || !large => 1.0,
                _ => 0.95,
            };
            goal("rate over Linux'", &linux, Limit::AtLeast(least));
            let most = if large { 1.6 } else { 1.2 };
            goal("CPU over Linux'", &cpu, Limit::AtMost(most));
        }
    }
}

dominoes_bench::main_on_linux!();
