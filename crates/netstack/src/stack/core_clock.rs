//! How long a worker's thread used a core, and how long it waited for one.

use std::fs;
use std::io::{Read as _, Seek as _};

use crate::time::{Duration, Instant};
use crate::variants::CoreTime;

/// Time between two reads. A read is a system call.
const INTERVAL: Duration = Duration::from_millis(4);

/// Reads the times of the thread that uses it, from the scheduler's statistics of Linux. Where
/// there are none, it reads nothing.
#[derive(Debug, Default)]
pub(super) struct CoreClock {
    /// `None` before the first read. The file belongs to the thread that opened it.
    file: Option<Option<fs::File>>,
    next: Instant,
}

impl CoreClock {
    /// The times, if it is time for a read at `now`.
    #[inline]
    pub(super) fn read(&mut self, now: Instant) -> Option<CoreTime> {
        (now >= self.next).then(|| self.read_file(now))?
    }

    #[cold]
    fn read_file(&mut self, now: Instant) -> Option<CoreTime> {
        self.next = now + INTERVAL;
        let open = || fs::File::open("/proc/thread-self/schedstat").ok();
        let file = self.file.get_or_insert_with(open).as_mut()?;
        let mut text = [0; 64];
        file.rewind().ok()?;
        let len = file.read(&mut text).ok()?;
        parse(&text[..len])
    }
}

/// The file's numbers: ns on a core, ns in its queue, and how often it ran.
fn parse(text: &[u8]) -> Option<CoreTime> {
    let mut numbers = text.split(|byte| !byte.is_ascii_digit());
    let mut next = || {
        Some(Duration::from_nanos(
            str::from_utf8(numbers.next()?).ok()?.parse().ok()?,
        ))
    };
    Some(CoreTime {
        used: next()?,
        waited: next()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_thread_are_read_now_and_then() {
        let time = parse(b"123464 1832796 2\n").unwrap();
        let ns = Duration::from_nanos;
        assert_eq!((time.used, time.waited), (ns(123_464), ns(1_832_796)));
        for text in ["", "1", "a b c", "18446744073709551616 1 1"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        let mut clock = CoreClock::default();
        let first = clock.read(Instant::ZERO);
        assert_eq!(clock.read(Instant::ZERO), None, "too early");
        let second = clock.read(Instant::ZERO + INTERVAL);
        assert_eq!(first.is_some(), second.is_some());
        assert!(second.map(|time| time.used) >= first.map(|time| time.used));
    }
}
