//! Errors about invalid settings.

use core::fmt;
use core::net::IpAddr;

/// The names of the variants, in the order of `dominoes_netstack::variants::VariantKind`.
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

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is outside its range.
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Two settings exclude each other.
    Conflict {
        /// The requested setting.
        what: &'static str,
        /// The setting that excludes it.
        with: &'static str,
        /// The alternative.
        instead: &'static str,
    },
    /// A gateway is on no network of its interface, or is the stack itself.
    NotNeighbor {
        /// The gateway.
        gateway: IpAddr,
    },
    /// This build omits a feature that a setting needs.
    MissingFeature {
        /// The requested setting.
        what: &'static str,
        /// The feature of dominoes-netstack that provides it.
        feature: &'static str,
    },
    /// No variant has this name.
    UnknownVariant(String),
}

impl ConfigError {
    /// An error if there is a value that is not allowed: its field, it, and what is allowed.
    #[doc(hidden)]
    pub fn check(found: Option<(&'static str, u64, &'static str)>) -> Result<(), ConfigError> {
        match found {
            None => Ok(()),
            Some((field, value, allowed)) => Err(ConfigError::OutOfRange {
                field,
                value,
                allowed,
            }),
        }
    }
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
