//! One order for all subscribers, under stress. Checks content, order per publisher, and a hash of
//! the whole order.

use dominoes::{Park, Publisher, Spin, SpinYield, Subscription, Wait, channel};
use std::thread;

/// A message: its publisher, its number, and a check of both.
#[derive(Clone, Copy, Debug)]
struct Entry {
    publisher: u64,
    number: u64,
    check: [u64; 6],
}

impl Entry {
    fn new(publisher: u64, number: u64) -> Self {
        let check = (publisher << 48 | number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Entry {
            publisher,
            number,
            check: [check; 6],
        }
    }

    fn check(&self) {
        assert_eq!(
            self.check,
            Entry::new(self.publisher, self.number).check,
            "torn or stale entry"
        );
    }
}

/// Adds an entry to the hash of the order.
fn fold(hash: u64, seq: u64, entry: &Entry) -> u64 {
    (hash.rotate_left(5) ^ seq ^ entry.publisher << 40 ^ entry.number)
        .wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn publish<W: Wait>(mut publisher: Publisher<Entry, W>, id: u64, total: u64) {
    let mut number = 0;
    let mut style = id;
    while number < total {
        let n = (total - number).min(1 + style % 5);
        match style % 3 {
            0 => {
                publisher.publish(Entry::new(id, number)).unwrap();
                number += 1;
            }
            1 => {
                publisher
                    .publish_all((number..number + n).map(|number| Entry::new(id, number)))
                    .unwrap();
                number += n;
            }
            _ => {
                let entries: Vec<_> = (number..number + n)
                    .map(|number| Entry::new(id, number))
                    .collect();
                publisher.publish_slice(&entries).unwrap();
                number += n;
            }
        }
        style = style
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407)
            >> 7;
    }
}

fn follow<W: Wait>(mut subscription: Subscription<Entry, W>, publishers: u64) -> (u64, u64) {
    let mut next = vec![0; publishers as usize];
    let (mut hash, mut count) = (0, 0);
    let mut expected = subscription.position();
    while let Some(batch) = subscription.next_batch() {
        for (seq, entry) in &batch {
            entry.check();
            assert_eq!(seq, expected);
            assert_eq!(
                entry.number, next[entry.publisher as usize],
                "order of one publisher"
            );
            next[entry.publisher as usize] += 1;
            expected += 1;
            count += 1;
            hash = fold(hash, seq, entry);
        }
    }
    (hash, count)
}

fn shape<W: Wait>(publishers: u64, subscribers: usize, capacity: usize, total: u64) {
    let (publisher, log) = channel::<Entry, W>(capacity);
    let followers: Vec<_> = (0..subscribers)
        .map(|_| {
            let subscription = log.subscribe().unwrap();
            thread::spawn(move || follow(subscription, publishers))
        })
        .collect();
    let writers: Vec<_> = (0..publishers)
        .map(|id| {
            let publisher = publisher.clone();
            thread::spawn(move || publish(publisher, id, total))
        })
        .collect();
    drop(publisher);
    for writer in writers {
        writer.join().unwrap();
    }
    let results: Vec<_> = followers
        .into_iter()
        .map(|follower| follower.join().unwrap())
        .collect();
    for (hash, count) in &results {
        assert_eq!(*count, publishers * total, "nothing lost, nothing twice");
        assert_eq!(*hash, results[0].0, "one order for all");
    }
}

#[test]
fn every_subscriber_sees_the_same_order_in_every_shape() {
    // Batches are up to five entries long, so the smallest capacity is 5.
    for capacity in [5, 64, 1024] {
        for (publishers, subscribers) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 4)] {
            let total = if capacity < 10 { 500 } else { 10_000 } / publishers;
            shape::<SpinYield>(publishers, subscribers, capacity, total);
            shape::<Park>(publishers, subscribers, capacity, total);
        }
    }
    shape::<Spin>(1, 1, 64, 2_000);
}
