//! Socket options that the application sets and the pump publishes, in their order.
//!
//! An option takes effect between the bytes that were written before the call and those after it
//! (RFC 9293 section 3.9.1.8). The pump samples what was written less often than applications call,
//! so each change notes how much was written by then, and waits in a short queue. While one waits,
//! the pump publishes the cursors with it alone. If more than [`KEPT`] changes wait, only the latest
//! of those behind them takes effect, and what was written before it leaves at once.

use std::sync::OnceLock;

use core::sync::atomic::Ordering;
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::atomic::AtomicCell;

use super::{AppRequest, SET, StreamRef};
use crate::config::{Settings, Tuning};

/// Changes of one connection that wait for the pump in their order.
const KEPT: usize = 16;

/// The options of a connection from a position of its send stream on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) settings: Settings,
    pub(crate) tuning: Tuning,
    /// What was written last is to wait for more, as if corked.
    pub(crate) more: bool,
    /// What was written so far does not wait.
    pub(crate) push: bool,
    /// Bytes written before it.
    pub(crate) written: u64,
}

/// The options of a connection. Threads may change them at the same time; each change is one step.
/// They are longer than a word: who reads one, as the receive pump does after a request, waits
/// while another thread stores it, which takes a few instructions.
#[derive(Default)]
pub(super) struct SharedOptions {
    latest: AtomicCell<Change>,
    /// Allocated by the first change.
    waiting: OnceLock<Box<ArrayQueue<Change>>>,
}

impl SharedOptions {
    pub(super) fn new(settings: Settings) -> Self {
        let options = SharedOptions::default();
        options.reset(settings);
        options
    }

    /// They are the defaults again.
    pub(super) fn reset(&self, settings: Settings) {
        self.latest.store(Change {
            settings,
            ..Change::default()
        });
        if let Some(waiting) = self.waiting.get() {
            while waiting.pop().is_some() {}
        }
    }
}

impl StreamRef<'_> {
    /// What the application has set last.
    pub(crate) fn options(&self) -> Change {
        self.stream.app.options.latest.load()
    }

    /// Changes options from what is written now on. Returns whether the new ones are valid; others
    /// change nothing. The caller raises the flag.
    pub(crate) fn change(&self, what: impl Fn(Change) -> Change) -> bool {
        let options = &self.stream.app.options;
        let written = self.stream.app.written.load(Ordering::Relaxed);
        let mut made = None;
        let changed = options.latest.fetch_update(|before| {
            let next = what(Change {
                push: false,
                ..before
            });
            made = Some(Change {
                settings: next.settings.checked()?,
                tuning: next.tuning.checked()?,
                written: written.max(before.written),
                ..next
            });
            made
        });
        let Some(change) = made.filter(|_| changed.is_ok()) else {
            return false;
        };
        let waiting = options
            .waiting
            .get_or_init(|| Box::new(ArrayQueue::new(KEPT)));
        // Without room it is the latest, which the pump publishes behind all that wait.
        let _ = waiting.push(change);
        self.request(AppRequest {
            set: true,
            ..AppRequest::default()
        });
        true
    }

    /// The connection begins with these, of which `known` are in the log.
    pub(crate) fn begin_with(&self, settings: Settings, tuning: Tuning, known: Settings) {
        self.stream.app.options.latest.store(Change {
            settings,
            tuning,
            ..Change::default()
        });
        if settings != known || tuning != Tuning::default() {
            self.request(AppRequest {
                set: true,
                ..AppRequest::default()
            });
        }
    }

    /// Whether changes wait. Bytes behind them must not be published before. To be asked after the
    /// cursors were read.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        // ORDERING: Relaxed: a writer has stored this before its cursor, which was read with
        // Acquire.
        self.stream.app.requests.load(Ordering::Relaxed) & SET != 0
    }

    /// The next change that waits. Only the pump takes them.
    pub(crate) fn next_change(&self) -> Option<Change> {
        self.stream.app.options.waiting.get()?.pop()
    }
}
