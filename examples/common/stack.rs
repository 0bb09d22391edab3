//! Options of the command line for the stack of an example that uses a device.

pub(crate) mod device;
mod ipv6;
pub(crate) mod killer;

use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use dominoes_drivers::Device;
use dominoes_netstack::{Builder, Interface, Limits, MAX_GROUPS, Stack};

use crate::program::{Arguments, Outcome};
use device::{DeviceOptions, Which};
use ipv6::Addr6;
use killer::Killer;

/// The options that [`StackOptions::take`] takes, except the device's.
pub(crate) const USAGE: &str = "  --addr CIDR         our address and its prefix, or dhcp: what a server gives [10.78.0.1/24]
  --also CIDR         another address there, as often as wanted
  --addr6 CIDR        the same of IPv6, or auto: as routers advertise [no IPv6]
  --second NAME,CIDR  another interface of the same kind with its address, and behind another comma
                      one of IPv6 if it has that, too [none]
  --gateway IP        who forwards to other networks, once for each family [nobody]
  --replicas N        threads that run a group of connections, each with a copy of its state, or auto:
                      as many as improve throughput [auto]
  --groups N          groups of connections side by side, with threads of their own [1]
  --kill-every N      for trials: a replica's thread dies each N seconds, 0.05 say, and another joins [never]
";

/// The device of a stack, its addresses, and the threads that run it.
pub(crate) struct StackOptions {
    device: DeviceOptions,
    pub(crate) addr: String,
    also: Vec<String>,
    addr6: Addr6,
    second: Option<Second>,
    gateways: Vec<IpAddr>,
    replicas: Option<Replicas>,
    groups: usize,
    kill_every: Option<Duration>,
}

/// The threads of a group.
#[derive(Clone, Copy, Debug)]
enum Replicas {
    /// Exactly this many.
    Fixed(usize),
    /// At most one for each core.
    Auto,
}

/// The threads that run a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    replicas: Replicas,
    groups: usize,
}

impl Threads {
    pub(crate) fn fixed(replicas: usize) -> Threads {
        Threads {
            replicas: Replicas::Fixed(replicas),
            groups: 1,
        }
    }

    /// The same for a variant without autoscaling: `usual` threads unless the user chose a number.
    #[allow(dead_code, reason = "one example chooses the variant")]
    pub(crate) fn or_fixed(self, usual: usize) -> Threads {
        match self.replicas {
            Replicas::Fixed(_) => self,
            Replicas::Auto => Threads {
                replicas: Replicas::Fixed(usual),
                ..self
            },
        }
    }

    /// For example `2 replicas`, or `2 groups of 1 to 4 threads` if `noun` is `thread`.
    pub(crate) fn name(self, noun: &str) -> String {
        let each = match self.replicas {
            Replicas::Fixed(number) => count(number, noun),
            Replicas::Auto => format!("1 to {}", count(cores(), noun)),
        };
        match self.groups {
            1 => each,
            groups => format!("{groups} groups of {each}"),
        }
    }

    /// How many threads of a group always hold a copy of its state.
    pub(crate) fn copies(self) -> usize {
        match self.replicas {
            Replicas::Fixed(number) => number,
            Replicas::Auto => 1,
        }
    }

    pub(crate) fn set_on(self, builder: Builder) -> Builder {
        let builder = builder.groups(self.groups);
        match self.replicas {
            Replicas::Fixed(number) => builder.replicas(number),
            Replicas::Auto => builder.replicas_up_to(cores()),
        }
    }
}

/// How many threads can run at once.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Another interface: its name, and at least one address.
struct Second {
    name: String,
    addresses: Vec<String>,
}

impl Second {
    fn parse(words: &str) -> Result<Second, &'static str> {
        let mut words = words.split(',').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let addresses: Vec<_> = words.collect();
        if addresses.is_empty() {
            return Err("no name and address, as in veth1,10.79.0.1/24");
        }
        Ok(Second { name, addresses })
    }

    fn interface(&self) -> Interface {
        let interface = Interface::new(&self.addresses[0]);
        let others = self.addresses[1..].iter();
        others.fold(interface, |interface, address| interface.address(address))
    }
}

impl Default for StackOptions {
    fn default() -> StackOptions {
        StackOptions {
            device: DeviceOptions::default(),
            addr: "10.78.0.1/24".to_owned(),
            also: Vec::new(),
            addr6: Addr6::default(),
            second: None,
            gateways: Vec::new(),
            replicas: None,
            groups: 1,
            kill_every: None,
        }
    }
}

impl StackOptions {
    /// Takes the value of `option`. Returns false if the option concerns neither the stack nor
    /// its device.
    pub(crate) fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "addr" => self.addr = arguments.text()?,
            "also" => self.also.push(arguments.text()?),
            "addr6" => self.addr6 = Addr6::parse(arguments.text()?),
            "second" => self.second = Some(arguments.parse_with(Second::parse)?),
            "gateway" => self.gateways.push(arguments.parse()?),
            "replicas" => {
                let replicas = arguments.parse_with(|text| match text {
                    "auto" => Ok(Replicas::Auto),
                    number => number.parse().map(Replicas::Fixed),
                })?;
                self.replicas = Some(replicas);
            }
            "groups" => self.groups = arguments.number(1..=MAX_GROUPS)?,
            "kill-every" => {
                let every = arguments.parse_with(|text| {
                    let seconds: f64 = text.parse().map_err(|_| "no number of seconds")?;
                    Duration::try_from_secs_f64(seconds).map_err(|_| "no number of seconds")
                })?;
                self.kill_every = Some(every);
            }
            _ => return self.device.take(option, arguments),
        }
        Ok(true)
    }

    /// The threads that run the stack. Unless the user chose a number: as many as improve
    /// throughput, or two if one is to fail now and then.
    pub(crate) fn threads(&self) -> Threads {
        let usual = match self.kill_every {
            Some(_) => Replicas::Fixed(2),
            None => Replicas::Auto,
        };
        Threads {
            replicas: self.replicas.unwrap_or(usual),
            groups: self.groups,
        }
    }

    /// Returns the killer of replicas, if the user asked for one, for a state with `copies`.
    ///
    /// # Errors
    /// The only copy would be lost, or there are several groups.
    pub(crate) fn killer(&self, copies: usize) -> Outcome<Option<Killer>> {
        match self.kill_every {
            Some(_) if copies < 2 => {
                Err("--kill-every needs two replicas: with the last one the state is gone".into())
            }
            Some(_) if self.groups > 1 => {
                Err("--kill-every counts the replicas of one group: no --groups beside it".into())
            }
            every => Ok(every.map(|every| Killer::new(every, copies))),
        }
    }

    /// Opens the device and returns it with its description; `None`: in memory.
    pub(crate) fn open(&self) -> Outcome<Option<(Box<dyn Device>, String)>> {
        let learns = self.addr6 != Addr6::Nothing || self.has_dhcp();
        let address = match self.has_dhcp() {
            true => Ipv4Addr::UNSPECIFIED,
            false => self.address()?,
        };
        let address6 = match &self.addr6 {
            Addr6::Cidr(cidr) => Some(device::address(cidr)?),
            _ => None,
        };
        self.device.open(address, address6, learns)
    }

    /// Whether a server gives our address.
    fn has_dhcp(&self) -> bool {
        self.addr == "dhcp"
    }

    /// Starts a stack with the addresses and gateways of the command line.
    pub(crate) fn start(
        &self,
        builder: impl FnOnce(&str) -> Builder,
        device: Box<dyn Device>,
    ) -> Outcome<Stack> {
        let mut builder = self.addr6.add_to(builder(&self.addr));
        for another in &self.also {
            builder = builder.address(another);
        }
        for gateway in &self.gateways {
            builder = builder.gateway(*gateway);
        }
        if let Some(second) = &self.second {
            let options = beside(&self.device, &second.name);
            let address = device::address(&second.addresses[0])?;
            let address6 = second.addresses.get(1);
            let address6 = address6.map(|cidr| device::address(cidr)).transpose()?;
            let opened = options.open(address, address6, address6.is_some())?;
            let (device, _) = opened.ok_or("a second interface needs a device")?;
            builder = builder.interface(second.interface(), device);
        }
        Ok(builder.start(device)?)
    }

    /// Our address of IPv4.
    pub(crate) fn address(&self) -> Outcome<Ipv4Addr> {
        device::address(&self.addr)
    }

    /// Returns the addresses of a stack as text, each with `port` if given. It waits until no
    /// other host is known to have the IPv6 addresses, and for a lease.
    pub(crate) fn addresses(&self, stack: &Stack, port: Option<u16>) -> Outcome<String> {
        let others = self.addr6.wait(stack)?.into_iter().map(IpAddr::V6);
        let own = match self.has_dhcp() {
            true => ipv6::wait_for_lease(stack)?,
            false => self.address()?,
        };
        let texts = iter::once(IpAddr::V4(own))
            .chain(others)
            .map(|address| match port {
                Some(port) => SocketAddr::new(address, port).to_string(),
                None => address.to_string(),
            });
        Ok(texts.collect::<Vec<_>>().join(" and "))
    }
}

/// Returns a builder of a stack that these threads run.
pub(crate) fn builder(addr: &str, threads: Threads) -> Builder {
    let mut limits = Limits::default();
    // A connection that we close first stays in TIME-WAIT for a minute.
    limits.connections = 2048;
    // A sender on this machine fills the default of 1 MiB while our threads sleep for a moment.
    // Then each acknowledgment runs its TCP on our thread, and its copies, too. With 4 MiB, bytes
    // that wait to be copied no longer fit the caches of the cores.
    limits.receive_buffer = 2 << 20;
    threads.set_on(Stack::builder(addr)).limits(limits)
}

/// For example `2 replicas`.
fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Returns the same options for another interface.
fn beside(device: &DeviceOptions, name: &str) -> DeviceOptions {
    let name = name.to_owned();
    let which = match device.which {
        Which::Memory => Which::Memory,
        Which::Tap(_) => Which::Tap(name),
        Which::Tun(_) => Which::Tun(name),
        Which::Packet(_) => Which::Packet(name),
        Which::Xdp(_) => Which::Xdp(name),
    };
    let mut other = device.clone();
    other.which = which;
    other
}
