//! Records the published log, so that any number of replicas can apply it again.
//!
//! An [`Entry`] holds everything that `prepare`, `apply` and `perform` read: the request, the
//! frames, and bytes that applications wrote meanwhile.

#[cfg(feature = "record")]
mod file;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use std::collections::HashMap;

use dominoes_drivers::Frame;

use crate::io::world::World;
use crate::io::{Run, RunFrames};
use crate::log::request::{Body, ConnId, Digest, Request, Verdict};
use crate::udp::record::total;

#[cfg(feature = "record")]
pub use file::{Recorder, Recording};

/// Writes a log. Without the feature `record` it has no values.
#[cfg(not(feature = "record"))]
#[derive(Debug)]
pub enum Recorder {}

#[cfg(not(feature = "record"))]
impl Recorder {
    /// Adds an entry.
    pub(crate) fn add(&mut self, _: &Entry) {
        match *self {}
    }
}

/// One request of a recorded log, with its frames and bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Entry {
    /// The request as published.
    pub request: Request,
    /// The verdict, if the device or the parser verified the frames.
    pub verdict: Option<Verdict>,
    /// The frames of its run.
    pub frames: Vec<Vec<u8>>,
    /// The bytes that the application wrote since the last entry with such bytes, if the request
    /// reports any.
    pub written: Option<Written>,
}

/// Bytes of a send stream, or of a UDP socket's send ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Written {
    /// The connection, or the socket.
    pub conn: ConnId,
    /// The offset of the first byte in the send stream.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a pump published, as far as a recording needs it.
pub(crate) struct Published {
    recorder: Option<Recorder>,
    /// For each connection, the recorded number of bytes that its application has written.
    written: HashMap<ConnId, u64>,
}

impl Published {
    pub(crate) fn new(recorder: Option<Recorder>) -> Self {
        Published {
            recorder,
            written: HashMap::new(),
        }
    }

    /// Records a request that is published next, if there is a recorder.
    #[inline(always)]
    pub(crate) fn record(&mut self, world: &World, run: &Run) {
        if self.recorder.is_some() {
            self.add(world, run);
        }
    }

    #[cold]
    fn add(&mut self, world: &World, run: &Run) {
        let Run {
            request, verdict, ..
        } = *run;
        let known = |conn| self.written.get(&conn).copied().unwrap_or(0);
        let digest = &request.digest;
        // The rings do not keep these bytes.
        let (conn, from, to) = match request.body {
            Body::Sends {
                socket,
                offset,
                lengths,
                ..
            } => {
                let len = total(&lengths, usize::from(digest.count));
                (socket, offset, offset + len)
            }
            Body::Progress {
                conn, app_written, ..
            } => (conn, known(conn), app_written),
            Body::Segments { .. } if digest.bits & Digest::PROGRESS != 0 => {
                let known = known(digest.hint);
                let grown = digest.app_written.wrapping_sub(known as u32);
                (digest.hint, known, known + u64::from(grown))
            }
            _ => (ConnId::NONE, 0, 0),
        };
        let is_udp = matches!(request.body, Body::Sends { .. });
        let streams = match is_udp {
            true => &world.queues.streams,
            false => &world.streams,
        };
        let stream = (to > from).then(|| streams.get(conn)).flatten();
        let written = stream.map(|stream| {
            let (a, b) = stream.recorded(from, to);
            Written {
                conn,
                offset: from,
                bytes: [a, b].concat(),
            }
        });
        if written.is_some() && !is_udp {
            self.written.insert(conn, to);
        }
        let frames = run.frames.iter().map(|frame| frame.bytes().to_vec());
        let entry = Entry {
            request,
            verdict,
            frames: frames.collect(),
            written,
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.add(&entry);
        }
    }

    /// Forgets a connection that is over.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.written.remove(&conn);
    }

    /// Ends the recording.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.recorder.take()
    }
}

impl Entry {
    /// Stores the written bytes where primaries read them, and returns the request with its frames.
    pub(crate) fn prepare_world(&self, world: &World) -> Run {
        let streams = match self.request.body {
            Body::Sends { .. } => &world.queues.streams,
            _ => &world.streams,
        };
        if let Body::Bind { socket, .. } = self.request.body {
            world.queues.recycle_for(socket);
        }
        if let Some(written) = &self.written
            && let Some(stream) = streams.get(written.conn)
        {
            // The recording lacks the bytes that were sent while the log was not in use.
            stream.skip_to(written.offset);
            stream.write(&written.bytes);
        }
        if let Body::Free { conn } = self.request.body {
            world.streams.recycle(conn);
        }
        let mut run = Run::new(self.request, self.verdict, RunFrames::default());
        if !self.frames.is_empty() {
            let frames = self.frames.iter().map(|bytes| Frame::from_bytes(bytes));
            run.frames = RunFrames::of(frames.collect(), &self.request);
        }
        run
    }
}
