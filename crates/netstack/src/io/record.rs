//! What was published, so that it can be applied again by any number of replicas.
//!
//! An [`Entry`] holds everything that `prepare`, `apply` and `perform` read: the request, the
//! frames, and bytes that applications wrote meanwhile.

#[cfg(feature = "record")]
mod file;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use dominoes_drivers::Frame;

use crate::io::Run;
use crate::io::world::World;
use crate::log::request::{Body, ConnId, Request, Verdict};

#[cfg(feature = "record")]
pub use file::{Recorder, Recording};

/// Writes a log. Without the feature `record` there is none.
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

/// One request of a recorded log, with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Entry {
    /// The request as published.
    pub request: Request,
    /// The verdict, where the device vouched for the frames.
    pub verdict: Option<Verdict>,
    /// The frames of its run.
    pub frames: Vec<Vec<u8>>,
    /// What an application wrote since the last entry that told of it, if this one does.
    pub written: Option<Written>,
}

/// Bytes of a send stream, or of a UDP socket's send ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Written {
    /// The connection, or the socket.
    pub conn: ConnId,
    /// Where they begin in the send stream.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Entry {
    /// Puts what the entry needs where primaries look for it, and gives its frames.
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
            // What was sent outside the log was not recorded.
            stream.skip_to(written.offset);
            stream.write(&written.bytes);
        }
        if let Body::Free { conn } = self.request.body {
            world.streams.recycle(conn);
        }
        if self.frames.is_empty() {
            return Run::default();
        }
        let frames = self.frames.iter().map(|bytes| Frame::from_bytes(bytes));
        Run::of(frames.collect(), self.request.digest.seg_seq)
    }
}
