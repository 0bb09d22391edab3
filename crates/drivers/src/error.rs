//! Errors of devices.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// The reason why a device cannot be opened, or has stopped working.
///
/// `errno` fields are Linux error numbers as in `errno(3)`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceError {
    /// A privilege is missing.
    Privilege {
        /// The operation that was refused.
        what: &'static str,
        /// The capability that allows it, as in `capabilities(7)`.
        capability: &'static str,
        /// A command that grants the capability.
        command: String,
        /// The error number of the kernel.
        errno: i32,
    },
    /// This network namespace has no interface of that name.
    NoSuchInterface {
        /// The name.
        interface: String,
    },
    /// The name is not a possible name of an interface.
    BadName {
        /// The name.
        interface: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The interface exists but is of the wrong kind.
    Unsuitable {
        /// The interface.
        interface: String,
        /// The reason.
        reason: &'static str,
    },
    /// Another process or socket has the interface open.
    Busy {
        /// The interface.
        interface: String,
    },
    /// The kernel itself has the address, so it would answer in our place: with resets for our TCP
    /// connections, and with replies to ARP requests and neighbor solicitations for our address.
    AddressInUse {
        /// The address that we are configured to use.
        address: IpAddr,
        /// The interface that has it.
        interface: String,
        /// Length of the address's prefix, in bits.
        prefix_len: u8,
    },
    /// The interface is administratively down. The device works again when the interface comes up.
    Down {
        /// The interface.
        interface: String,
    },
    /// The interface, or the other end of the link, is gone for good.
    Gone {
        /// The interface.
        interface: String,
    },
    /// This kernel lacks a feature.
    Unsupported {
        /// The feature.
        what: &'static str,
        /// A command or setting that provides it.
        hint: &'static str,
        /// The error number of the kernel.
        errno: i32,
    },
    /// Any other failure of a system call.
    System {
        /// The operation that failed.
        what: &'static str,
        /// The interface it was meant for.
        interface: String,
        /// The error number of the kernel.
        errno: i32,
    },
}

impl DeviceError {
    /// A failed system call without a more specific variant.
    #[cfg(target_os = "linux")]
    pub(crate) fn system(what: &'static str, interface: &str, error: &io::Error) -> Self {
        Self::System {
            what,
            interface: interface.to_owned(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// The operating system's error number, if a system call failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Privilege { errno, .. }
            | Self::Unsupported { errno, .. }
            | Self::System { errno, .. } => Some(*errno).filter(|errno| *errno != 0),
            _ => None,
        }
    }

    /// Whether the device can work again without being reopened.
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
                 try: ip addr del {address}/{prefix_len} dev {interface}{}",
                if address.is_ipv4() {
                    ", or ask to guard it"
                } else {
                    ""
                }
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
