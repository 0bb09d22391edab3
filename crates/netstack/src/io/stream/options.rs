//! Socket options that the application sets and the pump publishes, in their order.
//!
//! An option takes effect between the bytes that were written before the call and those after it
//! (RFC 9293 section 3.9.1.8). The pump samples what was written less often than applications call,
//! so each change notes how much was written by then, and waits in a short queue. While one waits,
//! the pump publishes the cursors with it alone. A stream of units takes text before it is sealed: a
//! change that follows such text waits until the text is sealed. If [`KEPT`] changes wait, a further
//! one replaces the last of them, and the bytes before it leave at once.

use core::sync::atomic::Ordering;
use std::collections::VecDeque;

use dominoes::{Exclusive, ExclusiveGuard};

use super::{AppRequest, SET, StreamRef};
use crate::config::{Settings, Tuning};
use crate::io::sync::yield_now;

/// Changes of one connection that wait for the pump one by one.
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
/// A thread has them for a few instructions, in which others, the receive pump too, wait for it.
#[derive(Default)]
pub(super) struct SharedOptions(Exclusive<Options>);

#[derive(Default)]
struct Options {
    latest: Change,
    /// Changes that the pump has not taken, oldest first. An empty queue takes no memory.
    waiting: VecDeque<Change>,
}

impl SharedOptions {
    pub(super) fn new(settings: Settings) -> Self {
        let options = SharedOptions::default();
        options.reset(settings);
        options
    }

    /// They are the defaults again.
    pub(super) fn reset(&self, settings: Settings) {
        *self.take() = Options {
            latest: Change {
                settings,
                ..Change::default()
            },
            waiting: VecDeque::new(),
        };
    }

    fn take(&self) -> ExclusiveGuard<'_, Options> {
        loop {
            match self.0.try_take() {
                Some(options) => return options,
                None => yield_now(),
            }
        }
    }
}

impl StreamRef<'_> {
    /// What the application has set last.
    pub(crate) fn options(&self) -> Change {
        self.stream.app.options.take().latest
    }

    /// Changes options from the present write cursor on, or from `ahead` on if that is larger.
    /// Returns whether the new ones are valid; others change nothing. The caller raises the flag.
    pub(crate) fn change(&self, ahead: u64, what: impl FnOnce(Change) -> Change) -> bool {
        let mut options = self.stream.app.options.take();
        let written = self.stream.app.written.load(Ordering::Relaxed).max(ahead);
        let before = options.latest;
        let next = what(Change {
            push: false,
            ..before
        });
        let (Some(settings), Some(tuning)) = (next.settings.checked(), next.tuning.checked())
        else {
            return false;
        };
        let change = Change {
            settings,
            tuning,
            written: written.max(before.written),
            ..next
        };
        self.set_latest(&mut options, change);
        if options.waiting.len() >= KEPT
            && let Some(last) = options.waiting.back_mut()
        {
            *last = Change {
                push: true,
                ..change
            };
        } else {
            options.waiting.push_back(change);
        }
        self.changes_wait();
        true
    }

    /// The connection begins with these, of which `known` are in the log.
    pub(crate) fn begin_with(&self, settings: Settings, tuning: Tuning, known: Settings) {
        let mut options = self.stream.app.options.take();
        let change = Change {
            settings,
            tuning,
            ..Change::default()
        };
        self.set_latest(&mut options, change);
        if settings != known || tuning != Tuning::default() {
            options.waiting.push_back(change);
            self.changes_wait();
        }
    }

    fn set_latest(&self, options: &mut Options, change: Change) {
        options.latest = change;
        // ORDERING: Relaxed: only its own value counts.
        let notsent_lowat = change.tuning.notsent_lowat;
        let bound = &self.stream.app.notsent_lowat;
        bound.store(notsent_lowat, Ordering::Relaxed);
    }

    /// The caller has taken the options.
    fn changes_wait(&self) {
        self.request(AppRequest {
            set: true,
            ..AppRequest::default()
        });
    }

    /// Whether changes wait. Bytes behind them must not be published before. To be asked after the
    /// cursors were read.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        // ORDERING: Relaxed: a writer has stored this before its cursor, which was read with
        // Acquire.
        self.stream.app.requests.load(Ordering::Relaxed) & SET != 0
    }

    /// The next change that waits, unless something before it is not written yet. Only the pump
    /// takes them.
    pub(crate) fn next_change(&self) -> Option<Change> {
        let mut options = self.stream.app.options.take();
        let (_, written) = self.cursors();
        let next = options.waiting.front();
        let is_due = next.is_some_and(|change| change.written <= written);
        let change = is_due.then(|| options.waiting.pop_front()).flatten();
        if options.waiting.is_empty() {
            options.waiting = VecDeque::new();
            // ORDERING: Relaxed: a change that is made after this asks again.
            self.stream.app.requests.fetch_and(!SET, Ordering::Relaxed);
        }
        change
    }
}
