//! Calls the log of `dominoes`, its records of batches and its verdicts (both beside its slots)
//! in any order, and compares the results with a simple model.
//!
//! Every subscription sees all published values in order; every value and every record is
//! dropped exactly once.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arbitrary::{Arbitrary, Unstructured};
use dominoes::{
    BatchError, BatchRecords, BatchWriter, BegunBatch, Inactive, Log, NoBatch, Publisher,
    ReadBatch, Subscription, TryPublishError, Verdicts, WorkState, batch_records,
    channel_with_slots,
};

use crate::input::{Input, assert_overflow_panics};
use crate::tally;

/// The most publishers, and the most subscriptions, at a time.
const MOST: usize = 6;
/// Calls after which the rest of an input is ignored, which bounds its time.
const CALLS: u64 = 20_000;

/// Counts live values: the count of a number is 1 while its value is alive, 0 before and after.
#[derive(Clone, Default)]
struct Alive(Arc<AtomicUsize>);

/// A value with a number that identifies it, counted while it is alive.
struct Counted {
    number: u64,
    alive: Alive,
    dropped: bool,
}

impl Counted {
    fn new(number: u64, alive: &Alive) -> Counted {
        alive.0.fetch_add(1, Ordering::Relaxed);
        Counted {
            number,
            alive: alive.clone(),
            dropped: false,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert!(
            !mem::replace(&mut self.dropped, true),
            "{} was dropped twice",
            self.number
        );
        let before = self.alive.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more was dropped than there was");
    }
}

/// Values of the channel, with a destructor or without.
trait Value: Send + Sync {
    fn new(number: u64, alive: &Alive) -> Self;
    fn number(&self) -> u64;
}

impl Value for Counted {
    fn new(number: u64, alive: &Alive) -> Self {
        Counted::new(number, alive)
    }
    fn number(&self) -> u64 {
        self.number
    }
}

impl Value for u64 {
    fn new(number: u64, _: &Alive) -> Self {
        number
    }
    fn number(&self) -> u64 {
        *self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Publish(u8),
    PublishAll(u8, u8),
    /// Collects this many of this many values, then flushes, or leaves that to the destructor.
    Buffered(u8, u8, u8),
    ClonePublisher(u8),
    DropPublisher(u8),
    Close(u8),
    Subscribe,
    Fork(u8),
    Leave(u8),
    Deactivate(u8),
    Activate(u8),
    Evict(u8),
    Batch(u8, u8),
    /// Releases some entries early, and leaves the others to the next batch.
    Early(u8, u8, u8),
    /// Forgets the guard of a batch.
    Forget(u8),
    Poll(u8),
    Peek(u8, u8),
    Advance(u8, u8),
    Tidy,
    /// Puts the record of the next batch, of this many positions.
    Put(u8),
    /// Reads the value of a batch.
    Read(u8),
    Release(u8),
    Begin(u8),
    /// Does pieces of work of a batch that is begun.
    Do(u8, u8),
    /// Stops before the batch is done.
    Stop(u8),
    Finish(u8),
    SetVerdict(u8, u8),
    GetVerdict(u8),
    BeginVerdict(u8, bool),
}

impl<'a> Arbitrary<'a> for Call {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let kind: u8 = u.arbitrary()?;
        // Chooses a publisher, subscription or position, where one number is enough.
        let which = kind >> 6;
        Ok(match kind & 0x3f {
            0..=8 => Call::Publish(which),
            9..=12 => Call::PublishAll(which, u.arbitrary()?),
            13 => Call::Buffered(which, u.arbitrary()?, u.arbitrary()?),
            14 => Call::ClonePublisher(which),
            15 => Call::DropPublisher(which),
            16 => match u.arbitrary()? {
                0 => Call::Close(which),
                other => Call::Evict(other),
            },
            17 | 18 => Call::Subscribe,
            19 => Call::Fork(which),
            20 => Call::Leave(which),
            21 => Call::Deactivate(which),
            22 => Call::Activate(which),
            23..=28 => Call::Batch(which, u.arbitrary()?),
            29 | 30 => Call::Early(which, u.arbitrary()?, u.arbitrary()?),
            31 => Call::Forget(which),
            32..=34 => Call::Poll(which),
            35 | 36 => Call::Peek(which, u.arbitrary()?),
            37..=41 => Call::Advance(which, u.arbitrary()?),
            42 => Call::Tidy,
            43..=47 => Call::Put(1 + which),
            48 | 49 => Call::Read(u.arbitrary()?),
            50 => Call::Release(which),
            51..=53 => Call::Begin(u.arbitrary()?),
            54 => Call::Do(which, u.arbitrary()?),
            55 => Call::Stop(which),
            56..=58 => Call::Finish(which),
            59 | 60 => Call::SetVerdict(u.arbitrary()?, which),
            61 | 62 => Call::GetVerdict(u.arbitrary()?),
            _ => Call::BeginVerdict(u.arbitrary()?, which & 1 == 0),
        })
    }
}

/// A subscription and its model.
struct Reader<T: Send + Sync> {
    subscription: Subscription<T>,
    cursor: u64,
    seen: u64,
    evicted: bool,
}

struct World<T: Send + Sync> {
    capacity: usize,
    log: Log<T>,
    publishers: Vec<Publisher<T>>,
    readers: Vec<Reader<T>>,
    inactive: Vec<Inactive<T>>,
    alive: Alive,
    /// The published values from the lowest cursor on, and the position of the first.
    published: VecDeque<u64>,
    first: u64,
    closed: bool,
    number: u64,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    assert_overflow_panics();
    let mut input = Input::new(data);
    let [kind, sizes]: [u8; 2] = input.any();
    let capacity = 1 + usize::from(sizes & 7);
    let slots = capacity.next_power_of_two() << (sizes >> 3 & 1);
    match kind & 1 {
        0 => World::<Counted>::new(capacity, slots).run(&mut input),
        _ => World::<u64>::new(capacity, slots).run(&mut input),
    }
}

impl<T: Value> World<T> {
    fn new(capacity: usize, slots: usize) -> Self {
        let (publisher, log) = channel_with_slots(capacity, slots);
        World {
            capacity,
            log,
            publishers: vec![publisher],
            readers: Vec::new(),
            inactive: Vec::new(),
            alive: Alive::default(),
            published: VecDeque::new(),
            first: 0,
            closed: false,
            number: 0,
        }
    }

    fn run(mut self, input: &mut Input<'_>) {
        let slots = self.log.slots();
        let recorded = Alive::default();
        let (writer, shared) = batch_records::<Counted>(slots);
        let mut beside = Beside {
            writer,
            slots: slots as u64,
            alive: recorded.clone(),
            batches: VecDeque::new(),
            verdicts: Verdicts::new(slots),
            model: vec![None; slots],
        };
        let mut held = Held::default();
        let mut calls = 0;
        while calls < CALLS
            && let Some(call) = input.next()
        {
            calls += 1;
            self.apply(call);
            beside.apply(call, &shared, &mut held);
            self.check();
        }
        let published = self.published.len();
        let waiting = self.readers.iter().map(|reader| reader.cursor).min();
        drop((self.publishers, self.inactive));
        // Readers get all values that were published before the channel was closed.
        for Reader {
            mut subscription,
            cursor,
            evicted,
            ..
        } in self.readers
        {
            subscription.set_batch_limit(usize::MAX);
            let mut expected = self.published.range((cursor - self.first) as usize..);
            while let Ok(batch) = subscription.try_next_batch() {
                for (_, value) in &batch {
                    assert_eq!(Some(&value.number()), expected.next());
                }
            }
            assert!(
                evicted || expected.next().is_none(),
                "{published} from {waiting:?}"
            );
        }
        drop(self.log);
        assert_eq!(
            self.alive.0.load(Ordering::Relaxed),
            0,
            "every value is dropped"
        );
        drop(held);
        drop((beside, shared));
        assert_eq!(
            recorded.0.load(Ordering::Relaxed),
            0,
            "every record is dropped"
        );
        tally::add("calls", calls);
    }

    fn end(&self) -> u64 {
        self.first + self.published.len() as u64
    }

    fn least(&self) -> u64 {
        let cursors = self.readers.iter().map(|reader| reader.cursor);
        cursors.min().unwrap_or(self.end())
    }

    fn value(&mut self) -> T {
        self.number += 1;
        T::new(self.number, &self.alive)
    }

    /// Forgets the values below every cursor, which no reader sees again.
    fn check(&mut self) {
        let (least, end) = (self.least(), self.end());
        while self.first < least && self.published.pop_front().is_some() {
            self.first += 1;
        }
        assert_eq!(self.log.len() as u64, end - least);
        assert_eq!(self.log.publishers(), self.publishers.len());
        assert_eq!(self.log.subscribers(), self.readers.len());
        assert_eq!(self.log.is_closed(), self.closed);
    }

    fn reader(&mut self, which: u8) -> Option<(&mut Reader<T>, &VecDeque<u64>, u64)> {
        let at = usize::from(which).checked_rem(self.readers.len())?;
        Some((&mut self.readers[at], &self.published, self.first))
    }

    fn apply(&mut self, call: Call) {
        let room = self.capacity - (self.end() - self.least()) as usize;
        let end = self.end();
        let closed = self.closed;
        let pick = |which: u8, count: usize| usize::from(which).checked_rem(count);
        match call {
            Call::Publish(which) => {
                let Some(at) = pick(which, self.publishers.len()) else {
                    return;
                };
                let value = self.value();
                match self.publishers[at].try_publish(value) {
                    Ok(seq) => {
                        assert!(!closed && room > 0 && seq == end);
                        self.published.push_back(self.number);
                    }
                    Err(TryPublishError::Full(back)) => {
                        assert!(!closed && room == 0 && back.number() == self.number);
                    }
                    Err(TryPublishError::Closed(back)) => {
                        assert!(closed && back.number() == self.number);
                    }
                }
            }
            Call::PublishAll(which, count) => {
                let Some(at) = pick(which, self.publishers.len()) else {
                    return;
                };
                let count = usize::from(count) % (self.capacity + 2);
                let from = self.number + 1;
                let values: Vec<T> = (0..count).map(|_| self.value()).collect();
                // Once with a length that is known in advance, and once without.
                let published = match which & 1 {
                    0 => self.publishers[at].try_publish_all(values),
                    _ => self.publishers[at].try_publish_all(values.into_iter().filter(|_| true)),
                };
                match published {
                    Ok(range) => {
                        assert!(count == 0 || !closed && count <= room);
                        assert_eq!(range, end..end + count as u64);
                        self.published.extend(from..=self.number);
                    }
                    Err(BatchError::Full(back)) => {
                        assert!(!closed && back.len() == count && count > room);
                    }
                    Err(BatchError::Closed(back)) => assert!(closed && back.len() == count),
                    Err(BatchError::TooLong(back)) => {
                        assert!(back.len() == count && count > self.capacity);
                    }
                }
            }
            Call::Buffered(which, size, count) => {
                let Some(at) = pick(which, self.publishers.len()) else {
                    return;
                };
                let size = 1 + usize::from(size) % self.capacity;
                // More values would wait for room.
                let count = if closed {
                    1
                } else {
                    usize::from(count) % (room + 1)
                };
                let from = self.number + 1;
                let values: Vec<T> = (0..count).map(|_| self.value()).collect();
                let mut buffered = self.publishers[at].buffered(size);
                for value in values {
                    let pushed = buffered.push(value);
                    assert!(pushed.is_ok() || closed);
                }
                if which & 1 == 0 {
                    let refused = closed && !buffered.is_empty();
                    assert_eq!(buffered.flush().is_err(), refused);
                }
                drop(buffered);
                if !closed {
                    self.published.extend(from..=self.number);
                }
            }
            Call::ClonePublisher(which) => {
                if let Some(at) = pick(which, self.publishers.len())
                    && self.publishers.len() < MOST
                {
                    let clone = self.publishers[at].clone();
                    self.publishers.push(clone);
                }
            }
            Call::DropPublisher(which) => {
                if let Some(at) = pick(which, self.publishers.len()) {
                    self.publishers.swap_remove(at);
                    self.closed |= self.publishers.is_empty();
                }
            }
            Call::Close(which) => {
                if let Some(at) = pick(which, self.publishers.len()) {
                    self.publishers[at].close();
                    self.closed = true;
                }
            }
            Call::Subscribe if self.readers.len() < MOST => {
                let subscription = self.log.subscribe().expect("there is room");
                assert_eq!(subscription.position(), end);
                self.readers.push(Reader {
                    subscription,
                    cursor: end,
                    seen: end,
                    evicted: false,
                });
            }
            Call::Fork(which) => {
                if let Some(at) = pick(which, self.readers.len())
                    && self.readers.len() < MOST
                {
                    let parent = &self.readers[at];
                    let fork = Reader {
                        subscription: parent.subscription.fork().expect("there is room"),
                        evicted: false,
                        ..*parent
                    };
                    assert_eq!(fork.subscription.position(), fork.cursor);
                    self.readers.push(fork);
                }
            }
            Call::Leave(which) => {
                if let Some(at) = pick(which, self.readers.len()) {
                    self.readers.swap_remove(at);
                }
            }
            Call::Deactivate(which) => {
                if let Some(at) = pick(which, self.readers.len())
                    && self.inactive.len() < MOST
                {
                    let reader = self.readers.swap_remove(at);
                    if !reader.evicted {
                        self.inactive.push(reader.subscription.deactivate());
                    }
                }
            }
            Call::Activate(which) => {
                if let Some(at) = pick(which, self.inactive.len())
                    && self.readers.len() < MOST
                {
                    let subscription = self.inactive.swap_remove(at).activate();
                    assert_eq!(subscription.position(), end);
                    self.readers.push(Reader {
                        subscription,
                        cursor: end,
                        seen: end,
                        evicted: false,
                    });
                }
            }
            Call::Evict(which) => {
                if let Some(at) = pick(which, self.readers.len()) {
                    let reader = &mut self.readers[at];
                    assert!(self.log.evict(reader.subscription.number()));
                    assert!(reader.subscription.is_evicted());
                    reader.evicted = true;
                }
            }
            Call::Batch(which, limit) => {
                let limit = 1 + usize::from(limit) % 8;
                let Some((reader, published, first)) = self.reader(which) else {
                    return;
                };
                reader.subscription.set_batch_limit(limit);
                match reader.subscription.try_next_batch() {
                    Ok(batch) => {
                        assert!(!reader.evicted);
                        let to = end.min(reader.cursor + limit as u64);
                        assert_eq!((batch.first_seq(), batch.end_seq()), (reader.cursor, to));
                        let part = (reader.cursor - first) as usize..(to - first) as usize;
                        let numbers = batch.iter().map(|(_, value)| value.number());
                        assert!(numbers.eq(published.range(part).copied()));
                        reader.cursor = to;
                    }
                    Err(NoBatch::Empty) => {
                        assert!(reader.cursor == end && !closed && !reader.evicted)
                    }
                    Err(NoBatch::Closed) => {
                        assert!(reader.cursor == end && closed && !reader.evicted)
                    }
                    Err(NoBatch::Evicted) => assert!(reader.evicted),
                }
                reader.seen = end;
            }
            Call::Early(which, count, cut) => {
                let Some((reader, ..)) = self.reader(which) else {
                    return;
                };
                if let Ok(mut batch) = reader.subscription.try_next_batch() {
                    let len = batch.len() as u64;
                    let to = batch.first_seq() + u64::from(count) % (len + 1);
                    batch.release_to(to);
                    batch.truncate(to + u64::from(cut));
                    reader.cursor = batch.end_seq();
                }
                reader.seen = end;
            }
            Call::Forget(which) => {
                let Some((reader, ..)) = self.reader(which) else {
                    return;
                };
                if let Ok(batch) = reader.subscription.try_next_batch() {
                    mem::forget(batch);
                }
                reader.seen = end;
                assert_eq!(reader.subscription.position(), reader.cursor);
            }
            Call::Poll(which) => {
                let Some((reader, ..)) = self.reader(which) else {
                    return;
                };
                assert_eq!(reader.subscription.poll(), end);
                assert_eq!(reader.subscription.lag(), end - reader.cursor);
                reader.seen = end;
            }
            Call::Peek(which, ahead) => {
                let Some((reader, published, first)) = self.reader(which) else {
                    return;
                };
                let at = (reader.cursor + u64::from(ahead) % 12).saturating_sub(2);
                let known = at >= reader.cursor && at < reader.seen;
                let expected = known.then(|| published[(at - first) as usize]);
                assert_eq!(reader.subscription.get(at).map(T::number), expected);
            }
            Call::Advance(which, count) => {
                let Some((reader, published, first)) = self.reader(which) else {
                    return;
                };
                // Advancing past the polled end would panic.
                let to = (reader.cursor + u64::from(count) % 10).min(reader.seen);
                let (head, rest) = reader.subscription.slices(reader.cursor, to);
                let part = (reader.cursor - first) as usize..(to - first) as usize;
                let numbers = head.iter().chain(rest).map(T::number);
                assert!(numbers.eq(published.range(part).copied()));
                reader.subscription.advance_to(to);
                reader.cursor = to;
            }
            Call::Tidy => self.log.tidy(),
            _ => {}
        }
    }
}

/// The records of batches and verdicts beside the slots, and the model of both.
struct Beside {
    writer: BatchWriter<Counted>,
    slots: u64,
    alive: Alive,
    /// The batches whose places the writer has not found free, oldest first.
    batches: VecDeque<BatchModel>,
    verdicts: Verdicts,
    /// For each slot, the position that was set there last, and its bits.
    model: Vec<Option<(u64, u64)>>,
}

struct BatchModel {
    first: u64,
    /// The first piece that is not done.
    next: u64,
    is_begun: bool,
    is_done: bool,
    readers: usize,
}

impl BatchModel {
    fn is_out(&self) -> bool {
        self.is_done && self.readers == 0
    }
}

/// What is read and begun.
#[derive(Default)]
struct Held<'a> {
    reading: Vec<ReadBatch<'a, Counted>>,
    begun: Vec<BegunBatch<'a, Counted>>,
}

/// The index of one of `len`.
fn one_of(which: u8, len: usize) -> Option<usize> {
    usize::from(which).checked_rem(len)
}

impl Beside {
    /// The model of the batch at `first`, which is held.
    fn held(&mut self, first: u64) -> &mut BatchModel {
        let mut batches = self.batches.iter_mut();
        let held = batches.find(|batch| batch.first == first);
        held.expect("a batch that is held is not gone")
    }

    fn apply<'a>(&mut self, call: Call, shared: &'a BatchRecords<Counted>, held: &mut Held<'a>) {
        let next = self.writer.next_seq();
        let back = self.batches.front().map_or(next, |batch| batch.first);
        // A position in use, or close to one in use.
        let position = |which: u8| back + u64::from(which) % (self.slots + 4);
        match call {
            Call::Put(len) => {
                while self.batches.front().is_some_and(BatchModel::is_out) {
                    self.batches.pop_front();
                }
                let back = self.batches.front().map_or(next, |batch| batch.first);
                let room = self.slots - (next - back);
                assert_eq!(self.writer.room() as u64, room);
                assert_eq!(self.writer.done(), back);
                let value = Counted::new(next, &self.alive);
                let put = self.writer.put(usize::from(len), value);
                assert_eq!(put.ok(), (u64::from(len) <= room).then_some(next));
                if u64::from(len) <= room {
                    self.batches.push_back(BatchModel {
                        first: next,
                        next: 0,
                        is_begun: false,
                        is_done: false,
                        readers: 0,
                    });
                }
            }
            Call::Read(which) => {
                let first = position(which);
                let mut batches = self.batches.iter_mut();
                let batch = batches.find(|batch| batch.first == first && !batch.is_done);
                if held.reading.len() == MOST {
                    return;
                }
                let read = shared.read(first);
                let number = read.as_ref().map(|read| read.value().number);
                assert_eq!(number, batch.as_ref().map(|batch| batch.first));
                if let Some(batch) = batch {
                    batch.readers += 1;
                }
                held.reading.extend(read);
            }
            Call::Release(which) => {
                if let Some(at) = one_of(which, held.reading.len()) {
                    let reading = held.reading.swap_remove(at);
                    let batch = self.held(reading.first());
                    batch.readers -= 1;
                    assert_eq!(reading.release().is_some(), batch.is_out());
                }
            }
            Call::Begin(which) => {
                let first = position(which);
                let mut batches = self.batches.iter_mut();
                let batch = batches.find(|batch| batch.first == first && !batch.is_done);
                let begun = shared.begin(first);
                let Some(batch) = batch else {
                    assert_eq!(begun.err(), Some(WorkState::Done));
                    return;
                };
                assert_eq!(begun.is_ok(), !batch.is_begun);
                // Others see what is done when the batch is released.
                for piece in [0, 1, 7, 255].into_iter().filter(|_| begun.is_ok()) {
                    let is_done = piece < batch.next;
                    let state = shared.state(first, piece);
                    assert_eq!(state == WorkState::Done, is_done, "piece {piece}");
                }
                batch.is_begun = true;
                held.begun.extend(begun.ok());
            }
            Call::Do(which, pieces) => {
                if let Some(at) = one_of(which, held.begun.len()) {
                    let begun = &mut held.begun[at];
                    let batch = self.held(begun.first());
                    let pieces = u64::from(pieces);
                    assert_eq!(begun.has_done(pieces), pieces < batch.next);
                    begun.done_before(pieces);
                    batch.next = batch.next.max(pieces);
                }
            }
            Call::Stop(which) => {
                if let Some(at) = one_of(which, held.begun.len()) {
                    let begun = held.begun.swap_remove(at);
                    self.held(begun.first()).is_begun = false;
                }
            }
            Call::Finish(which) => {
                if let Some(at) = one_of(which, held.begun.len()) {
                    let begun = held.begun.swap_remove(at);
                    let batch = self.held(begun.first());
                    (batch.is_begun, batch.is_done) = (false, true);
                    assert_eq!(begun.finish().is_some(), batch.is_out());
                }
            }
            Call::SetVerdict(which, bits) => {
                // Only a position that no later lap has set.
                let seq = position(which);
                let slot = &mut self.model[(seq % self.slots) as usize];
                if slot.is_none_or(|(last, _)| last == seq || last + self.slots == seq) {
                    let bits = slot
                        .filter(|(last, _)| *last == seq)
                        .map_or(u64::from(bits), |(_, bits)| bits);
                    self.verdicts.set(seq, bits);
                    *slot = Some((seq, bits));
                }
            }
            Call::GetVerdict(which) => {
                let seq = position(which);
                // Each lap sets a slot before it reads it, so the model does not ask for
                // positions that are older than one lap.
                if let Some((last, bits)) = self.model[(seq % self.slots) as usize]
                    && (last == seq || last + self.slots == seq)
                {
                    let expected = (last == seq).then_some(bits);
                    assert_eq!(self.verdicts.get(seq), expected);
                }
            }
            Call::BeginVerdict(which, sets) => {
                let seq = position(which);
                let slot = &mut self.model[(seq % self.slots) as usize];
                let follows = match *slot {
                    None => seq < self.slots,
                    Some((last, _)) => last == seq || last + self.slots == seq,
                };
                if !follows {
                    return;
                }
                let begun = self.verdicts.begin(seq);
                let is_set = slot.is_some_and(|(last, _)| last == seq);
                assert_eq!(begun.is_some(), !is_set);
                let Some(begun) = begun else { return };
                assert!(self.verdicts.begin(seq).is_none(), "begun twice");
                if sets {
                    begun.set(5);
                    *slot = Some((seq, 5));
                }
            }
            _ => {}
        }
    }
}
