//! Socket options that the application sets and the pump publishes, in order.
//!
//! An option takes effect between the bytes written before the call and the bytes written after it
//! (RFC 9293 section 3.9.1.8). The pump samples the write cursor less often than applications set
//! options, so each change records the write cursor and waits in a short queue. While a change
//! waits, the pump publishes the cursors only together with it. A stream of units accepts text
//! before it is sealed: a change after such text waits until the text is sealed. If [`KEPT`]
//! changes wait, a further change replaces the last one, and the bytes before it are sent at once.

use core::sync::atomic::Ordering;
use std::collections::VecDeque;

use dominoes::{TryLock, TryLockGuard};

use super::{AppRequest, SET, StreamRef};
use crate::config::{Settings, Tuning};
use crate::io::sync::yield_now;

/// Most changes of one connection that wait for the pump separately.
const KEPT: usize = 16;

/// A thread holds the options of a connection.
#[derive(Debug)]
pub(crate) struct Held;

/// The options of a connection from a position of its send stream on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) settings: Settings,
    pub(crate) tuning: Tuning,
    /// The last bytes written wait for more, as if corked.
    pub(crate) more: bool,
    /// All bytes written so far are sent without waiting.
    pub(crate) push: bool,
    /// Bytes written before the change.
    pub(crate) written: u64,
}

/// The options of a connection. Threads may change them concurrently; each change is atomic. A
/// thread holds them for a few instructions. Other threads of the application wait meanwhile; the
/// receive pump leaves the connection for later.
#[derive(Default)]
pub(super) struct SharedOptions(TryLock<Options>);

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

    /// Restores the defaults.
    pub(super) fn reset(&self, settings: Settings) {
        *self.take() = Options {
            latest: Change {
                settings,
                ..Change::default()
            },
            waiting: VecDeque::new(),
        };
    }

    fn take(&self) -> TryLockGuard<'_, Options> {
        loop {
            match self.0.try_take() {
                Some(options) => return options,
                None => yield_now(),
            }
        }
    }
}

impl StreamRef<'_> {
    /// The options that the application set last.
    pub(crate) fn options(&self) -> Change {
        self.stream.app.options.take().latest
    }

    /// Changes options from the current write cursor on, or from `ahead` on if that is larger.
    /// Returns whether the new options are valid; invalid ones change nothing. The caller raises
    /// the flag.
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

    /// Sets the initial options; the log already contains `known`.
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

    /// The caller has added a change to the queue.
    fn changes_wait(&self) {
        self.request(AppRequest {
            set: true,
            ..AppRequest::default()
        });
    }

    /// Whether changes wait. Bytes after a change must not be published before it. Call this after
    /// reading the cursors.
    #[inline]
    pub(crate) fn has_changes(&self) -> bool {
        // ORDERING: Relaxed: a writer has stored this before its cursor, which was read with
        // Acquire.
        self.stream.app.requests.load(Ordering::Relaxed) & SET != 0
    }

    /// The next change that waits, once all bytes before it are written. Only the pump takes
    /// changes.
    ///
    /// # Errors
    /// An application thread holds the options now.
    pub(crate) fn next_change(&self) -> Result<Option<Change>, Held> {
        let mut options = self.stream.app.options.0.try_take().ok_or(Held)?;
        let (_, written) = self.cursors();
        let next = options.waiting.front();
        let is_due = next.is_some_and(|change| change.written <= written);
        let change = is_due.then(|| options.waiting.pop_front()).flatten();
        if options.waiting.is_empty() {
            options.waiting = VecDeque::new();
            // ORDERING: Relaxed: a change that is added after this sets the bit again.
            self.stream.app.requests.fetch_and(!SET, Ordering::Relaxed);
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Limits;
    use crate::io::stream::{ConnId, Streams};

    #[test]
    fn the_pump_does_not_wait_for_a_thread_that_holds_the_options() {
        let streams = Streams::new(&Limits::default().connections(1), 4);
        let conn = ConnId {
            index: 0,
            generation: 0,
        };
        let stream = streams.get(conn).expect("its place has a stream");
        assert!(stream.change(0, |before| Change {
            more: true,
            ..before
        }));
        let held = stream.stream.app.options.take();
        assert!(stream.next_change().is_err());
        drop(held);
        assert!(matches!(
            stream.next_change(),
            Ok(Some(Change { more: true, .. }))
        ));
        assert!(matches!(stream.next_change(), Ok(None)));
    }
}
