//! The values that a configuration is written in: words, numbers, durations, sizes and names.
//!
//! Durations and sizes are strict: a bare `5` could be seconds or milliseconds, and `KB` could be a
//! thousand bytes or 1024, so neither is accepted. Bounds are far outside anything useful and keep
//! later arithmetic from overflowing.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use schemars::{Schema, json_schema};

use super::field::{Fault, Leaf, Node};

/// Longest duration; chosen, no setting of berth means anything beyond it.
const MAX_DURATION: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Largest size; chosen, larger than the memory of the machines berth runs on.
const MAX_SIZE: u64 = 1 << 40;
/// Longest text of any value; chosen.
const MAX_TEXT: usize = 4096;
/// Longest id or upstream name, as in `CredentialId`.
const MAX_NAME: usize = 64;

/// Text of 1 to [`MAX_TEXT`] bytes without control characters.
pub struct Text(pub String);

impl Leaf for Text {
    fn read(node: Node) -> Result<Text, Fault> {
        match node {
            Node::Text(text) if text.is_empty() => Err("the text is empty; write one".into()),
            Node::Text(text) if text.len() > MAX_TEXT => {
                Err(format!("the text is longer than {MAX_TEXT} bytes; shorten it").into())
            }
            Node::Text(text) if text.chars().any(char::is_control) => {
                Err("the text has a line break or another control character; remove it".into())
            }
            Node::Text(text) => Ok(Text(text)),
            Node::Bool(_) | Node::Whole(_) | Node::Number(_) => {
                Err("text is expected here; put the value in quotes".into())
            }
            _ => Err("text is expected here, not a list or keys".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_TEXT })
    }
}

/// A path of the file system.
pub struct FilePath(pub PathBuf);

impl Leaf for FilePath {
    fn read(node: Node) -> Result<FilePath, Fault> {
        Text::read(node).map(|text| FilePath(PathBuf::from(text.0)))
    }

    fn schema() -> Schema {
        Text::schema()
    }
}

/// `[a-z0-9-]{1,64}`.
pub struct Name(pub String);

/// Whether `word` is `[a-z0-9-]{1,64}`.
pub fn is_name(word: &str) -> bool {
    (1..=MAX_NAME).contains(&word.len())
        && word
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// What a name must be, for messages.
pub const NAME_FORM: &str = "1 to 64 of the characters a-z, 0-9 and `-`";

impl Leaf for Name {
    fn read(node: Node) -> Result<Name, Fault> {
        match Text::read(node)?.0 {
            name if is_name(&name) => Ok(Name(name)),
            _ => Err(format!("a name is {NAME_FORM}").into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[a-z0-9-]{1,64}$" })
    }
}

impl Leaf for bool {
    fn read(node: Node) -> Result<bool, Fault> {
        match node {
            Node::Bool(value) => Ok(value),
            _ => Err("`true` or `false` is expected here".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "boolean" })
    }
}

impl Leaf for u64 {
    fn read(node: Node) -> Result<u64, Fault> {
        match node {
            Node::Whole(value) => Ok(value),
            _ => Err(
                "a whole number that is not negative is expected here, without unit or quotes"
                    .into(),
            ),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}

/// A large whole number, which may be written with `_` between its digits, as in `5_000_000`.
pub struct Count(pub u64);

impl Leaf for Count {
    fn read(node: Node) -> Result<Count, Fault> {
        let bad = "a whole number that is not negative is expected here, such as `5000000` or `5_000_000`";
        match node {
            Node::Whole(value) => Ok(Count(value)),
            Node::Text(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                let digits = text.replace('_', "");
                let count = digits.parse().ok().filter(|_| all_digits(&digits));
                Ok(Count(count.ok_or(bad)?))
            }
            _ => Err(bad.into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "oneOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": "^[0-9][0-9_]*$" }
        ] })
    }
}

impl Leaf for f64 {
    fn read(node: Node) -> Result<f64, Fault> {
        match node {
            Node::Whole(value) => Ok(value as f64),
            Node::Number(value) if value.is_finite() && value >= 0.0 => Ok(value),
            _ => Err("a finite number that is not negative is expected here, such as `0.5`".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

impl Leaf for Duration {
    fn read(node: Node) -> Result<Duration, Fault> {
        let text = match node {
            Node::Text(text) => text,
            Node::Whole(_) | Node::Number(_) => {
                return Err("a duration needs a unit: `ms`, `s`, `m` or `h`, as in `5s`".into());
            }
            _ => return Err(BAD_DURATION.into()),
        };
        let strict = text
            .bytes()
            .all(|b| b.is_ascii_digit() || b"msh".contains(&b));
        match humantime::parse_duration(&text) {
            Ok(duration) if strict && duration <= MAX_DURATION => Ok(duration),
            Ok(_) if strict => Err("a duration is at most 30 days (`720h`); shorten it".into()),
            _ => Err(BAD_DURATION.into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$" })
    }
}

const BAD_DURATION: &str =
    "a duration is expected here, such as `300ms`, `5s`, `10m` or `1h30m`, without spaces";

/// A number of bytes.
#[derive(Clone, Copy)]
pub struct Size(pub u64);

impl Leaf for Size {
    fn read(node: Node) -> Result<Size, Fault> {
        let bytes = match node {
            Node::Whole(bytes) => bytes,
            Node::Text(text) => bytes_of(&text).ok_or(BAD_SIZE)?,
            _ => return Err(BAD_SIZE.into()),
        };
        match bytes <= MAX_SIZE {
            true => Ok(Size(bytes)),
            false => Err("a size is at most `1TiB`; lower it".into()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "oneOf": [
            { "type": "string", "pattern": SIZE_PATTERN },
            { "type": "integer", "minimum": 0 }
        ] })
    }
}

const SIZE_PATTERN: &str = "^[0-9]+(B|KiB|MiB|GiB|TiB)$";
const BAD_SIZE: &str =
    "a size is expected here, such as `64KiB`, `4MiB`, `1GiB` or a number of bytes";

fn bytes_of(text: &str) -> Option<u64> {
    let strict = ["KiB", "MiB", "GiB", "TiB"]
        .iter()
        .any(|unit| text.ends_with(unit))
        || text.strip_suffix('B').is_some_and(all_digits);
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric());
    let size = text.parse::<bytesize::ByteSize>().ok()?;
    (strict && plain).then_some(size.0)
}

fn all_digits(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

/// A size, or a share of the machine's memory.
#[derive(Clone, Copy)]
pub enum Memory {
    Bytes(u64),
    Percent(u64),
}

impl Leaf for Memory {
    fn read(node: Node) -> Result<Memory, Fault> {
        if let Node::Text(text) = &node
            && let Some(number) = text.strip_suffix('%')
        {
            return match number.parse() {
                Ok(percent @ 1..=90) => Ok(Memory::Percent(percent)),
                _ => Err("a share of the memory is `1%` to `90%`, a whole number".into()),
            };
        }
        match Size::read(node) {
            Ok(Size(bytes)) => Ok(Memory::Bytes(bytes)),
            Err(_) => {
                Err("a share such as `25%` or a size such as `512MiB` is expected here".into())
            }
        }
    }

    fn schema() -> Schema {
        json_schema!({ "oneOf": [
            { "type": "string", "pattern": SIZE_PATTERN },
            { "type": "string", "pattern": "^([1-9]|[1-8][0-9]|90)%$" },
            { "type": "integer", "minimum": 0 }
        ] })
    }
}

impl Leaf for SocketAddr {
    fn read(node: Node) -> Result<SocketAddr, Fault> {
        let bad = "an address is HOST:PORT with an IP address or `localhost`, such as \
                   `127.0.0.1:8080` or `[::1]:8080`";
        let Node::Text(text) = node else {
            return Err(bad.into());
        };
        match text.strip_prefix("localhost:") {
            Some(port) => {
                let port = port.parse().map_err(|_| bad)?;
                Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
            }
            None => Ok(text.parse().map_err(|_| bad)?),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^(localhost|[0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$" })
    }
}

/// A type with a closed list of words.
pub trait Choice: Copy + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice> Leaf for T {
    fn read(node: Node) -> Result<T, Fault> {
        if let Node::Text(text) = &node
            && let Some((_, value)) = T::WORDS.iter().find(|(word, _)| word == text)
        {
            return Ok(*value);
        }
        let words: Vec<String> = T::WORDS.iter().map(|(w, _)| format!("`{w}`")).collect();
        Err(format!("one of {} is expected here", words.join(", ")).into())
    }

    fn schema() -> Schema {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        json_schema!({ "type": "string", "enum": words })
    }
}
