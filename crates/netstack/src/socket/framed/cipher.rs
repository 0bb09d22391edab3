//! Units enciphered with AES-256 by `aws-lc-rs`, which detects the processor's features itself.

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;

use super::{Failure, MAX_PAYLOAD, Ours, UnitProcessor};

const BLOCK: usize = 16;
const TAG: usize = 16;
/// Bytes of the length that a record of AES-256-GCM begins with.
const HEADER: usize = 2;

/// Bits of a position.
const POSITION_BITS: u32 = 48;

/// `offset`, unless it is too far.
fn position(offset: u64) -> Result<u64, Failure> {
    match offset >> POSITION_BITS {
        0 => Ok(offset),
        _ => Err(Failure::TooLong),
    }
}

/// AES-256, in one of two modes.
///
/// Both take the key stream or the nonce from the position in the stream, so no two texts are
/// enciphered alike **if each direction of each connection has its own key**: derive the keys from
/// a secret that both ends share and from a fresh value. A stream fails with [`Failure::TooLong`]
/// after 2^48 bytes.
pub struct Aes256(Mode);

enum Mode {
    Ctr {
        sent: Box<EncryptingKey>,
        received: Box<EncryptingKey>,
    },
    Gcm {
        sent: LessSafeKey,
        received: LessSafeKey,
    },
}

impl Aes256 {
    /// Bytes that a record of [`Aes256::gcm`] is longer than its text.
    pub const GCM_OVERHEAD: usize = HEADER + TAG;

    /// Counter mode (NIST SP 800-38A section 6.5): secrecy, no authenticity. Enciphers sent bytes
    /// with one key, and deciphers received bytes with another.
    ///
    /// The counter block of a byte is its position in the stream over 16, so bytes may be cut
    /// anywhere, and are taken as they arrive. An attacker on the path can flip any bit of the text
    /// without being detected.
    pub fn ctr(sent: &[u8; 32], received: &[u8; 32]) -> Self {
        let [sent, received] = [sent, received].map(|key| {
            let key = UnboundCipherKey::new(&AES_256, key).and_then(EncryptingKey::ctr);
            Box::new(key.unwrap_or_else(|_| unreachable!("32 bytes are a key of AES-256")))
        });
        Aes256(Mode::Ctr { sent, received })
    }

    /// Galois counter mode (NIST SP 800-38D): secrecy and authenticity, in records of up to 16 KiB
    /// of text. Seals sent records with one key, and opens received records with another.
    ///
    /// A record is the length of its text in two bytes, big-endian, the sealed text, and a tag of
    /// 16 bytes. Every write makes its own records. The nonce is the record's position, so under
    /// one nonce there is one text, even if a record is made twice.
    ///
    /// The application reads no byte of a record whose tag is wrong, and no later byte; the
    /// connection is reset. A record from another position or another stream is not authentic
    /// either. An attacker on the path can end the stream after any record: mark the end in the
    /// text.
    pub fn gcm(sent: &[u8; 32], received: &[u8; 32]) -> Self {
        let [sent, received] = [sent, received].map(|key| {
            let key = UnboundKey::new(&AES_256_GCM, key);
            LessSafeKey::new(key.unwrap_or_else(|_| unreachable!("32 bytes are a key of AES-256")))
        });
        Aes256(Mode::Gcm { sent, received })
    }
}

/// XORs the key stream at `offset`, whose first counter block is `first`, to `from`.
fn pass(key: &EncryptingKey, first: u128, offset: u64, from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
    let keystream = |at: u64, bytes: &mut [u8]| {
        let block = first.wrapping_add(u128::from(at / BLOCK as u64));
        let context = EncryptionContext::Iv128(FixedLength::from(block.to_be_bytes()));
        let done = key.less_safe_encrypt(bytes, context);
        assert!(done.is_ok(), "counter mode takes any length");
    };
    let skip = (offset % BLOCK as u64) as usize;
    let mut rest = to;
    if skip > 0 {
        let head;
        (head, rest) = rest.split_at_mut(rest.len().min(BLOCK - skip));
        let mut block = [0; BLOCK];
        block[skip..][..head.len()].copy_from_slice(head);
        keystream(offset, &mut block);
        head.copy_from_slice(&block[skip..][..head.len()]);
    }
    if !rest.is_empty() {
        keystream(offset.next_multiple_of(BLOCK as u64), rest);
    }
}

/// The nonce of a record.
fn nonce(offset: u64) -> Result<Nonce, Failure> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&position(offset)?.to_be_bytes());
    Ok(Nonce::assume_unique_for_key(nonce))
}

/// Opens a record.
fn open(
    key: &LessSafeKey,
    offset: u64,
    record: &[u8],
    payload: &mut [u8],
) -> Result<usize, Failure> {
    let (header, rest) = record.split_at(HEADER);
    let (text, tag) = rest.split_at(rest.len() - TAG);
    let payload = &mut payload[..text.len()];
    key.open_separate_gather(nonce(offset)?, Aad::from(header), text, tag, payload)
        .map_err(|_| Failure::Forged)?;
    Ok(text.len())
}

/// Makes a record.
fn seal(key: &LessSafeKey, offset: u64, payload: &[u8], record: &mut [u8]) -> Result<(), Failure> {
    let (header, rest) = record.split_at_mut(HEADER);
    header.copy_from_slice(&(payload.len() as u16).to_be_bytes());
    let (text, tag) = rest.split_at_mut(payload.len());
    text.copy_from_slice(payload);
    match key.seal_in_place_separate_tag(nonce(offset)?, Aad::from(&*header), text) {
        Ok(made) => tag.copy_from_slice(made.as_ref()),
        Err(_) => unreachable!("a record is far below the 2^36 bytes of GCM"),
    }
    Ok(())
}

impl UnitProcessor for Aes256 {
    fn max_payload(&self) -> usize {
        MAX_PAYLOAD
    }

    fn max_unit(&self) -> usize {
        self.sent_len(MAX_PAYLOAD)
    }

    fn header_len(&self) -> usize {
        match self.0 {
            Mode::Ctr { .. } => 0,
            Mode::Gcm { .. } => HEADER,
        }
    }

    fn received_len(&self, _: u64, header: &[u8], arrived: usize) -> Result<usize, Failure> {
        Ok(match self.0 {
            Mode::Ctr { .. } => arrived,
            Mode::Gcm { .. } => {
                let len = header.try_into().map(u16::from_be_bytes);
                usize::from(len.unwrap_or(u16::MAX)) + Self::GCM_OVERHEAD
            }
        })
    }

    fn receive(&self, offset: u64, unit: &[u8], payload: &mut [u8]) -> Result<usize, Failure> {
        match &self.0 {
            Mode::Ctr { received, .. } => {
                let payload = &mut payload[..unit.len()];
                pass(received, 0, position(offset)?, unit, payload);
                Ok(unit.len())
            }
            Mode::Gcm { received, .. } => open(received, offset, unit, payload),
        }
    }

    fn sent_len(&self, payload_len: usize) -> usize {
        match self.0 {
            Mode::Ctr { .. } => payload_len,
            Mode::Gcm { .. } => payload_len + Self::GCM_OVERHEAD,
        }
    }

    fn send(&self, offset: u64, payload: &[u8], unit: &mut [u8]) -> Result<(), Failure> {
        match &self.0 {
            Mode::Ctr { sent, .. } => {
                pass(sent, 0, position(offset)?, payload, unit);
                Ok(())
            }
            Mode::Gcm { sent, .. } => seal(sent, offset, payload, unit),
        }
    }

    fn writes_all(&self, _: Ours) -> bool {
        true
    }
}

impl fmt::Debug for Aes256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Mode::Ctr { .. } => "Aes256::ctr(..)",
            Mode::Gcm { .. } => "Aes256::gcm(..)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
        let Mode::Ctr { sent, .. } = Aes256::ctr(&key, &key).0 else {
            panic!("another mode");
        };
        for begin in 0..64 {
            for end in begin..=64 {
                let mut to = vec![0; end - begin];
                pass(&sent, first, begin as u64, &text[begin..end], &mut to);
                assert_eq!(to, expected[begin..end], "{begin}..{end}");
            }
        }
    }

    #[test]
    fn a_record_changed_moved_or_under_another_key_is_forged() {
        let gcm = Aes256::gcm(&[3; 32], &[3; 32]);
        let mut record = vec![0; gcm.sent_len(200)];
        let mut text = vec![0; MAX_PAYLOAD];
        gcm.send(512, &[7; 200], &mut record).unwrap();
        assert_eq!(gcm.received_len(0, &record[..HEADER], 2), Ok(record.len()));
        assert_eq!(gcm.receive(512, &record, &mut text), Ok(200));
        assert_eq!(text[..200], [7; 200]);
        assert_eq!(gcm.receive(513, &record, &mut text), Err(Failure::Forged));
        let other = Aes256::gcm(&[3; 32], &[4; 32]);
        assert_eq!(other.receive(512, &record, &mut text), Err(Failure::Forged));
        for at in 0..record.len() {
            record[at] ^= 0x10;
            assert_eq!(gcm.receive(512, &record, &mut text), Err(Failure::Forged));
            record[at] ^= 0x10;
        }
        // Bytes that are no record.
        for len in [0, 1, 17] {
            let unit = vec![0; Aes256::GCM_OVERHEAD + len];
            assert_eq!(gcm.receive(0, &unit, &mut text), Err(Failure::Forged));
        }
    }

    #[test]
    fn positions_that_cannot_be_told_apart_are_refused() {
        let (key, mut to) = ([9; 32], [0; 1 + Aes256::GCM_OVERHEAD]);
        let far = 1 << POSITION_BITS;
        let gcm = Aes256::gcm(&key, &key);
        assert_eq!(gcm.send(far, &[1], &mut to), Err(Failure::TooLong));
        assert_eq!(gcm.send(far - 1, &[1], &mut to), Ok(()));
        let ctr = Aes256::ctr(&key, &key);
        assert_eq!(ctr.send(far, &[1], &mut to[..1]), Err(Failure::TooLong));
        assert_eq!(ctr.receive(far, &[1], &mut to), Err(Failure::TooLong));
    }

    proptest! {
        #[test]
        fn counter_mode_undoes_itself_however_both_ends_cut(
            text in proptest::collection::vec(any::<u8>(), 1..4000),
            begin in 0u64..1 << 47,
            cuts in any::<[prop::sample::Index; 2]>(),
        ) {
            let ctr = Aes256::ctr(&[9; 32], &[9; 32]);
            let [there, back] = cuts.map(|cut| cut.index(text.len()));
            let (mut sent, mut read) = (vec![0; text.len()], vec![0; text.len()]);
            let (a, b) = sent.split_at_mut(there);
            ctr.send(begin, &text[..there], a).unwrap();
            ctr.send(begin + there as u64, &text[there..], b).unwrap();
            let (a, b) = read.split_at_mut(back);
            ctr.receive(begin, &sent[..back], a).unwrap();
            ctr.receive(begin + back as u64, &sent[back..], b).unwrap();
            prop_assert_eq!(read, text);
        }
    }
}
