//! Stacks over a TUN interface, side by side, with the kernel's TCP at the other end: ours with one
//! replica, two, and as many as it chooses, with offloads and without; ours over a TAP;
//! netstack-smoltcp and gVisor's netstack; and Linux to Linux over a veth pair, the line to reach.
//! One connection and 100, both ways.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench tun -- [--quick] [--rounds N] [--millis N]
//! ```
//!
//! Rows take turns, 7 rounds of 2,000 ms (`--quick`: 3 of 700 ms) for each combination; measuring
//! begins 300 ms after the first connection. Each row has a process, and an interface in the
//! namespace of the clients. All rows have the same client but iperf3, which counts in seconds and
//! runs all its connections on one thread. CPU seconds are of all cores, whoever used them
//! (`/proc/stat`).
//!
//! netstack-smoltcp (`tunnels`, outside the workspace because of tokio) and gVisor's netstack
//! (`tunnels/gvisor`, in Go) are compiled first, which takes minutes and the network once. A note
//! names a program that is missing and the command that installs it.

#[cfg(target_os = "linux")]
mod run {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
    use std::path::{Path, PathBuf};
    use std::process::{Command, ExitCode};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, Instant};
    use std::{env, io, thread};

    use dominoes_bench::namespaces::{self, Namespace, Outcome, Process, machine_nanos};
    use dominoes_bench::report::Run;
    use dominoes_bench::rounds::{self, Reading};
    use dominoes_bench::spread::Spread;
    use dominoes_bench::table::{Bar, Bars, Limit, Table, columns};
    use dominoes_bench::{start, targets};
    use dominoes_drivers::Device;
    use dominoes_drivers::tap::Tap;
    use dominoes_drivers::tun::Tun;
    use dominoes_netstack::{Limits, Stack};
    use nix::sys::socket::{setsockopt, sockopt::SndBuf};
    use serde::{Deserialize, Serialize};

    const NETSTACK_SMOLTCP: &str = "netstack-smoltcp";
    const GVISOR: &str = "gVisor";
    const IPERF3: &str = "Linux, veth, iperf3";
    const PORT: u16 = 5001;
    const CHUNK: usize = 128 << 10;
    /// Buffers of a connection, of ours and of gVisor's.
    const BUFFER: u32 = 4 << 20;
    const WARM: Duration = Duration::from_millis(300);
    /// A call that moves nothing for this long ends its connection.
    const TIMEOUT: Duration = Duration::from_secs(3);
    /// Ends of the veth pair.
    const VETH: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 2), Ipv4Addr::new(10, 79, 0, 1)];

    /// The columns: the way as the stack sees it, and the number of connections.
    const CELLS: [(Way, usize); 4] = [
        (Way::Receives, 1),
        (Way::Sends, 1),
        (Way::Receives, 100),
        (Way::Sends, 100),
    ];

    dominoes_bench::named! {
        /// Which way the bytes go, as the stack sees it.
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Way {
            Receives = "receives",
            Sends = "sends",
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Options {
        #[arg(long, default_value_t = 7, default_value_if("quick", "true", "3"))]
        rounds: usize,
        #[arg(
            long,
            default_value_t = 2_000,
            default_value_if("quick", "true", "700")
        )]
        millis: u64,
        #[arg(long)]
        quick: bool,
        /// Be another process.
        #[arg(long, hide = true)]
        task: Option<String>,
    }

    /// The stack at the other end.
    #[derive(Clone, Serialize, Deserialize)]
    enum Server {
        /// Ours: its replicas (0: as it chooses), and whether it has offloads.
        Ours(usize, bool),
        Program(PathBuf),
        Iperf3,
    }

    struct Row {
        name: &'static str,
        server: Server,
        interface: String,
        address: Ipv4Addr,
    }

    /// A task for another process.
    #[derive(Serialize, Deserialize)]
    enum Task {
        /// Our stack accepts connections: its replicas, offloads, interface and address.
        Serve(usize, bool, String, Ipv4Addr),
        /// The kernel opens this number of connections, and measures for some milliseconds.
        Open(SocketAddrV4, Way, usize, u64),
    }

    /// Gbit/s, seconds of all cores for each gigabyte, and connections that failed.
    type Cell = (f64, f64, u64);

    pub(crate) fn main() -> ExitCode {
        start::main("tun", run)
    }

    fn run(options: Options) -> Outcome<()> {
        if let Some(text) = &options.task {
            return task(text);
        }
        let needs = "CAP_NET_ADMIN and CAP_SYS_ADMIN), `ip` and, for the line to reach, `iperf3`";
        let can = namespaces::can_run(&["ip"]);
        if !targets::can_run("tun", can, needs, "iproute2 iperf3") {
            return Ok(());
        }
        let run = Run::begin("tun");
        let _cubic = namespaces::CubicAllowed::new()?;
        let (mut rows, missing) = rows();
        let [kernel, far] = namespaces::pair(["kernel", "far"], VETH)?;
        for row in &rows {
            let (name, [.., number, _]) = (&row.interface, row.address.octets());
            kernel.ip(&format!("tuntap add dev {name} mode {}", &name[..3]))?;
            kernel.ip(&format!("addr add 10.80.{number}.2/24 dev {name}"))?;
            kernel.ip(&format!("link set {name} up"))?;
        }
        let readings = rounds::by_turns(&mut rows, options.rounds, &mut rounds::tell, |row, _| {
            measure(row, [&kernel, &far], options.millis).map(Reading::calm)
        })?;
        let mut table = table(&options, &rows, &readings);
        missing.iter().for_each(|what| table.note(what));
        Ok(run.end(vec![table])?)
    }

    /// All rows that can be measured here, and why the others cannot.
    fn rows() -> (Vec<Row>, Vec<String>) {
        let row = |number: u8, kind: &str, name, server| Row {
            name,
            server,
            interface: format!("{kind}{number}"),
            address: [10, 80, number, 1].into(),
        };
        let mut rows = vec![
            row(0, "tun", "ours, auto, offloads", Server::Ours(0, true)),
            row(1, "tun", "ours, 1, offloads", Server::Ours(1, true)),
            row(2, "tun", "ours, 2, offloads", Server::Ours(2, true)),
            row(3, "tun", "ours, auto, plain", Server::Ours(0, false)),
            row(4, "tun", "ours, 1, plain", Server::Ours(1, false)),
            row(5, "tun", "ours, 2, plain", Server::Ours(2, false)),
            row(6, "tap", "ours, 1, plain TAP", Server::Ours(1, false)),
        ];
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tunnels");
        let built = targets::directory().with_file_name("tunnels");
        let (smoltcp, gvisor) = (built.join("release/tunnels"), built.join("gvisor"));
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--locked", "--target-dir"]);
        cargo.arg(&built).current_dir(&here);
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&gvisor).arg(".");
        go.current_dir(here.join("gvisor"));
        let mut iperf3 = Command::new("iperf3");
        iperf3.arg("-v");
        let more = [
            (
                NETSTACK_SMOLTCP,
                cargo,
                Server::Program(smoltcp),
                "the network, once",
            ),
            (
                GVISOR,
                go,
                Server::Program(gvisor),
                "apt-get install golang-go, and the network, once",
            ),
            (IPERF3, iperf3, Server::Iperf3, "apt-get install iperf3"),
        ];
        let mut missing = Vec::new();
        for (number, (name, mut prepare, server, needs)) in (7..).zip(more) {
            match namespaces::run(&mut prepare) {
                Ok(_) => rows.push(row(number, "tun", name, server)),
                Err(error) => {
                    missing.push(format!("{name}: not measured: {error}; needs: {needs}"))
                }
            }
        }
        (rows, missing)
    }

    fn measure(row: &Row, [kernel, far]: [&Namespace; 2], millis: u64) -> Outcome<[Cell; 4]> {
        let (interface, address) = (row.interface.clone(), row.address);
        let process = match &row.server {
            &Server::Ours(replicas, offloads) => {
                start(kernel, &Task::Serve(replicas, offloads, interface, address))?
            }
            Server::Program(path) => {
                let command = kernel.command(path.display().to_string());
                Process::spawn(command, &[&interface, &address.to_string()])?
            }
            Server::Iperf3 => Process::spawn(far.command("iperf3"), &["-s", "--forceflush"])?,
        };
        process.line(TIMEOUT)?;
        let mut cells = [Cell::default(); 4];
        for (cell, (way, flows)) in cells.iter_mut().zip(CELLS) {
            *cell = if let Server::Iperf3 = row.server {
                iperf3(kernel, way, flows, millis)?
            } else {
                let to = SocketAddrV4::new(address, PORT);
                let opens = start(kernel, &Task::Open(to, way, flows, millis))?;
                let most = WARM + Duration::from_millis(millis) + 4 * TIMEOUT;
                serde_json::from_str(&opens.line(most)?)?
            };
        }
        Ok(cells)
    }

    /// As its server sees it, too.
    fn iperf3(kernel: &Namespace, way: Way, flows: usize, millis: u64) -> Outcome<Cell> {
        let (to, flows, seconds) = (
            VETH[1].to_string(),
            flows.to_string(),
            millis.div_ceil(1_000),
        );
        let time = seconds.to_string();
        let mut command = kernel.command("iperf3");
        command.args(["-J", "-O", "1", "-c", &to, "-P", &flows, "-t", &time]);
        if way == Way::Sends {
            command.arg("-R");
        }
        let before = machine_nanos();
        let said: serde_json::Value = serde_json::from_slice(&command.output()?.stdout)?;
        let worked = (machine_nanos() - before) as f64;
        let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
        let bits = bits.ok_or_else(|| format!("iperf3: {}", said["error"]))?;
        let bytes = bits / 8.0 * (seconds + 1) as f64;
        Ok((bits / 1e9, worked / bytes, 0))
    }

    fn table(options: &Options, rows: &[Row], readings: &[Vec<Reading<[Cell; 4]>>]) -> Table {
        let title = format!(
            "Gbit/s, medians [quartiles] of {} rounds of {} ms; CPU s/GB of the machine",
            options.rounds, options.millis
        );
        let columns = columns(
            "stack | 1 receives | CPU | 1 sends | CPU | 100 receive | CPU | 100 send \
             | CPU",
        );
        let mut table = Table::new(title, &columns);
        let of = |row: usize, value: &dyn Fn(&[Cell; 4]) -> f64| -> Vec<Reading<f64>> {
            let each = readings[row].iter();
            each.map(|reading| Reading::calm(value(&reading.value)))
                .collect()
        };
        let rates = |row: usize, cell: usize| of(row, &|cells| cells[cell].0);
        let text = |readings: Vec<Reading<f64>>| Spread::text(readings.iter().map(|r| r.value), 2);
        for (at, row) in rows.iter().enumerate() {
            let figures = (0..CELLS.len()).flat_map(|cell| {
                let cpu = rounds::spread(&of(at, &|cells| cells[cell].1));
                let cpu = cpu.map_or(f64::NAN, |cpu| cpu.median);
                [text(rates(at, cell)), format!("{cpu:.2}")]
            });
            table.row([row.name.to_owned()].into_iter().chain(figures).collect());
            let failed = of(at, &|cells| cells.iter().map(|cell| cell.2 as f64).sum());
            let failed: f64 = failed.iter().map(|reading| reading.value).sum();
            if failed > 0.0 {
                table.note(format!(
                    "{}: {failed} connections failed or stood still",
                    row.name
                ));
            }
        }
        for (cell, (way, flows)) in CELLS.into_iter().enumerate() {
            let bar = |at: usize| {
                let rate = rounds::spread(&rates(at, cell))?;
                Some(Bar::new(rows[at].name, &rows[at].name[..4], rate, 2))
            };
            table.bars(Bars {
                heading: format!("{flows} connections, the stack {}", way.name()),
                axis: "Gbit/s: medians and quartiles".to_owned(),
                bars: (0..rows.len()).filter_map(bar).collect(),
                ..Bars::default()
            });
        }
        let goals = [
            ("ours, auto, offloads", NETSTACK_SMOLTCP, 3.0),
            ("ours, auto, offloads", GVISOR, 1.5),
            ("ours, auto, offloads", IPERF3, 1.0),
            ("ours, 1, plain", "ours, 1, plain TAP", 0.9),
        ];
        let find = |name| rows.iter().position(|row| row.name == name);
        for (ours, theirs, goal) in goals {
            for (cell, (way, _)) in CELLS.into_iter().enumerate().take(2) {
                let both = find(ours).zip(find(theirs));
                let over = both.map(|(a, b)| rounds::over(&rates(a, cell), &rates(b, cell)));
                let what = format!(
                    "one connection, the stack {}: {ours} over {theirs}",
                    way.name()
                );
                table.bound(
                    &what,
                    over.and_then(|over| rounds::spread(&over)),
                    Limit::AtLeast(goal),
                );
            }
        }
        table.keep(
            &(0..rows.len())
                .map(|at| (rows[at].name, &readings[at]))
                .collect::<Vec<_>>(),
        );
        table
    }

    // The other processes.

    fn task(text: &str) -> Outcome<()> {
        match serde_json::from_str(text)? {
            Task::Serve(replicas, offloads, interface, address) => {
                let device: Box<dyn Device> = if interface.starts_with("tap") {
                    Box::new(Tap::options().offloads(offloads).open(&interface)?)
                } else {
                    Box::new(Tun::options().offloads(offloads).open(&interface)?)
                };
                let limits = Limits::default().receive_buffer(BUFFER).send_buffer(BUFFER);
                let builder = Stack::builder(&format!("{address}/24")).limits(limits);
                let builder = match replicas {
                    0 => builder,
                    some => builder.replicas(some),
                };
                let stack = builder.start(device)?;
                let listener = stack.listen(PORT, 256)?;
                println!("ready");
                loop {
                    let (stream, _) = listener.accept()?;
                    thread::spawn(|| carry(stream));
                }
            }
            Task::Open(to, way, flows, millis) => {
                let cell = open(to, way, flows, Duration::from_millis(millis));
                println!("{}", serde_json::to_string(&cell)?);
                Ok(())
            }
        }
    }

    /// Moves bytes in the direction that the first one names, until the connection ends.
    fn carry(mut stream: impl Read + Write) {
        let (mut way, mut bytes) = ([0], vec![0; CHUNK]);
        let begun = stream.read_exact(&mut way);
        let mut step = || match way {
            [b'r'] => stream.read(&mut bytes),
            _ => stream.write(&bytes),
        };
        while begun.is_ok() && matches!(step(), Ok(1..)) {}
    }

    fn open(to: SocketAddrV4, way: Way, flows: usize, time: Duration) -> Cell {
        let (moved, failed, worked) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let begin = Instant::now();
        let flow = || -> io::Result<()> {
            let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(to), TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            if flows > 1 {
                // What fills buffers would count as sent.
                setsockopt(&stream, SndBuf, &(64 << 10))?;
            }
            stream.write_all(&way.name().as_bytes()[..1])?;
            let mut bytes = vec![0; CHUNK];
            while begin.elapsed() < WARM + time {
                let len = match way {
                    Way::Receives => stream.write(&bytes)?,
                    Way::Sends => stream.read(&mut bytes)?,
                };
                if begin.elapsed() > WARM {
                    // ORDERING: Relaxed here and below: the threads' end orders them.
                    moved.fetch_add(len as u64, Relaxed);
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            for _ in 0..flows {
                scope.spawn(|| failed.fetch_add(u64::from(flow().is_err()), Relaxed));
            }
            scope.spawn(|| {
                thread::sleep(WARM);
                let before = machine_nanos();
                thread::sleep(time);
                worked.store(machine_nanos() - before, Relaxed);
            });
        });
        let bytes = moved.into_inner() as f64;
        let gbit = bytes * 8e-9 / time.as_secs_f64();
        let cpu = if bytes > 0.0 {
            worked.into_inner() as f64 / bytes
        } else {
            0.0
        };
        (gbit, cpu, failed.into_inner())
    }

    fn start(namespace: &Namespace, task: &Task) -> Outcome<Process> {
        Process::start(namespace, &["--task", &serde_json::to_string(task)?])
    }
}

dominoes_bench::main_on_linux!();
