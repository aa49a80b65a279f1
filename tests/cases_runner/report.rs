//! The table at the end, and the text of a failure.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::format::Case;
use super::judge::Problem;
use super::play::Outcome;

/// How much of an exchange a failure shows.
const EXCHANGE: usize = 9_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    Passed,
    Failed,
    Later,
}

#[derive(Default)]
struct Row {
    cases: usize,
    variants: usize,
    passed: usize,
    failed: usize,
    later: usize,
    disputed: usize,
}

/// What became of each case and variant.
#[derive(Default)]
pub struct Report {
    rows: Mutex<BTreeMap<String, Row>>,
    skipped: Mutex<BTreeMap<String, usize>>,
}

impl Report {
    pub fn note(&self, case: &Case, result: Result, disputed: bool) {
        let mut rows = self
            .rows
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let row = rows.entry(case.group.clone()).or_default();
        match case.variant {
            Some(_) => row.variants += 1,
            None => row.cases += 1,
        }
        match result {
            Result::Passed => row.passed += 1,
            Result::Failed => row.failed += 1,
            Result::Later => row.later += 1,
        }
        row.disputed += usize::from(disputed);
    }

    pub fn skipped(&self, assertions: &[String]) {
        let mut skipped = self
            .skipped
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for assertion in assertions {
            *skipped.entry(assertion.clone()).or_default() += 1;
        }
    }

    pub fn print(&self) {
        let rows = self
            .rows
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        println!("| group | cases | variants | passed | failed | later | disputed |");
        println!("|---|---|---|---|---|---|---|");
        let mut sum = Row::default();
        for (group, row) in rows.iter() {
            line(group, row);
            sum.cases += row.cases;
            sum.variants += row.variants;
            sum.passed += row.passed;
            sum.failed += row.failed;
            sum.later += row.later;
            sum.disputed += row.disputed;
        }
        line("all", &sum);
        for (group, reason) in super::later::LATER {
            if rows.get(group).is_some_and(|row| row.later > 0) {
                println!("later: {group}: {reason}");
            }
        }
        let early = super::process::TOO_EARLY.load(std::sync::atomic::Ordering::Relaxed);
        if early > 0 {
            println!("note: /readyz was 200 before the listener accepted, {early} times");
        }
        let skipped = self
            .skipped
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let count: usize = skipped.values().sum();
        println!("not judged, without a counterpart in the outside contract: {count} assertions");
        for (assertion, count) in skipped.iter() {
            println!("  {count} x {assertion}");
        }
    }
}

fn line(group: &str, row: &Row) {
    println!(
        "| {group} | {} | {} | {} | {} | {} | {} |",
        row.cases, row.variants, row.passed, row.failed, row.later, row.disputed
    );
}

/// The text of a failed case.
pub fn failure(case: &Case, outcome: &Outcome) -> String {
    let mut text = format!("{} ({})\n", case.name(), case.group);
    for Problem {
        aspect,
        expected,
        got,
    } in &outcome.findings.problems
    {
        let got: String = got.chars().take(1_500).collect();
        text.push_str(&format!(
            "* {aspect}\n    expected: {expected}\n    got:      {got}\n"
        ));
    }
    let exchange: String = outcome.exchange.chars().take(EXCHANGE).collect();
    text.push_str(&format!("-- the exchange\n{exchange}\n"));
    text
}
