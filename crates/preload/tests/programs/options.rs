//! The options of the launcher, and names of hosts.

use std::process::Command;

use libtest_mimic::Failed;

use crate::fixture::{
    Device, Folder, OURS, OURS_V6, Program, THEIRS, THEIRS_V6, add_ipv6, ends, launcher, library,
    run,
};
use crate::rates::name_server;
use crate::tools::{Test, tests, words};

pub(crate) const ALL: &[Test] = tests! {
    options_choose_the_sockets_that_are_ours: "python3";
    without_a_device_or_with_wrong_options_nothing_runs: "python3";
    the_log_names_sockets: "python3";
    names_have_the_addresses_that_libc_finds: "python3" "dnsmasq";
};

/// Connects to an address, and prints the number of the error, or 0.
const CONNECT: &str = "
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
print('error', socket.socket(family).connect_ex((sys.argv[1], 8000)))
";

/// Options, a destination, the error, and whether the socket was ours.
const CASES: [(&str, &str, i32, bool); 18] = [
    ("", "10.78.0.2", 0, true),
    ("--replicas 2", "10.78.0.2", 0, true),
    ("--replicas auto", "10.78.0.2", 0, true),
    ("--only 10.78.0.2/32", "10.78.0.2", 0, true),
    (
        "--only 10.78.0.4/30 --only 10.78.0.2/31",
        "10.78.0.2",
        0,
        true,
    ),
    ("--only 10.78.0.4/30", "10.78.0.2", libc::ENETUNREACH, false),
    (
        "--except 10.78.0.0/30",
        "10.78.0.2",
        libc::ENETUNREACH,
        false,
    ),
    ("--except 10.78.0.4/30", "10.78.0.2", 0, true),
    ("", "192.0.2.1", libc::ENETUNREACH, false),
    ("--gateway 10.78.0.2", "192.0.2.1", 0, true),
    (
        "--gateway 10.78.0.2 --except 192.0.2.0/24",
        "192.0.2.1",
        libc::ENETUNREACH,
        false,
    ),
    ("--addr6 fd78::1/64", "fd78::2", 0, true),
    ("--nodad --addr6 fd78::1/64", "fd78::2", 0, true),
    (
        "--addr6 fd78::1/64 --except fd78::/64",
        "fd78::2",
        libc::ENETUNREACH,
        false,
    ),
    ("", "127.0.0.1", libc::ECONNREFUSED, false),
    ("--loopback", "127.0.0.1", libc::ECONNREFUSED, true),
    ("--loopback", "::1", libc::ECONNREFUSED, false),
    (
        "--loopback --addr6 fd78::1/64",
        "::1",
        libc::ECONNREFUSED,
        true,
    ),
];

fn options_choose_the_sockets_that_are_ours() -> Result<(), Failed> {
    let ends = ends(Device::Packet)?;
    add_ipv6(&ends.peer, ends.interface(), THEIRS_V6)?;
    ends.peer.ip("addr add 192.0.2.1/32 dev lo")?;
    let line = "-u -m http.server 8000 --bind ::";
    let _server = Program::serve(words(&mut ends.peer.command("python3"), line), "Serving")?;
    for (options, to, error, is_ours) in CASES {
        let options: Vec<&str> = options.split_whitespace().collect();
        let text = run(launcher(&ends, &options).args(["python3", "-c", CONNECT, to]))?;
        let was_ours = text.contains(": 1 sockets used Dominoes");
        if !text.contains(&format!("error {error}\n")) || was_ours != is_ours {
            return Err(format!("{options:?} {to}: {text}").into());
        }
    }
    Ok(())
}

/// Runs a command to its end. Returns its exit code and its output.
fn outcome(command: &mut Command) -> Result<(Option<i32>, String), Failed> {
    let output = command.output()?;
    let text = [output.stdout, output.stderr].concat();
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

fn without_a_device_or_with_wrong_options_nothing_runs() -> Result<(), Failed> {
    let lines = [
        (
            "--packet nothing0 --addr 10.78.0.1/24 -- true",
            127,
            "nothing0",
        ),
        (
            "--packet nothing0 --addr 10.78.0.1/24 --fallback -- echo it runs",
            0,
            "it runs",
        ),
        (
            "--tap nothing0 --addr 10.78.0.1/24 -- true",
            127,
            "nothing0",
        ),
        ("--packet lo -- true", 127, "an address is missing"),
        (
            "--packet lo --addr 10.78.0.1 -- true",
            127,
            "no address with prefix",
        ),
        (
            "--packet lo --addr 10.78.0.1/33 -- true",
            127,
            "no address with prefix",
        ),
        ("--addr 10.78.0.1/24 -- true", 127, "--packet NAME"),
        (
            "--packet lo --addr 10.78.0.1/24 --replicas 65 -- true",
            127,
            "65 replicas",
        ),
        (
            "--packet lo --addr 10.78.0.1/24 --gateway here -- true",
            127,
            "here",
        ),
        (
            "--packet lo --addr 10.78.0.1/24 --dns here -- true",
            127,
            "here",
        ),
        (
            "--packet lo --addr 10.78.0.1/24 --sideways -- true",
            127,
            "--sideways",
        ),
        ("--packet lo --addr 10.78.0.1/24", 127, "no program"),
        ("--help", 0, "--fallback"),
    ];
    for (line, code, said) in lines {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dominoes-run"));
        let (ended, text) = outcome(words(&mut command, line))?;
        if ended != Some(code) || !text.contains(said) {
            return Err(format!("{line}: {ended:?}: {text}").into());
        }
    }
    // The library by itself.
    let ends = ends(Device::Packet)?;
    for (fallback, code, said) in [("", 127, "nothing0"), ("1", 0, "error 101")] {
        let mut command = ends.ours().command("python3");
        command
            .env("LD_PRELOAD", library())
            .env("DOMINOES_DEVICE", "packet:nothing0");
        command
            .env("DOMINOES_ADDR", "10.78.0.1/24")
            .env("DOMINOES_FALLBACK", fallback);
        let (ended, text) = outcome(command.args(["-c", CONNECT, THEIRS]))?;
        if ended != Some(code) || !text.contains(said) {
            return Err(format!("fallback {fallback}: {ended:?}: {text}").into());
        }
    }
    Ok(())
}

fn the_log_names_sockets() -> Result<(), Failed> {
    let ends = ends(Device::Tap)?;
    for (options, variable, is_logged) in [
        (&[][..], "", false),
        (&["--log"], "", true),
        (&[], "1", true),
    ] {
        let mut command = launcher(&ends, options);
        command.env("DOMINOES_LOG", variable);
        let program = format!("{CONNECT}\nsocket.socket().bind(('127.0.0.1', 0))");
        let text = run(command.args(["python3", "-c", &program, THEIRS]))?;
        for said in [
            "the stack runs at 10.78.0.1/24",
            " uses Dominoes",
            " uses the kernel",
        ] {
            if text.contains(said) != is_logged {
                return Err(format!("{options:?} {variable}: {text}").into());
            }
        }
    }
    Ok(())
}

/// Prints what `getaddrinfo` returns for each question, as libc's codes have it.
const RESOLVE: &str = "
import socket, sys
from socket import *
for question in sys.stdin.read().splitlines():
    host, service, family, kind, flags = eval(question)
    try:
        found = getaddrinfo(host, service, family, kind, 0, flags)
        print(question, [(int(f), int(t), p, name, at) for f, t, p, name, at in found])
    except gaierror as error:
        print(question, 'error', error.errno)
";

const QUESTIONS: &str = "'one.test', 80, 0, 0, 0
'one.test', None, 0, SOCK_STREAM, 0
'one.test', 'http', AF_INET, SOCK_STREAM, AI_CANONNAME
'one.test', 'http', AF_INET6, SOCK_STREAM, 0
'one.test', 80, AF_INET6, SOCK_DGRAM, AI_V4MAPPED
'one.test', 80, AF_INET6, SOCK_DGRAM, AI_V4MAPPED | AI_ALL
'one.test.', 80, AF_INET, SOCK_DGRAM, 0
'ONE.TEST', 80, 0, SOCK_DGRAM, AI_ADDRCONFIG
'both.test', 80, 0, SOCK_STREAM, 0
'both.test', 80, 0, 0, AI_CANONNAME | AI_ADDRCONFIG
'both.test', 80, AF_INET, SOCK_STREAM, 0
'both.test', 80, AF_INET6, SOCK_STREAM, 0
'both.test', 80, AF_INET6, SOCK_STREAM, AI_V4MAPPED
'both.test', 80, AF_INET6, SOCK_STREAM, AI_V4MAPPED | AI_ALL
'x.gone', 80, 0, 0, 0
'x.gone', 80, AF_INET, SOCK_STREAM, AI_CANONNAME
'refused.example', 80, 0, 0, 0
'one.test', 80, 0, 0, AI_NUMERICHOST
'one.test', 'nonsense', 0, 0, 0
'one.test', 'http', 0, 0, AI_NUMERICSERV
'one.test', 80, 99, 0, 0
'one.test', 80, 0, 99, 0
'one.test', 80, 0, 0, 0x8000
'10.78.0.9', 80, 0, SOCK_STREAM, AI_CANONNAME
'10.78.0.9', 80, AF_INET6, 0, 0
'10.78.0.9', 80, AF_INET6, SOCK_STREAM, AI_V4MAPPED
'127.1', 80, 0, SOCK_STREAM, 0
'fd78::9', 80, 0, SOCK_STREAM, 0
'fd78::9', 80, AF_INET, SOCK_STREAM, 0
'localhost', 80, AF_INET, SOCK_STREAM, 0
None, 80, 0, SOCK_STREAM, AI_PASSIVE
None, 80, 0, SOCK_STREAM, 0
None, None, 0, 0, 0
'', 80, 0, 0, 0
b'a' * 64 + b'.test', 80, 0, 0, 0
b'b..test', 80, 0, 0, 0
";

fn names_have_the_addresses_that_libc_finds() -> Result<(), Failed> {
    let (ends, folder) = (ends(Device::Packet)?, Folder::new()?);
    let questions = folder.write("questions", QUESTIONS.as_bytes())?;
    add_ipv6(&ends.peer, ends.interface(), THEIRS_V6)?;
    let _server = name_server(&mut ends.peer.command("env"), THEIRS)?;
    let line = format!("exec python3 -c \"$0\" < {}", questions.display());
    let program = ["sh", "-c", &line, RESOLVE];
    let address = format!("{OURS_V6}/64");
    let ours = run(launcher(&ends, &["--addr6", &address, "--dns", THEIRS]).args(program))?;
    // `ip netns exec` puts this file in the place of `/etc/resolv.conf`.
    let etc = Folder(format!("/etc/netns/{}", ends.ours().name).into());
    std::fs::create_dir_all(&etc.0)?;
    etc.write("resolv.conf", format!("nameserver {THEIRS}\n").as_bytes())?;
    ends.ours().ip(&format!("addr add {OURS}/24 dev veth0"))?;
    add_ipv6(ends.ours(), "veth0", OURS_V6)?;
    let libcs = run(ends.ours().command("env").args(program))?;
    let pairs = libcs
        .lines()
        .zip(ours.lines())
        .filter(|(libcs, ours)| libcs != ours);
    let wrong: Vec<_> = pairs
        .map(|(libcs, ours)| format!("libc: {libcs}\nwe:   {ours}"))
        .collect();
    let said = ours.contains(" sockets used Dominoes") && libcs.contains(THEIRS_V6);
    match wrong.is_empty() && said && libcs.lines().count() == QUESTIONS.lines().count() {
        true => Ok(()),
        false => Err(wrong.join("\n").into()),
    }
}
