//! Names that berth gives: one to each request, and one to a session that it must not name.
//!
//! A request's id is told to the client, so that a complaint finds its audit line: it sorts by
//! time, which makes `grep` on a day's log quick, and 80 random bits keep it unique over every
//! generation and node without a counter that they would have to share.
//!
//! A session's own name can be an account, a path or a word of the user's, so only a keyed hash is
//! written down. Without the key, a plain hash of a guessable name would be that name.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// The id of one client request: `br-` and 26 characters (Crockford's base 32: no `i l o u`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u128);

impl RequestId {
    /// A new id: 48 bits of milliseconds, then 80 random bits.
    pub fn new(now: SystemTime) -> RequestId {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let millis = since.as_millis() & ((1 << 48) - 1);
        let random = rand::random::<u128>() & ((1 << RANDOM_BITS) - 1);
        RequestId(millis << RANDOM_BITS | random)
    }

    /// When its request came, to the millisecond.
    pub fn came(self) -> SystemTime {
        let millis = u64::try_from(self.0 >> RANDOM_BITS).unwrap_or_default();
        UNIX_EPOCH + Duration::from_millis(millis)
    }

    /// Reads what [`fmt::Display`] wrote; `None` for anything else.
    pub fn parse(text: &str) -> Option<RequestId> {
        let digits = text.strip_prefix(PREFIX)?;
        if digits.len() != DIGITS {
            return None;
        }
        let mut value = 0_u128;
        for byte in digits.bytes() {
            let digit = ALPHABET.iter().position(|d| *d == byte)?;
            // 26 digits hold 130 bits: two too many for a first digit above 7.
            value = value.checked_mul(32)?.checked_add(digit as u128)?;
        }
        Some(RequestId(value))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        (0..DIGITS).rev().try_for_each(|place| {
            let digit = (self.0 >> (5 * place)) as usize & 31;
            let digit = ALPHABET.get(digit).copied().unwrap_or(b'0');
            fmt::Write::write_char(f, char::from(digit))
        })
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for RequestId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The key under which sessions are hashed. Who has it can test guesses, so it is never printed.
#[derive(Clone)]
pub struct SessionKey([u8; 32]);

impl SessionKey {
    /// A key that dies with the process: hashes compare within its life only.
    pub fn random() -> SessionKey {
        SessionKey(rand::random())
    }

    /// A key from elsewhere: the process before this one, or the configuration.
    pub fn from_bytes(key: [u8; 32]) -> SessionKey {
        SessionKey(key)
    }

    /// For the process that takes over.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What is written down in place of `session`.
    pub fn hash(&self, session: impl AsRef<[u8]>) -> SessionHash {
        let digest = Sha256::new()
            .chain_update(self.0)
            .chain_update(session)
            .finalize();
        SessionHash(
            digest
                .iter()
                .take(8)
                .fold(0, |hash, byte| hash << 8 | u64::from(*byte)),
        )
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// A session in the audit: 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionHash(u64);

impl fmt::Display for SessionHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Serialize for SessionHash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

const PREFIX: &str = "br-";
/// 26 digits of 5 bits hold the 128.
const DIGITS: usize = 26;
const RANDOM_BITS: u32 = 80;
/// Crockford's, in small letters; in ASCII order, so that ids sort as their values do.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::time::Duration;

    fn at(millis: u64) -> RequestId {
        RequestId::new(UNIX_EPOCH + Duration::from_millis(millis))
    }

    #[test]
    fn an_id_reads_back_as_what_it_was() {
        let ids: Vec<RequestId> = (0..100).map(|i| at(1_770_000_000_000 + i)).collect();
        for id in &ids {
            let text = id.to_string();
            assert_eq!(text.len(), 29);
            assert_eq!(RequestId::parse(&text), Some(*id), "{text}");
        }
        assert_eq!(
            RequestId::parse("br-7zzzzzzzzzzzzzzzzzzzzzzzzz"),
            Some(RequestId(u128::MAX))
        );
    }

    #[test]
    fn ids_sort_by_time_and_differ_within_a_millisecond() {
        assert!(at(1_000).to_string() < at(1_001).to_string());
        assert!(at(999_999).to_string() < at(1_000_000_000_000).to_string());
        let same: HashSet<RequestId> = (0..1_000).map(|_| at(7)).collect();
        assert_eq!(same.len(), 1_000);
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        let odd = [
            "",
            "br-",
            "br-8zzzzzzzzzzzzzzzzzzzzzzzzz",
            "br-0123456789abcdefghjkmnpqri",
            "req_0123456789abcdefghjkmnpqrs",
            "br-é123456789abcdefghjkmnpqr",
        ];
        assert!(odd.iter().all(|text| RequestId::parse(text).is_none()));
    }

    #[test]
    fn a_session_hash_depends_on_the_key_and_hides_the_name() {
        let key = SessionKey::from_bytes([7; 32]);
        let hash = key.hash("alice").to_string();
        assert_eq!(hash.len(), 16);
        assert_eq!(hash, key.hash("alice").to_string());
        assert_ne!(hash, key.hash("alicf").to_string());
        assert_ne!(hash, SessionKey::random().hash("alice").to_string());
        assert_eq!(format!("{key:?}"), "SessionKey");
    }
}
