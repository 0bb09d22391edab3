//! One connection of our stack to a Linux kernel, beside one between two kernels on the same
//! interfaces, in turn.
//!
//! ```text
//! sudo -E env "PATH=$PATH" cargo bench linux -- [options]
//! ```
//!
//! Without root, `ip` or `ethtool` it names its requirements, and ends with success.
//!
//! | option | what | default |
//! |---|---|---|
//! | `--device v2,v3,xdp,tap,tun` | how our stack reaches the kernel | all |
//! | `--frames large,small` | up to 64 KB, or no longer than the MTU: TSO, GSO and GRO off on both ends | both |
//! | `--way send,receive` | which way the bytes go, seen from our end | both |
//! | `--rounds N`, `--millis N` | pairs of slices, and the length of a slice | 8, 500 |
//! | `--replicas N` | threads that run our stack | 1 |
//! | `--pinned apart,together,no` | whether the ends, ours and the kernels' alike, stay on different cores, or both on one | apart with one replica |
//! | `--buffer N` | buffers of our connection, in KiB, a power of two | 1024; tap, tun, v3 and bad wires 4096 |
//! | `--ring N` | ring of AF_PACKET, in KiB | 4096; v3 and bad wires 16384 |
//! | `--merged yes,no` | whether TAP, TUN and AF_XDP are handed frames that are longer than the MTU with small ones, too | yes |
//! | `--loss 0,1000,10000,50000` | instead: over a bad wire that loses this many frames of a million each way | |
//! | `--seeds N` | seeds for each loss | 3 |
//! | `--rate N`, `--delay N`, `--queue N` | of the bad wire: Mbit/s, ms one way, bytes | 100, 5, 125000 |
//!
//! It makes two namespaces that a veth pair joins, and a TAP and a TUN in one of them, and removes
//! them. Kernels use CUBIC. Every slice is another connection between two processes; its first 300
//! ms do not count. Linux is measured over the veth pair in the rows of TAP and TUN, too, since
//! these have one kernel only. CPU seconds are of both processes, with the kernel's work for the
//! network in their time, and of its threads for software interrupts. `whole machine's` is the
//! ratio of all that any core did (`/proc/stat`): it leaves out nothing, and counts other work on
//! the machine, too. `our end/Linux's` compares the near processes alone; work that the kernel does
//! for one end in the time of the other blurs it. `pumps` is the part of the time awake that our
//! stack spent in calls of the device.
//!
//! With one replica the near end, be it our application with our stack or a kernel's application,
//! stays on the last core and the other end on the first, in both rows alike; the kernel's threads
//! run where it puts them. Text that goes from core to core on its way from the application costs
//! more than all else together, and where threads run is chance otherwise. `--pinned together` puts
//! both ends on the last core: then the rate shows their cost, and nothing goes from core to
//! core. Free to choose, schedulers do that now and then, and it is the fastest that a kernel's
//! connection gets. With several replicas only those stay where they are put, one a core, and
//! nothing else is pinned.
//!
//! Buffers and rings are as short as the delay allows, since what passes through caches costs half:
//! v3 hands frames over after a millisecond, the others at once. With small frames the kernel's TCP
//! divides large pieces as they leave. Our stack leaves that to the kernel as well; through a
//! packet socket in the row of AF_XDP, whose own ring takes no large pieces. A TAP has nothing
//! between our pieces and the kernel that takes them, so they arrive whole; `--merged no` sends
//! every segment by itself instead, by another system call, in both rows.
//!
//! A host may move the cores of a virtual machine about, several times a second: two that shared a
//! cache a moment ago are then far apart, and whatever goes from end to end takes twice to three
//! times as long, in either stack. So the time that a line takes from core to core is
//! measured before, between and after the two slices of a round. Rounds in which it was always
//! short have a row, and rounds in which it was always long have another one; the others, which
//! would compare a slice of one kind with one of the other, are measured again, up to four times as
//! many rounds in all. Which stack has the first slice alternates.
//!
//! On a machine with other work, two things keep that away from the measurement. Over bad wires,
//! which leave cores idle: `chrt --fifo 1` before the program. Over interfaces that would change
//! the schedule, so there a separate session with all the weight that the scheduler knows:
//! `setsid -w sh -c 'echo -20 > /proc/self/autogroup; exec PROGRAM'`.
//!
//! Small frames that AF_PACKET (`v2`) receives are measured by cores, too, ours beside Linux's: with
//! all ends on one core, and with two cores and nothing pinned but replicas, of which ours has two.
//!
//! The figures of the bad wire are of the receiving end; the streams of both ends are
//! compared by SHA-256. For the record: `--loss 0,1000,10000,50000 --seeds 10 --millis 20000`.

#[cfg(target_os = "linux")]
#[path = "../src/linux/mod.rs"]
mod linux;

#[cfg(target_os = "linux")]
mod run {
    use super::linux::end::{self, Core, Ours, Task, task};
    use super::linux::fixture::{Both, CubicAllowed, Fixture, Outcome, connection, server};
    use super::linux::report::{self, Row};
    use super::linux::wire::{self, RunningWire, Wire};
    use super::linux::{Device, Frames, OURS, PEER, Way};
    use dominoes_bench::namespaces;
    use dominoes_bench::paper::Measure;
    use dominoes_bench::report::Run;
    use dominoes_bench::rounds::{self, Reading};
    use dominoes_bench::spread::Spread;
    use dominoes_bench::start;
    use dominoes_bench::table::{Bar, Bars, Table, columns};
    use dominoes_bench::targets;
    use dominoes_bench::topology::Distance;
    use std::process::ExitCode;

    /// The beginning of each connection, which does not count, in milliseconds.
    const WARM: u64 = 300;

    #[derive(Clone, Debug, clap::Parser)]
    struct Options {
        #[arg(
            long = "device",
            value_delimiter = ',',
            default_value = "v2,v3,xdp,tap,tun"
        )]
        devices: Vec<Device>,
        #[arg(long, value_delimiter = ',', default_value = "large,small")]
        frames: Vec<Frames>,
        #[arg(long = "way", value_delimiter = ',', default_value = "send,receive")]
        ways: Vec<Way>,
        #[arg(long, default_value_t = 8)]
        rounds: usize,
        #[arg(long, default_value_t = 500)]
        millis: u64,
        #[arg(long, default_value_t = 1)]
        replicas: usize,
        #[arg(long)]
        pinned: Option<Pinned>,
        #[arg(long)]
        buffer: Option<u32>,
        #[arg(long)]
        ring: Option<usize>,
        #[arg(long, default_value = "yes")]
        merged: Merged,
        #[arg(long, value_delimiter = ',')]
        loss: Vec<u32>,
        #[arg(long, default_value_t = 3)]
        seeds: u64,
        #[arg(long, default_value_t = 100)]
        rate: u64,
        #[arg(long, default_value_t = 5)]
        delay: u64,
        #[arg(long, default_value_t = 125_000)]
        queue: u64,
        /// Be one end, or the wire.
        #[arg(long, hide = true)]
        end: Option<String>,
        #[arg(long, hide = true)]
        wire: Option<String>,
    }

    dominoes_bench::named! {
        enum Merged { Yes = "yes", No = "no", }
    }

    /// Rounds that are measured at most, for each that is wanted.
    const REPEATS: usize = 4;

    dominoes_bench::named! {
        /// Where both ends run.
        enum Pinned {
            Apart = "apart",
            Together = "together",
            No = "no",
        }
    }

    impl Pinned {
        fn describe(self) -> &'static str {
            match self {
                Pinned::Apart => {
                    "the near end stays on the last core and the other end on the first, ours and Linux's alike"
                }
                Pinned::Together => "both ends stay on the last core, ours and Linux's alike",
                Pinned::No => "no end is pinned, but each replica to a core",
            }
        }
    }

    impl Options {
        fn pinned(&self) -> Pinned {
            let usual = if self.replicas == 1 {
                Pinned::Apart
            } else {
                Pinned::No
            };
            self.pinned.unwrap_or(usual)
        }
    }

    pub(crate) fn main() -> ExitCode {
        start::main("linux", run)
    }

    fn run(options: Options) -> Outcome<()> {
        if let Some(task) = &options.end {
            return end::run(task);
        }
        if let Some(wire) = &options.wire {
            return wire::run(wire);
        }
        let needs = "CAP_NET_ADMIN and CAP_SYS_ADMIN), `ip` and `ethtool`";
        if !targets::can_run(
            "linux",
            namespaces::can_run(&["ip", "ethtool"]),
            needs,
            "iproute2 ethtool",
        ) {
            return Ok(());
        }
        let mut this_run = Run::begin("linux");
        println!("kernels: CUBIC; ours: {} replica(s)", options.replicas);
        let _cubic = CubicAllowed::new()?;
        if options.loss.is_empty() {
            over_interfaces(&options, &mut this_run)?;
        } else {
            over_bad_wires(&options, &mut this_run)?;
        }
        Ok(this_run.end(Vec::new())?)
    }

    fn ours(options: &Options, device: Device, frames: Frames) -> Ours {
        let (interface, address, _) = device.ends();
        // A millisecond, or a bad wire's delay, is several megabytes. A TAP makes no sender wait
        // for room, and a sender that waits for the window, because we slept, fills its own buffer
        // with bytes that are cold when they leave.
        let long = device == Device::Blocks || !options.loss.is_empty();
        let [buffer, ring] = match device {
            _ if long => [4_096, 16_384],
            Device::Tap | Device::Tun => [4_096, 0],
            _ => [1_024, 4_096],
        };
        Ours {
            device: device.name().to_owned(),
            interface: interface.to_owned(),
            address,
            frames: frames.name().to_owned(),
            offloads: true,
            replicas: options.replicas,
            merged: options.merged == Merged::Yes,
            buffer: options.buffer.unwrap_or(buffer) << 10,
            ring: options.ring.unwrap_or(ring as usize) << 10,
        }
    }

    fn over_interfaces(options: &Options, run: &mut Run) -> Outcome<()> {
        let fixture = Fixture::new()?;
        println!(
            "{} rounds of two slices, {} ms each; {}",
            options.rounds,
            options.millis,
            options.pinned().describe()
        );
        let by_cores = options.devices.contains(&Device::Slots)
            && options.frames.contains(&Frames::Small)
            && options.ways.contains(&Way::Receive);
        if by_cores {
            run.add(measure_by_cores(options, &fixture)?)?;
        }
        for &device in &options.devices {
            for &frames in &options.frames {
                // AF_XDP knows no merged frames: with large ones it would be the same again.
                if device == Device::Xdp && frames == Frames::Large && options.frames.len() > 1 {
                    continue;
                }
                fixture.frames(frames)?;
                let mut table = report::table(device, frames);
                let mut bars = Bars {
                    heading: format!("{}, {} frames", device.name(), frames.name()),
                    axis: "Gbit/s: ours with quartiles, and thin Linux's".to_owned(),
                    ..Bars::default()
                };
                let mut all = Vec::new();
                for &way in &options.ways {
                    let row = |distance| Row {
                        way,
                        distance,
                        rounds: Vec::new(),
                    };
                    let mut rows = Distance::ALL.map(row);
                    for round in 0..options.rounds * REPEATS {
                        if rows.iter().any(|row| row.rounds.len() == options.rounds) {
                            break;
                        }
                        let ours_first = round % 2 == 0;
                        let mut pair = [Both::default(), Both::default()];
                        let mut distance = Some(Distance::now());
                        for ours in [ours_first, !ours_first] {
                            let frames = ours.then_some(frames);
                            pair[usize::from(!ours)] =
                                over_interface(options, &fixture, device, frames, way)?;
                            distance = distance.filter(|&before| before == Distance::now());
                        }
                        if let Some(distance) = distance {
                            rows[distance as usize].rounds.push(pair);
                        }
                    }
                    for row in rows.iter().filter(|row| !row.rounds.is_empty()) {
                        table.row(row.cells(options.replicas));
                        bars.bars.extend(row.bar());
                    }
                    all.extend(rows);
                }
                table.bars(bars);
                table.keep(&all);
                run.add(table)?;
            }
        }
        Ok(())
    }

    /// Linux and ours, each on one core and on two, in turn: Gbit/s that are received. The measures
    /// are `by cores: ...`.
    fn measure_by_cores(options: &Options, fixture: &Fixture) -> Outcome<Table> {
        fixture.frames(Frames::Small)?;
        let mut rows = [(false, 1), (false, 2), (true, 1), (true, 2)];
        let received = |&mut (is_ours, cores): &mut (bool, usize), _| {
            let pinned = [Pinned::Together, Pinned::No][cores - 1];
            let options = Options {
                pinned: Some(pinned),
                replicas: cores,
                ..options.clone()
            };
            let frames = is_ours.then_some(Frames::Small);
            let both = over_interface(&options, fixture, Device::Slots, frames, Way::Receive)?;
            Outcome::Ok(Reading::calm(both.gigabits(Way::Receive)))
        };
        let all = rounds::by_turns(&mut rows, options.rounds, &mut rounds::tell, received)?;
        let columns = ["", "one core, Gbit/s", "two", "two over one"];
        let mut table = Table::new("small frames that v2 receives, by cores", &columns);
        let mut over = |what: &str, one: usize, other: usize| {
            let ratio = rounds::spread(&rounds::over(&all[one], &all[other]));
            let ratio = ratio.unwrap_or(Spread::one(f64::NAN));
            table.measure(
                format!("by cores: {what}"),
                Measure::of(ratio, options.rounds),
            );
            format!("{ratio:.2}")
        };
        let ratios = [
            over("Linux, two over one", 1, 0),
            over("ours, two over one", 3, 2),
        ];
        let beside = [
            over("ours over Linux, one core", 2, 0),
            over("ours over Linux, two cores", 3, 1),
        ];
        let rate = |row: usize| Spread::text(all[row].iter().map(|one| one.value), 2);
        for ((name, row), ratio) in [("Linux", 0), ("ours", 2)].into_iter().zip(ratios) {
            table.row(vec![name.to_owned(), rate(row), rate(row + 1), ratio]);
        }
        let [one, two] = beside;
        table.row(vec!["ours over Linux".to_owned(), one, two, String::new()]);
        table.keep(&all);
        Ok(table)
    }

    /// Ours, or with no kind of frames Linux's.
    fn over_interface(
        options: &Options,
        fixture: &Fixture,
        device: Device,
        frames: Option<Frames>,
        way: Way,
    ) -> Outcome<Both> {
        let ours = frames.map(|frames| ours(options, device, frames));
        let over_tunnel = device.is_tunnel() && ours.is_some();
        let server = server(if over_tunnel { device.ends().2 } else { PEER });
        let far = measured(task(None, true, way.other(), server), options, Core::First);
        let near = measured(task(ours, false, way, server), options, Core::Last);
        // Our end of a TAP or TUN is the process that has it open.
        let place = if over_tunnel {
            &fixture.peer
        } else {
            &fixture.ours
        };
        connection((place, &near), (&fixture.peer, &far))
    }

    fn measured(mut task: Task, options: &Options, core: Core) -> Task {
        task.core = match options.pinned() {
            Pinned::Apart => Some(core),
            Pinned::Together => Some(Core::Last),
            Pinned::No => None,
        };
        task.millis = [WARM, options.millis];
        task.hash = !options.loss.is_empty();
        task
    }

    fn over_bad_wires(options: &Options, run: &mut Run) -> Outcome<()> {
        let [left, right, between] = ["left", "right", "between"].map(namespaces::namespace);
        let (left, right, between) = (left?, right?, between?);
        let title = format!(
            "{} Mbit/s, {} ms round trip, a queue of {} bytes; {} seeds of {} ms; Mbit/s",
            options.rate,
            2 * options.delay,
            options.queue,
            options.seeds,
            options.millis
        );
        let columns =
            columns("loss % | way | ours | Linux | ratio | our frames | lost | overflowed");
        let mut table = Table::new(title, &columns);
        let mut bars = Bars {
            heading: "over a bad wire".to_owned(),
            axis: "Mbit/s: ours with quartiles, and thin Linux's".to_owned(),
            ..Bars::default()
        };
        let mut all = Vec::new();
        for &loss_ppm in &options.loss {
            for &way in &options.ways {
                let mut rates: [Vec<f64>; 2] = Default::default();
                let mut fates = [0; 3];
                for seed in 1..=options.seeds {
                    let wire = Wire {
                        loss_ppm,
                        delay_us: options.delay * 1_000,
                        rate: options.rate * 1_000_000,
                        queue: options.queue,
                        seed,
                    };
                    for (who, rates) in rates.iter_mut().enumerate() {
                        let ours = (who == 0).then(|| Ours {
                            interface: "left0".to_owned(),
                            address: OURS,
                            offloads: false,
                            ..ours(options, Device::Slots, Frames::Small)
                        });
                        let laid = RunningWire::new(&wire, &between, &left, &right)?;
                        let server = server(PEER);
                        let far = task(None, true, way.other(), server);
                        let far = measured(far, options, Core::First);
                        let near = measured(task(ours, false, way, server), options, Core::Last);
                        let both = connection((&left, &near), (&right, &far))?;
                        let fate = laid.end()?;
                        if both.near.hash != both.far.hash || both.far.hash.is_none() {
                            return Err(format!(
                                "seed {seed}, loss {loss_ppm}: sent and received differ: {both:?}"
                            )
                            .into());
                        }
                        rates.push(both.gigabits(way) * 1_000.0);
                        if who == 0 {
                            let ways = fate.there.iter().zip(fate.back);
                            for (sum, (there, back)) in fates.iter_mut().zip(ways) {
                                *sum += there + back;
                            }
                        }
                    }
                }
                let ratios = rates[0]
                    .iter()
                    .zip(&rates[1])
                    .map(|(ours, linux)| ours / linux);
                let [frames, lost, overflowed] = fates;
                eprintln!("{loss_ppm} of a million lost, {}: done", way.name());
                table.row(vec![
                    format!("{:.2}", f64::from(loss_ppm) / 10_000.0),
                    way.name().to_owned(),
                    Spread::text(rates[0].iter().copied(), 2),
                    Spread::text(rates[1].iter().copied(), 2),
                    Spread::text(ratios, 2),
                    frames.to_string(),
                    lost.to_string(),
                    overflowed.to_string(),
                ]);
                let [ours, linux] = [0, 1].map(|who| Spread::of(rates[who].iter().copied()));
                if let (Some(ours), Some(linux)) = (ours, linux) {
                    let lost = f64::from(loss_ppm) / 10_000.0;
                    let name = format!("{lost} % lost, {}", way.name());
                    bars.bars.push(Bar {
                        beside: Some(linux.median),
                        text: format!("{:.2}, Linux {:.2}", ours.median, linux.median),
                        ..Bar::new(name, way.name(), ours, 2)
                    });
                }
                all.push((loss_ppm, way.name(), rates));
            }
        }
        table.bars(bars);
        table.keep(&all);
        run.add(table).map_err(Into::into)
    }
}

dominoes_bench::main_on_linux!();
