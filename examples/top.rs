//! Shows a running stack, live: its threads, its log, how they share the work, and its connections.
//!
//! Without a device it shows a stack in memory under a built-in load, and needs no privileges:
//!
//! ```text
//! cargo run --release --example top                  # live, in a terminal
//! cargo run --release --example top -- --once        # one frame as text, in a terminal or not
//! ```
//!
//! The package is `dominoes-top`. `q`, Ctrl-C or SIGTERM ends the live view and restores the
//! terminal. If standard input and output are not a terminal, it exits with an error instead of
//! showing the live view. All columns take 107 characters; a narrower terminal shows fewer of them.
//!
//! With a device (`--tap NAME`, `--packet NAME`, `--xdp NAME`: [README.md](README.md)) it serves
//! discard (port 9) and an endless stream of bytes (port 19). Run the last command in another
//! terminal:
//!
//! ```text
//! cargo build --release --example top
//! sudo target/release/examples/top --packet veth0
//! sudo ip netns exec peer nc 10.78.0.1 19 >/dev/null
//! ```
//!
//! Each thread runs one replica, a copy of the state of all connections; all replicas apply the
//! requests of one log. *primary* is the fraction of requests whose costly work the thread did;
//! *steals* counts work that it did for a late thread; *waits* counts turns in which it could not
//! proceed; *parks* counts its sleeps; *lag* is the number of requests that it has not applied.

#[path = "top/frame.rs"]
mod frame;
#[path = "top/load.rs"]
mod load;
#[path = "common/program.rs"]
mod program;
#[path = "common/signals.rs"]
mod signals;
// Written for servers; this example needs a part of it.
#[allow(dead_code)]
#[path = "common/stack.rs"]
mod stack;
#[path = "common/while_replicas_die.rs"]
mod while_replicas_die;

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use dominoes_netstack::Stack;
use frame::Sample;
use program::{Arguments, Outcome};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;
use stack::StackOptions;
use while_replicas_die::while_replicas_die;

/// Time between two frames.
const REFRESH: Duration = Duration::from_millis(500);
/// Time between two checks for a signal in the live view.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for peers to acknowledge everything when the stack ends.
const GRACE: Duration = Duration::from_secs(1);
/// Width of a frame; no terminal shows this one.
const COLUMNS: u16 = 120;

const NO_TERMINAL: &str = "\
the live view needs a terminal on standard input and standard output; without one, print one frame as text:
  cargo run --release --example top -- --once";

const ABOUT: &str = "\
A running stack, live. Without a device: in memory, with a load of its own.

";

const USAGE: &str = "  --once              print one frame as text, and end
";

#[derive(Default)]
struct Options {
    once: bool,
    stack: StackOptions,
}

impl Options {
    fn take(&mut self, option: &str, arguments: &mut Arguments) -> Outcome<bool> {
        match option {
            "once" => self.once = true,
            _ => return self.stack.take(option, arguments),
        }
        Ok(true)
    }
}

fn main() -> ExitCode {
    let usage = [ABOUT, stack::device::USAGE, stack::USAGE, USAGE];
    program::main("top", &usage, Options::default(), Options::take, run)
}

fn run(options: &Options) -> Outcome<()> {
    let terminal = stdin().is_terminal() && stdout().is_terminal();
    if !terminal && !options.once {
        return Err(NO_TERMINAL.into());
    }
    let end_requested = signals::end_requested()?;
    let threads = options.stack.threads();
    let killer = options.stack.killer(threads.copies())?;
    let addr = &options.stack.addr;
    let start = |device| {
        let builder = |addr: &str| stack::builder(addr, threads);
        options.stack.start(builder, device)
    };
    let (stack, peer, name) = match options.stack.open()? {
        Some((device, name)) => (start(device)?, None, name),
        None => {
            let (device, far) = load::wire();
            (start(Box::new(device))?, Some(far), "memory".to_owned())
        }
    };
    load::serve(&stack)?;
    let peer = peer.map(|far| load::drive(far, addr)).transpose()?;
    let title = format!("{addr} on {name}, {}", threads.name("thread"));
    let shown = while_replicas_die(&stack, killer, || {
        if options.once {
            once(&stack, &title);
            Ok(())
        } else {
            live(&stack, &title, &end_requested)
        }
    });
    drop(peer);
    // Sends FIN on every connection, and after the grace resets the remaining ones.
    if let Err(error) = stack.close(GRACE) {
        eprintln!("top: {error}");
    }
    shown
}

fn once(stack: &Stack, title: &str) {
    let before = Sample::at(stack);
    thread::sleep(REFRESH);
    let columns = if stdout().is_terminal() {
        terminal::size().map_or(COLUMNS, |(columns, _)| columns)
    } else {
        COLUMNS
    };
    print!(
        "{}",
        frame::text(title, &before, &Sample::at(stack), columns)
    );
}

/// Draws frames until a key or a signal ends the view.
fn live(stack: &Stack, title: &str, end_requested: &AtomicBool) -> Outcome<()> {
    let title = format!("{title}; q ends");
    let mut terminal = ratatui::try_init()?;
    let shown = (|| -> Outcome<()> {
        let mut before = Sample::at(stack);
        while !await_end(end_requested)? {
            let now = Sample::at(stack);
            terminal.draw(|area| frame::draw(area, &title, &before, &now))?;
            before = now;
        }
        Ok(())
    })();
    ratatui::restore();
    shown
}

/// Waits until the next frame is due, a key is pressed, or the size of the terminal changes.
/// Returns whether the view should end.
fn await_end(end_requested: &AtomicBool) -> Outcome<bool> {
    let next = Instant::now() + REFRESH;
    while Instant::now() < next && !end_requested.load(Relaxed) {
        if event::poll(POLL_INTERVAL)? {
            return Ok(matches!(event::read()?, Event::Key(key) if ends(key)));
        }
    }
    Ok(end_requested.load(Relaxed))
}

/// Whether this key ends the view. Ctrl-C counts, because a terminal in raw mode sends no signal
/// for it.
fn ends(key: KeyEvent) -> bool {
    let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => ctrl,
            _ => false,
        }
}
