//! Settings that cannot be.

use core::fmt;
use core::net::IpAddr;

/// What the variants are called, in the order of `dominoes_netstack::variants::VariantKind`.
pub const VARIANT_NAMES: [&str; 9] = [
    "single",
    "locked",
    "locked-mcs",
    "locked-2",
    "locked-2-mcs",
    "locked-6",
    "locked-6-mcs",
    "pipelined",
    "replicated",
];

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is outside its range.
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
    /// Two settings exclude each other.
    Conflict {
        /// What was asked for.
        what: &'static str,
        /// What rules it out.
        with: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A gateway is on no network of its interface, or is the stack itself.
    NotNeighbor {
        /// The gateway.
        gateway: IpAddr,
    },
    /// Something was asked for that this build leaves out.
    MissingFeature {
        /// What was asked for.
        what: &'static str,
        /// The feature of dominoes-netstack that has it.
        feature: &'static str,
    },
    /// No variant has this name.
    UnknownVariant(String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::OutOfRange {
                field,
                value,
                allowed,
            } => write!(f, "`{field}` is {value}; set it to {allowed}"),
            ConfigError::Conflict {
                what,
                with,
                instead,
            } => write!(f, "{what} cannot be had with {with}; {instead}"),
            ConfigError::NotNeighbor { gateway } => write!(
                f,
                "the gateway {gateway} is on no network of the interface; give it an address there"
            ),
            ConfigError::MissingFeature { what, feature } => write!(
                f,
                "{what} is not in this build; enable the feature `{feature}` of dominoes-netstack"
            ),
            ConfigError::UnknownVariant(name) => {
                let [others @ .., last] = VARIANT_NAMES;
                let others = others.join(", ");
                write!(f, "no variant is called `{name}`; say {others} or {last}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
