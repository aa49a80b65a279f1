//! The cases' semantic counters, mapped to the metrics of the outside contract.
//!
//! | case | contract |
//! |---|---|
//! | `attempt{credential,model,outcome}` | `berth_attempts_total{credential,model,verdict}` |
//! | `failover{from,to,reason}` | `berth_failovers_total{reason}`, summed: it has no `from`, `to` |
//! | `request{outcome}` | `berth_requests_total{outcome}` |
//! | `code_rewritten{from,to}` | `berth_rewrites_total{from,to}` |
//! | `failover_blocked{reason}` | `berth_failover_blocked_total{reason}` |
//! | `replay_skipped{}` | `berth_failover_blocked_total{reason=body_not_replayable}` |
//! | `terminal_synthesised{}` | `berth_terminals_synthesised_total`, any dialect label |
//! | `bootstrap_overflow{}` | `berth_commits_total{reason=hold_limit}` |
//! | `credential_state{state=auth_failed}` | `berth_pair_state{state=rejected}` |
//!
//! The rest has no counterpart and is skipped by name.

use std::collections::BTreeMap;

use super::{Books, Findings};
use crate::cases_runner::config;
use crate::cases_runner::format::Case;

type Labels = BTreeMap<String, String>;

/// The samples of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<(String, Labels, f64)>);

impl Samples {
    pub fn parse(text: &str) -> Samples {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Samples(lines.filter_map(sample).collect())
    }

    /// Whether an attempt at one of the models was ever admitted.
    fn admitted(&self, models: &[&str]) -> bool {
        let wanted = [
            (
                "verdict".to_owned(),
                vec![
                    "admitted",
                    "capacity_after_commit",
                    "truncated_after_commit",
                ],
            ),
            ("model".to_owned(), models.to_vec()),
        ];
        self.sum("berth_attempts_total", &wanted) > 0.0
    }

    fn sum(&self, name: &str, wanted: &[(String, Vec<&str>)]) -> f64 {
        let fits = |labels: &Labels| {
            wanted.iter().all(|(key, values)| {
                labels
                    .get(key)
                    .is_some_and(|value| values.contains(&value.as_str()))
            })
        };
        self.0
            .iter()
            .filter(|(n, labels, _)| n == name && fits(labels))
            .map(|(_, _, v)| v)
            .sum()
    }
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    // Label values of berth have neither quotes nor commas.
    let labels = labels.split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.trim_matches('"').to_owned()))
    });
    Some((name.to_owned(), labels.collect(), value.parse().ok()?))
}

/// An outcome of a case as the verdicts of the contract that mean it.
pub fn verdicts(outcome: &str) -> Vec<&str> {
    match outcome {
        "ok" => vec!["admitted"],
        "edge_block" => vec!["challenge"],
        "edge_5xx" | "bad_payload" => vec!["transient"],
        "state_mismatch" => vec!["state"],
        "bootstrap_timeout" | "header_timeout" => vec!["timeout"],
        "cancelled" | "client_closed" => vec!["client_gone"],
        // An error of the provider in the middle of output. The contract has no word of its own for
        // it, and each of these says that the answer did not come to its end.
        "error_after_commit" => {
            vec![
                "transient",
                "truncated_after_commit",
                "capacity_after_commit",
            ]
        }
        same => vec![same],
    }
}

fn outcomes(outcome: &str) -> Option<Vec<&str>> {
    Some(match outcome {
        "exhausted" | "exhausted_capacity" => vec!["refused_all"],
        "client_closed" => vec!["client_gone"],
        "none_available" | "timeout" | "ok" => vec![outcome],
        _ => return None,
    })
}

pub fn judge(case: &Case, books: &Books, findings: &mut Findings) {
    for sentence in &case.expect.metrics {
        if let Some(limit) = sentence.strip_prefix("process RSS growth < ") {
            let grown = books
                .memory
                .map(|(before, peak)| peak.saturating_sub(before));
            let mib = limit
                .split(' ')
                .next()
                .and_then(|mib| mib.parse::<u64>().ok());
            let fine = mib.is_some_and(|mib| grown.is_none_or(|grown| grown < mib << 20));
            findings.check(fine, "metrics", sentence, format!("{grown:?} bytes"));
            continue;
        }
        let Some((name, labels, op, number)) = parse(sentence) else {
            findings.skip(format!("metrics: {sentence}"));
            continue;
        };
        let Some((metric, mut wanted)) = mapped(&name, &labels) else {
            findings.skip(format!("metrics: {sentence}"));
            continue;
        };
        for (_, models) in wanted.iter_mut().filter(|(key, _)| key == "model") {
            // The contract names a model in a label once an upstream has admitted it; whether one
            // did that only failed later is not for this list to say.
            if !books.after.admitted(models) {
                models.push("other");
            }
        }
        let delta = books.after.sum(metric, &wanted) - books.before.sum(metric, &wanted);
        let fine = match op.as_str() {
            "<=" => delta <= number,
            ">=" => delta >= number,
            "=" => books.after.sum(metric, &wanted) >= number,
            _ => delta == number,
        };
        let told = || {
            let series = books.after.0.iter().filter(|(name, _, _)| name == metric);
            format!("{delta} of {metric}; all: {:?}", series.collect::<Vec<_>>())
        };
        findings.check(
            fine,
            "metrics",
            sentence,
            if fine { String::new() } else { told() },
        );
    }
}

/// `name{a=b,c=d} +1` as name, labels, operator and number.
fn parse(sentence: &str) -> Option<(String, Labels, String, f64)> {
    let (name, rest) = sentence.split_once('{')?;
    let (labels, rest) = rest.split_once('}')?;
    let labels = labels.split(',').filter_map(|pair| pair.split_once('='));
    let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let rest = rest.trim();
    let split = rest.find(|c: char| c.is_ascii_digit())?;
    let (op, number) = rest.split_at(split);
    Some((
        name.to_owned(),
        labels,
        op.trim().to_owned(),
        number.parse().ok()?,
    ))
}

type Wanted<'a> = Vec<(String, Vec<&'a str>)>;

fn mapped<'a>(name: &str, labels: &'a Labels) -> Option<(&'static str, Wanted<'a>)> {
    let get = |key: &str| labels.get(key).map(String::as_str);
    let mut wanted: Wanted<'a> = Vec::new();
    let metric = match name {
        "attempt" => {
            wanted.extend(get("outcome").map(|outcome| ("verdict".to_owned(), verdicts(outcome))));
            wanted.extend(get("model").map(|model| ("model".to_owned(), vec![model])));
            "berth_attempts_total"
        }
        "failover" => {
            wanted.extend(get("reason").map(|reason| ("reason".to_owned(), verdicts(reason))));
            "berth_failovers_total"
        }
        "request" => {
            // A request that never became one (HEAD probes, bytes that do not parse) is not counted.
            wanted.push(("outcome".to_owned(), outcomes(get("outcome")?)?));
            "berth_requests_total"
        }
        "code_rewritten" => {
            for key in ["from", "to"] {
                wanted.extend(get(key).map(|value| (key.to_owned(), vec![value])));
            }
            "berth_rewrites_total"
        }
        "failover_blocked" => {
            wanted.push(("reason".to_owned(), vec![get("reason")?]));
            "berth_failover_blocked_total"
        }
        "replay_skipped" => {
            wanted.push(("reason".to_owned(), vec!["body_not_replayable"]));
            "berth_failover_blocked_total"
        }
        "terminal_synthesised" => "berth_terminals_synthesised_total",
        "bootstrap_overflow" => {
            wanted.push(("reason".to_owned(), vec!["hold_limit"]));
            "berth_commits_total"
        }
        "credential_state" => {
            wanted.push(("state".to_owned(), vec!["rejected"]));
            "berth_pair_state"
        }
        _ => return None,
    };
    if let Some(credential) = get("credential") {
        // Ids are the labels in lower case; the few labels of the cases are one letter each.
        let id = config::id(credential);
        let letters = ["a", "b", "c", "d", "e"];
        wanted.push((
            "credential".to_owned(),
            letters.into_iter().filter(|l| *l == id).collect(),
        ));
    }
    Some((metric, wanted))
}
