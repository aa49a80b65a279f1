//! Many lines, summed up in a table.
//!
//! A request is counted once in each group that an attempt of its own belongs to, so the requests of
//! all groups may be more than there are; the last row counts them once. *Refused* means what it means
//! in `berth status`, refused for want of capacity: the rest, a rate limit or a fault, says nothing
//! about seats and has its own column.
//!
//! Groups are named by the log, so their number is bounded: those beyond [`MOST_GROUPS`] are one group.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use super::filter::Filter;
use super::group::{Groups, Kind};
use super::line::{Attempt, Line};
use super::words;
use crate::admission::Verdict;

/// What is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// The hour in which the request came, UTC.
    Hour,
    /// The day likewise.
    Day,
    /// Who asked.
    Client,
    /// The model of the attempt.
    Model,
    /// The credential.
    Credential,
    /// The verdict.
    Verdict,
    /// Where a refusal was written.
    Shape,
    /// A kind of credentials.
    Kind(Kind),
}

/// The table in the making.
pub struct Tally {
    by: By,
    groups: Groups,
    rows: HashMap<String, Row>,
    all: Row,
}

#[derive(Clone, Copy, Default)]
struct Row {
    requests: u64,
    attempts: u64,
    admitted: u64,
    refused: u64,
    /// The number of the request that was counted last.
    last: u64,
}

/// Groups with a row of their own (chosen: two years of hours).
const MOST_GROUPS: usize = 20_000;

/// The group of those beyond.
const BEYOND: &str = "(others)";

/// The group of what has no name.
const NAMELESS: &str = "-";

impl By {
    /// Reads the word on the command line.
    ///
    /// # Errors
    ///
    /// There is no such word; the words there are.
    pub fn parse(text: &str) -> Result<By, String> {
        Ok(match text {
            "hour" => By::Hour,
            "day" => By::Day,
            "client" => By::Client,
            "model" => By::Model,
            "credential" => By::Credential,
            "verdict" => By::Verdict,
            "shape" => By::Shape,
            _ => By::Kind(Kind::parse(text).ok_or(
                "there are: hour, day, client, model, credential, verdict, shape, label:NAME, \
                 route, upstream",
            )?),
        })
    }

    fn name(&self) -> &str {
        match self {
            By::Hour => "hour (UTC)",
            By::Day => "day (UTC)",
            By::Client => "client",
            By::Model => "model",
            By::Credential => "credential",
            By::Verdict => "verdict",
            By::Shape => "shape",
            By::Kind(kind) => kind.name(),
        }
    }

    fn is_time(&self) -> bool {
        matches!(self, By::Hour | By::Day)
    }
}

impl Tally {
    /// An empty table. `groups` is for [`By::Kind`].
    pub fn new(by: By, groups: Groups) -> Tally {
        Tally {
            by,
            groups,
            rows: HashMap::new(),
            all: Row::default(),
        }
    }

    /// Counts a request that `filter` wants, and those of its attempts that it wants.
    pub fn count(&mut self, line: &Line<'_>, filter: &Filter<'_>) {
        self.all.requests += 1;
        let number = self.all.requests;
        let mut meant = line
            .attempts
            .iter()
            .filter(|it| filter.wants_attempt(line, it))
            .peekable();
        if meant.peek().is_none() {
            let row = self.row(line, None);
            row.requests += 1;
        }
        for attempt in meant {
            self.all.take(attempt);
            let row = self.row(line, Some(attempt));
            row.take(attempt);
            if row.last != number {
                row.last = number;
                row.requests += 1;
            }
        }
    }

    /// The table: times in order, anything else by its refusals.
    pub fn table(&self) -> String {
        let mut rows: Vec<(&String, &Row)> = self.rows.iter().collect();
        match self.by.is_time() {
            true => rows.sort_by_key(|(name, _)| *name),
            false => rows.sort_by_key(|(name, it)| (Reverse((it.refused, it.attempts)), *name)),
        }
        let names = rows.iter().map(|(name, _)| name.chars().count());
        let width = names
            .chain([self.by.name().len(), ALL.len()])
            .max()
            .unwrap_or_default();
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{:width$}  {:>10}  {:>10}  {:>6}  {:>10}  {:>10}  {:>9}  {:>10}",
            self.by.name(),
            "requests",
            "attempts",
            "% all",
            "admitted",
            "refused",
            "% refused",
            "other"
        );
        let all = (ALL.to_owned(), self.all);
        for (name, row) in rows.into_iter().chain([(&all.0, &all.1)]) {
            let _ = writeln!(
                text,
                "{name:width$}  {:>10}  {:>10}  {:>6}  {:>10}  {:>10}  {:>9}  {:>10}",
                row.requests,
                row.attempts,
                percent(row.attempts, self.all.attempts),
                row.admitted,
                row.refused,
                percent(row.refused, row.attempts),
                row.attempts.saturating_sub(row.admitted + row.refused),
            );
        }
        text
    }

    fn row(&mut self, line: &Line<'_>, attempt: Option<&Attempt<'_>>) -> &mut Row {
        let of = |text: Option<String>| text.unwrap_or_else(|| NAMELESS.to_owned());
        let name = match &self.by {
            By::Hour => format!(
                "{}:00",
                line.ts.get(..13).unwrap_or(NAMELESS).replace('T', " ")
            ),
            By::Day => line.ts.get(..10).unwrap_or(NAMELESS).to_owned(),
            By::Client => of(line.client.as_ref().map(ToString::to_string)),
            By::Model => {
                let model = attempt
                    .and_then(|it| it.model.as_ref())
                    .or(line.model.as_ref());
                of(model.map(ToString::to_string))
            }
            By::Credential => of(attempt.map(|it| it.credential.to_string())),
            By::Verdict => of(attempt.map(|it| it.verdict.to_string())),
            By::Shape => of(attempt
                .and_then(|it| it.shape.as_ref())
                .map(ToString::to_string)),
            By::Kind(_) => of(attempt.map(|it| match self.groups.get(&*it.credential) {
                Some(group) => group.clone(),
                None => "not configured".to_owned(),
            })),
        };
        let name = match self.rows.contains_key(&name) || self.rows.len() < MOST_GROUPS {
            true => name,
            false => BEYOND.to_owned(),
        };
        self.rows.entry(name).or_default()
    }
}

impl Row {
    fn take(&mut self, attempt: &Attempt<'_>) {
        let verdict = words::member(&Verdict::ALL, Verdict::as_str, &attempt.verdict);
        self.attempts += 1;
        self.admitted += u64::from(attempt.was_admitted());
        self.refused += u64::from(verdict == Some(Verdict::Capacity));
    }
}

/// The last row.
const ALL: &str = "all";

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1}", part as f64 * 100.0 / whole as f64),
    }
}
