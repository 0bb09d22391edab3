//! Units that any worker of the stack processes. All variants and `limit` use these.
//!
//! A unit is some whole segments, so that the peer's prebuilt frames can carry it. A cipher gives
//! every position of a stream other bytes, and the peer does not encipher its frames anew. So
//! frames circulate in [`RECORDS`] kinds, and a receiver takes the position modulo their length.
//! This would be the end of any secrecy, and a benchmark needs none. Positions of sent bytes do not
//! repeat.

use std::sync::Arc;

#[cfg(feature = "tls")]
use dominoes_netstack::framed::Aes256;
#[cfg(feature = "report")]
use dominoes_netstack::framed::Search;
use dominoes_netstack::framed::{Failure, UnitProcessor};

#[cfg(any(feature = "report", feature = "tls"))]
use crate::workload;
use crate::workload::{Processing, RECORDS, Workload};

/// Units of one length, their processor, and the text that each carries.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    /// For a stream.
    pub(crate) processor: Arc<dyn UnitProcessor>,
    /// Bytes of a unit.
    pub(crate) len: usize,
    /// The text of each.
    pub(crate) text: Vec<u8>,
}

/// A processor of units that carry so much, whose positions repeat in receiving.
#[derive(Debug)]
struct Circular {
    inner: Box<dyn UnitProcessor>,
    /// Bytes after which positions repeat.
    period: u64,
    text_len: usize,
}

impl UnitProcessor for Circular {
    fn max_payload(&self) -> usize {
        self.text_len
    }

    fn max_unit(&self) -> usize {
        self.inner.max_unit()
    }

    fn header_len(&self) -> usize {
        self.inner.header_len()
    }

    fn received_len(&self, offset: u64, header: &[u8], arrived: usize) -> Result<usize, Failure> {
        self.inner
            .received_len(offset % self.period, header, arrived)
    }

    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        let at = offset % self.period;
        // A unit of arrived bytes may begin in one round and end in the next.
        let left = (self.period - at).min(unit.len() as u64) as usize;
        let (unit, next) = unit.split_at(left);
        let mut len = self.inner.receive(at, unit, payload)?;
        if !next.is_empty() {
            len += self.inner.receive(0, next, &mut payload[len..])?;
        }
        Ok(len)
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        self.inner.sent_len(payload_len)
    }

    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        self.inner.send(offset, payload, unit)
    }
}

impl Units {
    /// What the workload asks for; `None` if it asks for nothing, or for TLS.
    ///
    /// # Errors
    /// If its feature is not compiled in.
    pub(crate) fn of(workload: &Workload) -> Result<Option<Units>, String> {
        let inner: Box<dyn UnitProcessor> = match workload.processing {
            Processing::None => return Ok(None),
            processing if processing.is_tls() => return Ok(None),
            #[cfg(feature = "report")]
            Processing::Search => Box::new(search(workload)?),
            #[cfg(not(feature = "report"))]
            Processing::Search => return Err("a search needs the feature `report`".to_owned()),
            _ => cipher(workload)?,
        };
        let len = workload.unit_len();
        let text_len = len - inner.sent_len(0);
        let text = workload.payload().into_iter().cycle();
        let processor = Circular {
            inner,
            period: (RECORDS * workload.segment_bytes) as u64,
            text_len,
        };
        Ok(Some(Units {
            processor: Arc::new(processor),
            len,
            text: text.take(text_len).collect(),
        }))
    }

    /// Writes the bytes of the stream that begin at `offset` to `to`.
    pub(crate) fn sent(&self, offset: u64, to: &mut [u8]) {
        let mut unit = vec![0; self.len];
        let within = offset % self.len as u64;
        let (mut at, mut skip) = (offset - within, within as usize);
        let mut rest = to;
        while !rest.is_empty() {
            // No benchmark sends the 2^48 bytes after which a position is refused.
            let _ = self.processor.send(at, &self.text, &mut unit);
            let (part, behind) = rest.split_at_mut(rest.len().min(self.len - skip));
            part.copy_from_slice(&unit[skip..][..part.len()]);
            (at, skip, rest) = (at + self.len as u64, 0, behind);
        }
    }

    /// The payload of every prebuilt segment of a round: what the peer sends.
    pub(crate) fn segments(&self, workload: &Workload) -> Vec<Vec<u8>> {
        let mut round = vec![0; RECORDS * workload.segment_bytes];
        self.sent(0, &mut round);
        let segments = round.chunks_exact(workload.segment_bytes);
        segments.map(Vec::from).collect()
    }
}

#[cfg(feature = "tls")]
fn cipher(workload: &Workload) -> Result<Box<dyn UnitProcessor>, String> {
    let mut key = [0; 32];
    key.copy_from_slice(&workload::bytes(!workload.seed, 32));
    Ok(match workload.processing {
        Processing::Aes256Ctr => Box::new(Aes256::ctr(&key, &key)),
        _ => Box::new(Aes256::gcm(&key, &key)),
    })
}

#[cfg(not(feature = "tls"))]
fn cipher(_: &Workload) -> Result<Box<dyn UnitProcessor>, String> {
    Err("a cipher needs the feature `tls`".to_owned())
}

/// For some words that are found in every segment, and some that hardly ever are.
#[cfg(feature = "report")]
pub(crate) fn search(workload: &Workload) -> Result<Search, String> {
    let payload = workload.payload();
    let mut needles: Vec<Vec<u8>> = payload.chunks_exact(8).step_by(40).map(Vec::from).collect();
    needles.extend(workload::bytes(!workload.seed, 64).chunks(8).map(Vec::from));
    Search::new(needles).map_err(|needles| format!("{needles:?}"))
}

#[cfg(test)]
mod tests {
    use dominoes_netstack::framed::MAX_PAYLOAD;

    use super::*;
    use crate::workload::UNIT;

    #[test]
    fn a_unit_can_be_read_a_round_later_and_nowhere_else() {
        for processing in [Processing::Aes256Ctr, Processing::Aes256Gcm] {
            let workload = Workload {
                processing,
                ..Workload::default()
            };
            let units = Units::of(&workload).unwrap().unwrap();
            let segments = units.segments(&workload);
            let len = units.len as u64;
            let [third, fourth] = [3, 4].map(|i| segments[i * UNIT..][..UNIT].concat());
            let mut to = vec![0; MAX_PAYLOAD];
            let at = ((RECORDS / UNIT) as u64 * 7 + 3) * len;
            let read = units.processor.receive(at, &third, &mut to);
            assert_eq!(read, Ok(units.text.len()));
            assert_eq!(to[..units.text.len()], units.text);
            let elsewhere = units.processor.receive(at, &fourth, &mut to);
            assert!(elsewhere.is_err() || to[..units.text.len()] != units.text);
            assert_ne!(segments[3], workload.payload());
        }
    }

    #[test]
    fn a_search_finds_words_of_every_segment() {
        let workload = Workload::default();
        let search = search(&workload).unwrap();
        let payload = workload.payload();
        let mut to = vec![0; MAX_PAYLOAD];
        assert_eq!(search.receive(0, &payload, &mut to), Ok(payload.len()));
        assert!(search.received() >= 4);
        assert_eq!(to[..payload.len()], payload);
    }
}
