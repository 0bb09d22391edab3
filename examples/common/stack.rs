//! What the examples on a device take from the command line for their stack.

pub(crate) mod device;
mod ipv6;
pub(crate) mod killer;

use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use dominoes_drivers::Device;
use dominoes_netstack::{Builder, Interface, Limits, Stack};

use crate::Outcome;
use device::{DeviceOptions, Which};
use ipv6::Addr6;
use killer::Killer;

/// The options that [`StackOptions::take`] takes besides those of the device.
pub(crate) const USAGE: &str = "  --addr CIDR         our address and its prefix [10.78.0.1/24]
  --also CIDR         another address there, as often as wanted
  --addr6 CIDR        the same of IPv6, or auto: as routers advertise [no IPv6]
  --second NAME,CIDR  another interface of the same kind with its address, and behind another comma
                      one of IPv6 if it has that, too [none]
  --gateway IP        who forwards to other networks, once for each family [nobody]
  --replicas N        threads that run the stack, each with a copy of its state [2]
  --kill-every N      for trials: a replica's thread dies each N seconds, 0.05 say, and another joins [never]
";

/// The device of a stack, its addresses, and the threads that run it.
pub(crate) struct StackOptions {
    device: DeviceOptions,
    addr: String,
    also: Vec<String>,
    addr6: Addr6,
    second: Option<Second>,
    gateways: Vec<IpAddr>,
    replicas: Option<usize>,
    kill_every: Option<Duration>,
}

/// Another interface: its name, and at least one address of it.
struct Second {
    name: String,
    addresses: Vec<String>,
}

impl Second {
    fn parse(words: &str) -> Outcome<Second> {
        let mut words = words.split(',').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        let addresses: Vec<_> = words.collect();
        if addresses.is_empty() {
            return Err("--second needs a name and an address, as in veth1,10.79.0.1/24".into());
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
            kill_every: None,
        }
    }
}

impl StackOptions {
    /// What the command line says of the stack and of its device. Every other argument goes to
    /// `own`, with the parser that has its value. `None`: help is asked for.
    pub(crate) fn from_command_line(
        mut own: impl FnMut(lexopt::Arg<'_>, &mut lexopt::Parser) -> Outcome<()>,
    ) -> Outcome<Option<StackOptions>> {
        use lexopt::prelude::*;
        let mut options = StackOptions::default();
        let mut parser = lexopt::Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Long("help") | Short('h') => return Ok(None),
                Long(option) => {
                    let option = option.to_owned();
                    if StackOptions::knows(&option) {
                        options.take(&option, &mut parser)?;
                    } else {
                        own(Long(&option), &mut parser)?;
                    }
                }
                Short(option) => own(Short(option), &mut parser)?,
                Value(value) => own(Value(value), &mut parser)?,
            }
        }
        Ok(Some(options))
    }

    /// Whether an option says something of the stack or of its device.
    fn knows(option: &str) -> bool {
        let own = [
            "addr",
            "also",
            "addr6",
            "second",
            "gateway",
            "replicas",
            "kill-every",
        ];
        own.contains(&option) || DeviceOptions::knows(option)
    }

    /// Takes an option that it [knows](Self::knows), and its value.
    fn take(&mut self, option: &str, parser: &mut lexopt::Parser) -> Outcome<()> {
        use lexopt::ValueExt;
        match option {
            "addr" => self.addr = parser.value()?.string()?,
            "also" => self.also.push(parser.value()?.string()?),
            "addr6" => self.addr6 = Addr6::parse(parser.value()?.string()?),
            "second" => self.second = Some(Second::parse(&parser.value()?.string()?)?),
            "gateway" => self.gateways.push(parser.value()?.parse()?),
            "replicas" => self.replicas = Some(parser.value()?.parse()?),
            "kill-every" => {
                let seconds: f64 = parser.value()?.parse()?;
                self.kill_every = Some(Duration::try_from_secs_f64(seconds)?);
            }
            other => self.device.take(other, parser)?,
        }
        Ok(())
    }

    /// How many threads run the stack, where `usual` many do unless told otherwise.
    pub(crate) fn replicas(&self, usual: usize) -> usize {
        self.replicas.unwrap_or(usual)
    }

    /// What lets replicas die, if that was asked for, of a state that has `copies`.
    ///
    /// # Errors
    /// With the last copy the state would be gone.
    pub(crate) fn killer(&self, copies: usize) -> Outcome<Option<Killer>> {
        match self.kill_every {
            Some(_) if copies < 2 => {
                Err("--kill-every needs two replicas: with the last one the state is gone".into())
            }
            every => Ok(every.map(|every| Killer::new(every, copies))),
        }
    }

    /// Opens the device, and says what it is; `None`: in memory.
    pub(crate) fn open(&self) -> Outcome<Option<(Box<dyn Device>, String)>> {
        let has_ipv6 = self.addr6 != Addr6::Nothing;
        self.device.open(self.address()?, has_ipv6)
    }

    /// Starts a stack with the addresses and gateways that were asked for.
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
            let opened = options.open(address, second.addresses.len() > 1)?;
            let (device, _) = opened.ok_or("a second interface needs a device")?;
            builder = builder.interface(second.interface(), device);
        }
        Ok(builder.start(device)?)
    }

    /// Our address of IPv4.
    pub(crate) fn address(&self) -> Outcome<Ipv4Addr> {
        device::address(&self.addr)
    }

    /// The addresses of a stack, with `port` if there is one, once it is known that no other host
    /// has those of IPv6.
    pub(crate) fn addresses(&self, stack: &Stack, port: Option<u16>) -> Outcome<String> {
        let others = self.addr6.wait(stack)?.into_iter().map(IpAddr::V6);
        let texts =
            iter::once(IpAddr::V4(self.address()?))
                .chain(others)
                .map(|address| match port {
                    Some(port) => SocketAddr::new(address, port).to_string(),
                    None => address.to_string(),
                });
        Ok(texts.collect::<Vec<_>>().join(" and "))
    }
}

/// A stack of so many replicas.
pub(crate) fn builder(addr: &str, replicas: usize) -> Builder {
    let mut limits = Limits::default();
    // Connections that we close first stay for a minute, in TIME-WAIT.
    limits.connections = 2048;
    Stack::builder(addr).replicas(replicas).limits(limits)
}

/// As in `2 replicas`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The same options for another interface.
fn beside(device: &DeviceOptions, name: &str) -> DeviceOptions {
    let name = name.to_owned();
    let which = match device.which {
        Which::Memory => Which::Memory,
        Which::Tap(_) => Which::Tap(name),
        Which::Packet(_) => Which::Packet(name),
        Which::Xdp(_) => Which::Xdp(name),
    };
    let mut other = device.clone();
    other.which = which;
    other
}
