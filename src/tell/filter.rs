//! Which lines of the log are meant, and which attempts of theirs.
//!
//! Most lines are not meant, and to parse them all would be most of the work. So a line is first looked
//! at as bytes: its time stands at its beginning in a form that sorts as text, and every word that is
//! asked for must stand in it in quotes. Both err on the side of yes; the decision is made on the parsed
//! line.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::Args;
use memchr::memmem::Finder;

use super::line::{Attempt, Line, TIME_COMES_FIRST, rfc3339};
use super::words;
use crate::admission::Verdict;
use crate::observe::words::Outcome;

/// What was asked for; what is not said is not asked.
#[derive(Args, Debug)]
pub struct Wanted {
    /// Requests that came since then: `2h` ago, or a date such as 2026-11-29 or 2026-11-29T16:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Requests that came before then.
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,
    /// Attempts with this credential.
    #[arg(long, value_name = "ID")]
    credential: Option<String>,
    /// Attempts for this model, and requests that asked for it.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Requests on the route with this path prefix.
    #[arg(long, value_name = "PREFIX")]
    route: Option<String>,
    /// Requests that ended so: ok, refused_all, none_available, ...
    #[arg(long, value_name = "OUTCOME", value_parser = outcome)]
    outcome: Option<String>,
    /// Attempts that came to this: admitted, capacity, rate_limit, ...
    #[arg(long, value_name = "VERDICT", value_parser = verdict)]
    verdict: Option<String>,
}

/// A moment on the command line.
#[derive(Clone, Debug)]
struct Moment(String);

/// Ready to look at lines.
pub struct Filter<'a> {
    wanted: &'a Wanted,
    words: Vec<Finder<'static>>,
}

impl Wanted {
    /// The filter.
    pub fn filter(&self) -> Filter<'_> {
        let words = [
            &self.credential,
            &self.model,
            &self.route,
            &self.outcome,
            &self.verdict,
        ];
        let quoted = words.into_iter().flatten().filter_map(|word| {
            // As the line has it, escapes included.
            serde_json::to_string(word).ok()
        });
        Filter {
            wanted: self,
            words: quoted
                .map(|word| Finder::new(word.as_bytes()).into_owned())
                .collect(),
        }
    }
}

impl Filter<'_> {
    /// Nothing before this time is meant.
    pub fn since(&self) -> Option<&str> {
        self.wanted.since.as_ref().map(|since| since.0.as_str())
    }

    /// The credential that is meant.
    pub fn credential(&self) -> Option<&str> {
        self.wanted.credential.as_deref()
    }

    /// Whether a line that was not read yet may be meant.
    pub fn may_want(&self, line: &[u8]) -> bool {
        let time = line
            .strip_prefix(TIME_COMES_FIRST)
            .and_then(|rest| rest.get(..TIME));
        // In another form the time is looked at later.
        let time = time.filter(|time| time.last() == Some(&b'Z'));
        let Wanted { since, until, .. } = self.wanted;
        let early = |time: &[u8]| {
            since
                .as_ref()
                .is_some_and(|since| time < since.0.as_bytes())
        };
        let late = |time: &[u8]| {
            until
                .as_ref()
                .is_some_and(|until| time >= until.0.as_bytes())
        };
        !time.is_some_and(|time| early(time) || late(time))
            && self.words.iter().all(|word| word.find(line).is_some())
    }

    /// Whether the request is meant.
    pub fn wants(&self, line: &Line<'_>) -> bool {
        let Wanted {
            since,
            until,
            credential,
            model,
            route,
            outcome,
            verdict,
        } = self.wanted;
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let untold = credential.is_none() && verdict.is_none() && line.attempts.is_empty();
        let ts = || line.came().map(rfc3339).unwrap_or_default();
        since.as_ref().is_none_or(|since| ts() >= since.0)
            && until.as_ref().is_none_or(|until| ts() < until.0)
            && is(route, line.route.as_deref())
            && is(outcome, Some(&line.outcome))
            && match untold {
                true => is(model, line.model.as_deref()),
                false => line.attempts.iter().any(|it| self.wants_attempt(line, it)),
            }
    }

    /// Whether an attempt of a request is meant.
    pub fn wants_attempt(&self, line: &Line<'_>, attempt: &Attempt<'_>) -> bool {
        let Wanted {
            credential,
            model,
            verdict,
            ..
        } = self.wanted;
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_deref().is_none_or(|wanted| found == wanted)
        };
        let models = [attempt.model.as_deref(), line.model.as_deref()];
        is(credential, &attempt.credential)
            && is(verdict, &attempt.verdict)
            && model
                .as_deref()
                .is_none_or(|wanted| models.contains(&Some(wanted)))
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        let ago = |ago: Duration| SystemTime::now().checked_sub(ago);
        let whole = match text.len() {
            10 => format!("{text}T00:00:00Z"),
            _ => text.to_owned(),
        };
        let moment = match humantime::parse_duration(text) {
            Ok(time) => ago(time).filter(|it| *it >= SystemTime::UNIX_EPOCH),
            Err(_) => humantime::parse_rfc3339_weak(&whole).ok(),
        };
        let moment = moment.ok_or(
            "give a time ago, such as 2h or 3days, or a date in UTC: 2026-11-29 or 2026-11-29T16:00:00Z",
        )?;
        Ok(Moment(rfc3339(moment)))
    }
}

/// Bytes of a time, `2026-11-29T16:52:28.454Z`.
const TIME: usize = 24;

fn verdict(word: &str) -> Result<String, String> {
    one_of(&Verdict::ALL, Verdict::as_str, word)
}

fn outcome(word: &str) -> Result<String, String> {
    one_of(Outcome::ALL, Outcome::as_str, word)
}

fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str, word: &str) -> Result<String, String> {
    match words::member(all, name, word) {
        Some(_) => Ok(word.to_owned()),
        None => {
            let names: Vec<&str> = all.iter().map(|it| name(*it)).collect();
            Err(format!("there are: {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        wanted: Wanted,
    }

    /// Whether the golden line is meant; both looks at it must agree.
    fn wants(arguments: &str) -> bool {
        let arguments = std::iter::once("berth").chain(arguments.split_whitespace());
        let wanted = Cli::try_parse_from(arguments).unwrap().wanted;
        let filter = wanted.filter();
        let bytes = include_bytes!("../../tests/golden/audit_line.json").trim_ascii_end();
        let wants = filter.wants(&Line::read(bytes).unwrap());
        assert!(
            !wants || filter.may_want(bytes),
            "{arguments:?}",
            arguments = wanted
        );
        wants
    }

    #[test]
    fn each_filter_takes_what_it_says_and_leaves_the_rest() {
        for (arguments, expected) in [
            ("", true),
            ("--credential campus-a", true),
            ("--credential campus-c", false),
            ("--credential campus-a --verdict capacity", true),
            // Both words are there, of two attempts.
            ("--credential campus-a --verdict admitted", false),
            ("--model gpt-5.6-sol", true),
            ("--model gpt-5.6", false),
            ("--route /v1", true),
            ("--route /v2", false),
            ("--outcome ok", true),
            ("--outcome timeout", false),
            ("--since 2026-04-01T12:00:00.123Z", true),
            ("--since 2026-04-01T12:00:00.124Z", false),
            ("--since 2026-04-01", true),
            ("--since 2026-04-02", false),
            ("--until 2026-04-01T12:00:00.123Z", false),
            ("--until 2026-04-01T12:00:00.124Z", true),
            ("--since 1h", false),
            ("--since 50years", true),
        ] {
            assert_eq!(wants(arguments), expected, "{arguments}");
        }
    }

    #[test]
    fn a_word_that_does_not_exist_is_refused_with_those_that_do() {
        for (arguments, expected) in [
            ("--verdict full", "there are: admitted, capacity,"),
            ("--outcome full", "there are: ok, refused_all,"),
            ("--since yesterday", "give a time ago"),
            ("--since 100years", "give a time ago"),
            ("--since 2026-13-01", "give a time ago"),
        ] {
            let arguments = std::iter::once("berth").chain(arguments.split_whitespace());
            let refused = Cli::try_parse_from(arguments).err().unwrap().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
