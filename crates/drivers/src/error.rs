//! What can go wrong with a device, in words that help.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Why a device could not be opened, or cannot go on.
///
/// `errno` fields are Linux error numbers as in `errno(3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// A privilege is missing.
    Privilege {
        /// What was refused.
        what: &'static str,
        /// The capability that allows it, as in `capabilities(7)`.
        capability: &'static str,
        /// A command that helps.
        command: String,
        /// The number that the kernel returned.
        errno: i32,
    },
    /// There is no interface of that name in this network namespace.
    NoSuchInterface {
        /// The name asked for.
        interface: String,
    },
    /// The name cannot be an interface's name.
    BadName {
        /// The name asked for.
        interface: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The interface exists but is of the wrong sort.
    Unsuitable {
        /// The interface asked for.
        interface: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Somebody else has the interface open.
    Busy {
        /// The interface asked for.
        interface: String,
    },
    /// The kernel itself owns the address, so it would answer in our place: resets for our TCP
    /// connections, replies to ARP requests and neighbor solicitations for our address.
    AddressInUse {
        /// The address we are to use.
        address: IpAddr,
        /// The interface that has it.
        interface: String,
        /// Length of its prefix in bits.
        prefix_len: u8,
    },
    /// The interface is administratively down. It works again when it comes up.
    Down {
        /// The interface.
        interface: String,
    },
    /// The interface, or the other end, is gone for good.
    Gone {
        /// The interface.
        interface: String,
    },
    /// This kernel cannot do it.
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// A command or setting that helps.
        hint: &'static str,
        /// The number that the kernel returned.
        errno: i32,
    },
    /// Any other failure of a system call.
    System {
        /// What was tried.
        what: &'static str,
        /// The interface it was tried on.
        interface: String,
        /// The number that the kernel returned.
        errno: i32,
    },
}

impl DeviceError {
    /// The failure of a system call that has no variant of its own.
    #[cfg(target_os = "linux")]
    pub(crate) fn system(what: &'static str, interface: &str, error: &io::Error) -> Self {
        Self::System {
            what,
            interface: interface.to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// The number of the operating system's error, if one is behind this.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Privilege { errno, .. }
            | Self::Unsupported { errno, .. }
            | Self::System { errno, .. } => Some(*errno).filter(|errno| *errno != 0),
            _ => None,
        }
    }

    /// Whether the device can work again without being opened anew.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Down { .. })
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |errno: &i32| io::Error::from_raw_os_error(*errno);
        match self {
            Self::Privilege {
                what,
                capability,
                command,
                errno,
            } => {
                write!(
                    f,
                    "{what}: {}; it needs {capability}, try: {command}",
                    text(errno)
                )
            }
            Self::NoSuchInterface { interface } => {
                write!(
                    f,
                    "no interface '{interface}' in this network namespace; see: ip link show"
                )
            }
            Self::BadName { interface, reason } => {
                write!(f, "'{interface}' is no interface name: {reason}")
            }
            Self::Unsuitable { interface, reason } => {
                write!(f, "interface {interface} does not fit: {reason}")
            }
            Self::Busy { interface } => {
                write!(
                    f,
                    "interface {interface} is in use by another process; see: ip tuntap show"
                )
            }
            Self::AddressInUse {
                address,
                interface,
                prefix_len,
            } => write!(
                f,
                "the kernel owns {address} and would answer in our place, \
                 try: ip addr del {address}/{prefix_len} dev {interface}, or ask to guard it"
            ),
            Self::Down { interface } => write!(
                f,
                "interface {interface} is down, try: ip link set {interface} up"
            ),
            Self::Gone { interface } => write!(f, "interface {interface} is gone"),
            Self::Unsupported { what, hint, errno } => write!(f, "{what}: {}; {hint}", text(errno)),
            Self::System {
                what,
                interface,
                errno,
            } => write!(f, "{what} on {interface}: {}", text(errno)),
        }
    }
}

impl std::error::Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_command_that_helps() {
        let error = DeviceError::AddressInUse {
            address: [10, 0, 0, 1].into(),
            interface: "eth0".to_owned(),
            prefix_len: 24,
        };
        assert!(
            error
                .to_string()
                .contains("try: ip addr del 10.0.0.1/24 dev eth0,"),
            "{error}"
        );
    }

    #[test]
    fn only_a_link_that_is_down_may_come_back() {
        assert!(
            DeviceError::Down {
                interface: "x".to_owned()
            }
            .is_temporary()
        );
        assert!(
            !DeviceError::Gone {
                interface: "x".to_owned()
            }
            .is_temporary()
        );
    }
}
