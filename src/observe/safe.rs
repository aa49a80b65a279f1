//! Text from outside, made fit to be written down.
//!
//! Some fields of a record come from a client or an upstream, who may be hostile or careless: a
//! model name with a terminal escape in it, a key pasted where the model belongs, an error code
//! that is a sentence of the prompt. Filtering when a line is written leaves one place to forget,
//! so each such field has a type that cannot hold anything else, and a record is made of these.
//!
//! The limit: a secret is recognised by its form (a known prefix, or a long run of letters and
//! digits). A password of eight letters sent as the model name looks like a model name. berth's own
//! secrets are known and need no form: what an upstream says is told [`SafeCode::without`] them.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// An error code of an upstream: `[a-z0-9_]{1,64}`, anything else is `other`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SafeCode(Arc<str>);

impl SafeCode {
    /// The code, or `other`.
    pub fn new(code: &str) -> SafeCode {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let fits = (1..=MAX_CODE).contains(&code.len()) && code.bytes().all(plain);
        match fits && !looks_like_key(code) && !has_long_run(code) {
            true => SafeCode(code.into()),
            false => SafeCode("other".into()),
        }
    }

    /// The same, or `other` where `is_secret` finds a secret in it.
    pub fn without(self, is_secret: impl Fn(&[u8]) -> bool) -> SafeCode {
        match is_secret(self.0.as_bytes()) {
            true => SafeCode("other".into()),
            false => self,
        }
    }

    /// The code itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The request id of an upstream: `[A-Za-z0-9_.:-]{1,128}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UpstreamRequestId(Arc<str>);

impl UpstreamRequestId {
    /// `None` where the id has another form. A long run of hexadecimal digits is what real ids
    /// are, so only the prefixes of keys are refused here.
    pub fn new(id: &[u8]) -> Option<UpstreamRequestId> {
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_.:-".contains(b);
        let fits = (1..=MAX_TEXT).contains(&id.len()) && id.iter().all(plain);
        let id = std::str::from_utf8(id).ok()?;
        (fits && !looks_like_key(id)).then(|| UpstreamRequestId(id.into()))
    }

    /// The same, unless `is_secret` finds a secret in it.
    pub fn without(self, is_secret: impl Fn(&[u8]) -> bool) -> Option<UpstreamRequestId> {
        (!is_secret(self.0.as_bytes())).then_some(self)
    }

    /// The id itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name that a client chose, such as a model: printable ASCII, at most 128 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct SafeText(Arc<str>);

impl SafeText {
    /// Characters that do not print become `?`, and what looks like a key is withheld whole: half
    /// a key is still half a key.
    pub fn new(text: &str) -> SafeText {
        match looks_like_key(text) || has_long_run(text) {
            true => SafeText("withheld".into()),
            false => SafeText(printable(text, MAX_TEXT).into()),
        }
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SafeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The path of a request without its query: printable ASCII, at most 256 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SafePath(Box<str>);

impl SafePath {
    /// Takes a path with or without its query. A segment that looks like a key becomes `*`.
    pub fn new(path_and_query: &str) -> SafePath {
        let path = path_and_query.split(['?', '#']).next().unwrap_or_default();
        let segments: Vec<&str> = path
            .split('/')
            .map(
                |segment| match looks_like_key(segment) || has_long_run(segment) {
                    true => "*",
                    false => segment,
                },
            )
            .collect();
        SafePath(printable(&segments.join("/"), MAX_PATH).into())
    }
}

/// The method of a request: one of the standard ones, or `other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MethodName(&'static str);

impl MethodName {
    /// The name of `method`.
    pub fn new(method: &http::Method) -> MethodName {
        const KNOWN: [&str; 9] = [
            "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "CONNECT", "TRACE",
        ];
        let known = KNOWN.iter().find(|name| **name == method.as_str());
        MethodName(known.copied().unwrap_or("other"))
    }

    /// The name itself.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// Bytes; the contract's.
const MAX_CODE: usize = 64;
/// Bytes; the contract's for request ids, and twice the longest model name seen.
const MAX_TEXT: usize = 128;
/// Bytes; chosen: every path of the two dialects fits twice.
const MAX_PATH: usize = 256;
/// Letters and digits in a row that no model name reaches; the shortest keys without a prefix are
/// 32 hexadecimal digits.
const LONG_RUN: usize = 32;
/// Characters after a prefix from which on it is a key; chosen below every key in use (20 and
/// more), above words such as `sk-learn`.
const KEY_TAIL: usize = 12;
/// How keys and tokens begin: of AI vendors, clouds, code hosts; JSON Web Tokens; schemes.
const KEY_PREFIXES: [&str; 18] = [
    "sk-",
    "sk_",
    "pk-",
    "rk-",
    "sess-",
    "gsk_",
    "hf_",
    "xai-",
    "pplx-",
    "aiza",
    "akia",
    "ghp_",
    "gho_",
    "github_pat_",
    "xox",
    "eyj",
    "bearer ",
    "basic ",
];

/// Whether `text` holds something that begins like a key, at the beginning of a word.
fn looks_like_key(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut before = None;
    for (at, byte) in bytes.iter().enumerate() {
        let word_begins = before.is_none_or(|b: &u8| !b.is_ascii_alphanumeric());
        let rest = bytes.get(at..).unwrap_or_default();
        if word_begins && KEY_PREFIXES.iter().any(|prefix| is_key(rest, prefix)) {
            return true;
        }
        before = Some(byte);
    }
    false
}

fn is_key(rest: &[u8], prefix: &str) -> bool {
    let Some((head, tail)) = rest.split_at_checked(prefix.len()) else {
        return false;
    };
    let of_key = |b: &&u8| b.is_ascii_alphanumeric() || b"-_.+/=".contains(b);
    head.eq_ignore_ascii_case(prefix.as_bytes())
        && tail.iter().take(KEY_TAIL).filter(of_key).count() == KEY_TAIL
}

/// Whether `text` holds a run of letters and digits, some of each, that is too long for a name.
fn has_long_run(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(|run| {
        run.len() >= LONG_RUN
            && run.bytes().any(|b| b.is_ascii_digit())
            && run.bytes().any(|b| b.is_ascii_alphabetic())
    })
}

/// ASCII only: of the rest, many do not print, and some turn the direction of a terminal's line.
fn printable(text: &str, max: usize) -> String {
    let shown = |c: char| {
        if c == ' ' || c.is_ascii_graphic() {
            c
        } else {
            '?'
        }
    };
    text.chars().take(max).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_plain_word_or_other() {
        assert_eq!(
            SafeCode::new("server_is_overloaded").as_str(),
            "server_is_overloaded"
        );
        let odd = [
            "",
            "Server",
            "a b",
            "é",
            "0123456789abcdef0123456789abcdef",
            &"a".repeat(65),
        ];
        assert!(
            odd.iter()
                .all(|code| SafeCode::new(code).as_str() == "other")
        );
        assert_eq!(SafeCode::new(&"a".repeat(64)).as_str(), "a".repeat(64));
    }

    #[test]
    fn an_upstreams_id_is_kept_only_in_its_form() {
        let id = |text: &str| UpstreamRequestId::new(text.as_bytes()).map(|i| i.0.to_string());
        let usual = "req_9f86d081884c7d659a2feaa0c55ad015";
        assert_eq!(id(usual).as_deref(), Some(usual));
        for odd in [
            "",
            "two words",
            "sk-proj-abcdefghijkl",
            "ünicode",
            &"a".repeat(129),
        ] {
            assert_eq!(id(odd), None, "{odd}");
        }
    }

    #[test]
    fn model_names_stay_and_keys_do_not() {
        let models = [
            "gpt-5.6-sol",
            "claude-opus-4-20260101",
            "ft:gpt-4o-mini-2024-07-18:org::9tH",
            "sk-learn",
        ];
        for model in models {
            assert_eq!(SafeText::new(model).as_str(), model);
        }
        let keys = [
            "sk-proj-AbCdEf123456",
            "openai/sk-ant-api03-xyzxyzxyz",
            "Bearer abcdefghijklmnop",
            "eyJhbGciOiJIUzI1NiJ9.e30.x",
            "0123456789abcdef0123456789abcdef",
        ];
        for key in keys {
            assert_eq!(SafeText::new(key).as_str(), "withheld", "{key}");
        }
    }

    #[test]
    fn hostile_text_is_bounded_and_printable() {
        assert_eq!(
            SafeText::new("a\u{1b}[31m\n\u{202e}b").as_str(),
            "a?[31m??b"
        );
        assert_eq!(SafeText::new(&"é ".repeat(500)).as_str().len(), 128);
        assert_eq!(SafePath::new(&"/a".repeat(500)).0.len(), 256);
    }

    #[test]
    fn a_path_loses_its_query_and_its_keys() {
        let path = |text: &str| SafePath::new(text).0.to_string();
        assert_eq!(
            path("/v1/responses?key=sk-abcdefghijklmnop"),
            "/v1/responses"
        );
        assert_eq!(path("/bot/sk-abcdefghijklmnop/x"), "/bot/*/x");
        assert_eq!(
            path("/v1/responses/resp_68a1f0c2d4e6b8a0c2d4e6f8a0b2c4d6e8"),
            "/v1/responses/*"
        );
    }

    #[test]
    fn a_method_is_a_known_one_or_other() {
        assert_eq!(MethodName::new(&http::Method::POST).0, "POST");
        let made_up = http::Method::from_bytes(b"SK-SECRET").unwrap();
        assert_eq!(MethodName::new(&made_up).0, "other");
    }
}
