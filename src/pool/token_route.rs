//! The way in that a credential's token names.
//!
//! Some secrets are JSON Web Tokens whose claims say for which host they were made and by whom. When
//! such credentials refuse and others do not, that is worth knowing; nothing else in a token is anybody's
//! business. So exactly two claims are taken out, `host` and `iss`, each only in the form of a host or
//! an address, and the rest is dropped here. The signature is not checked: this decides nothing, it is
//! shown to the operator whose token it is.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;

/// The `host` and `iss` claims of a token; at least one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenRoute {
    host: Option<String>,
    iss: Option<String>,
}

#[derive(Deserialize)]
struct Claims {
    host: Option<Value>,
    iss: Option<Value>,
}

/// Longest claim that is shown, bytes (chosen: above the longest host name, 253).
const LONGEST: usize = 256;

impl TokenRoute {
    /// `None` where `secret` is no token, or names no route.
    pub fn of(secret: &SecretString) -> Option<TokenRoute> {
        let mut parts = secret.expose_secret().split('.');
        let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
        let claims: Claims = serde_json::from_slice(&payload).ok()?;
        let route = TokenRoute {
            host: address(claims.host),
            iss: address(claims.iss),
        };
        (route.host.is_some() || route.iss.is_some()).then_some(route)
    }
}

impl fmt::Display for TokenRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, &self.iss) {
            (Some(host), Some(iss)) => write!(f, "host {host}, iss {iss}"),
            (Some(host), None) => write!(f, "host {host}"),
            (None, Some(iss)) => write!(f, "iss {iss}"),
            (None, None) => Ok(()),
        }
    }
}

/// A claim in the form of a host or an address: no user, no query, nothing that does not print.
fn address(claim: Option<Value>) -> Option<String> {
    let Some(Value::String(text)) = claim else {
        return None;
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:/[]".contains(&b);
    ((1..=LONGEST).contains(&text.len()) && text.bytes().all(plain)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> SecretString {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!(
            "{}.{}.c2lnbmF0dXJl",
            part(r#"{"alg":"none"}"#),
            part(claims)
        )
        .into()
    }

    fn route(claims: &str) -> Option<String> {
        TokenRoute::of(&token(claims)).map(|it| it.to_string())
    }

    #[test]
    fn host_and_issuer_are_shown_and_nothing_else() {
        let claims =
            r#"{"iss":"https://auth.test/","host":"eu.api.test","sub":"alice","email":"a@b"}"#;
        let shown = route(claims).unwrap();
        assert_eq!(shown, "host eu.api.test, iss https://auth.test/");
        assert_eq!(route(r#"{"iss":"auth.test"}"#).unwrap(), "iss auth.test");
        let debug = format!("{:?}", TokenRoute::of(&token(claims)));
        assert!(
            !debug.contains("alice") && !debug.contains("a@b"),
            "{debug}"
        );
    }

    #[test]
    fn what_is_no_address_is_not_shown() {
        for claims in [
            r#"{"sub":"alice"}"#,
            r#"{"iss":7,"host":["a"]}"#,
            r#"{"host":"user:password@host"}"#,
            r#"{"host":"a b"}"#,
            r#"{"host":"a\u001b[2J"}"#,
            r#"{"host":""}"#,
            "[]",
            "{",
        ] {
            assert_eq!(route(claims), None, "{claims}");
        }
        let long = format!(r#"{{"host":"{}"}}"#, "a".repeat(LONGEST + 1));
        assert_eq!(route(&long), None);
        for secret in ["sk-plain", "a.b", "a.b.c", "a.b.c.d", "..", ""] {
            assert_eq!(TokenRoute::of(&secret.into()), None, "{secret}");
        }
    }
}
