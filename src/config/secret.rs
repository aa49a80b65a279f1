//! Secrets and headers: referenced, never written, never read here and never repeated.
//!
//! A configuration file ends up in backups, in tickets and in version control, so a secret in it is
//! refused, not tolerated. The refusals speak of the form only.

use std::path::PathBuf;

use http::{HeaderName, HeaderValue};
use schemars::{Schema, json_schema};

use super::field::{Entry, Fault, Leaf, Named, Node, Placed, Slot};
use super::leaf::Text;
use super::problem::Report;
use crate::edge::spec::Auth;
use crate::pool::{HeaderSource, SecretSource};

/// Headers that HTTP framing or berth itself decides on.
const OWNED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that carry a secret by their meaning; their value is never written in the file.
const SECRET: &[&str] = &[
    "api-key",
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-goog-api-key",
];

const FORMS: &str = "`{ env: NAME }`, `{ file: PATH }` or `{ systemd: NAME }`";

impl Leaf for SecretSource {
    fn read(node: Node) -> Result<SecretSource, Fault> {
        let Node::Keys(entries) = node else {
            return Err(format!(
                "a secret must not be written in this file; say where it is kept: {FORMS}"
            )
            .into());
        };
        let mut entries = entries.into_iter();
        match (entries.next(), entries.next()) {
            (Some(entry), None) => source(entry),
            (_, Some(second)) => Err(Fault {
                at: Some(second.at),
                text: format!("a secret is kept in one place; write only one of {FORMS}"),
            }),
            (None, None) => Err(format!("say where the secret is kept: {FORMS}").into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "oneOf": secret_forms() })
    }
}

fn source(entry: Entry) -> Result<SecretSource, Fault> {
    let at = Some(entry.at);
    let Ok(Text(text)) = Text::read(entry.node) else {
        return Err(Fault {
            at,
            text: format!("a name or a path is expected after this key: {FORMS}"),
        });
    };
    let fault = |text: &str| {
        Err(Fault {
            at,
            text: text.to_owned(),
        })
    };
    match entry.key.as_str() {
        "env" if is_variable(&text) => Ok(SecretSource::Env(text)),
        "env" => fault(
            "`env` takes the name of an environment variable (letters, digits and `_`), \
             not the secret itself",
        ),
        "file" => Ok(SecretSource::File(PathBuf::from(text))),
        "systemd" if is_credential_name(&text) => Ok(SecretSource::Systemd(text)),
        "systemd" => fault(
            "`systemd` takes a name as in `LoadCredential=NAME:PATH` \
             (letters, digits, `.`, `_` and `-`), not a path or the secret itself",
        ),
        _ => Err(Fault {
            at,
            text: format!("this does not say where a secret is kept; write {FORMS}"),
        }),
    }
}

fn is_variable(text: &str) -> bool {
    text.len() <= 128
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_credential_name(text: &str) -> bool {
    text.len() <= 128
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn secret_forms() -> Vec<Schema> {
    let form = |key: &str, pattern: &str| {
        json_schema!({
            "type": "object",
            "properties": { key: { "type": "string", "pattern": pattern } },
            "required": [key],
            "additionalProperties": false
        })
    };
    vec![
        form("env", "^[A-Za-z_][A-Za-z0-9_]*$"),
        form("file", "."),
        form("systemd", "^[A-Za-z0-9_-][A-Za-z0-9._-]*$"),
    ]
}

impl Leaf for HeaderSource {
    fn read(node: Node) -> Result<HeaderSource, Fault> {
        match node {
            Node::Keys(_) => SecretSource::read(node).map(HeaderSource::Secret),
            literal => Literal::read(literal).map(|value| HeaderSource::Literal(value.0)),
        }
    }

    fn schema() -> Schema {
        let mut forms = secret_forms();
        forms.push(Literal::schema());
        json_schema!({ "oneOf": forms })
    }
}

/// A header value that is written in the file.
pub struct Literal(pub HeaderValue);

impl Leaf for Literal {
    fn read(node: Node) -> Result<Literal, Fault> {
        let Node::Text(text) = node else {
            return Err("a header value is text; put it in quotes".into());
        };
        match HeaderValue::from_str(&text) {
            Ok(mut value) if !text.is_empty() && text.trim() == text => {
                value.set_sensitive(true);
                Ok(Literal(value))
            }
            _ => Err("a header value is printable ASCII without spaces around it".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1 })
    }
}

impl Leaf for Auth {
    fn read(node: Node) -> Result<Auth, Fault> {
        let bad = "`bearer` or `header:NAME` with the name of a header is expected here";
        let Node::Text(text) = node else {
            return Err(bad.into());
        };
        if text == "bearer" {
            return Ok(Auth::Bearer);
        }
        let name = text.strip_prefix("header:").ok_or(bad)?;
        Ok(Auth::Header(header_name(name)?))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(bearer|header:[A-Za-z0-9_-]+)$" })
    }
}

impl Auth {
    fn header(&self) -> &str {
        match self {
            Auth::Bearer => "authorization",
            Auth::Header(name) => name.as_str(),
        }
    }
}

fn header_name(text: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(text.as_bytes())
        .map_err(|_| "a header name is letters, digits and `-`")?;
    match OWNED.contains(&name.as_str()) || name.as_str().starts_with("x-berth-") {
        true => Err("this header belongs to HTTP or to berth and cannot be set"),
        false => Ok(name),
    }
}

/// The headers of a section. `auth` is the header that already carries the credential's secret.
pub fn headers<T: Leaf + WrittenOut>(
    raw: Named<Slot<T>>,
    auth: Option<&Auth>,
    report: &mut Report,
) -> Vec<(HeaderName, T)> {
    let mut headers: Vec<(HeaderName, T)> = Vec::new();
    for (key, slot) in raw.entries() {
        let value = slot.take(report);
        let name = match header_name(&key.value) {
            Ok(name) => name,
            Err(text) => {
                report.problem(key.at, text);
                continue;
            }
        };
        let Some(Placed { at, value }) = value else {
            continue;
        };
        if auth.is_some_and(|auth| auth.header() == name.as_str()) {
            let text = "the upstream's `auth` already sends the secret in this header; remove it";
            report.problem(key.at, text);
        } else if SECRET.contains(&name.as_str()) && value.is_written_out() {
            let text = format!(
                "this header carries a secret, which must not be written in this file; \
                 in a credential's `headers` say where it is kept: {FORMS}"
            );
            report.problem(at, text);
        } else if headers.iter().any(|(other, _)| *other == name) {
            let text = "this header is written twice (names do not differ by case); keep one";
            report.problem(key.at, text);
        } else {
            headers.push((name, value));
        }
    }
    headers
}

/// Whether a header's value stands in the file itself.
pub trait WrittenOut {
    fn is_written_out(&self) -> bool;
}

impl WrittenOut for Literal {
    fn is_written_out(&self) -> bool {
        true
    }
}

impl WrittenOut for HeaderSource {
    fn is_written_out(&self) -> bool {
        matches!(self, HeaderSource::Literal(_))
    }
}
