//! What `--process` does with the bytes of iperf3's streams.

use std::str::FromStr;
use std::sync::Arc;

use aes::Aes256;
use ctr::Ctr128BE;
use ctr::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use dominoes_netstack::framed::{Failure, MAX_PAYLOAD, UnitProcessor};
use sha2::{Digest, Sha256};

use crate::work::{Crossing, Search};

/// Work on each unit of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// A search for a hundred strings in received bytes.
    Search,
    /// The SHA-256 of each 16 KB of received bytes.
    Blocks,
    /// AES-256 in counter mode: deciphers received bytes, enciphers sent ones.
    Aes,
}

impl FromStr for Process {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Process, &'static str> {
        match name {
            "search" => Ok(Process::Search),
            "blocks" => Ok(Process::Blocks),
            "aes" => Ok(Process::Aes),
            _ => Err("neither search, blocks nor aes"),
        }
    }
}

/// The work of one connection.
pub(crate) struct Work {
    process: Process,
    search: Arc<Search>,
    crossing: Crossing,
    /// Occurrences of the strings.
    pub(crate) found: u64,
}

impl Work {
    pub(crate) fn new(process: Process) -> std::io::Result<Work> {
        let search = Arc::new(Search::for_a_hundred()?);
        let crossing = Crossing::new(Arc::clone(&search));
        Ok(Work {
            process,
            search,
            crossing,
            found: 0,
        })
    }

    pub(crate) fn processor(&self) -> Arc<dyn UnitProcessor> {
        match self.process {
            Process::Search => Arc::new(Searching(Arc::clone(&self.search))),
            Process::Blocks => Arc::new(Blocks),
            // The key is public, because nothing here is secret.
            Process::Aes => Arc::new(Cipher(Ctr128BE::new(&[7; 32].into(), &[7; 16].into()))),
        }
    }

    /// Takes the payload of a unit. Returns how many bytes of the stream that was.
    pub(crate) fn take(&mut self, payload: &[u8]) -> usize {
        match (self.process, payload.split_last_chunk()) {
            (Process::Search, Some((bytes, found))) => {
                self.found += u64::from_le_bytes(*found) + self.crossing.count(bytes);
                bytes.len()
            }
            (Process::Blocks, _) => MAX_PAYLOAD,
            _ => payload.len(),
        }
    }
}

/// Receives 8 KB of bytes, followed by the number of occurrences in them.
#[derive(Debug)]
struct Searching(Arc<Search>);

impl UnitProcessor for Searching {
    fn max_payload(&self) -> usize {
        self.max_unit()
    }

    fn max_unit(&self) -> usize {
        8 << 10
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        let found = self.0.count(unit).to_le_bytes();
        payload[..unit.len()].copy_from_slice(unit);
        payload[unit.len()..][..found.len()].copy_from_slice(&found);
        Ok(unit.len() + found.len())
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit.copy_from_slice(payload);
        Ok(())
    }
}

/// Receives the SHA-256 of 16 KB instead of them.
#[derive(Debug)]
struct Blocks;

impl UnitProcessor for Blocks {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_unit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn receive(&self, _: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        let hash = Sha256::digest(unit);
        payload[..hash.len()].copy_from_slice(&hash);
        Ok(hash.len())
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, _: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        unit.copy_from_slice(payload);
        Ok(())
    }
}

/// Enciphers and deciphers units of up to 16 KB. Both directions have one key.
struct Cipher(Ctr128BE<Aes256>);

impl Cipher {
    fn pass(&self, offset: u64, from: &[u8], to: &mut [u8]) -> Result<(), Failure> {
        let mut cipher = self.0.clone();
        cipher.try_seek(offset).map_err(|_| Failure::TooLong)?;
        let passed = cipher.apply_keystream_b2b(from, to);
        passed.map_err(|_| Failure::TooLong)
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cipher").finish_non_exhaustive()
    }
}

impl UnitProcessor for Cipher {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_unit(&self) -> usize {
        MAX_PAYLOAD
    }

    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        self.pass(offset, unit, &mut payload[..unit.len()])?;
        Ok(unit.len())
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        payload_len
    }

    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        self.pass(offset, payload, unit)
    }
}
