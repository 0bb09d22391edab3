//! Receiving: from units in the receive ring to text for the reader.

use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;

use dominoes::TryLockGuard;

use super::{Codec, MAX_HEADER, Stage};
use crate::error::SocketError;
use crate::io::stream::{DeliveryCursor, StreamRef};
use crate::io::units::{BegunUnit, TextBuffer, UnitState};

/// A unit to open.
pub(in crate::socket) struct OpenUnit<C: Codec> {
    /// The unit's offset in the receive stream.
    offset: u64,
    unit_len: usize,
    /// The codec and number with which the unit is opened. The codec stays for the next unit, as in
    /// [`SealUnit`](super::SealUnit).
    codec: Option<Arc<C>>,
    number: u64,
    text: TextBuffer,
    /// Content type and length of the text, or the fault.
    outcome: Option<Result<(u8, usize), C::Fault>>,
}

impl<C: Codec> Default for OpenUnit<C> {
    fn default() -> Self {
        OpenUnit {
            offset: 0,
            unit_len: 0,
            codec: None,
            number: 0,
            text: TextBuffer::default(),
            outcome: None,
        }
    }
}

/// Finds units in the receive ring, on the thread that holds it.
pub(in crate::socket) struct Receiver<C: Codec> {
    cursor: DeliveryCursor,
    /// Offset of the next unit.
    next: u64,
    /// The scan can continue when bytes up to this offset have arrived.
    wanted: u64,
    codec: Arc<C>,
    /// Number of the next unit.
    number: u64,
    /// The bytes at `next` begin no unit.
    is_over: bool,
    #[cfg(feature = "prepared")]
    numbers: Numbers,
}

/// The number of units after which unit numbers restart at 0 (feature `prepared`).
#[cfg(feature = "prepared")]
#[derive(Clone, Copy)]
struct Numbers(u64);

#[cfg(feature = "prepared")]
impl Numbers {
    const GROWING: Numbers = Numbers(u64::MAX);

    fn wrap(self, number: &mut u64) {
        if *number >= self.0 {
            *number = 0;
        }
    }
}

impl<C: Codec> Receiver<C> {
    /// `next`: how far the application has read.
    pub(in crate::socket) fn new(codec: &Arc<C>, number: u64, next: u64) -> Self {
        Receiver {
            cursor: DeliveryCursor::default(),
            next,
            wanted: 0,
            codec: Arc::clone(codec),
            number,
            is_over: false,
            #[cfg(feature = "prepared")]
            numbers: Numbers::GROWING,
        }
    }
}

impl<C: Codec> Stage<C> {
    /// Finds all units that have arrived, unless another thread is doing it.
    pub(super) fn scan(&self) -> bool {
        let receiver = self.receiver.try_take();
        receiver.is_some_and(|mut receiver| self.scan_with(&mut receiver))
    }

    /// Whether a unit may have arrived that has not been found.
    pub(super) fn has_unit(&self) -> bool {
        let Ok(stream) = self.half.stream() else {
            return true;
        };
        // A thread that scans now may have checked before the arrival.
        self.receiver.try_take().is_none_or(|mut receiver| {
            stream.follow(&mut receiver.cursor);
            !receiver.is_over && receiver.cursor.arrived >= receiver.wanted
        })
    }

    /// Returns whether there are new units.
    fn scan_with(&self, receiver: &mut Receiver<C>) -> bool {
        let Ok(stream) = self.half.stream() else {
            return false;
        };
        stream.follow(&mut receiver.cursor);
        let mut found = false;
        while !receiver.is_over {
            let Receiver { next, codec, .. } = &*receiver;
            let arrived = receiver.cursor.arrived.saturating_sub(*next);
            let header_len = codec.header_len();
            let needed = header_len.max(1) as u64;
            if arrived < needed {
                receiver.wanted = next + needed;
                break;
            }
            let mut header = [0; MAX_HEADER];
            let header = &mut header[..header_len];
            let (a, b) = stream.arrived(*next, header_len);
            for (to, from) in header.iter_mut().zip(a.iter().chain(b)) {
                *to = *from;
            }
            let (unit_len, bad) = match codec.unit_len(receiver.number, header, arrived as usize) {
                Ok(len) => (len, None),
                Err(fault) => (header_len, Some(Err(fault))),
            };
            if arrived < unit_len as u64 {
                receiver.wanted = next + unit_len as u64;
                break;
            }
            let pushed = self.opening.push(|unit| {
                let kept = unit.codec.take();
                let kept = kept.filter(|kept| Arc::ptr_eq(kept, codec));
                *unit = OpenUnit {
                    offset: *next,
                    unit_len,
                    codec: kept.or_else(|| Some(Arc::clone(codec))),
                    number: receiver.number,
                    text: TextBuffer::default(),
                    outcome: bad,
                };
            });
            if !pushed {
                // The reader scans after it takes a unit.
                receiver.wanted = u64::MAX;
                break;
            }
            found = true;
            receiver.is_over = bad.is_some();
            receiver.next += unit_len as u64;
            receiver.number = C::next_number(receiver.number, unit_len);
            #[cfg(feature = "prepared")]
            receiver.numbers.wrap(&mut receiver.number);
        }
        found
    }

    /// Opens a unit from the receive ring into its text.
    pub(super) fn open(&self, mut unit: BegunUnit<'_, OpenUnit<C>>, by_worker: bool) {
        let Ok(stream) = self.half.stream() else {
            return unit.done();
        };
        if unit.outcome.is_none() {
            if unit.text.is_empty() {
                unit.text = self.buffer();
            }
            let opened = open(&stream, &mut unit);
            if by_worker {
                self.half.world.units.in_unit();
            }
            unit.outcome = opened;
        }
        unit.done();
        stream.waiting().notify_all();
    }
}

/// Opens a unit with the codec that it names.
fn open<C: Codec>(
    stream: &StreamRef<'_>,
    unit: &mut OpenUnit<C>,
) -> Option<Result<(u8, usize), C::Fault>> {
    let codec = unit.codec.as_ref()?;
    let (a, b) = stream.arrived(unit.offset, unit.unit_len);
    let whole;
    let bytes = match b {
        [] => a,
        // The unit wraps around the end of the ring.
        _ => {
            whole = [a, b].concat();
            &whole
        }
    };
    Some(codec.open(unit.number, bytes, &mut unit.text))
}

/// Takes opened units in order.
pub(in crate::socket) struct Reader<C: Codec> {
    pub(in crate::socket) stage: Arc<Stage<C>>,
    cursor: DeliveryCursor,
    /// The codec and number with which the next unit must have been sealed.
    codec: Arc<C>,
    number: u64,
    /// Text of the current unit.
    text: TextBuffer,
    at: usize,
    end: usize,
    #[cfg_attr(
        not(feature = "rustls"),
        expect(dead_code, reason = "TLS alone has something there")
    )]
    pub(in crate::socket) reading: C::Reading,
    /// How reading ended, if it did.
    pub(in crate::socket) over: Option<Result<(), C::Error>>,
    #[cfg(feature = "prepared")]
    numbers: Numbers,
}

impl<C: Codec> Reader<C> {
    pub(in crate::socket) fn new(stage: &Arc<Stage<C>>, codec: Arc<C>, number: u64) -> Self {
        Reader {
            stage: Arc::clone(stage),
            cursor: DeliveryCursor::default(),
            codec,
            number,
            text: TextBuffer::default(),
            at: 0,
            end: 0,
            reading: C::Reading::default(),
            over: None,
            #[cfg(feature = "prepared")]
            numbers: Numbers::GROWING,
        }
    }

    /// To be called before any unit has arrived.
    #[cfg(all(feature = "prepared", feature = "rustls"))]
    pub(in crate::socket) fn repeat_numbers(&mut self, after: u64) {
        self.numbers = Numbers(after);
        take(&self.stage).numbers = Numbers(after);
    }

    /// Waits until there is text, or the end.
    pub(in crate::socket) fn wait(&mut self) -> Result<(), C::Error> {
        let half = Arc::clone(&self.stage.half);
        let until = half.read_wait.begin();
        until.retry(&half.world, half.stream()?.waiting(), || self.fill())
    }

    /// Copies text of one unit; 0 at the end of the stream, or if `into` is empty.
    pub(in crate::socket) fn read(&mut self, into: &mut [u8]) -> Result<usize, C::Error> {
        if into.is_empty() {
            return Ok(0);
        }
        self.fill()?;
        let text = self.text();
        let len = text.len().min(into.len());
        into[..len].copy_from_slice(&text[..len]);
        self.consume(len);
        Ok(len)
    }

    /// Opened and unread text of one unit; empty at the end of the stream.
    pub(in crate::socket) fn fill(&mut self) -> Result<(), C::Error> {
        C::check_caller()?;
        if self.at < self.end {
            return Ok(());
        }
        let filled = self.fill_anew();
        self.note_text();
        filled
    }

    /// Stores for pollers whether there is text, or the end.
    fn note_text(&self) {
        let has_text = self.at < self.end || self.over.is_some();
        self.stage.has_text.store(has_text, Ordering::Relaxed);
    }

    fn fill_anew(&mut self) -> Result<(), C::Error> {
        let mut has_missed = false;
        while self.at == self.end {
            if let Some(over) = &self.over {
                return over.clone();
            }
            let stage = Arc::clone(&self.stage);
            let stream = stage.half.stream()?;
            if stream.is_read_shut() {
                return Ok(());
            }
            match stage.opening.first() {
                UnitState::Done => {
                    // Before the unit is removed, so that a poller finds one or the other.
                    stage.has_text.store(true, Ordering::Relaxed);
                    let unit = stage.opening.take(|unit| {
                        let codec = unit.codec.take();
                        let is_ours = codec
                            .as_ref()
                            .is_some_and(|it| Arc::ptr_eq(it, &self.codec));
                        let taken = core::mem::take(unit);
                        unit.codec = codec;
                        (taken, is_ours)
                    });
                    if stage.scan() {
                        stage.share();
                    }
                    if let Some((unit, is_ours)) = unit {
                        self.accept(&stream, unit, is_ours)?;
                    }
                }
                UnitState::Ready => {
                    if let Some(unit) = stage.opening.begin_first() {
                        stage.share();
                        stage.open(unit, false);
                    }
                }
                // A worker is opening it and notifies us. Meanwhile we open a later one, if there
                // is one: to sleep and to be woken for each unit costs as much as a unit.
                UnitState::Begun => match stage.opening.begin() {
                    Some(unit) => stage.open(unit, false),
                    None if has_missed => return Err(SocketError::WouldBlock.into()),
                    None => {
                        has_missed = true;
                        stream.missed();
                        // ORDERING: SeqCst fence, pairs with the one in `EventCount::notify_all`,
                        // which comes between the end of a unit and its notifier's check: either
                        // the notifier sees the miss, or we find the unit.
                        fence(Ordering::SeqCst);
                    }
                },
                UnitState::Free => self.find_more(&stream)?,
            }
        }
        Ok(())
    }

    pub(in crate::socket) fn text(&self) -> &[u8] {
        &self.text[self.at..self.end]
    }

    pub(in crate::socket) fn consume(&mut self, len: usize) {
        let left = self.end - self.at;
        assert!(len <= left, "{len} bytes are given back of {left}");
        self.at += len;
        self.note_text();
    }

    /// Makes the first `len` opened bytes text for the application.
    pub(in crate::socket) fn show(&mut self, len: usize) {
        (self.at, self.end) = (0, len);
    }

    /// The first `len` opened bytes.
    #[cfg(feature = "rustls")]
    pub(in crate::socket) fn opened(&self, len: usize) -> &[u8] {
        &self.text[..len]
    }

    /// The following units have another codec, and their numbers begin with 0.
    #[cfg(feature = "rustls")]
    pub(in crate::socket) fn go_on_with(&mut self, codec: C) {
        self.codec = Arc::new(codec);
        self.number = 0;
        let mut receiver = take(&self.stage);
        receiver.codec = Arc::clone(&self.codec);
        // Units that were found already get the first numbers; `accept` opens them again.
        receiver.number = self.stage.opening.len() as u64;
    }

    /// Looks for units after none was found.
    fn find_more(&mut self, stream: &StreamRef<'_>) -> Result<(), C::Error> {
        let stage = &self.stage;
        // Loaded before the scan, so that the scan finds all bytes before a reported end.
        let status = stream.status();
        let peer_end = stream.peer_end();
        let mut receiver = take(stage);
        let found = stage.scan_with(&mut receiver);
        let (arrived, next) = (receiver.cursor.arrived, receiver.next);
        drop(receiver);
        if found || stage.opening.len() > 0 {
            return Ok(());
        }
        if peer_end == Some(arrived) {
            self.over = Some(C::end_of_stream(next == arrived));
            return Ok(());
        }
        match status.end_reason() {
            // The report of an end may overtake the bytes before it.
            Some(ending) if stream.ended_at() <= arrived => {
                stage.check_sealed()?;
                Err(SocketError::from(ending).into())
            }
            _ if stage.half.world.is_down() => Err(SocketError::Down.into()),
            _ => Err(SocketError::WouldBlock.into()),
        }
    }

    /// Accepts a unit as the next one. `is_ours`: it was opened with the reader's codec.
    fn accept(
        &mut self,
        stream: &StreamRef<'_>,
        mut unit: OpenUnit<C>,
        is_ours: bool,
    ) -> Result<(), C::Error> {
        let is_unit = !unit.text.is_empty();
        if is_unit && (!is_ours || unit.number != self.number) {
            // The codec was replaced before this unit.
            (unit.codec, unit.number) = (Some(Arc::clone(&self.codec)), self.number);
            unit.outcome = open(stream, &mut unit);
        }
        stream.follow(&mut self.cursor);
        self.cursor.end = self.cursor.arrived;
        let half = Arc::clone(&self.stage.half);
        half.consume(stream, &mut self.cursor, unit.unit_len);
        let text = core::mem::replace(&mut self.text, unit.text);
        half.world.units.give_back(text);
        self.number = C::next_number(self.number, unit.unit_len);
        #[cfg(feature = "prepared")]
        self.numbers.wrap(&mut self.number);
        // `None` if the connection was gone.
        let outcome = unit.outcome.ok_or(SocketError::Aborted)?;
        let taken = outcome.and_then(|(content, len)| C::take(self, content, len));
        if self.at == self.end {
            half.world.units.give_back(core::mem::take(&mut self.text));
            (self.at, self.end) = (0, 0);
        }
        taken.map_err(|fault| self.refuse(stream, fault))
    }

    /// Ends the connection because of a fault in received bytes.
    fn refuse(&mut self, stream: &StreamRef<'_>, fault: C::Fault) -> C::Error {
        let error = C::refused(fault);
        (self.at, self.end) = (0, 0);
        self.over = Some(Err(error.clone()));
        self.discard(stream);
        self.stage.end(Some(fault));
        error
    }

    /// Consumes and drops all bytes that have arrived: unread bytes would end the connection with a
    /// reset, perhaps before the codec's last unit reaches the peer.
    fn discard(&mut self, stream: &StreamRef<'_>) {
        let stage = Arc::clone(&self.stage);
        take(&stage).is_over = true;
        loop {
            match stage.opening.first() {
                UnitState::Ready => drop(stage.opening.begin_first().map(BegunUnit::done)),
                UnitState::Done => drop(stage.opening.take(core::mem::take)),
                // Another thread is using it.
                UnitState::Begun => return,
                UnitState::Free => break,
            }
        }
        stream.follow(&mut self.cursor);
        self.cursor.end = self.cursor.arrived;
        let left = self.cursor.end - stream.cursors().0;
        stage.half.consume(stream, &mut self.cursor, left as usize);
    }
}

impl<C: Codec> Drop for Reader<C> {
    fn drop(&mut self) {
        // Unread bytes end the connection with a reset, which may overtake written bytes. Units
        // without text must not cause that.
        if !std::thread::panicking() {
            let _ = self.fill();
        }
        let text = core::mem::take(&mut self.text);
        self.stage.half.world.units.give_back(text);
    }
}

/// Takes the receiver. Waits for a thread that scans, which is short.
fn take<C: Codec>(stage: &Stage<C>) -> TryLockGuard<'_, Receiver<C>> {
    loop {
        match stage.receiver.try_take() {
            Some(receiver) => return receiver,
            None => std::thread::yield_now(),
        }
    }
}
