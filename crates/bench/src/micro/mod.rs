//! The ring on one thread, with calls that `micro` times and `instructions` counts; and timers.

pub mod timers;

use dominoes::{Log, Publisher, Subscription, Wait, channel};

/// Entries that may wait for the slowest subscription.
pub const CAPACITY: usize = 4096;

/// The type of entries: a cache line, as in the bench `channel`.
pub type Message = [u64; 8];

/// Publishers other than the measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None, so no locked instruction is needed.
    None,
    /// One that is quiet, but could publish at any time.
    Quiet,
}

impl Others {
    /// A part of a measurement's name.
    pub fn name(self) -> &'static str {
        match self {
            Others::None => "solo",
            Others::Quiet => "shared",
        }
    }
}

/// A channel with its publisher and all its subscriptions.
pub struct Ring<W: Wait> {
    /// The publisher that is measured.
    pub publisher: Publisher<Message, W>,
    /// All subscriptions, at one position.
    pub subscriptions: Vec<Subscription<Message, W>>,
    /// The channel.
    pub log: Log<Message, W>,
    batch: Vec<Message>,
    _other: Option<Publisher<Message, W>>,
}

impl<W: Wait> Ring<W> {
    /// Creates a ring with `batch` entries per call.
    pub fn new(others: Others, subscribers: usize, batch: usize) -> Self {
        let (publisher, log) = channel(CAPACITY);
        let mut subscriptions = Vec::with_capacity(subscribers);
        for _ in 0..subscribers {
            let mut subscription = log.subscribe().expect("there is room for a few");
            subscription.set_batch_limit(batch);
            subscriptions.push(subscription);
        }
        Ring {
            _other: (others == Others::Quiet).then(|| publisher.clone()),
            publisher,
            subscriptions,
            log,
            batch: (0..batch as u64).map(|i| [i; 8]).collect(),
        }
    }

    /// Publishes once: one entry by value, several as a slice. There must be room.
    #[inline]
    pub fn publish(&mut self) {
        let published = match *self.batch.as_slice() {
            [message] => self.publisher.publish(message).is_ok(),
            ref messages => self.publisher.publish_slice(messages).is_ok(),
        };
        assert!(published, "nobody closes the channel");
    }

    /// Every subscription reads one batch. Returns the number of entries.
    #[inline]
    pub fn read(&mut self) -> u64 {
        let mut seen = 0;
        for subscription in &mut self.subscriptions {
            if let Ok(batch) = subscription.try_next_batch() {
                for (_, message) in &batch {
                    std::hint::black_box(message[0]);
                    seen += 1;
                }
            }
        }
        seen
    }

    /// Releases everything, unread.
    pub fn drain(&mut self) {
        for subscription in &mut self.subscriptions {
            let end = subscription.poll();
            subscription.advance_to(end);
        }
    }
}
