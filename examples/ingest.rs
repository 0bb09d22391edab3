//! Takes files by `curl -T`. While a file arrives, it makes the file's BLAKE3 digest and counts
//! strings in it, and another thread writes it.
//!
//! Both are made in pieces of 8 KB, which any replica of the stack takes (threads with a copy of
//! the connection's state). So one upload uses several cores. The application puts the pieces
//! together: it joins their hashes to the root of BLAKE3's tree, and looks for strings across the
//! edges of two pieces.
//!
//! ```text
//! cargo run --release --example ingest                      # tests itself in memory
//! sudo target/release/examples/ingest --packet veth0 --to /tmp/taken
//! ```
//!
//! [README.md](README.md) has the commands for this interface, and explains Ctrl-C. The package is
//! `dominoes-services`. Then, in another terminal:
//!
//! ```text
//! sudo ip netns exec peer curl -T some_file http://10.78.0.1/
//! b3sum /tmp/taken
//! ```
//!
//! The answer is the digest, how often the strings occur, and how many bytes were written. `--to`
//! names one file, which each upload replaces; by default the bytes go to `/dev/null`. With
//! `--linux` the same program reads from Linux' sockets, and does all but the writing in one
//! thread.

// Written for files; this example needs a part of it.
#[allow(dead_code)]
#[path = "http_server/http.rs"]
mod http;
#[path = "common/net.rs"]
mod net;
#[path = "ingest/pieces.rs"]
mod pieces;
#[path = "common/program.rs"]
mod program;
#[path = "ingest/self_test.rs"]
mod self_test;
#[path = "common/stack.rs"]
mod stack;
#[path = "ingest/take.rs"]
mod take;
#[path = "common/watch.rs"]
mod watch;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;
#[path = "common/work.rs"]
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use net::Listener;
use program::{Arguments, Outcome};
use stack::StackOptions;
use watch::watch;
use work::Search;

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    let options = Options {
        port: 80,
        to: "/dev/null".into(),
        ..Options::default()
    };
    program::main("ingest", &usage, options, Options::take, run)
}

const ABOUT: &str = "\
Takes files by `curl -T`, digests and searches them; without a device, tests itself in memory.

";

const USAGE: &str = "  --port N            port to listen on [80]
  --to FILE           where each upload is written [/dev/null]
  --strings FILE      the strings to count, one in each line [a hundred that are made]
  --linux             read from Linux' sockets, for comparison
  --seconds N         stop after this time [never]
";

#[derive(Default)]
struct Options {
    stack: StackOptions,
    port: u16,
    to: PathBuf,
    strings: Option<PathBuf>,
    linux: bool,
    seconds: Option<u64>,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "port" => self.port = arguments.number(1..=u16::MAX)?,
            "to" => self.to = arguments.path()?,
            "strings" => self.strings = Some(arguments.path()?),
            "linux" => self.linux = true,
            "seconds" => self.seconds = Some(arguments.parse()?),
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }

    fn search(&self) -> Outcome<Arc<Search>> {
        let Some(path) = &self.strings else {
            return Ok(Arc::new(Search::for_a_hundred()?));
        };
        let lines = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines = lines.split(|byte| *byte == b'\n').map(<[u8]>::to_vec);
        let strings: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        Ok(Arc::new(Search::new(&strings)?))
    }
}

fn run(options: &Options) -> Outcome<()> {
    let search = options.search()?;
    let threads = options.stack.threads();
    if options.linux {
        let listener = Listener::linux(options.port)?;
        println!("listening on port {} of Linux", options.port);
        take::serve(&listener, &search, &options.to);
        return Ok(());
    }
    let killer = options.stack.killer(threads.copies())?;
    let Some((device, name)) = options.stack.open()? else {
        return self_test::run(threads, killer);
    };
    let stack = options
        .stack
        .start(|addr| stack::builder(addr, threads), device)?;
    let end_requested = watch::signals::end_requested()?;
    let listener = Listener::Ours(stack.listen(options.port, 16)?);
    println!(
        "listening on {}, {}, device {name}",
        options.stack.addresses(&stack, Some(options.port))?,
        threads.name("replica"),
    );
    let to = options.to.clone();
    let server = thread::spawn(move || take::serve(&listener, &search, &to));
    let watched = watch(
        "ingest",
        stack,
        &end_requested,
        options.seconds,
        killer,
        None,
    );
    server
        .join()
        .map_err(|_| "the server panicked, see above")?;
    watched
}
