//! A thousand streams at once, live and held: their memory, and how evenly their events come.

use std::time::Duration;

use crate::bench::{Bench, Rounds, column};
use crate::contenders::{Contender, Who};
use crate::figures::{difference, median, percentile, ratio, spread, written};
use crate::load::Streams;
use crate::report::Table;

/// Streams at once.
const STREAMS: usize = 1000;
const MIB: f64 = 1024.0 * 1024.0;

/// What a thousand live streams cost.
struct Live {
    memory: f64,
    gap: f64,
    errors: u64,
}

/// What a thousand held streams cost, and what is left of it afterwards.
struct Held {
    memory: f64,
    left: f64,
    errors: u64,
}

/// Live streams, an event each second: memory, and gaps between events.
pub fn live(bench: &mut Bench) {
    let rounds = fresh(bench, 3, |_, it| {
        let before = memory(it);
        let second = Duration::from_secs(1);
        let streams = Streams::start(&it.target, ("paced-6-1000000", 2048), STREAMS, second);
        std::thread::sleep(2 * second);
        let memory = memory(it) - before;
        let (delays, errors) = streams.join();
        // A gap is longer by what its event came later than the one before.
        let gaps: Vec<u64> = delays
            .iter()
            .flat_map(|of| of.windows(2))
            .map(|pair| pair[1].saturating_sub(pair[0]))
            .collect();
        Live {
            memory,
            gap: percentile(&gaps, 0.99),
            errors,
        }
    });
    let of = |who, figure: fn(&Live) -> f64| column(&rounds, who, figure);
    let rows = rounds.keys().map(|who| {
        vec![
            who.name().to_owned(),
            spread(&of(*who, |it| it.memory)),
            spread(&of(*who, |it| it.gap)),
            sum(&of(*who, |it| it.errors as f64)),
        ]
    });
    let rows = rows.collect();
    bench.report.table(Table {
        title: "A thousand live streams",
        about: "An event of 200 bytes each second in each, evenly spread. Memory is what the resident set grew by from \
                a fresh start; a gap is longer by what its event came later than the one before it."
            .to_owned(),
        columns: ["", "memory, MiB", "gap longer by, p99, ms", "failed"].map(str::to_owned).into(),
        rows,
    });
    let (berth, bare) = (of(Who::Berth, |it| it.gap), of(Who::Bare, |it| it.gap));
    let shown = |of: &[f64]| format!("{} ms", written(median(of)));
    bench.report.at_most(
        "added gap between events, p99, 1,000 live streams, against bare Pingora",
        (&shown(&berth), &shown(&bare)),
        difference(&berth, &bare),
        1.0,
        " ms",
    );
    let memory = |who| of(who, |it| it.memory);
    let of_both = (memory(Who::Berth), memory(Who::Bare));
    against_bare(
        bench,
        "memory of 1,000 live streams, against bare Pingora",
        of_both,
        1.4,
    );
}

/// Held streams: memory, and whether it is given back.
pub fn held(bench: &mut Bench) {
    let rounds = fresh(bench, 2, |bench, it| {
        let before = memory(it);
        let second = Duration::from_secs(1);
        let streams = Streams::start(&it.target, ("held-#", 2048), STREAMS, second);
        std::thread::sleep(2 * second);
        let during = memory(it) - before;
        bench.upstream.release();
        let (_, errors) = streams.join();
        // An allocator that gives memory back takes its time, which is ten seconds for berth's.
        std::thread::sleep(12 * second);
        Held {
            memory: during,
            left: memory(it) - before,
            errors,
        }
    });
    let of = |who, figure: fn(&Held) -> f64| column(&rounds, who, figure);
    let rows = rounds.keys().map(|who| {
        vec![
            who.name().to_owned(),
            spread(&of(*who, |it| it.memory)),
            spread(&of(*who, |it| it.left)),
            sum(&of(*who, |it| it.errors as f64)),
        ]
    });
    let rows = rows.collect();
    bench.report.table(Table {
        title: "A thousand held streams",
        about: "The upstream has said only `response.created`: berth holds, the others have passed it on. Each stream \
                asks for a model of its own. Left is what the resident set still has of it twelve seconds after the end."
            .to_owned(),
        columns: ["", "memory, MiB", "left, MiB", "failed"].map(str::to_owned).into(),
        rows,
    });
    let memory = |who| of(who, |it| it.memory);
    let berth = memory(Who::Berth);
    let of_both = (berth.clone(), memory(Who::Bare));
    against_bare(
        bench,
        "memory of 1,000 held streams, against bare Pingora",
        of_both,
        1.6,
    );
    let left = of(Who::Berth, |it| it.left);
    bench.report.at_most(
        "of that, not given back twelve seconds after their end",
        (&mebibytes(&left), &mebibytes(&of(Who::Bare, |it| it.left))),
        ratio(&left, &berth),
        0.25,
        " x",
    );
}

/// Measures bare Pingora and berth, freshly started each time.
fn fresh<T>(
    bench: &mut Bench,
    rounds: usize,
    measure: impl Fn(&Bench, &Contender) -> T,
) -> Rounds<T> {
    let mut found: Rounds<T> = Rounds::new();
    for round in 0..bench.rounds(rounds) {
        let mut order = [Who::Bare, Who::Berth];
        if round % 2 == 1 {
            order.reverse();
        }
        for who in order {
            for contender in bench.start(&[who]) {
                found
                    .entry(who)
                    .or_default()
                    .push(measure(bench, &contender));
            }
        }
    }
    found
}

fn memory(contender: &Contender) -> f64 {
    let process = contender.process.as_ref();
    process.map_or(f64::NAN, |it| it.memory() as f64 / MIB)
}

/// What berth takes of it, as a multiple of what bare Pingora takes.
fn against_bare(bench: &mut Bench, what: &str, (berth, bare): (Vec<f64>, Vec<f64>), limit: f64) {
    bench.report.at_most(
        what,
        (&mebibytes(&berth), &mebibytes(&bare)),
        ratio(&berth, &bare),
        limit,
        " x",
    );
}

fn mebibytes(of: &[f64]) -> String {
    format!("{} MiB", written(median(of)))
}

fn sum(of: &[f64]) -> String {
    of.iter().sum::<f64>().to_string()
}
