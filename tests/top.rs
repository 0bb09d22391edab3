//! Tests the output of `examples/top.rs` for a stack under load.

#[path = "../examples/top/frame.rs"]
#[allow(dead_code, reason = "the live view uses the rest")]
mod frame;
#[path = "../examples/top/load.rs"]
mod load;

use std::thread::sleep;
use std::time::Duration;

use dominoes_netstack::Stack;
use frame::Sample;

/// How often a test looks at most, 50 ms apart: enough on a busy machine.
const LOOKS: u32 = 6000;

/// The frame of `stack` with `width` columns, once there are four established connections, and both
/// addresses of each connection.
fn frame_of_four(stack: &Stack, width: u16) -> (String, Vec<[String; 2]>) {
    let first = Sample::at(stack);
    for _ in 0..LOOKS {
        let sample = Sample::at(stack);
        let text = frame::text("a test", &first, &sample, width);
        if text.matches("Established").count() == 4 {
            // A second list could be of a replica that is behind, and lack one of them.
            let both = sample.connections.iter().map(|one| [one.local, one.remote]);
            return (
                text,
                both.map(|both| both.map(|one| one.to_string())).collect(),
            );
        }
        sleep(Duration::from_millis(50));
    }
    panic!(
        "four connections are not established:\n{}",
        frame::text("a test", &first, &Sample::at(stack), width)
    );
}

/// The first number after `word`, in a line that begins with it.
fn second(text: &str, word: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(word));
    let line = line.unwrap_or_else(|| panic!("no line begins with {word}:\n{text}"));
    let rest = line[word.len()..].trim_start();
    rest.split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_frame_shows_threads_the_log_and_every_connection() {
    for names in [&["single"][..], &["replica 0", "replica 1"]] {
        let (device, far) = load::wire();
        let stack = Stack::builder("10.78.0.1/24").replicas(names.len());
        let stack = stack.start(device).unwrap();
        load::serve(&stack).unwrap();
        let peer = load::drive(far, "10.78.0.1/24").unwrap();
        let first = Sample::at(&stack);
        let mut text = String::new();
        let works = |text: &str| names.iter().all(|name| second(text, name) != "0");
        // On a busy machine it takes a while until every thread has reported activity.
        for _ in 0..LOOKS {
            sleep(Duration::from_millis(50));
            text = frame::text("a test", &first, &Sample::at(&stack), 120);
            if works(&text) && text.matches("Established").count() == 4 {
                break;
            }
        }
        assert!(works(&text), "{text}");
        assert!(text.starts_with("a test\n"), "{text}");
        assert!(text.contains("frames/s in"), "{text}");
        assert_eq!(text.matches("Established").count(), 4, "{text}");
        assert_eq!(text.matches("10.78.0.1:9 ").count(), 3, "{text}");
        assert_eq!(text.contains("log: "), names.len() > 1, "{text}");
        drop(peer);
    }
}

/// The addresses have the maximum length, and the names of the threads have one more number than
/// usual.
#[test]
fn addresses_and_ports_are_whole_at_80_and_at_120_columns() {
    const ADDRESS: &str = "198.198.198.198/16";
    let (device, far) = load::wire();
    let builder = Stack::builder(ADDRESS).replicas(2).groups(2);
    let stack = builder.start(device).unwrap();
    load::serve(&stack).unwrap();
    let peer = load::drive(far, ADDRESS).unwrap();
    let heads = [
        (
            80,
            &["local", "remote", "state", "rtt", "in/s", "out/s"][..],
        ),
        (
            120,
            &[
                "local",
                "remote",
                "state",
                "cwnd",
                "rtt",
                "bytes in",
                "in/s",
                "bytes out",
                "out/s",
            ],
        ),
    ];
    for (width, names) in heads {
        // Ephemeral ports of the peer have five digits; they appear in the local and in the remote
        // column.
        for stack in [&stack, &peer] {
            let (text, connections) = frame_of_four(stack, width);
            assert_eq!(connections.len(), 4, "{text}");
            for both in connections {
                let [local, remote] = &both;
                let shown = text.lines().any(|line| {
                    let mut words = line.split_whitespace();
                    words.next() == Some(local) && words.next() == Some(remote)
                });
                assert!(shown, "{width} columns, {both:?}:\n{text}");
            }
            let head = text.lines().find(|line| line.starts_with("local"));
            let head = head.unwrap_or_else(|| panic!("no head:\n{text}"));
            let words: Vec<&str> = head.split_whitespace().collect();
            assert_eq!(words.join(" "), names.join(" "), "{width} columns:\n{text}");
            assert!(
                text.lines()
                    .all(|line| line.chars().count() <= usize::from(width))
            );
            let summary = text.lines().nth(2).unwrap_or_default();
            let whole = summary.ends_with(" segments with bad checksums");
            assert!(whole, "{width} columns:\n{text}");
        }
        let (text, _) = frame_of_four(&stack, width);
        for name in ["group 0 replica 0 ", "group 1 replica 1 "] {
            assert!(text.contains(name), "{width} columns, {name}:\n{text}");
        }
    }
}
