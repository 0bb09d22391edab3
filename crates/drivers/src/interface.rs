//! Names and Ethernet addresses of interfaces.

use crate::DeviceError;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Longest name of an interface, in bytes.
const MAX_NAME_LEN: usize = 15;

/// How long opening waits for a user that has closed: the kernel takes a queue down some time
/// later, and a child process has copies of all descriptors between fork(2) and execve(2).
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Repeats `call` while it fails with `EBUSY`, for [`BUSY_TIMEOUT`].
pub(crate) fn while_busy(call: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        let result = call();
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        if !result.as_ref().is_err_and(is_busy) || begin.elapsed() > BUSY_TIMEOUT {
            return result;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Rejects names that the kernel would refuse with a vaguer error, or would misunderstand.
pub(crate) fn check_name(name: &str) -> Result<(), DeviceError> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.len() > MAX_NAME_LEN {
        "it is longer than 15 bytes"
    } else if name == "." || name == ".." {
        "it is a directory"
    } else if name.contains('%') {
        "a percent sign stands for a number that the kernel chooses"
    } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control()) {
        "it has a slash, a colon or a blank in it"
    } else {
        return Ok(());
    };
    Err(DeviceError::BadName {
        interface: name.to_owned(),
        reason,
    })
}

/// A locally administered unicast address derived from the name, hence constant.
pub(crate) fn local_mac(name: &str) -> [u8; 6] {
    // FNV-1a, 64 bits.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut mac = [0; 6];
    mac.copy_from_slice(&hash.to_be_bytes()[2..]);
    mac[0] = (mac[0] & !0x01) | 0x02;
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for good in ["eth0", "a", "veth-12345678-a", "ens3.100"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in [
            "",
            "sixteen-bytes-xx",
            "a/b",
            "a b",
            "a:1",
            "tap%d",
            ".",
            "..",
            "a\0",
        ] {
            assert!(
                matches!(check_name(bad), Err(DeviceError::BadName { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_made_up_address_is_local_unicast_and_belongs_to_the_name() {
        for name in ["tap0", "tap1", "veth0", ""] {
            assert_eq!(local_mac(name)[0] & 0x03, 0x02);
        }
        assert_eq!(local_mac("tap0"), local_mac("tap0"));
        assert_ne!(local_mac("tap0"), local_mac("tap1"));
    }
}
