//! What criterion found of the parts that need no network: `bench/pure`.

use std::fs;
use std::path::Path;

use crate::bench::Bench;
use crate::figures::written;
use crate::report::Table;

/// One of criterion's benches: its folder, its name here, and bytes in one iteration.
const ALL: [(&str, &str, Option<f64>); 12] = [
    ("choice/10", "choice of a credential, 10 credentials", None),
    (
        "choice/100",
        "choice of a credential, 100 credentials",
        None,
    ),
    (
        "choice/1000",
        "choice of a credential, 1,000 credentials",
        None,
    ),
    ("split/plain", "frame splitter, plain events", Some(BYTES)),
    (
        "gate/opening",
        "gate: an opening, held, and its first token",
        None,
    ),
    (
        "gate/refusal",
        "gate: a refusal inside the stream, read and ruled on",
        None,
    ),
    (
        "gate/held",
        "gate: comments and openings, never a token",
        Some(BYTES),
    ),
    ("stream/plain", "after commit, plain events", Some(BYTES)),
    (
        "stream/cut",
        "after commit, each event in a piece of its own",
        Some(BYTES),
    ),
    (
        "classify/built_in",
        "classifier: the last of the built-in rules",
        None,
    ),
    (
        "classify/own",
        "classifier: the same behind 64 rules of one's own",
        None,
    ),
    (
        "ask/responses",
        "a request of 2 KB, read for model and session",
        None,
    ),
];
/// Bytes that one iteration of the benches of streams takes.
const BYTES: f64 = 100_000.0;

/// Takes criterion's medians into the document.
pub fn measure(bench: &mut Bench, criterion: &Path) {
    let mut rows = Vec::new();
    let mut found = Vec::new();
    for (folder, name, bytes) in ALL {
        let Some(nanos) = median(&criterion.join(folder).join("new/estimates.json")) else {
            bench
                .report
                .missing(format!("{name}: criterion left no figures"));
            continue;
        };
        let speed = bytes.map(|bytes| bytes / nanos);
        rows.push(vec![
            name.to_owned(),
            format!("{} us", written(nanos / 1000.0)),
            speed.map_or("-".to_owned(), |speed| format!("{speed:.2} GB/s")),
        ]);
        found.push((folder, nanos / 1000.0, speed));
    }
    bench.report.table(Table {
        title: "Without a network",
        about: "criterion's medians, on one core: `bench/pure`. Credentials serve 100 models; half of them are last in \
                order by their scores. Streams are 500 events of 200 bytes in pieces of 16 KiB unless it says otherwise."
            .to_owned(),
        columns: ["", "time", "speed"].map(str::to_owned).into(),
        rows,
    });
    for (folder, time, speed) in found {
        let shown = format!("{} us", written(time));
        match (folder, speed) {
            ("choice/10", _) => choice(bench, 10, &shown, time, 2.0),
            ("choice/100", _) => choice(bench, 100, &shown, time, 5.0),
            ("choice/1000", _) => choice(bench, 1000, &shown, time, 30.0),
            ("split/plain", Some(speed)) => fast(bench, "frame splitter", &shown, speed),
            ("stream/plain", Some(speed)) => {
                fast(bench, "after commit, plain events", &shown, speed)
            }
            _ => {}
        }
    }
}

fn choice(bench: &mut Bench, count: usize, shown: &str, time: f64, limit: f64) {
    let what = format!("choice of a credential of {count}");
    bench
        .report
        .at_most(&what, (shown, "-"), time, limit, " us");
}

fn fast(bench: &mut Bench, what: &str, shown: &str, speed: f64) {
    let what = format!("{what}, on one core");
    bench.report.at_least(
        &what,
        (&format!("{shown} for 100 KB"), "-"),
        speed,
        1.0,
        " GB/s",
    );
}

/// Criterion's median, nanoseconds.
fn median(path: &Path) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let found: serde_json::Value = serde_json::from_str(&text).ok()?;
    found["median"]["point_estimate"].as_f64()
}
