//! When a secret ends, where it is a token that says so.
//!
//! Some accounts are opened by a JWT that is renewed by hand or by another program. One that ends at
//! night takes its credential out, and nothing said so the day before. So `exp` is read, and nothing
//! else: not who it is for, and not whether its signature is good, which only the upstream can tell.
//! A secret that is no JWT has no end here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// A time, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(u64);

impl Expiry {
    /// The `exp` of `secret` (RFC 7519), where it is a JWT that has a sensible one.
    pub fn of(secret: &str) -> Option<Expiry> {
        let mut parts = secret.split('.');
        let (_head, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || claims.len() > LONGEST {
            return None;
        }
        let json = URL_SAFE_NO_PAD.decode(claims).ok()?;
        let claims: Claims = serde_json::from_slice(&json).ok()?;
        let seconds = claims.exp?;
        (1.0..=LATEST)
            .contains(&seconds)
            .then_some(Expiry(seconds as u64))
    }

    /// Seconds since 1970.
    pub fn as_secs(self) -> u64 {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn at(seconds: u64) -> Expiry {
        Expiry(seconds)
    }
}

/// Characters of the claims (chosen: real ones have two thousand).
const LONGEST: usize = 16 * 1024;

/// The end of the year 9999: what is later is not a time.
const LATEST: f64 = 253_402_300_799.0;

#[derive(Deserialize)]
struct Claims {
    /// May have a fraction.
    exp: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!(
            "eyJhbGciOiJIUzI1NiJ9.{}.c2lnbmF0dXJl",
            URL_SAFE_NO_PAD.encode(claims)
        )
    }

    #[test]
    fn the_end_of_a_token_is_read_and_nothing_else_is_taken_for_one() {
        for (secret, expected) in [
            (
                token(r#"{"sub":"x","exp":1795000000,"more":{"a":[1]}}"#),
                Some(1_795_000_000),
            ),
            (token(r#"{"exp":1795000000.75}"#), Some(1_795_000_000)),
            (token(r#"{"sub":"x"}"#), None),
            (token(r#"{"exp":"soon"}"#), None),
            (token(r#"{"exp":-1}"#), None),
            (token(r#"{"exp":0}"#), None),
            (token(r#"{"exp":1e300}"#), None),
            (token(r#"{"exp":null}"#), None),
            (token("not json"), None),
            (token(&"[".repeat(10_000)), None),
            (
                token(&format!(
                    r#"{{"a":"{}","exp":1795000000}}"#,
                    "a".repeat(LONGEST)
                )),
                None,
            ),
            (format!("{}.more", token(r#"{"exp":1795000000}"#)), None),
            ("sk-proj-abc.def.ghi".to_owned(), None),
            ("sk-proj-abc".to_owned(), None),
            (String::new(), None),
        ] {
            let found = Expiry::of(&secret).map(Expiry::as_secs);
            assert_eq!(found, expected, "{secret:.80}");
        }
    }
}
