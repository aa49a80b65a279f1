//! A rule's conditions in words: the form of the configuration, so that what is listed can be copied.
//!
//! The built-in table has conditions that an operator has not (`code_or_type`, `message`,
//! `message_contains`, `page`, `spent`, ranges of statuses); they are written in the same way.

use std::fmt;
use std::ops::RangeInclusive;

use super::When;

/// One condition: a key and its alternatives, each as a YAML scalar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key.
    pub key: &'static str,
    /// What it may be.
    pub alternatives: Vec<String>,
}

impl When {
    /// The conditions that are given, each at most once.
    pub fn conditions(&self) -> Vec<Condition> {
        let words = |all: &[String]| all.iter().map(|word| scalar(word)).collect();
        let flag = |it: Option<bool>| it.iter().map(ToString::to_string).collect();
        let all: [(&'static str, Vec<String>); 11] = [
            ("status", self.status.iter().map(range).collect()),
            (
                "dialect",
                self.dialect.iter().map(|d| d.as_str().to_owned()).collect(),
            ),
            ("upstream", words(&self.upstream)),
            ("code", words(&self.code)),
            ("type", words(&self.kind)),
            ("code_or_type", words(&self.word)),
            ("message_prefix", words(&self.message_prefix)),
            ("message_contains", words(&self.message_contains)),
            ("message", words(&self.message_is)),
            ("page", flag(self.page)),
            ("spent", flag(self.spent)),
        ];
        all.into_iter()
            .filter(|(_, alternatives)| !alternatives.is_empty())
            .map(|(key, alternatives)| Condition { key, alternatives })
            .collect()
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.alternatives.as_slice() {
            [one] => write!(f, "{}: {one}", self.key),
            several => write!(f, "{}: [{}]", self.key, several.join(", ")),
        }
    }
}

fn range(statuses: &RangeInclusive<u16>) -> String {
    match (statuses.start(), statuses.end()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    }
}

/// A word as it is where YAML cannot take it for anything else, and in quotes otherwise. A JSON string
/// is a YAML one.
fn scalar(word: &str) -> String {
    let special = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        && !special.contains(&word.to_ascii_lowercase().as_str());
    match plain {
        true => word.to_owned(),
        false => serde_json::Value::from(word).to_string(),
    }
}
