//! What is known of a key: its SHA-256.
//!
//! A key of `berth client add` has 256 random bits, so a plain digest keeps it as well as a slow one would,
//! and costs a request next to nothing.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// The SHA-256 of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of a key as it was presented.
    pub fn of(key: &[u8]) -> KeyDigest {
        KeyDigest(Sha256::digest(key).into())
    }

    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn parse(hex: &str) -> Option<KeyDigest> {
        let mut digest = [0; 32];
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != digest.len() || !rest.is_empty() {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? * 16 + low?).ok()?;
        }
        Some(KeyDigest(digest))
    }

    /// The 64 digits, for the file of clients.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first eight digits: enough to tell keys apart, and nothing to guess a key with.
    pub fn fingerprint(self) -> String {
        self.to_hex().chars().take(8).collect()
    }
}

impl ConstantTimeEq for KeyDigest {
    fn ct_eq(&self, other: &KeyDigest) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

/// A key that a person made up can be guessed from its digest, so that is not printed.
impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyDigest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_as_it_is_written() {
        let digest = KeyDigest::of(b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_hex(), hex);
        assert_eq!(KeyDigest::parse(hex), Some(digest));
        assert_eq!(KeyDigest::parse(&hex.to_uppercase()), Some(digest));
        assert_eq!(digest.fingerprint(), "ba7816bf");
        assert_eq!(format!("{digest:?}"), "KeyDigest");
    }

    #[test]
    fn what_is_no_digest_is_not_read() {
        let digits = "a".repeat(64);
        for bad in [
            "",
            &digits[1..],
            &format!("{digits}a"),
            &digits.replace('a', "g"),
            &digits.replace("aa", "+a"),
            &digits.replace("aa", "é"),
        ] {
            assert_eq!(KeyDigest::parse(bad), None, "{bad}");
        }
    }
}
