//! Runs the committed corpora through their targets, without libFuzzer.

use std::fs;
use std::path::Path;

fn run_all(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let inputs = fs::read_dir(corpus).expect("a corpus");
    let mut count = 0;
    for input in inputs {
        let bytes = fs::read(input.expect("an entry").path()).expect("an input");
        run(&bytes);
        count += 1;
    }
    assert!(count > 10, "{count} inputs");
}

#[test]
fn the_corpus_of_frames_passes() {
    run_all("frames", dominoes_fuzz::frames::run);
}

#[test]
fn the_corpus_of_segments_passes() {
    run_all("segments", dominoes_fuzz::segments::run);
}

#[test]
fn the_corpus_of_sockets_passes() {
    run_all("sockets", dominoes_fuzz::sockets::run);
}

#[test]
fn the_corpus_of_headers_passes() {
    run_all("headers", dominoes_fuzz::headers::run);
}

#[test]
fn the_corpus_of_channel_passes() {
    run_all("channel", dominoes_fuzz::channel::run);
}

#[test]
fn the_corpus_of_tls_passes() {
    run_all("tls", dominoes_fuzz::tls::run);
}
