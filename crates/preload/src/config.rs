//! The settings, which the launcher passes in environment variables.

use std::net::IpAddr;
use std::str::FromStr;

/// An address with the length of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Cidr, String> {
        let wrong = || format!("`{text}` is no address with prefix; write it like 10.0.0.1/24");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(wrong());
        }
        Ok(Cidr { address, prefix })
    }
}

impl core::fmt::Display for Cidr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Cidr {
    /// Whether an address belongs to this network.
    pub(crate) fn contains(&self, other: IpAddr) -> bool {
        let bits = |ip| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let differs = bits(self.address) ^ bits(other);
        self.address.is_ipv4() == other.is_ipv4()
            && differs.leading_zeros() >= u32::from(self.prefix)
    }
}

/// The kind of device, as the option of the launcher names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tap,
    Tun,
    Packet,
    Xdp,
}

impl Kind {
    pub(crate) const ALL: [(&'static str, Kind); 4] = [
        ("tap", Kind::Tap),
        ("tun", Kind::Tun),
        ("packet", Kind::Packet),
        ("xdp", Kind::Xdp),
    ];
}

/// How the stack starts, and which addresses are reached through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) kind: Kind,
    pub(crate) interface: String,
    /// Our addresses; the first is of IPv4.
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) gateways: Vec<IpAddr>,
    /// 0: as many as improve throughput.
    pub(crate) replicas: usize,
    /// If there are any, only these destinations are ours.
    pub(crate) only: Vec<Cidr>,
    pub(crate) except: Vec<Cidr>,
    /// The servers that are asked for names; without one libc looks them up.
    pub(crate) dns: Vec<IpAddr>,
    pub(crate) has_loopback: bool,
    /// Our addresses of IPv6 are used without a look for others that have them.
    pub(crate) trusts_addresses: bool,
    pub(crate) falls_back: bool,
    pub(crate) prints_stats: bool,
    pub(crate) logs: bool,
}

/// The names of the variables, without `DOMINOES_`.
#[allow(dead_code, reason = "only the launcher uses it")]
pub(crate) const VARIABLES: [&str; 12] = [
    "DEVICE", "ADDR", "GATEWAY", "REPLICAS", "ONLY", "EXCEPT", "DNS", "LOOPBACK", "NODAD",
    "FALLBACK", "STATS", "LOG",
];

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String>
where
    T::Err: core::fmt::Display,
{
    let words = text.split(',').filter(|word| !word.is_empty());
    let parsed = words.map(|word| word.parse().map_err(|error| format!("{word}: {error}")));
    parsed.collect()
}

impl Config {
    /// Reads the settings; `value` returns a variable.
    ///
    /// # Errors
    /// A message for the user.
    pub(crate) fn read(value: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
        let text = |name: &str| value(name).unwrap_or_default();
        let is_set = |name: &str| !matches!(&*text(name), "" | "0");
        let device = text("DEVICE");
        if device.is_empty() {
            return Err(
                "a device is missing; write it like --tap NAME or --packet NAME".to_owned(),
            );
        }
        let (kind, interface) = device.split_once(':').unwrap_or_default();
        let mut kinds = Kind::ALL.iter();
        let kind = kinds.find(|(name, _)| *name == kind);
        let wrong = || format!("`{device}` is no device; DOMINOES_DEVICE is like tap:tap0");
        let (_, kind) = *kind.ok_or_else(wrong)?;
        let mut addresses: Vec<Cidr> = list(&text("ADDR"))?;
        // A stack begins with an address of IPv4, if it has one.
        addresses.sort_by_key(|cidr| cidr.address.is_ipv6());
        if addresses.is_empty() {
            return Err("an address is missing; write it like --addr 10.0.0.1/24".to_owned());
        }
        let replicas = match &*text("REPLICAS") {
            "" => 1,
            "auto" => 0,
            number => match number.parse() {
                Ok(replicas @ 1..=64) => replicas,
                _ => return Err(format!("{number} replicas: not from 1 to 64, nor auto")),
            },
        };
        Ok(Config {
            kind,
            interface: interface.to_owned(),
            addresses,
            gateways: list(&text("GATEWAY"))?,
            replicas,
            only: list(&text("ONLY"))?,
            except: list(&text("EXCEPT"))?,
            dns: list(&text("DNS"))?,
            has_loopback: is_set("LOOPBACK"),
            trusts_addresses: is_set("NODAD"),
            falls_back: is_set("FALLBACK"),
            prints_stats: is_set("STATS"),
            logs: is_set("LOG"),
        })
    }

    /// Whether packets to this destination go through our stack.
    pub(crate) fn routes(&self, remote: IpAddr) -> bool {
        let remote = remote.to_canonical();
        let is_same = |other: &IpAddr| other.is_ipv4() == remote.is_ipv4();
        let has_family = self.addresses.iter().any(|one| is_same(&one.address));
        if remote.is_loopback() || remote.is_unspecified() {
            return self.has_loopback && has_family;
        }
        let is_in = |list: &[Cidr]| list.iter().any(|cidr| cidr.contains(remote));
        let is_reached = is_in(&self.addresses)
            || self.gateways.iter().any(is_same)
            || remote.is_multicast() && has_family;
        is_reached && !is_in(&self.except) && (self.only.is_empty() || is_in(&self.only))
    }

    /// Whether a socket that is bound to this address is ours.
    pub(crate) fn binds(&self, local: IpAddr) -> bool {
        let local = local.to_canonical();
        match local.is_unspecified() {
            true => self
                .addresses
                .iter()
                .any(|one| one.address.is_ipv4() || local.is_ipv6()),
            false if local.is_loopback() => self.routes(local),
            false => self.addresses.iter().any(|one| one.address == local) || local.is_multicast(),
        }
    }
}
