//! Sending: from written text to units in the send ring.

use core::ops::ControlFlow;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use super::{Codec, Stage, UNITS};
use crate::error::SocketError;
use crate::io::stream::{AppRequest, StreamRef};
use crate::io::units::{BegunUnit, TextBuffer};

/// A unit to seal.
pub(in crate::socket) struct SealUnit<C: Codec> {
    /// The first `len` bytes are its text.
    text: TextBuffer,
    len: usize,
    content: u8,
    /// Stays for the next unit with the same codec: to count its users anew for each unit would
    /// move the counter, and the key beside it, from core to core. `None` before the first unit.
    codec: Option<Arc<C>>,
    number: u64,
    /// The unit's offset in the send stream.
    offset: u64,
    unit_len: usize,
    fault: Option<C::Fault>,
}

impl<C: Codec> Default for SealUnit<C> {
    fn default() -> Self {
        SealUnit {
            text: TextBuffer::default(),
            len: 0,
            content: 0,
            codec: None,
            number: 0,
            offset: 0,
            unit_len: 0,
            fault: None,
        }
    }
}

/// The state that writers use in turn.
pub(in crate::socket) struct Sender<C: Codec> {
    pub(in crate::socket) codec: Arc<C>,
    /// Number of the next unit.
    pub(in crate::socket) number: u64,
    /// The end of the last unit in the send stream.
    pub(in crate::socket) end: u64,
    /// Why nothing more may be written.
    pub(in crate::socket) over: Option<C::Error>,
}

impl<C: Codec> Sender<C> {
    pub(in crate::socket) fn new(codec: Arc<C>, number: u64, end: u64) -> Self {
        Sender {
            codec,
            number,
            end,
            over: None,
        }
    }
}

impl<C: Codec> Stage<C> {
    /// Waits until some text is written.
    pub(in crate::socket) fn write_waiting(
        self: &Arc<Self>,
        from: &[u8],
    ) -> Result<usize, C::Error> {
        let until = self.half.write_wait.begin();
        let half = &self.half;
        until.retry(&half.world, half.stream()?.room(), || self.write(from))
    }

    /// Makes units of as much of `from` as there is room for. Seals them, or leaves that to
    /// workers.
    pub(in crate::socket) fn write(self: &Arc<Self>, from: &[u8]) -> Result<usize, C::Error> {
        C::check_caller()?;
        let mut sender = self.sender();
        let stream = self.half.stream()?;
        self.check_open(&sender, &stream)?;
        let (mut done, mut has_missed) = (0, false);
        while done < from.len() {
            match self.write_unit(&mut sender, &stream, &from[done..]) {
                Ok(0) if has_missed => break,
                // From now on pollers report room. Some may have become free before, so try again.
                Ok(0) => {
                    stream.fell_short();
                    has_missed = true;
                }
                Ok(len) => (done, has_missed) = (done + len, false),
                Err(error) if done == 0 => return Err(error),
                // The next call returns it.
                Err(_) => break,
            }
        }
        if done == 0 && !from.is_empty() {
            return Err(SocketError::WouldBlock.into());
        }
        self.share();
        Ok(done)
    }

    /// Makes a unit of as much of `left` as there is room for, and returns how much.
    fn write_unit(
        self: &Arc<Self>,
        sender: &mut Sender<C>,
        stream: &StreamRef<'_>,
        left: &[u8],
    ) -> Result<usize, C::Error> {
        loop {
            if self.sealing.len() + C::CONTROL_UNITS >= UNITS {
                // Rather than wait for a worker.
                self.share();
                if self.seal_one() {
                    continue;
                }
                return Ok(0);
            }
            match C::before_unit(self, sender, stream)? {
                ControlFlow::Continue(true) => break,
                ControlFlow::Continue(false) => {}
                ControlFlow::Break(()) => return Ok(0),
            }
        }
        let room = stream.writable_behind(sender.end);
        let fit = sender.codec.fit(left.len(), room);
        let (len, unit_len) = fit.map_err(|fault| {
            self.fail(stream, fault);
            C::refused(fault)
        })?;
        if len == 0 {
            return Ok(0);
        }
        let text = &left[..len];
        // While every worker has a unit to seal, sealing here saves a copy. Workers learn of their
        // units first, since it takes long.
        let is_short = len <= C::AT_ONCE;
        let at_once = is_short || self.sealing.are_ready(self.half.world.workers);
        if at_once && !is_short {
            self.share();
        }
        let made = if at_once {
            self.seal_at_once(sender, stream, text, unit_len)
        } else {
            self.push(sender, stream, (C::TEXT, text), unit_len)
        };
        Ok(if made { len } else { 0 })
    }

    /// Checks that text may be written.
    pub(in crate::socket) fn check_open(
        &self,
        sender: &Sender<C>,
        stream: &StreamRef<'_>,
    ) -> Result<(), C::Error> {
        if let Some(over) = &sender.over {
            return Err(over.clone());
        }
        self.check_sealed()?;
        let status = stream.status();
        if let Some(ending) = status.end_reason() {
            return Err(SocketError::from(ending).into());
        }
        if status.retired() {
            return Err(SocketError::ShutDown.into());
        }
        if self.half.world.is_closing() {
            return Err(SocketError::Down.into());
        }
        Ok(())
    }

    /// Checks that all units so far could be sealed.
    pub(in crate::socket) fn check_sealed(&self) -> Result<(), C::Error> {
        match self.failed.get() {
            Some(fault) => Err(C::refused(*fault)),
            None => Ok(()),
        }
    }

    /// Copies text into a unit of `unit_len` bytes, to be sealed later. Returns false if there is
    /// no room for it.
    pub(in crate::socket) fn push(
        &self,
        sender: &mut Sender<C>,
        stream: &StreamRef<'_>,
        (content, text): (u8, &[u8]),
        unit_len: usize,
    ) -> bool {
        if stream.ring_room_behind(sender.end) < unit_len {
            return false;
        }
        let pushed = self.sealing.push(|unit| {
            let mut buffer = self.buffer();
            buffer[..text.len()].copy_from_slice(text);
            let kept = unit.codec.take();
            let kept = kept.filter(|codec| Arc::ptr_eq(codec, &sender.codec));
            *unit = SealUnit {
                text: buffer,
                len: text.len(),
                content,
                codec: kept.or_else(|| Some(Arc::clone(&sender.codec))),
                number: sender.number,
                offset: sender.end,
                unit_len,
                fault: None,
            };
        });
        if pushed {
            self.goes_on(sender, unit_len);
        }
        pushed
    }

    /// Moves past a new unit of this length.
    fn goes_on(&self, sender: &mut Sender<C>, unit_len: usize) {
        sender.number = C::next_number(sender.number, unit_len);
        sender.end += unit_len as u64;
        self.half.ahead.store(sender.end, Ordering::Relaxed);
    }

    /// Seals text in the send ring at once, as a unit of `unit_len` bytes that no other thread can
    /// claim. Returns false if there is no room for it.
    ///
    /// If the codec panics, there is no such unit, and the next one takes its offset and number: no
    /// bytes after the sealed prefix are sent.
    fn seal_at_once(
        &self,
        sender: &mut Sender<C>,
        stream: &StreamRef<'_>,
        text: &[u8],
        unit_len: usize,
    ) -> bool {
        if stream.ring_room_behind(sender.end) < unit_len || !self.sealing.has_room() {
            return false;
        }
        let mut sealed = Ok(());
        stream.write_ahead(sender.end, unit_len, |unit| {
            sealed = sender.codec.seal(sender.number, C::TEXT, text, unit);
        });
        let pushed = self.sealing.push_done(|unit| {
            *unit = SealUnit {
                offset: sender.end,
                unit_len,
                fault: sealed.err(),
                codec: unit.codec.take(),
                ..SealUnit::default()
            };
        });
        debug_assert!(pushed, "only the one who has the sender pushes");
        self.goes_on(sender, unit_len);
        self.publish();
        true
    }

    /// Ends writing: sends the codec's last units, then the end of the stream.
    pub(in crate::socket) fn end(&self, why: Option<C::Fault>) {
        if C::check_caller().is_err() {
            return self.abort();
        }
        let mut sender = self.sender();
        if sender.over.is_none() {
            let over = match why {
                None => SocketError::ShutDown.into(),
                Some(fault) => C::refused(fault),
            };
            sender.over = Some(over);
            if let Ok(stream) = self.half.stream() {
                C::end(self, &mut sender, &stream, why);
            }
        }
        self.seal_all();
        // ORDERING: Release, pairs with the Acquire in `publish`, which then sees all units.
        self.is_ending.store(true, Ordering::Release);
        self.publish();
    }

    /// Seals all units that are ready.
    pub(in crate::socket) fn seal_all(&self) {
        while self.seal_one() {}
    }

    /// Seals one unit, if one is ready.
    fn seal_one(&self) -> bool {
        let unit = self.sealing.begin();
        unit.map(|unit| self.seal(unit, false)).is_some()
    }

    /// Seals a unit from its text into the send ring.
    pub(in crate::socket) fn seal(&self, mut unit: BegunUnit<'_, SealUnit<C>>, by_worker: bool) {
        let mut sealed = Ok(());
        if let (Ok(stream), Some(codec)) = (self.half.stream(), &unit.codec) {
            stream.write_ahead(unit.offset, unit.unit_len, |to| {
                sealed = codec.seal(unit.number, unit.content, &unit.text[..unit.len], to);
                if by_worker {
                    self.half.world.units.in_unit();
                }
            });
        }
        unit.fault = sealed.err();
        unit.done();
        self.publish();
    }

    /// Moves the written cursor over the sealed prefix. The prefix ends before a unit that could
    /// not be sealed; then the connection is aborted.
    fn publish(&self) {
        self.publishing.run(|| {
            let world = &self.half.world;
            let (mut end, mut failed) = (None, None);
            while let Some((here, fault)) = self.sealing.take(|unit| {
                world.units.give_back(core::mem::take(&mut unit.text));
                (unit.offset + unit.unit_len as u64, unit.fault)
            }) {
                failed = failed.or(fault);
                if failed.is_none() && self.failed.get().is_none() {
                    end = Some(here);
                }
            }
            let Ok(stream) = self.half.stream() else {
                return;
            };
            if let Some(end) = end {
                stream.publish_written(end);
                world.raise(&stream);
                stream.room().notify_all();
            }
            if let Some(fault) = failed {
                self.fail(&stream, fault);
            }
            // ORDERING: Acquire, pairs with the Release in `end`.
            if self.is_ending.load(Ordering::Acquire)
                && self.sealing.len() == 0
                && self.failed.get().is_none()
                && !self.has_ended.swap(true, Ordering::Relaxed)
            {
                self.half.request(AppRequest {
                    shutdown: true,
                    ..AppRequest::default()
                });
                stream.room().notify_all();
            }
        });
    }

    /// Resets the connection because a unit cannot be made.
    fn fail(&self, stream: &StreamRef<'_>, fault: C::Fault) {
        if self.failed.set(fault).is_ok() {
            self.abort();
            stream.notify();
        }
    }

    /// Resets the connection.
    pub(in crate::socket) fn abort(&self) {
        self.half.request(AppRequest {
            abort: true,
            ..AppRequest::default()
        });
    }
}
