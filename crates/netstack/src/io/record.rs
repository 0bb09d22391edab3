//! Records the published log, so that any number of replicas can apply it again.
//!
//! An [`Entry`] holds everything that `prepare`, `apply` and `perform` read: the request, the
//! frames, and bytes that applications wrote meanwhile.

#[cfg(feature = "record")]
mod file;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use dominoes_drivers::Frame;

use crate::io::RunFrames;
use crate::io::world::World;
use crate::log::request::{Body, ConnId, Request, Verdict};

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
    /// The verdict, if the device verified the frames.
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

impl Entry {
    /// Stores the written bytes where primaries read them, and returns the entry's frames.
    pub(crate) fn prepare_world(&self, world: &World) -> RunFrames {
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
        if self.frames.is_empty() {
            return RunFrames::default();
        }
        let frames = self.frames.iter().map(|bytes| Frame::from_bytes(bytes));
        RunFrames::of(frames.collect(), self.request.digest.seg_seq)
    }
}
