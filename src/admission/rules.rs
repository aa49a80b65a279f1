//! Which failure means what: a table of rules, first match wins.
//!
//! Upstreams invent new ways to refuse faster than berth is released, so an operator may write rules
//! too, and they come first. The built-in table is data in the same form, so that `berth rules` can
//! list both and a reader can argue with each line. A rule sees parsed fields and the status only;
//! every condition that is given must hold, and within a condition any alternative is enough.
//!
//! A rule made at night for an incident is forgotten by the end of the month. So each of an operator's
//! rules has a term, and an expired one never matches. Which day it is comes from outside: an answer is
//! judged by the day on which its attempt began.
//!
//! A matching on anything but the beginning of a message is not offered to operators: a message may
//! quote the request.

mod built_in;
mod words;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::day::Day;
use super::dialect::Dialect;
use super::verdict::{Switch, Verdict};
use super::withheld::Withheld;

pub use built_in::{BUILT_IN, OF_TIER};
pub use words::Condition;

/// What a rule may look at.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The status that the error states itself, else that of the answer.
    pub status: u16,
    /// The upstream's dialect.
    pub dialect: Dialect,
    /// The upstream's name.
    pub upstream: &'a str,
    /// The error's code.
    pub code: Option<&'a str>,
    /// The error's type.
    pub kind: Option<&'a str>,
    /// The error's message.
    pub message: Option<&'a str>,
    /// A page for people, or a challenge of the edge in front of the upstream.
    pub page: bool,
    /// The answer states that a quota's window is used up, or when it resets.
    pub spent: bool,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name in the audit, metrics and `berth rules`.
    pub name: Arc<str>,
    /// When it matches.
    pub when: When,
    /// What it then means.
    pub verdict: Verdict,
    /// How long what the verdict excludes stays out, where the answer says nothing of it.
    pub hold: Option<Duration>,
    /// What is done with the answer, where that is not what the verdict says.
    pub then: Option<Then>,
    /// Whose it is, and for how long.
    pub origin: Origin,
}

/// The conditions of a rule; an empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// Statuses.
    pub status: Vec<RangeInclusive<u16>>,
    /// The upstream's dialect.
    pub dialect: Vec<Dialect>,
    /// The upstream's name.
    pub upstream: Vec<String>,
    /// Codes, compared whole.
    pub code: Vec<String>,
    /// Types, compared whole.
    pub kind: Vec<String>,
    /// Codes or types, compared whole. Vendors put the same word in either.
    pub word: Vec<String>,
    /// Beginnings of a message, [`folded`].
    pub message_prefix: Vec<String>,
    /// Words of a message, lower case, for where a model's name may stand before them. A message may
    /// quote the request, so a rule that uses them also says how the message begins.
    pub message_contains: Vec<String>,
    /// Whole messages, lower case.
    pub message_is: Vec<String>,
    /// A page for people.
    pub page: Option<bool>,
    /// A spent quota.
    pub spent: Option<bool>,
}

/// What is done with an answer before output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Another credential is asked.
    FailOver,
    /// The client gets it as it came.
    PassThrough,
}

/// Whose a rule is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// berth's.
    BuiltIn,
    /// The operator's, for a term.
    Configured(Term),
}

/// How long an operator's rule holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Through this day.
    Until(Day),
    /// For good, for this reason.
    Permanent(String),
}

/// A verdict and the rule that gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// What it means.
    pub verdict: Verdict,
    /// By which rule.
    pub rule: Arc<str>,
    /// How long what it excludes stays out, where the answer says nothing of it.
    pub hold: Option<Duration>,
    /// What is done with the answer, where that is not what the verdict says.
    pub then: Option<Then>,
}

/// The operator's rules, and the built-in ones after them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    configured: Vec<Rule>,
}

/// By what an answer is read: the rules, and what they may ask of the attempt itself.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The rules.
    pub rules: Arc<Rules>,
    /// The day on which the attempt began.
    pub today: Day,
    /// The upstream's dialect.
    pub dialect: Dialect,
    /// The upstream's name.
    pub upstream: Arc<str>,
    /// What it was sent and must not say.
    pub withheld: Withheld,
}

impl Rules {
    /// These before the built-in ones.
    pub fn new(configured: Vec<Rule>) -> Rules {
        Rules { configured }
    }

    /// Every rule, in the order in which they are asked.
    pub fn all(&self) -> impl Iterator<Item = &Rule> {
        self.configured.iter().chain(BUILT_IN.iter())
    }

    /// The ruling on a failure. Total: the last built-in rule has no condition.
    pub fn rule_on(&self, evidence: &Evidence<'_>, today: Day) -> Ruling {
        let message = evidence.message.map(folded);
        let found = self
            .all()
            .filter(|rule| !rule.is_expired(today))
            .find(|rule| rule.when.holds(evidence, message.as_deref()));
        match found {
            Some(rule) => Ruling {
                verdict: rule.verdict,
                rule: rule.name.clone(),
                hold: rule.hold,
                then: rule.then,
            },
            None => Ruling::plain(LAST.0, LAST.1),
        }
    }

    /// The rules that no longer match, with their last days.
    pub fn expired(&self, today: Day) -> impl Iterator<Item = (&Rule, Day)> {
        let configured = self.configured.iter();
        configured
            .filter_map(|rule| Some((rule, rule.expires()?)))
            .filter(move |(_, last)| *last < today)
    }
}

impl Rule {
    /// Its last day, if it has one.
    pub fn expires(&self) -> Option<Day> {
        match self.origin {
            Origin::Configured(Term::Until(day)) => Some(day),
            Origin::Configured(Term::Permanent(_)) | Origin::BuiltIn => None,
        }
    }

    /// Whether its last day is over.
    pub fn is_expired(&self, today: Day) -> bool {
        self.expires().is_some_and(|last| last < today)
    }
}

impl Origin {
    /// Its name in the status and in `berth rules`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Origin::BuiltIn => "built_in",
            Origin::Configured(_) => "configured",
        }
    }
}

impl Then {
    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Then::FailOver => "fail_over",
            Then::PassThrough => "pass_through",
        }
    }
}

impl Ruling {
    /// A verdict and what goes with it as a rule.
    pub fn plain(rule: &str, verdict: Verdict) -> Ruling {
        Ruling {
            verdict,
            rule: rule.into(),
            hold: None,
            then: None,
        }
    }

    /// Whether another credential may be asked before output.
    pub fn switch(&self) -> Switch {
        match self.then {
            Some(Then::FailOver) => Switch::Yes,
            Some(Then::PassThrough) => Switch::No,
            None => self.verdict.switch(),
        }
    }

    /// Whether the client is to get the answer as it came, its codes too.
    pub fn passes_untouched(&self) -> bool {
        self.then == Some(Then::PassThrough)
    }
}

impl When {
    fn holds(&self, evidence: &Evidence<'_>, message: Option<&str>) -> bool {
        let word = |w: &String| is(evidence.code, w) || is(evidence.kind, w);
        let begins = |p: &String| message.is_some_and(|m| m.starts_with(p.as_str()));
        let contains = |p: &String| message.is_some_and(|m| m.contains(p.as_str()));
        any(&self.status, |range| range.contains(&evidence.status))
            && any(&self.dialect, |dialect| *dialect == evidence.dialect)
            && any(&self.upstream, |name| name == evidence.upstream)
            && any(&self.code, |code| is(evidence.code, code))
            && any(&self.kind, |kind| is(evidence.kind, kind))
            && any(&self.word, word)
            && any(&self.message_prefix, begins)
            && any(&self.message_contains, contains)
            && any(&self.message_is, |whole| is(message, whole))
            && self.page.is_none_or(|page| page == evidence.page)
            && self.spent.is_none_or(|spent| spent == evidence.spent)
    }
}

/// As messages are compared: lower case, every run of white space one blank. Vendors vary both.
pub fn folded(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    for word in message.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(&word.to_lowercase());
    }
    out
}

/// The last rule of the table.
const LAST: (&str, Verdict) = ("error_in_answer", Verdict::Transient);

/// Whether one of some alternatives holds; no alternative is no condition.
fn any<T>(alternatives: &[T], holds: impl Fn(&T) -> bool) -> bool {
    alternatives.is_empty() || alternatives.iter().any(holds)
}

fn is(said: Option<&str>, word: &str) -> bool {
    said == Some(word)
}

#[cfg(test)]
pub(crate) mod tests;
