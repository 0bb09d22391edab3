//! TAP, AF_PACKET and AF_XDP against the kernel's own stack.
//!
//! The tests run in a network namespace of their own, which this program enters by starting itself
//! again under `unshare`, so nothing on the machine is touched and everything made here goes when
//! it ends. What cannot run is shown as ignored, with the reason; `REQUIRE=packet,tap,xdp,tools`
//! makes that a failure.

#[cfg(target_os = "linux")]
#[path = "kernel/linux.rs"]
mod linux;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("ignored: this is not Linux");
}
