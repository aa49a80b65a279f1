//! Every case of `tests/cases/` as a named test against the real `berth`, over raw sockets.
//!
//! `CASE=CAP-01 cargo test --test cases` runs one case with its variants, `CASE=CAP-11/empty_message`
//! one variant. `LATER=1` also runs the groups that wait for a part of berth.
//!
//! A runner that cannot fail is worthless: the tests called `runner/...` replay some cases against a
//! proxy without failover and require the right faults to be found.

mod cases_runner;

use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use libtest_mimic::{Arguments, Failed, Trial};

use cases_runner::format::{self, Case};
use cases_runner::judge;
use cases_runner::play::{self, Target};
use cases_runner::report::{self, Report};
use cases_runner::{config, disputed, later};

/// How many cases the folder holds, and how many variants they have.
const CASES: usize = 79;
const VARIANTS: usize = 83;

/// Cases at a time: they mostly wait.
const PARALLEL: usize = 8;

fn main() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let (cases, files) = format::load(&folder).unwrap_or_else(|e| panic!("{e}"));
    let variants = cases.iter().filter(|case| case.variant.is_some()).count();
    assert_eq!(
        (files, variants),
        (CASES, VARIANTS),
        "cases and variants in {}",
        folder.display()
    );
    disputed::agree(&folder.join("DISPUTED.md")).unwrap_or_else(|e| panic!("{e}"));

    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(PARALLEL));
    let report = Arc::new(Report::default());
    // Tests with tight times hold it alone.
    let machine = Arc::new(RwLock::new(()));
    let wanted = std::env::var("CASE").ok();
    let mut trials = self_tests(&cases);
    trials.retain(|_| wanted.is_none());
    for case in cases {
        if wanted
            .as_ref()
            .is_none_or(|wanted| case.id == *wanted || case.name() == *wanted)
        {
            trials.push(trial(case, report.clone(), machine.clone()));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        report.print();
    }
    conclusion.exit();
}

fn trial(case: Case, report: Arc<Report>, machine: Arc<RwLock<()>>) -> Trial {
    let name = format!("{}/{}", case.group, case.name());
    if later::reason(&case.group, &case.id).is_some() {
        report.note(
            &case,
            report::Result::Later,
            disputed::is_disputed(&case.name()),
        );
        return Trial::test(name, || Ok(())).with_ignored_flag(true);
    }
    Trial::test(name, move || {
        let unpoisoned = std::sync::PoisonError::into_inner;
        let alone = tight(&case);
        let _shared = (!alone).then(|| machine.read().unwrap_or_else(unpoisoned));
        let _alone = alone.then(|| {
            machine
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        });
        let outcome = replay(&case, Target::Berth);
        let passed = outcome
            .as_ref()
            .is_ok_and(|o| o.findings.problems.is_empty());
        let result = if passed {
            report::Result::Passed
        } else {
            report::Result::Failed
        };
        report.note(&case, result, disputed::is_disputed(&case.name()));
        let outcome = outcome.map_err(|e| Failed::from(format!("{}: {e}", case.name())))?;
        report.skipped(&outcome.findings.skipped);
        if passed {
            return Ok(());
        }
        Err(report::failure(&case, &outcome).into())
    })
}

/// Whether a case bounds a time so closely, or moves so many bytes, that it runs alone.
fn tight(case: &Case) -> bool {
    let timing = case.expect.client["timing"].as_str().unwrap_or_default();
    case.group == "large-body"
        || timing.starts_with("first delta")
        || timing.starts_with("within 200 ms")
        || case
            .expect
            .upstream_seen
            .iter()
            .flatten()
            .any(|seen| seen.closed_by_balancer.is_some())
        || case
            .expect
            .metrics
            .iter()
            .any(|metric| metric.starts_with("process RSS"))
}

fn replay(case: &Case, target: Target) -> Result<play::Outcome, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    runtime.block_on(play::run(case, target))
}

/// What must be found against a proxy that only forwards; nothing: it must pass.
const SELF_TESTS: [(&str, &[&str]); 11] = [
    ("CAP-01", &["attempts", "body"]),
    ("CAP-13", &["attempts", "status"]),
    ("CAP-25", &[]),
    ("CAP-09", &["body"]),
    ("FRM-11", &["body"]),
    ("CLS-09", &[]),
    ("WS-01", &["attempts", "status", "websocket"]),
    ("WS-04", &[]),
    ("WS-05", &[]),
    ("DIS-05", &[]),
    ("DIS-05/clean_fin_with_last_chunk", &["end"]),
];

fn self_tests(cases: &[Case]) -> Vec<Trial> {
    let all = cases.to_vec();
    let mut trials = vec![Trial::test("runner/knows_every_assertion", move || {
        let unknown: Vec<_> = all
            .iter()
            .map(|case| Ok((case.name(), judge::unknown_sentences(case)?)))
            .collect::<Result<Vec<_>, String>>()?
            .into_iter()
            .filter(|(_, sentences)| !sentences.is_empty())
            .collect();
        if unknown.is_empty() {
            Ok(())
        } else {
            Err(format!("{unknown:#?}").into())
        }
    })];
    let all = cases.to_vec();
    trials.push(Trial::test("runner/configures_every_case", move || {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 20_000));
        let at = config::Addresses {
            listener: address,
            admin: std::net::SocketAddr::from(([127, 0, 0, 1], 20_001)),
            player: address,
            refused: address,
        };
        let mut refused = Vec::new();
        // What is not built yet is refused by `check`, as it should be.
        for case in all
            .iter()
            .filter(|case| later::reason(&case.group, &case.id).is_none())
        {
            let config = config::build(case, 0, &at, &std::env::temp_dir())?;
            if let Err(problems) = berth::config::parse("berth.yaml", &format!("{config:#}")) {
                refused.push(format!("{}: {problems}", case.name()));
            }
        }
        if refused.is_empty() {
            Ok(())
        } else {
            Err(refused.join("\n").into())
        }
    }));
    for (name, faults) in SELF_TESTS {
        let Some(case) = cases.iter().find(|case| case.name() == name).cloned() else {
            panic!("self test: no case {name}");
        };
        let verb = if faults.is_empty() { "passes" } else { "fails" };
        trials.push(Trial::test(
            format!("runner/a_mere_proxy_{verb}_{name}"),
            move || {
                let outcome = replay(&case, Target::PassThrough)?;
                let mut found: Vec<_> =
                    outcome.findings.problems.iter().map(|p| p.aspect).collect();
                found.dedup();
                for fault in faults {
                    if !found.contains(fault) {
                        return Err(format!("`{fault}` not found, only {found:?}").into());
                    }
                }
                if faults.is_empty() && !found.is_empty() {
                    return Err(report::failure(&case, &outcome).into());
                }
                Ok(())
            },
        ));
    }
    trials
}
