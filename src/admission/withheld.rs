//! What an upstream may say to nobody: the secret that it was sent.
//!
//! The problem: an upstream's error quotes what it was asked with ("Incorrect API key provided:
//! sk-..."), a gateway in front of it answers with the headers that it got, and a client that reads
//! either has a key that opens the account. The promise: in a head, and in everything that is an error,
//! no piece of a credential's secret of more than [`LONGEST_TOLD`] bytes goes on, to a client or into a
//! record; [`STARS`] stands where it stood and all else stays as it came. Shorter pieces are what
//! vendors themselves show of a key.
//!
//! Refused: berth's own text in place of the whole error, which would cost the client the reason, and
//! the search of healthy answers. They are never touched, and who answers with the key that it was
//! asked with, byte for byte or encoded in some way, does so on purpose; that upstream has the key.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};

/// What stands in place of a secret.
pub const STARS: &str = "***";

/// Pieces of a secret are looked for in parts of so many bytes, one after the other: whatever holds
/// more than [`LONGEST_TOLD`] bytes of it holds a whole part. Chosen: longer than what keys begin with by their
/// kind (`sk-proj-`, `sk-ant-api03`), shorter than any key.
const PART: usize = 12;

/// The longest piece of a secret that may be told.
pub const LONGEST_TOLD: usize = 2 * PART - 2;

/// The secrets of one attempt.
#[derive(Clone, Default)]
pub struct Withheld(Option<Arc<Parts>>);

/// Their parts, to be found in one pass.
struct Parts {
    secrets: Vec<SecretString>,
    /// Of each pattern of `finder`: its secret, and where it stands there.
    places: Vec<(usize, Range<usize>)>,
    finder: AhoCorasick,
}

impl Withheld {
    /// These.
    pub fn new(secrets: impl IntoIterator<Item = SecretString>) -> Withheld {
        let secrets: Vec<_> = secrets.into_iter().collect();
        let mut places = Vec::new();
        for (number, secret) in secrets.iter().enumerate() {
            let length = secret.expose_secret().len();
            // What is left at the end of a secret is found from the part before it.
            let whole = (0..length / PART).map(|part| part * PART..(part + 1) * PART);
            let short = (1..PART).contains(&length).then_some(0..length);
            places.extend(whole.chain(short).map(|place| (number, place)));
        }
        let text = |(number, place): &(usize, Range<usize>)| {
            let secret = secrets.get(*number).map(ExposeSecret::expose_secret);
            secret.and_then(|it| it.as_bytes().get(place.clone()))
        };
        // It fails for more bytes of patterns than a secret may have.
        let finder = AhoCorasick::new(places.iter().filter_map(text)).ok();
        Withheld(finder.map(|finder| {
            Arc::new(Parts {
                places,
                finder,
                secrets,
            })
        }))
    }

    /// `bytes` without them; `None` where none is there.
    pub fn bytes(&self, bytes: &[u8]) -> Option<Bytes> {
        let found = self.found(bytes);
        if found.is_empty() {
            return None;
        }
        let mut clean = Vec::with_capacity(bytes.len());
        let mut at = 0;
        for piece in &found {
            clean.extend_from_slice(bytes.get(at..piece.start).unwrap_or_default());
            clean.extend_from_slice(STARS.as_bytes());
            at = piece.end;
        }
        clean.extend_from_slice(bytes.get(at..).unwrap_or_default());
        Some(clean.into())
    }

    /// `text` without them.
    pub fn text(&self, text: String) -> String {
        match self.bytes(text.as_bytes()) {
            Some(clean) => String::from_utf8_lossy(&clean).into_owned(),
            None => text,
        }
    }

    /// Where pieces of them stand, in order, none of them touching another.
    fn found(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let Some(parts) = &self.0 else {
            return Vec::new();
        };
        let mut found: Vec<Range<usize>> = Vec::new();
        for part in parts.finder.find_overlapping_iter(bytes) {
            let place = parts.places.get(part.pattern().as_usize());
            let secret = place.and_then(|(number, _)| parts.secrets.get(*number));
            if let (Some((_, place)), Some(secret)) = (place, secret) {
                let secret = secret.expose_secret().as_bytes();
                found.push(widened(bytes, part.range(), secret, place.clone()));
            }
        }
        found.sort_unstable_by_key(|piece| piece.start);
        found.dedup_by(|next, before| {
            let touches = next.start <= before.end;
            if touches {
                before.end = before.end.max(next.end);
            }
            touches
        });
        found
    }
}

impl fmt::Debug for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Withheld")
    }
}

/// All of a secret around a part of it, which stands at `at` in `bytes` and at `place` in the secret. It
/// ends at what JSON may write otherwise, so that no escape is torn apart.
fn widened(bytes: &[u8], at: Range<usize>, secret: &[u8], place: Range<usize>) -> Range<usize> {
    let same = |(a, b): &(&u8, &u8)| a == b && !matches!(a, b'"' | b'\\');
    let before = bytes.get(..at.start).unwrap_or_default().iter().rev();
    let after = bytes.get(at.end..).unwrap_or_default().iter();
    let ahead = secret.get(..place.start).unwrap_or_default().iter().rev();
    let behind = secret.get(place.end..).unwrap_or_default().iter();
    let (left, right) = (before.zip(ahead), after.zip(behind));
    at.start - left.take_while(same).count()..at.end + right.take_while(same).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memchr::memmem;
    use proptest::prelude::*;

    const KEY: &str = "sk-proj-0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT";

    fn key() -> Withheld {
        Withheld::new([KEY.into()])
    }

    #[test]
    fn a_secret_is_taken_out_and_all_else_stays() {
        for (said, expected) in [
            (
                format!(r#"{{"error":{{"message":"Incorrect API key provided: {KEY}."}}}}"#),
                r#"{"error":{"message":"Incorrect API key provided: ***."}}"#,
            ),
            (format!("{KEY}{KEY} {KEY}"), "*** ***"),
            (format!("Bearer {}...", &KEY[..30]), "Bearer ***..."),
            (format!("ends in {}", &KEY[14..]), "ends in ***"),
        ] {
            assert_eq!(key().text(said), expected);
        }
        for said in ["", "sk-proj-***********************9sT", "sk-proj-0aB1"] {
            assert_eq!(key().bytes(&said.as_bytes()[..said.len().min(11)]), None);
        }
        assert_eq!(
            key().bytes(b"sk-proj-********************************R9sT"),
            None
        );
    }

    #[test]
    fn a_short_secret_is_found_whole_and_none_is_found_nowhere() {
        let short = Withheld::new(["sk-a".into()]);
        assert_eq!(short.text("key sk-a!".into()), "key ***!");
        assert_eq!(short.bytes(b"key sk-b"), None);
        assert_eq!(Withheld::default().bytes(b"anything"), None);
        assert_eq!(Withheld::new([String::new().into()]).bytes(b"any"), None);
        assert_eq!(format!("{short:?}"), "Withheld");
    }

    proptest! {
        #[test]
        fn no_piece_that_is_too_long_is_left(
            before in "[ -~]{0,20}", after in "[ -~]{0,20}", from in 0..KEY.len(), length in 0..KEY.len(),
        ) {
            let piece = &KEY[from..(from + length).min(KEY.len())];
            let told = key().text(format!("{before}{piece}{after}"));
            for piece in KEY.as_bytes().windows(LONGEST_TOLD + 1) {
                prop_assert!(memmem::find(told.as_bytes(), piece).is_none(), "{told}");
            }
            prop_assert!(told.starts_with(&before) || !piece.is_empty());
        }
    }
}
