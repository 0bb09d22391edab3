//! The example `ingest`: `curl` uploads a file, and `b3sum` computes the same digest.

use std::fs;
use std::time::Instant;

use libtest_mimic::Failed;

use crate::fixture::{Fixture, OURS, Temporary};
use crate::services::curl;
use crate::{rate, same};

/// Name, and arguments of the example.
pub(crate) const TESTS: [(&str, &[&str]); 2] = [
    ("an_upload_is_digested_as_by_b3sum", &[]),
    (
        "an_upload_is_digested_as_by_b3sum_while_replicas_die",
        &["--kill-every", "0.05"],
    ),
];

/// Bytes of the file: no multiple of the example's pieces.
const BYTES: usize = 300_000_001;
/// Bytes of a piece.
const PIECE: usize = 8 << 10;
/// Pieces from one searched string to the next. Each string crosses the edge of a piece.
const EVERY: usize = 700;

/// Writes the file, and the strings.
pub(crate) fn write_file(folder: &Temporary) -> Result<(), Failed> {
    folder.write("sent", BYTES, 38)?;
    Ok(fs::write(
        folder.file("strings"),
        strings(folder)?.concat(),
    )?)
}

/// Bytes around the edges of pieces, as lines.
fn strings(folder: &Temporary) -> Result<Vec<Vec<u8>>, Failed> {
    let file = fs::read(folder.file("sent"))?;
    let edges = (PIECE..BYTES - PIECE).step_by(EVERY * PIECE);
    let strings = edges.map(|edge| &file[edge - 5..edge + 5]);
    let lines = strings.filter(|string| !string.contains(&b'\n'));
    Ok(lines.map(|string| [string, b"\n"].concat()).collect())
}

pub(crate) fn upload(fixture: &Fixture, figure: &dyn Fn(String)) -> Result<(), Failed> {
    let folder = &fixture.root;
    let found = strings(folder)?.len();
    let start = Instant::now();
    let [sent, taken] = ["sent", "taken"].map(|name| folder.file(name));
    let said = curl(fixture, &["-T", &sent, &format!("http://{OURS}/")])?;
    let took = start.elapsed();
    let digest = fixture.run("b3sum", &["--no-names", &sent])?;
    same(
        said == format!("{}  {found} strings, {BYTES} bytes\n", digest.trim()),
        "what the server says",
    )?;
    for program in ["b3sum", "sha256sum"] {
        let of = |file: &str| {
            fixture
                .run(program, &[file])
                .map(|said| said.replace(file, ""))
        };
        same(of(&taken)? == of(&sent)?, "what it wrote")?;
    }
    figure(rate(BYTES, took, &fixture.congestion_control()));
    Ok(())
}
