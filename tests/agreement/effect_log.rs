//! Checks the effects of `apply` before they are performed.
//!
//! Two primaries that write one byte are a fault even if they write equal values, and the output
//! would not show it. So these tests check that exactly one delivery names each byte of a receive
//! stream, that deliveries and frames are numbered without gaps, and that all replicas have equal
//! effects at each position.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use dominoes_netstack::group::FaultHooks;
use dominoes_proto::log::effect::{Deliver, Effect, SendDatagrams, Transmit};

use super::check::Failure;

/// The effects of every position, from the first replica that applied it.
#[derive(Clone, Default)]
pub(crate) struct EffectLog(Arc<Mutex<EffectLogState>>);

#[derive(Default)]
struct EffectLogState {
    positions: BTreeMap<u64, Vec<Effect>>,
    wrong: Option<Failure>,
}

/// Records the effects of one worker.
pub(crate) struct EffectRecorder {
    pub(crate) id: usize,
    pub(crate) log: EffectLog,
}

impl FaultHooks for EffectRecorder {
    const ACTIVE: bool = true;

    fn change_effects(&mut self, seq: u64, effects: &mut Vec<Effect>) {
        let mut recorded = self.log.0.lock().expect("no witness panics");
        let known = recorded
            .positions
            .entry(seq)
            .or_insert_with(|| effects.clone());
        if known != effects && recorded.wrong.is_none() {
            recorded.wrong = Some(Failure::new(format!(
                "replica {} asks for other things than the rest at position {seq}",
                self.id
            )));
        }
    }
}

/// The delivered bytes of one stream.
#[derive(Default)]
struct Stream {
    deliveries: u64,
    /// The end of the range that begins at 0.
    end: u64,
    /// Ranges after a gap.
    beyond: BTreeMap<u64, u64>,
}

impl Stream {
    /// Adds the bytes of a delivery. Returns its first byte if an earlier delivery overlaps.
    fn take(&mut self, deliver: &Deliver) -> Option<u64> {
        let (from, to) = (
            deliver.stream_offset,
            deliver.stream_offset + u64::from(deliver.len),
        );
        let before = self.beyond.range(..to).next_back();
        if from < self.end || before.is_some_and(|(_, end)| *end > from) {
            return Some(from);
        }
        self.beyond.insert(from, to);
        while let Some(end) = self.beyond.remove(&self.end) {
            self.end = end;
        }
        None
    }
}

impl EffectLog {
    /// Checks all effects in the order of the log.
    ///
    /// # Errors
    /// The first effect that is wrong.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut recorded = self.0.lock().expect("no witness panics");
        if let Some(wrong) = recorded.wrong.take() {
            return Err(wrong);
        }
        let mut streams: BTreeMap<(u32, u32), Stream> = BTreeMap::new();
        let mut frames = 0;
        for (seq, effects) in &recorded.positions {
            for effect in effects {
                match effect {
                    Effect::Transmit(Transmit {
                        first_frame, count, ..
                    })
                    | Effect::Send(SendDatagrams {
                        first_frame, count, ..
                    }) => {
                        if *first_frame != frames {
                            return Err(Failure::new(format!(
                                "frame {first_frame} is numbered at position {seq} behind {frames} others"
                            )));
                        }
                        frames += u64::from(*count);
                    }
                    Effect::Deliver(deliver) => {
                        let name = (deliver.conn.index, deliver.conn.generation);
                        delivered(streams.entry(name).or_default(), deliver)
                            .map_err(|what| Failure::new(format!("position {seq}: {what}")))?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn delivered(stream: &mut Stream, deliver: &Deliver) -> Result<(), String> {
    if let Some(byte) = stream.take(deliver) {
        return Err(format!("byte {byte} is delivered twice: {deliver:?}"));
    }
    if deliver.delivery != stream.deliveries {
        let expected = stream.deliveries;
        return Err(format!("delivery {expected} is missing before {deliver:?}"));
    }
    if deliver.last {
        stream.deliveries += 1;
        if deliver.end != stream.end {
            let end = stream.end;
            return Err(format!(
                "the stream reaches {end}, and not as {deliver:?} says"
            ));
        }
    }
    Ok(())
}

#[test]
fn a_byte_that_two_deliveries_name_is_found() {
    let deliver = |delivery, stream_offset, end| {
        Effect::Deliver(Deliver {
            conn: dominoes_proto::log::request::ConnId {
                index: 0,
                generation: 0,
            },
            run_offset: 0,
            len: 10,
            stream_offset,
            delivery,
            end,
            last: true,
        })
    };
    let tell = |effects: &[Effect]| {
        let effect_record = EffectLog::default();
        let mut witness = EffectRecorder {
            id: 0,
            log: effect_record.clone(),
        };
        for (seq, effect) in (0..).zip(effects) {
            witness.change_effects(seq, &mut vec![*effect]);
        }
        effect_record.check().map_err(|failure| failure.what)
    };
    assert_eq!(
        tell(&[deliver(0, 0, 10), deliver(1, 20, 10), deliver(2, 10, 30)]),
        Ok(())
    );
    for bad in [9, 11, 19] {
        let what = tell(&[deliver(0, 0, 10), deliver(1, 20, 10), deliver(2, bad, 30)]);
        assert!(what.is_err(), "{bad}");
    }
}
