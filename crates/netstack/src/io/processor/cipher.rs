//! AES-256 on the way, by `aws-lc-rs`, which finds out itself what the processor can.

use core::fmt;
use core::net::IpAddr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use siphasher::sip128::SipHasher24;

use super::{Failure, Ours, Processor, StreamId};

const BLOCK: usize = 16;
const TAG: usize = 16;
const NONCE: usize = 12;

/// A key for counter mode, and one that makes nonces of streams' names.
///
/// Which instances of the same key belong to which stream is decided by hashing the stream's name
/// with a key that is itself made from the cipher's: both ends find the same number, nobody else
/// can foresee it.
struct Keys {
    counter: EncryptingKey,
    names: [u8; 16],
}

impl Keys {
    fn new(key: &[u8; 32]) -> Keys {
        let counter = counter_key(key);
        // What AES makes of this counter block goes out under no nonce below, but for 2^-84.
        let mut names = [0; 16];
        keystream(&counter, *b"names of streams", &mut names);
        Keys { counter, names }
    }

    /// 128 bits that stand for a stream.
    fn name(&self, stream: &StreamId) -> [u8; 16] {
        let mut bytes = [0; 40];
        let mut len = 0;
        let mut put = |with: &[u8]| {
            bytes[len..len + with.len()].copy_from_slice(with);
            len += with.len();
        };
        for end in [stream.source, stream.destination] {
            match end.ip() {
                IpAddr::V4(address) => put(&address.octets()),
                IpAddr::V6(address) => put(&address.octets()),
            }
            put(&end.port().to_be_bytes());
        }
        put(&stream.isn.to_be_bytes());
        SipHasher24::new_with_key(&self.names)
            .hash(&bytes[..len])
            .as_bytes()
    }
}

fn counter_key(key: &[u8; 32]) -> EncryptingKey {
    UnboundCipherKey::new(&AES_256, key)
        .and_then(EncryptingKey::ctr)
        .unwrap_or_else(|_| unreachable!("a key of 32 bytes is one of AES-256"))
}

/// XORs the key stream that begins with counter block `first` to `bytes` (NIST SP 800-38A section
/// 6.5).
fn keystream(key: &EncryptingKey, first: [u8; BLOCK], bytes: &mut [u8]) {
    let context = EncryptionContext::Iv128(FixedLength::from(first));
    let done = key.less_safe_encrypt(bytes, context);
    assert!(done.is_ok(), "counter mode takes any length");
}

/// AES-256 in counter mode (NIST SP 800-38A section 6.5): secrecy, no authenticity.
///
/// The counter block of offset `o` is the stream's nonce plus `o / 16`: its upper 84 bits stand for
/// the stream, the lower 44 count blocks, enough for 2^48 bytes. The bytes of a stream stand where
/// the application put them, one for one, so the same position is never encrypted with another
/// text.
///
/// # What it promises
/// Streams get their nonce from addresses, ports and the sender's initial sequence number. Two
/// streams of one key share a nonce if these are equal, or else with a chance of 2^-84: **change
/// the key before a pair of ends may choose an initial sequence number again** (2^32 of them; by
/// then somebody who recorded all has a good chance of two equal ones after some 2^16 connections
/// between the same two ports). Whoever changes a bit on the way changes that bit of the text,
/// unnoticed.
pub struct Aes256Ctr {
    keys: Keys,
}

impl Aes256Ctr {
    /// Encrypts what is sent, and decrypts what is received, with `key`.
    pub fn new(key: &[u8; 32]) -> Self {
        Aes256Ctr {
            keys: Keys::new(key),
        }
    }

    fn pass(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        let nonce = u128::from_be_bytes(self.keys.name(stream)) << 44;
        self.pass_from(nonce, offset, from, to);
    }

    /// `first` is the counter block of offset 0.
    fn pass_from(&self, first: u128, offset: u64, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
        let block = |offset: u64| {
            let number = u128::from(offset / BLOCK as u64);
            first.wrapping_add(number).to_be_bytes()
        };
        let skip = (offset % BLOCK as u64) as usize;
        let key = &self.keys.counter;
        let mut rest = to;
        if skip > 0 {
            let head;
            (head, rest) = rest.split_at_mut(rest.len().min(BLOCK - skip));
            let mut first = [0; BLOCK];
            first[skip..skip + head.len()].copy_from_slice(head);
            keystream(key, block(offset), &mut first);
            head.copy_from_slice(&first[skip..skip + head.len()]);
        }
        if !rest.is_empty() {
            keystream(key, block(offset.next_multiple_of(BLOCK as u64)), rest);
        }
    }
}

impl Processor for Aes256Ctr {
    fn receive(
        &self,
        stream: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        if (offset + from.len() as u64) >> 48 > 0 {
            return Err(Failure::TooLong);
        }
        self.pass(stream, offset, from, to);
        Ok(())
    }

    fn send(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        self.pass(stream, offset, from, to);
    }

    fn writes_all(&self, _: Ours) -> bool {
        true
    }
}

impl fmt::Debug for Aes256Ctr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aes256Ctr").finish_non_exhaustive()
    }
}

/// AES-256-GCM (NIST SP 800-38D) in records of a fixed length: secrecy and authenticity.
///
/// Record `r` is the bytes from `r * record` on. Its last 16 are the tag: what the application
/// wrote there is ignored, and it reads zeros there. A record is one unit (see
/// [`Processor::unit`]); make it as long as a segment's payload, which is the MTU less 40, or less
/// 52 where timestamps are in use.
///
/// # What the application does
/// It writes whole records, 16 bytes of each left to the tag, and ends the stream after one. An
/// unfinished record is sent as far as it is written, but nobody can read it before the rest has
/// come; a stream that ends within one ends for its reader with
/// [`SocketError::Processing`](crate::SocketError::Processing).
///
/// # What it promises
/// * The nonce is 56 bits that stand for the stream (hashed from addresses, ports and the sender's
///   initial sequence number with a key) and 40 that count records. Text at a position never
///   changes, and the tag is only made of a complete record; so under one nonce there is one text
///   and one tag, however often and however cut it is sent.
/// * Two streams of one key share a nonce if addresses, ports and number are equal, or else with a
///   chance of 2^-56. Change the key after 2^16 connections at the latest.
/// * The application reads no byte of a record whose tag is wrong, and none behind it; the
///   connection is reset. The position is part of the nonce, so a record that was moved or comes
///   from another stream is not authentic either.
pub struct Aes256Gcm {
    keys: Keys,
    sealing: LessSafeKey,
    record: u32,
}

impl Aes256Gcm {
    /// Shortest record in bytes: 2^40 of them make the longest stream that a position can name.
    pub const MIN_RECORD: u32 = 256;
    /// Longest record in bytes.
    pub const MAX_RECORD: u32 = 65_536;

    /// Seals what is sent, and opens what is received, with `key`, in records of `record` bytes,
    /// tag included. `None` if that is not [`Self::MIN_RECORD`] to [`Self::MAX_RECORD`].
    pub fn new(key: &[u8; 32], record: u32) -> Option<Self> {
        let sealing = UnboundKey::new(&AES_256_GCM, key).ok()?;
        (Self::MIN_RECORD..=Self::MAX_RECORD)
            .contains(&record)
            .then(|| Aes256Gcm {
                keys: Keys::new(key),
                sealing: LessSafeKey::new(sealing),
                record,
            })
    }

    /// `None` behind the last record that a nonce can name.
    fn nonce(&self, stream: &StreamId, offset: u64) -> Option<[u8; NONCE]> {
        let number = offset / u64::from(self.record);
        if number >> 40 > 0 {
            return None;
        }
        let mut nonce = [0; NONCE];
        nonce[..7].copy_from_slice(&self.keys.name(stream)[..7]);
        nonce[7..].copy_from_slice(&number.to_be_bytes()[3..]);
        Some(nonce)
    }
}

impl Processor for Aes256Gcm {
    fn unit(&self) -> u32 {
        self.record
    }

    fn receive(
        &self,
        stream: &StreamId,
        offset: u64,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), Failure> {
        let nonce = self.nonce(stream, offset).ok_or(Failure::TooLong)?;
        let (text, tag) = from.split_at(from.len() - TAG);
        let (plain, rest) = to.split_at_mut(text.len());
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.sealing
            .open_separate_gather(nonce, Aad::empty(), text, tag, plain)
            .map_err(|_| Failure::Forged)?;
        rest.fill(0);
        Ok(())
    }

    fn send(&self, stream: &StreamId, offset: u64, from: &[u8], to: &mut [u8]) {
        let Some(nonce) = self.nonce(stream, offset) else {
            // A receiver refuses this position: nothing is given away under a nonce that was used
            // before.
            return to.fill(0);
        };
        self.seal(nonce, self.record as usize - TAG, from, to);
    }

    fn writes_all(&self, _: Ours) -> bool {
        true
    }
}

impl Aes256Gcm {
    /// Seals a record of `text` bytes and a tag, or its beginning.
    fn seal(&self, nonce: [u8; NONCE], text: usize, from: &[u8], to: &mut [u8]) {
        let text = from.len().min(text);
        let (sealed, rest) = to.split_at_mut(text);
        sealed.copy_from_slice(&from[..text]);
        if from.len() > text {
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = self
                .sealing
                .seal_in_place_separate_tag(nonce, Aad::empty(), sealed);
            match tag {
                Ok(tag) => rest.copy_from_slice(&tag.as_ref()[..rest.len()]),
                Err(_) => unreachable!("a record is far below the 2^36 bytes of GCM"),
            }
        } else {
            // GCM's text is in counter mode from its nonce and a counter of 2 on (SP 800-38D
            // section 7.1).
            let mut first = [0; BLOCK];
            first[..NONCE].copy_from_slice(&nonce);
            first[BLOCK - 1] = 2;
            keystream(&self.keys.counter, first, sealed);
        }
    }
}

impl fmt::Debug for Aes256Gcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aes256Gcm")
            .field("record", &self.record)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{IpAddr, Ipv4Addr, SocketAddr};
    use proptest::prelude::*;

    const STREAM: StreamId = StreamId {
        source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 1),
        destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 2),
        isn: 77,
    };

    fn hex<const N: usize>(digits: &str) -> [u8; N] {
        assert_eq!(digits.len(), 2 * N);
        core::array::from_fn(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
    }

    #[test]
    fn counter_mode_is_that_of_sp_800_38a_from_every_offset() {
        // NIST SP 800-38A, F.5.5 (CTR-AES256.Encrypt).
        let key = hex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4");
        let first = u128::from_be_bytes(hex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"));
        let text: [u8; 64] = hex(concat!(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        ));
        let expected: [u8; 64] = hex(concat!(
            "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5",
            "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6",
        ));
        let ctr = Aes256Ctr::new(&key);
        for begin in 0..64 {
            for end in begin..=64 {
                let mut to = vec![0; end - begin];
                ctr.pass_from(first, begin as u64, &text[begin..end], &mut to);
                assert_eq!(to, expected[begin..end], "{begin}..{end}");
            }
        }
    }

    #[test]
    fn records_and_their_beginnings_are_those_of_the_gcm_specification() {
        // McGrew and Viega, The Galois/Counter Mode of Operation (GCM), 2005, appendix B, test case
        // 15.
        let half = "feffe9928665731c6d6a8f9467308308";
        let gcm = Aes256Gcm::new(&hex(&[half, half].concat()), 256).unwrap();
        let nonce = hex("cafebabefacedbaddecaf888");
        let mut text = [0; 80];
        text[..64].copy_from_slice(&hex::<64>(concat!(
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72",
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        )));
        let expected: [u8; 80] = hex(concat!(
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa",
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
            "b094dac5d93471bdec1a502270e3cc6c",
        ));
        for len in 0..=80 {
            let mut to = vec![0; len];
            gcm.seal(nonce, 64, &text[..len], &mut to);
            assert_eq!(to, expected[..len], "the first {len} bytes");
        }
    }

    #[test]
    fn streams_and_positions_have_nonces_of_their_own() {
        let gcm = Aes256Gcm::new(&[3; 32], 1000).unwrap();
        let back = StreamId {
            source: STREAM.destination,
            destination: STREAM.source,
            ..STREAM
        };
        let again = StreamId { isn: 78, ..STREAM };
        let mut nonces = Vec::new();
        for stream in [STREAM, back, again] {
            for offset in [0, 1000, 2000] {
                nonces.push(gcm.nonce(&stream, offset).unwrap());
            }
        }
        let all = nonces.len();
        nonces.sort();
        nonces.dedup();
        assert_eq!(nonces.len(), all);
        assert_eq!(gcm.nonce(&STREAM, 1000 << 40), None);
    }

    #[test]
    fn a_record_at_another_position_or_of_another_stream_is_forged() {
        let gcm = Aes256Gcm::new(&[3; 32], 256).unwrap();
        let (mut sealed, mut to) = ([0; 256], [0; 256]);
        gcm.send(&STREAM, 512, &[7; 256], &mut sealed);
        assert_eq!(gcm.receive(&STREAM, 512, &sealed, &mut to), Ok(()));
        assert_eq!((&to[..240], &to[240..]), (&[7; 240][..], &[0; 16][..]));
        let other = StreamId { isn: 1, ..STREAM };
        for (stream, offset) in [(STREAM, 768), (other, 512)] {
            let opened = gcm.receive(&stream, offset, &sealed, &mut to);
            assert_eq!(opened, Err(Failure::Forged));
        }
    }

    proptest! {
        #[test]
        fn counter_mode_undoes_itself_however_both_ends_cut(
            text in proptest::collection::vec(any::<u8>(), 1..4000),
            begin in 0u64..1 << 47,
            cuts in any::<[prop::sample::Index; 2]>(),
        ) {
            let ctr = Aes256Ctr::new(&[9; 32]);
            let [there, back] = cuts.map(|cut| cut.index(text.len()));
            let (mut sent, mut read) = (vec![0; text.len()], vec![0; text.len()]);
            let (a, b) = sent.split_at_mut(there);
            ctr.send(&STREAM, begin, &text[..there], a);
            ctr.send(&STREAM, begin + there as u64, &text[there..], b);
            let (a, b) = read.split_at_mut(back);
            ctr.receive(&STREAM, begin, &sent[..back], a).unwrap();
            ctr.receive(&STREAM, begin + back as u64, &sent[back..], b).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
