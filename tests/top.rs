//! What `examples/top.rs` shows of a stack under load.

#[path = "../examples/top/frame.rs"]
#[allow(dead_code, reason = "the live view uses the rest")]
mod frame;
#[path = "../examples/top/load.rs"]
mod load;

use std::thread::sleep;
use std::time::Duration;

use dominoes_netstack::Stack;
use frame::Look;

/// The first number behind `word`, in a line that begins with it.
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
        let first = Look::at(&stack);
        let mut text = String::new();
        let works = |text: &str| names.iter().all(|name| second(text, name) != "0");
        // On a busy machine it takes a while until every thread has told something.
        for _ in 0..200 {
            sleep(Duration::from_millis(50));
            text = frame::text("a test", &first, &Look::at(&stack));
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
