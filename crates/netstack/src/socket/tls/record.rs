//! Records of TLS 1.3 (RFC 8446 section 5) and of TLS 1.2 with authenticated encryption (RFC 5246
//! section 6.2.3.3, RFC 5288, RFC 7905). Functions process one record from one buffer to another,
//! and keep no state between records.

#[cfg(all(feature = "testkit", debug_assertions))]
pub(crate) mod nonces;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey};
use aws_lc_rs::aead::{Nonce, UnboundKey};
use rustls::{AlertDescription, ConnectionTrafficSecrets};
use zeroize::Zeroize;

/// The most text of a record in bytes (RFC 8446 section 5.1).
pub(super) const MAX_TEXT: usize = 1 << 14;
/// Bytes of a record's header: type, version, length.
pub(super) const HEADER: usize = 5;
/// How many bytes a record may be longer than its text, header included.
pub(super) const MAX_OVERHEAD: usize = HEADER + EXPLICIT + TAG;

const TAG: usize = 16;
/// The part of the nonce that a record of AES-GCM of TLS 1.2 carries (RFC 5288 section 3).
const EXPLICIT: usize = 8;
/// How many bytes the sealed part of a TLS 1.3 record may be longer than its text (RFC 8446 section
/// 5.2).
const MAX_EXPANSION: usize = 256;

pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const APPLICATION_DATA: u8 = 23;
/// The type of an extension that is never offered here (RFC 6520).
pub(super) const HEARTBEAT: u8 = 24;

/// Versions with different record formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Tls12,
    Tls13,
}

/// The key of one direction, until it is replaced. Zeroed when dropped.
pub(super) struct Keys {
    /// Its memory is cleansed by `aws-lc-rs` when it is freed.
    key: LessSafeKey,
    iv: [u8; 12],
    version: Version,
    /// Whether records carry a part of their nonce.
    is_explicit: bool,
    #[cfg(all(feature = "testkit", debug_assertions))]
    used: nonces::Nonces,
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

impl Keys {
    /// `None` for an unsupported cipher.
    pub(super) fn new(version: Version, secrets: &ConnectionTrafficSecrets) -> Option<Keys> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let is_chacha = matches!(secrets, ConnectionTrafficSecrets::Chacha20Poly1305 { .. });
        Some(Keys {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?),
            iv: iv.as_ref().try_into().ok()?,
            version,
            is_explicit: version == Version::Tls12 && !is_chacha,
            #[cfg(all(feature = "testkit", debug_assertions))]
            used: nonces::Nonces::new(key.as_ref()),
        })
    }

    fn explicit_len(&self) -> usize {
        if self.is_explicit { EXPLICIT } else { 0 }
    }

    /// How many bytes a record is longer than its text.
    pub(super) fn overhead(&self) -> usize {
        let inner_type = usize::from(self.version == Version::Tls13);
        HEADER + self.explicit_len() + inner_type + TAG
    }

    /// The most bytes after a record's header.
    pub(super) fn max_body(&self) -> usize {
        MAX_TEXT
            + match self.version {
                Version::Tls13 => MAX_EXPANSION,
                Version::Tls12 => self.overhead() - HEADER,
            }
    }

    /// The nonce of record `seq`: 64 bits of it on the right (RFC 8446 section 5.3, RFC 7905
    /// section 2; RFC 5288 section 3 leaves the explicit part to the sender).
    fn nonce(&self, seq: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, with) in nonce[4..].iter_mut().zip(seq.to_be_bytes()) {
            *byte ^= with;
        }
        nonce
    }

    /// The additional authenticated data.
    fn aad(&self, seq: u64, header: &[u8; HEADER], len: usize) -> ([u8; 13], usize) {
        let mut aad = [0; 13];
        match self.version {
            Version::Tls13 => {
                aad[..HEADER].copy_from_slice(header);
                (aad, HEADER)
            }
            Version::Tls12 => {
                aad[..8].copy_from_slice(&seq.to_be_bytes());
                aad[8..11].copy_from_slice(&header[..3]);
                aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
                (aad, 13)
            }
        }
    }

    /// Writes a record to `record`, which is [`Keys::overhead`] longer than `text`. The text is not
    /// modified, so this can be repeated with the same outcome: one nonce seals one text.
    ///
    /// # Panics
    /// If `text` or `record` has a wrong length.
    pub(super) fn seal(&self, seq: u64, content: u8, text: &[u8], record: &mut [u8]) {
        assert!(text.len() <= MAX_TEXT && record.len() == text.len() + self.overhead());
        let (header, body) = record.split_at_mut(HEADER);
        let outer = match self.version {
            Version::Tls13 => APPLICATION_DATA,
            Version::Tls12 => content,
        };
        let [high, low] = (body.len() as u16).to_be_bytes();
        let fixed = [outer, 3, 3, high, low];
        header.copy_from_slice(&fixed);
        let nonce = self.nonce(seq);
        #[cfg(all(feature = "testkit", debug_assertions))]
        self.used.note(nonce, content, text);
        let (explicit, body) = body.split_at_mut(self.explicit_len());
        explicit.copy_from_slice(&nonce[12 - explicit.len()..]);
        let (sealed, rest) = body.split_at_mut(text.len());
        let inner_type = [content];
        let inner_type = &inner_type[..usize::from(self.version == Version::Tls13)];
        let (aad, aad_len) = self.aad(seq, &fixed, text.len());
        let done = self.key.seal_out_of_place_scatter(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(&aad[..aad_len]),
            text,
            sealed,
            inner_type,
            rest,
        );
        assert!(done.is_ok(), "the lengths of a record are right");
    }

    /// Writes the text of a record to `text`, which has [`Keys::max_body`] bytes or more. Returns
    /// its content type and length. The record is not modified, so this can be repeated.
    ///
    /// # Errors
    /// The alert for the fault; the contents of `text` are then undefined.
    pub(super) fn open(
        &self,
        seq: u64,
        header: &[u8; HEADER],
        body: &[u8],
        text: &mut [u8],
    ) -> Result<(u8, usize), AlertDescription> {
        const FORGED: AlertDescription = AlertDescription::BadRecordMac;
        let explicit_len = self.explicit_len();
        let len = body.len().checked_sub(explicit_len + TAG);
        let len = len.ok_or(FORGED)?;
        let (explicit, body) = body.split_at(explicit_len);
        let (sealed, tag) = body.split_at(len);
        let mut nonce = self.nonce(seq);
        nonce[12 - explicit_len..].copy_from_slice(explicit);
        let (aad, aad_len) = self.aad(seq, header, len);
        let text = text.get_mut(..len);
        let text = text.ok_or(AlertDescription::RecordOverflow)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(&aad[..aad_len]);
        let opened = self.key.open_separate_gather(nonce, aad, sealed, tag, text);
        opened.map_err(|_| FORGED)?;
        let (content, len) = match self.version {
            Version::Tls12 => (header[0], len),
            // The limit includes the padding (RFC 8446 section 5.2).
            Version::Tls13 if len > MAX_TEXT + 1 => return Err(AlertDescription::RecordOverflow),
            // Zeros follow the type (RFC 8446 section 5.4).
            Version::Tls13 => {
                let at = text.iter().rposition(|byte| *byte != 0);
                let at = at.ok_or(AlertDescription::UnexpectedMessage)?;
                (text[at], at)
            }
        };
        if len > MAX_TEXT {
            return Err(AlertDescription::RecordOverflow);
        }
        Ok((content, len))
    }
}

/// Checks the header of a received record. Returns the length of its body.
///
/// # Errors
/// The alert for the fault.
pub(super) fn body_len(keys: &Keys, header: &[u8; HEADER]) -> Result<usize, AlertDescription> {
    let [kind, major, _, high, low] = *header;
    let is_known = match keys.version {
        // Records of all other types are sealed in this one (RFC 8446 section 5.2);
        // change_cipher_spec is allowed only during the handshake.
        Version::Tls13 => kind == APPLICATION_DATA,
        Version::Tls12 => matches!(kind, ALERT | HANDSHAKE | APPLICATION_DATA),
    };
    if !is_known {
        return Err(AlertDescription::UnexpectedMessage);
    }
    if keys.version == Version::Tls12 && major != 3 {
        return Err(AlertDescription::ProtocolVersion);
    }
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len > keys.max_body() {
        return Err(AlertDescription::RecordOverflow);
    }
    Ok(len)
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    fn key(len: usize) -> AeadKey {
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8 * 7;
        }
        // A 16-byte key is a prefix of such an array, which only a provider's suites can make.
        assert!(len == 32);
        AeadKey::from(bytes)
    }

    fn all() -> impl Iterator<Item = Keys> {
        let versions = [Version::Tls12, Version::Tls13];
        versions.into_iter().flat_map(|version| {
            let iv = || Iv::from([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2]);
            let gcm = ConnectionTrafficSecrets::Aes256Gcm {
                key: key(32),
                iv: iv(),
            };
            let chacha = ConnectionTrafficSecrets::Chacha20Poly1305 {
                key: key(32),
                iv: iv(),
            };
            [gcm, chacha].map(|secrets| Keys::new(version, &secrets).unwrap())
        })
    }

    fn sealed(keys: &Keys, seq: u64, content: u8, text: &[u8]) -> Vec<u8> {
        let mut record = vec![0; text.len() + keys.overhead()];
        keys.seal(seq, content, text, &mut record);
        record
    }

    fn opened(keys: &Keys, seq: u64, record: &[u8]) -> Result<(u8, Vec<u8>), AlertDescription> {
        let header = record[..HEADER].try_into().unwrap();
        assert_eq!(body_len(keys, &header)?, record.len() - HEADER);
        let mut text = vec![0; keys.max_body()];
        let (content, len) = keys.open(seq, &header, &record[HEADER..], &mut text)?;
        text.truncate(len);
        Ok((content, text))
    }

    #[test]
    fn a_record_opens_to_what_was_sealed_and_no_bit_of_it_may_change() {
        for keys in all() {
            for len in [0, 1, 15, 300u64] {
                let text: Vec<u8> = (0..len).map(|at| at as u8 ^ 0x5a).collect();
                let seq = len;
                let record = sealed(&keys, seq, APPLICATION_DATA, &text);
                assert_eq!(opened(&keys, seq, &record), Ok((APPLICATION_DATA, text)));
                assert!(opened(&keys, seq + 1, &record).is_err(), "in another place");
                for at in 0..record.len() {
                    for bit in 0..8 {
                        let mut forged = record.clone();
                        forged[at] ^= 1 << bit;
                        // The caller reads as many bytes as the length demands.
                        if !(3..5).contains(&at) {
                            assert!(opened(&keys, seq, &forged).is_err(), "bit {bit} of {at}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[cfg(all(feature = "testkit", debug_assertions))]
    #[should_panic(expected = "seals two texts")]
    fn a_nonce_for_a_second_text_is_noticed() {
        let keys = all().next().unwrap();
        let twice = sealed(&keys, 7, APPLICATION_DATA, b"one");
        assert_eq!(sealed(&keys, 7, APPLICATION_DATA, b"one"), twice);
        sealed(&keys, 7, APPLICATION_DATA, b"two");
    }

    #[test]
    fn text_that_is_too_long_or_has_no_type_is_refused() {
        let keys = all().last().unwrap();
        assert_eq!(keys.version, Version::Tls13);
        // The text of one record as the padding of another: its last byte is the type.
        let mut padded = sealed(&keys, 0, 0, &[0; 40]);
        assert_eq!(
            opened(&keys, 0, &padded),
            Err(AlertDescription::UnexpectedMessage)
        );
        padded = sealed(&keys, 1, 0, &[1, 2, HANDSHAKE, 0, 0]);
        assert_eq!(opened(&keys, 1, &padded), Ok((HANDSHAKE, vec![1, 2])));
        let too_long = [APPLICATION_DATA, 3, 3, 0x41, 1];
        assert_eq!(
            body_len(&keys, &too_long),
            Err(AlertDescription::RecordOverflow)
        );
    }

    /// The record of an inner plaintext (RFC 8446 section 5.2) of any length.
    fn authentic(keys: &Keys, mut inner: Vec<u8>) -> Vec<u8> {
        let [high, low] = ((inner.len() + TAG) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        let nonce = Nonce::assume_unique_for_key(keys.nonce(0));
        let sealed = keys
            .key
            .seal_in_place_append_tag(nonce, Aad::from(&header), &mut inner);
        sealed.unwrap();
        [&header[..], &inner].concat()
    }

    #[test]
    fn padding_does_not_make_a_record_longer_than_it_may_be() {
        let keys = all().last().unwrap();
        for (len, is_refused) in [
            (MAX_TEXT + 1, false),
            (MAX_TEXT + 2, true),
            (MAX_TEXT + 240, true),
        ] {
            let mut inner = vec![0; len];
            inner[..4].copy_from_slice(&[1, 2, 3, APPLICATION_DATA]);
            let opened = opened(&keys, 0, &authentic(&keys, inner));
            match is_refused {
                true => assert_eq!(opened, Err(AlertDescription::RecordOverflow), "{len}"),
                false => assert_eq!(opened, Ok((APPLICATION_DATA, vec![1, 2, 3]))),
            }
        }
    }

    #[test]
    fn more_text_than_a_record_may_have_is_refused_though_it_is_authentic() {
        let keys = all().last().unwrap();
        for (len, is_refused) in [
            (MAX_TEXT, false),
            (MAX_TEXT + 1, true),
            (MAX_TEXT + 239, true),
        ] {
            let mut inner = vec![1; len];
            inner.push(APPLICATION_DATA);
            let record = authentic(&keys, inner);
            let opened = opened(&keys, 0, &record).map(|(_, text)| text.len());
            match is_refused {
                true => assert_eq!(opened, Err(AlertDescription::RecordOverflow), "{len}"),
                false => assert_eq!(opened, Ok(len)),
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_alert(
            seq: u64, header: [u8; 5], body in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            for keys in all() {
                let _ = body_len(&keys, &header);
                let mut text = vec![0; keys.max_body()];
                prop_assert!(keys.open(seq, &header, &body, &mut text).is_err());
            }
        }
    }
}
