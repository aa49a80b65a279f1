//! A hundred large bodies at once, each sent twice: how much memory, and what others notice.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::answers::Dialect;
use crate::bench::Bench;
use crate::client::Target;
use crate::clock;
use crate::contenders::Who;
use crate::figures::{median, percentile, spread, written};
use crate::load::{Fixed, Streams, first_tokens};
use crate::process::Process;
use crate::report::Table;

const BODIES: usize = 100;
const SIZE: usize = 20 * 1024 * 1024;
const MIB: f64 = 1024.0 * 1024.0;

/// berth sends each twice; bare Pingora, which cannot, once; and without a proxy they come once.
pub fn measure(bench: &mut Bench) {
    let nobody = load(bench, Who::Nobody, "short-body#");
    let bare = load(bench, Who::Bare, "short-body#");
    let berth = load(bench, Who::Berth, "flip-body#");
    let all = [
        (Who::Nobody, &nobody),
        (Who::Bare, &bare),
        (Who::Berth, &berth),
    ];
    let rows = all.map(|(who, found)| {
        vec![
            who.name().to_owned(),
            spread(&found.peaks),
            spread(&found.alone),
            spread(&found.beside),
            found.failed.to_string(),
        ]
    });
    bench.report.table(Table {
        title: "A hundred requests of 20 MiB at once, each sent twice",
        about: "Through berth each is refused once inside the stream and sent again; through bare Pingora, which keeps no \
                body, each goes once. Others, from another address, ask 50 times a second meanwhile. All of it on the same \
                cores, on which generator and upstream move the bodies too: with 200 threads that give way to everybody \
                else (nice 19), since in the field they are other machines."
            .to_owned(),
        columns: ["", "memory / bodies", "others' p99 alone, ms", "others' p99 meanwhile, ms", "failed"]
            .map(str::to_owned)
            .into(),
        rows: rows.into(),
    });
    bench.report.at_most(
        "memory of 100 requests of 20 MiB, each sent twice, against their bodies",
        (
            &format!("{} MiB", written(median(&berth.peaks) * 2000.0)),
            "2000 MiB",
        ),
        median(&berth.peaks),
        1.2,
        " x",
    );
    let shown = |of: &[f64]| format!("{} ms", written(median(of)));
    for (against, other) in [("no proxy", &nobody.beside), ("alone", &berth.alone)] {
        bench.report.at_most(
            &format!("others' p99 meanwhile, against {against}"),
            (&shown(&berth.beside), &shown(other)),
            median(&berth.beside) / median(other),
            3.0,
            " x",
        );
    }
}

#[derive(Default)]
struct Found {
    /// Memory at its peak, by the size of all bodies together.
    peaks: Vec<f64>,
    /// p99 of others, milliseconds.
    alone: Vec<f64>,
    beside: Vec<f64>,
    failed: u64,
}

fn load(bench: &mut Bench, who: Who, model: &str) -> Found {
    let mut found = Found::default();
    let Found {
        peaks,
        alone,
        beside,
        failed,
    } = &mut found;
    for _ in 0..bench.rounds(3) {
        for contender in bench.start(&[who]) {
            let memory = || contender.process.as_ref().map_or(0, Process::memory);
            // Others come from another address: they are another client.
            let others = Target {
                from: Ipv4Addr::new(127, 0, 0, 2),
                ..contender.target.clone()
            };
            let load = Fixed {
                dialect: Dialect::Responses,
                size: 2048,
                rate: 50.0,
                warm_up: bench.seconds(0.5),
                time: bench.seconds(4.0),
            };
            let (times, errors) = first_tokens(&others, &load);
            alone.push(percentile(&times, 0.99));
            *failed += errors;

            let before = memory();
            let (peak, over) = (AtomicU64::new(0), AtomicBool::new(false));
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Relaxed) {
                        peak.fetch_max(memory().saturating_sub(before), Relaxed);
                        thread::sleep(Duration::from_millis(20));
                    }
                });
                let target = &contender.target;
                let count = if bench.quick { BODIES / 10 } else { BODIES };
                let bodies = scope.spawn(move || {
                    clock::give_way();
                    Streams::start(target, (model, SIZE), count, Duration::ZERO).join()
                });
                let load = Fixed {
                    warm_up: Duration::ZERO,
                    ..load
                };
                let (times, errors) = first_tokens(&others, &load);
                beside.push(percentile(&times, 0.99));
                *failed += errors;
                *failed += bodies.join().map_or(1, |(_, errors)| errors);
                over.store(true, Relaxed);
                peaks.push(peak.load(Relaxed) as f64 / MIB / (count as f64 * SIZE as f64 / MIB));
            });
            let moved = bench.upstream.moved().len();
            eprintln!("  {moved} bodies were sent again");
        }
    }
    found
}
