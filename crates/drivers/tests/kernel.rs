//! Tests TAP, AF_PACKET and AF_XDP against the kernel's stack.
//!
//! The tests run in a separate network namespace, which this program enters by restarting itself
//! under `unshare`. So nothing else on the machine is affected, and everything created here is
//! removed at the end. A test that cannot run is shown as ignored, with the reason;
//! `REQUIRE=packet,tap,xdp,tools` makes that a failure.

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
