//! Inline processing of the payload, the same for all variants and for `limit`.
//!
//! Prebuilt frames carry payload as a peer with the same processor would send it, which is another
//! one at every position of the stream. For that they would have to be enciphered anew each time;
//! so what is received repeats its positions after [`RECORDS`] segments, and frames circulate in as
//! many kinds. That is nothing to a benchmark, and would be the end of any secrecy. What is sent
//! does not repeat.

use std::sync::Arc;

use dominoes_drivers::memory::peer::headers::Ends;
#[cfg(feature = "report")]
use dominoes_netstack::processor::Search;
#[cfg(feature = "tls")]
use dominoes_netstack::processor::{Aes256Ctr, Aes256Gcm};
use dominoes_netstack::processor::{Failure, Processor, StreamId};

#[cfg(feature = "tls")]
use crate::workload;
use crate::workload::{Processing, RECORDS, Workload};

/// A processor whose streams all have one name, and whose positions repeat in receiving.
#[derive(Debug)]
struct Circular {
    inner: Box<dyn Processor>,
    /// Bytes after which positions repeat.
    period: u64,
    name: StreamId,
}

/// The name of all streams.
pub(crate) fn name() -> StreamId {
    let ends = Ends::default();
    StreamId {
        source: ends.from.into(),
        destination: ends.to.into(),
        isn: 0,
    }
}

impl Processor for Circular {
    fn unit(&self) -> u32 {
        self.inner.unit()
    }

    #[inline]
    fn receive(
        &self,
        _: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        let offset = offset % self.period;
        self.inner.receive(&self.name, offset, from, to)
    }

    #[inline]
    fn send(&self, _: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        self.inner.send(&self.name, offset, from, to);
    }
}

/// What the workload asks for; `None` if it asks for nothing.
///
/// # Errors
/// If segments are too short for its records, or its feature is not compiled in.
pub(crate) fn processor(workload: &Workload) -> Result<Option<Arc<dyn Processor>>, String> {
    let inner: Box<dyn Processor> = match workload.processing {
        Processing::None => return Ok(None),
        processing if processing.is_tls() => return Ok(None),
        #[cfg(feature = "report")]
        Processing::Search => Box::new(search(workload)?),
        #[cfg(not(feature = "report"))]
        Processing::Search => return Err("a search needs the feature `report`".to_owned()),
        _ => cipher(workload)?,
    };
    Ok(Some(Arc::new(Circular {
        inner,
        period: (RECORDS * workload.segment_bytes) as u64,
        name: name(),
    })))
}

#[cfg(feature = "tls")]
fn cipher(workload: &Workload) -> Result<Box<dyn Processor>, String> {
    let mut key = [0; 32];
    key.copy_from_slice(&workload::bytes(!workload.seed, 32));
    Ok(match workload.processing {
        Processing::Aes256Ctr => Box::new(Aes256Ctr::new(&key)),
        _ => {
            let gcm = Aes256Gcm::new(&key, workload.segment_bytes as u32);
            Box::new(gcm.ok_or("segments are too short for records of AES-256-GCM")?)
        }
    })
}

#[cfg(not(feature = "tls"))]
fn cipher(_: &Workload) -> Result<Box<dyn Processor>, String> {
    Err("a cipher needs the feature `tls`".to_owned())
}

/// For some words that are found in every segment, and some that hardly ever are.
#[cfg(feature = "report")]
fn search(workload: &Workload) -> Result<Search, String> {
    let payload = workload.payload();
    let mut needles: Vec<Vec<u8>> = payload.chunks_exact(8).step_by(40).map(Vec::from).collect();
    needles.extend(workload::bytes(!workload.seed, 64).chunks(8).map(Vec::from));
    Search::new(needles).map_err(|needles| format!("{needles:?}"))
}

/// The payload of every prebuilt segment of a round, and what the application reads of each.
pub(crate) type Segments = (Vec<Vec<u8>>, Vec<u8>);

/// What the peer sends, if there is a processor.
///
/// # Errors
/// As [`processor`].
pub(crate) fn segments(workload: &Workload) -> Result<Option<Segments>, String> {
    let Some(processor) = processor(workload)? else {
        return Ok(None);
    };
    let plain = workload.payload();
    let one = |i: usize| {
        let mut out = vec![0; plain.len()];
        processor.send(&name(), (i * plain.len()) as u64, &plain, &mut out);
        out
    };
    let all: Vec<Vec<u8>> = (0..RECORDS).map(one).collect();
    let mut read = vec![0; plain.len()];
    processor
        .receive(&name(), 0, &all[0], &mut read)
        .map_err(|e| e.to_string())?;
    Ok(Some((all, read)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_can_be_read_a_round_later_and_nowhere_else() {
        for processing in [Processing::Aes256Ctr, Processing::Aes256Gcm] {
            let workload = Workload {
                processing,
                ..Workload::default()
            };
            let len = workload.segment_bytes as u64;
            let (segments, read) = segments(&workload).unwrap().unwrap();
            let processor = processor(&workload).unwrap().unwrap();
            let mut to = vec![0; read.len()];
            let at = (RECORDS as u64 * 7 + 3) * len;
            assert_eq!(
                processor.receive(&name(), at, &segments[3], &mut to),
                Ok(())
            );
            assert_eq!(to, read);
            let elsewhere = processor.receive(&name(), at, &segments[4], &mut to);
            assert!(elsewhere.is_err() || to != read);
            assert_ne!(segments[3], workload.payload());
        }
    }

    #[test]
    fn a_search_finds_words_of_every_segment() {
        let workload = Workload::default();
        let search = search(&workload).unwrap();
        let mut to = vec![0; workload.segment_bytes];
        search
            .receive(&name(), 0, &workload.payload(), &mut to)
            .unwrap();
        assert!(search.received() >= 4);
        assert_eq!(to, workload.payload());
    }
}
