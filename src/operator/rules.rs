//! `berth rules`: the rules in force, in the order in which they are asked.
//!
//! A table for people, with the conditions in the form of the configuration, so that a line of it can
//! be argued with, copied and changed. How often a rule has decided, and when it last did, is known to
//! a running berth only: the two columns are there where one answers.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::port::AdminPort;
use crate::admission::day::Day;
use crate::admission::rules::{Condition, Origin, Rule, Rules, Term};
use crate::config::Config;
use crate::observe::spec::AdminSpec;

/// The conditions are broken into lines of about so many characters.
const WIDTH: usize = 64;

/// What a running berth knows of its rules, by name.
#[derive(Debug, Default)]
pub struct Hits(HashMap<String, Hit>);

#[derive(Debug, Deserialize)]
struct Status {
    rules: Vec<Hit>,
}

#[derive(Debug, Deserialize)]
struct Hit {
    name: String,
    hits: u64,
    last_hit: Option<String>,
}

impl Hits {
    /// Asks the berth that runs with this configuration.
    ///
    /// # Errors
    ///
    /// Why it cannot be asked, in a sentence for people.
    pub fn of_running(config: &Config) -> Result<Hits, String> {
        match &config.admin {
            Some(admin) => Hits::ask(admin),
            None => Err("the configuration has no admin port".to_owned()),
        }
    }

    fn ask(admin: &AdminSpec) -> Result<Hits, String> {
        let body = AdminPort::configured(admin)?
            .get("/status")
            .map_err(|e| e.to_string())?;
        Hits::read(&body)
    }

    fn read(body: &[u8]) -> Result<Hits, String> {
        let status: Status = serde_json::from_slice(body)
            .map_err(|_| "the berth that runs is of another version".to_owned())?;
        // It is printed: only what is a time is taken for one.
        let checked = |hit: Hit| Hit {
            last_hit: hit
                .last_hit
                .filter(|at| humantime::parse_rfc3339(at).is_ok()),
            ..hit
        };
        let named = status
            .rules
            .into_iter()
            .map(|hit| (hit.name.clone(), checked(hit)));
        Ok(Hits(named.collect()))
    }
}

/// The table, with a last line break.
pub fn table(rules: &Rules, hits: Option<&Hits>, today: Day) -> String {
    let mut heads = vec!["RULE", "SOURCE", "VERDICT", "THEN", "EXPIRES"];
    if hits.is_some() {
        heads.extend(["HITS", "LAST HIT"]);
    }
    let rows: Vec<_> = rules.all().map(|rule| row(rule, hits, today)).collect();
    let widths: Vec<usize> = heads
        .iter()
        .enumerate()
        .map(|(at, head)| {
            let cells = rows.iter().filter_map(|(cells, _)| cells.get(at));
            cells
                .map(String::len)
                .chain([head.len()])
                .max()
                .unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    line(&mut text, &heads, &widths, "WHEN");
    for (cells, when) in &rows {
        let mut when = when.iter();
        let first = when.next().map_or("anything else", String::as_str);
        line(&mut text, cells, &widths, first);
        for more in when {
            let nothing = vec![""; cells.len()];
            line(&mut text, &nothing, &widths, more);
        }
    }
    text
}

/// The cells of a rule, and its conditions in lines.
fn row(rule: &Rule, hits: Option<&Hits>, today: Day) -> (Vec<String>, Vec<String>) {
    const NOTHING: &str = "-";
    let verdict = match rule.hold {
        Some(hold) => format!(
            "{}, hold: {}",
            rule.verdict.as_str(),
            humantime::format_duration(hold)
                .to_string()
                .replace(' ', "")
        ),
        None => rule.verdict.as_str().to_owned(),
    };
    let expires = match &rule.origin {
        Origin::BuiltIn => NOTHING.to_owned(),
        Origin::Configured(Term::Until(last)) if *last < today => format!("{last}, over"),
        Origin::Configured(Term::Until(last)) => last.to_string(),
        Origin::Configured(Term::Permanent(_)) => "permanent".to_owned(),
    };
    let then = rule.then.map_or(NOTHING, |then| then.as_str());
    let mut cells = vec![
        rule.name.to_string(),
        rule.origin.as_str().to_owned(),
        verdict,
        then.to_owned(),
        expires,
    ];
    if let Some(hits) = hits {
        let hit = hits.0.get(&*rule.name);
        let last = hit.and_then(|hit| hit.last_hit.as_deref());
        cells.push(hit.map_or(NOTHING.to_owned(), |hit| hit.hits.to_string()));
        cells.push(last.unwrap_or(NOTHING).to_owned());
    }
    let mut when: Vec<String> = rule.when.conditions().iter().flat_map(broken).collect();
    if let Origin::Configured(Term::Permanent(reason)) = &rule.origin {
        when.push(format!("# {reason}"));
    }
    (cells, when)
}

fn line(text: &mut String, cells: &[impl AsRef<str>], widths: &[usize], last: &str) {
    for (cell, width) in cells.iter().zip(widths) {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{:width$}  ", cell.as_ref());
    }
    text.push_str(last);
    text.push('\n');
}

/// A condition, broken between its alternatives.
fn broken(condition: &Condition) -> Vec<String> {
    const INDENT: &str = "  ";
    let mut lines = vec![String::new()];
    for word in condition.to_string().split_inclusive(", ") {
        let full = |line: &String| line.len() > INDENT.len() && line.len() + word.len() > WIDTH;
        if lines.last().is_some_and(full) {
            lines.push(INDENT.to_owned());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    lines
        .iter()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_a_running_berth_are_shown_and_nothing_else_that_it_says() {
        let body = br#"{"x":1,"rules":[
            {"name":"policy","source":"built_in","hits":3,"last_hit":"2026-11-29T16:52:28Z"},
            {"name":"state","hits":1,"last_hit":"\u001b[2Jnow"},
            {"name":"gone","hits":7,"last_hit":null}]}"#;
        let hits = Hits::read(body).unwrap();
        let table = table(&Rules::default(), Some(&hits), Day::default());
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let of = |name: &str| {
            lines
                .iter()
                .find(|line| line.first() == Some(&name))
                .unwrap()
        };
        assert_eq!(of("policy")[5..7], ["3", "2026-11-29T16:52:28Z"]);
        assert_eq!(of("state")[5..7], ["1", "-"]);
        assert_eq!(of("quota")[5..7], ["-", "-"]);
        assert!(
            !table.contains("gone") && !table.contains('\u{1b}'),
            "{table}"
        );
        assert!(Hits::read(b"{}").is_err());
    }
}
