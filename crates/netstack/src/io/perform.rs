//! Perform, the other costly step: turns effects of `apply` into copies, frames and notifications.
//!
//! An effect belongs to the primary of its batch, but the frames of a `Transmit` or `Send` belong
//! to the owners of their chunks, perhaps several workers. Each worker performs its share in
//! ascending order. Nothing here waits, and `apply` gets no result back.

mod datagrams;
mod frames;

use core::num::NonZeroU32;

use crate::error::SocketError;
use crate::io::RunFrames;
use crate::io::accept::Ready;
use crate::io::stream::{AppRequest, StreamRef};
use crate::io::world::{HintUpdate, OpenResult, Wakes, World};
use crate::log::effect::{Deliver, Effect};
use crate::log::request::{ConnId, Request};
use crate::stats::EffectStats;

use datagrams::queue;
pub(crate) use datagrams::{build_datagram, build_datagram_in, whole_datagram};
pub(crate) use frames::{BuiltHeaders, build, build_bare, build_in};
#[cfg(feature = "testkit")]
pub(crate) use {datagrams::fill_datagram, frames::fill};

/// Performs all effects of a request that has the frames `run`.
#[inline]
pub(crate) fn all<'a>(
    world: &World,
    effects: impl IntoIterator<Item = &'a Effect>,
    (request, run): (&Request, &RunFrames),
    headers: &mut BuiltHeaders,
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    for effect in effects {
        match effect {
            Effect::Transmit(transmit) => {
                build(world, transmit, (0, transmit.count), headers, stats);
            }
            Effect::Send(send) => {
                for i in 0..send.count {
                    build_datagram(world, send, i, stats);
                }
            }
            other => {
                let about = (request.layout(), Some(run), request.digest.reserved);
                one(world, other, about, stats, wakes);
            }
        }
    }
}

/// Performs an effect that transmits nothing, of a request with the frames `run`, which are known
/// unless its batch is done, and are as in [`Request::layout`]. `reserved`: see [`deliver`].
#[inline(always)]
pub(crate) fn one(
    world: &World,
    effect: &Effect,
    (layout, run, reserved): ((u32, usize), Option<&RunFrames>, Option<NonZeroU32>),
    stats: &mut EffectStats,
    wakes: &mut Wakes<'_>,
) {
    match (effect, run) {
        (Effect::Deliver(piece), Some(run)) => {
            deliver(world, piece, layout, (run, reserved), stats);
        }
        (Effect::Queue(datagrams), Some(run)) => queue(world, datagrams, run, stats),
        (Effect::Deliver(_) | Effect::Queue(_), None) => stats.diverged += 1,
        (other, _) => notify(world, other, stats),
    }
    wakes.after(effect);
}

/// Copies the range that `deliver` names out of `run`, whose frames are as in [`Request::layout`],
/// unless the payload was stored there while it was verified: where bytes were
/// [`reserved`](crate::log::request::Digest::reserved).
#[inline(always)]
pub(crate) fn deliver(
    world: &World,
    deliver: &Deliver,
    layout: (u32, usize),
    (run, reserved): (&RunFrames, Option<NonZeroU32>),
    stats: &mut EffectStats,
) {
    let Some(stream) = world.streams.get(deliver.conn) else {
        stats.diverged += 1;
        return;
    };
    let place = deliver
        .stream_offset
        .wrapping_sub(u64::from(deliver.run_offset));
    if reserved.map(NonZeroU32::get) != Some(place as u32) {
        stream.set_first_sequence(run.seq - place as u32);
        let is_one_piece = run.len() == 1 && deliver.run_offset == 0;
        let whole = is_one_piece.then(|| {
            let payload = run.get(0)?.bytes().get(layout.1..)?;
            payload.get(..deliver.len as usize)
        });
        if let Some(Some(payload)) = whole {
            stream.store(deliver, 0, payload);
        } else if copy_pieces(&stream, deliver, layout, run).is_none() {
            stats.diverged += 1;
            return;
        }
        stats.copied_bytes += u64::from(deliver.len);
    }
    stats.delivered_bytes += u64::from(deliver.len);
    let stored_end = deliver.stream_offset + u64::from(deliver.len);
    if stored_end > deliver.end {
        stream.stored_behind_gap(stored_end);
    }
    if deliver.last {
        stats.deliveries += 1;
        stream.stamp(deliver);
    }
}

/// Copies from several frames. `None` if the frames are shorter than the run's layout requires.
#[inline(never)]
fn copy_pieces(
    stream: &StreamRef<'_>,
    deliver: &Deliver,
    (seg_len, payload_offset): (u32, usize),
    run: &RunFrames,
) -> Option<()> {
    let seg_len = seg_len.max(1);
    let in_a_row = run.consecutive();
    let mut done = 0;
    while done < deliver.len {
        let at = deliver.run_offset + done;
        // Only a run of a single segment may end with its longest one, so the index is always
        // right.
        let index = ((at / seg_len) as usize).min(run.len().saturating_sub(1));
        let within = (at - index as u32 * seg_len) as usize;
        let frame = match in_a_row {
            Some(frames) => frames.get(index),
            None => run.get(index),
        };
        let frame = frame?.bytes();
        let payload = frame.get(payload_offset + within..)?;
        // A short frame may have padding after its payload: each segment of a run except the
        // last has `seg_len` bytes.
        let left = (deliver.len - done) as usize;
        let here = if index + 1 < run.len() {
            left.min(seg_len as usize - within)
        } else {
            left
        };
        let bytes = payload.get(..here)?;
        stream.store(deliver, done, bytes);
        done += here as u32;
    }
    Some(())
}

/// Performs an effect that is neither a delivery nor a transmission: it informs applications or
/// the pump.
pub(crate) fn notify(world: &World, effect: &Effect, stats: &mut EffectStats) {
    match *effect {
        Effect::Deliver(_) | Effect::Transmit(_) | Effect::Queue(_) | Effect::Send(_) => {}
        Effect::Sent { socket, upto } => match world.queues.streams.get(socket) {
            Some(stream) => stream.release(upto),
            None => stats.diverged += 1,
        },
        Effect::Unbound { socket } => {
            world.queues.unbound.push(socket);
            world.wake_pump();
        }
        Effect::Release { conn, upto } => match world.streams.get(conn) {
            Some(stream) => stream.release(upto),
            None => stats.diverged += 1,
        },
        Effect::Numbered { conn, upto } => match world.streams.get(conn) {
            Some(stream) => stream.numbered(upto),
            None => stats.diverged += 1,
        },
        Effect::Event {
            conn,
            event,
            received,
        } => match world.streams.get(conn) {
            Some(stream) => stream.event(event, received),
            None => stats.diverged += 1,
        },
        Effect::Opened {
            request_id,
            conn,
            flow,
        } => {
            let answer = if conn == ConnId::NONE {
                OpenResult::Failed(SocketError::NoRoom)
            } else {
                OpenResult::Opened { conn, flow }
            };
            world.complete_open(request_id, answer);
        }
        Effect::NoPort { request_id, port } => {
            let error = match port {
                0 => SocketError::NoPort,
                _ => SocketError::PortTaken,
            };
            world.complete_open(request_id, OpenResult::Failed(error));
        }
        Effect::Accept { number, conn, flow } => {
            let ready = Ready {
                group: world.group,
                conn,
                flow,
            };
            world.established(number, ready);
        }
        Effect::Hint { conn, flow, open } => world.hints.push(HintUpdate { conn, flow, open }),
        Effect::PathMtu { remote, mtu } => world.tell_path(remote, mtu),
        Effect::Retire { conn, held, frames } => {
            if let Some(stream) = world.streams.get(conn) {
                if !held {
                    stream.request(AppRequest {
                        orphan: true,
                        ..AppRequest::default()
                    });
                }
                stream.retired();
            }
            world.retired.push((conn, frames));
            world.wake_pump();
        }
    }
}
