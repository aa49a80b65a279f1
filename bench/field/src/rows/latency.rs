//! What a client waits longer: for the first token, and for another credential.

use std::time::Duration;

use crate::answers::Dialect;
use crate::bench::{Bench, Rounds, column};
use crate::client::Target;
use crate::contenders::Who;
use crate::figures::{difference, median, percentile, spread, written};
use crate::load::{Client, Errors, Fixed, first_tokens};
use crate::report::Table;

/// Requests per second.
const RATE: f64 = 500.0;

/// Added time to the first token at a fixed rate.
pub fn first_token(bench: &mut Bench) {
    let all = [Who::Nobody, Who::Bare, Who::Berth, Who::Nginx, Who::Haproxy];
    let contenders = bench.start(&all);
    let load = Fixed {
        dialect: Dialect::Responses,
        size: 2048,
        rate: RATE,
        warm_up: bench.seconds(0.5),
        time: bench.seconds(4.0),
    };
    let rounds: Rounds<(f64, f64, u64)> = bench.alternate(&contenders, 3, |it| {
        let (times, errors) = first_tokens(&it.target, &load);
        (percentile(&times, 0.5), percentile(&times, 0.99), errors)
    });
    drop(contenders);
    let middle = |who| column(&rounds, who, |it| it.0);
    let late = |who| column(&rounds, who, |it| it.1);
    let rows = rounds.keys().map(|who| {
        let errors: f64 = column(&rounds, *who, |it| it.2 as f64).iter().sum();
        vec![
            who.name().to_owned(),
            spread(&middle(*who)),
            spread(&late(*who)),
            written(difference(&middle(*who), &middle(Who::Nobody))),
            written(difference(&late(*who), &late(Who::Nobody))),
            format!("{errors}"),
        ]
    });
    let rows = rows.collect();
    bench.report.table(Table {
        title: "Time to the first token",
        about: format!(
            "{RATE} requests per second, sent at fixed times and counted from them, whenever they really left: a stall \
             counts for all that it delays."
        ),
        columns: ["", "p50, ms", "p99, ms", "added p50, ms", "added p99, ms", "failed"]
            .map(str::to_owned)
            .into(),
        rows,
    });
    for (what, of, limit) in [
        (
            "added time to the first token, p50",
            &middle as &dyn Fn(Who) -> Vec<f64>,
            0.3,
        ),
        ("added time to the first token, p99", &late, 1.0),
    ] {
        let shown = |who| format!("{} ms", written(median(&of(who))));
        let added = difference(&of(Who::Berth), &of(Who::Nobody));
        let shown = (&*shown(Who::Berth), &*shown(Who::Nobody));
        bench.report.at_most(what, shown, added, limit, " ms");
    }
}

/// From the last byte of a refusal to the next upstream having the whole request.
pub fn failover(bench: &mut Bench) {
    let mut rows = Vec::new();
    for (size, name, count, limit) in [(2048, "2 KB", 300, 0.5), (1024 * 1024, "1 MiB", 60, 3.0)] {
        let count = count * bench.rounds(3);
        let contenders = bench.start(&[Who::Berth]);
        let Some(berth) = contenders.first() else {
            return;
        };
        let errors = Errors::default();
        flips(&berth.target, (size, name), count, &errors);
        let times = bench.upstream.moved();
        rows.push(vec![
            name.to_owned(),
            written(percentile(&times, 0.5)),
            written(percentile(&times, 0.99)),
            times.len().to_string(),
            errors.number().to_string(),
        ]);
        bench.report.at_most(
            &format!(
                "from a refusal in the stream to the next upstream having the request, {name}, p50"
            ),
            (&format!("{} ms", written(percentile(&times, 0.5))), "-"),
            percentile(&times, 0.5),
            limit,
            " ms",
        );
    }
    bench.report.table(Table {
        title: "From a refusal to the next upstream",
        about: "From the last byte of a refusal inside a stream to the next upstream having the whole request; one \
                request at a time, on kept connections."
            .to_owned(),
        columns: ["request", "p50, ms", "p99, ms", "failovers", "failed"]
            .map(str::to_owned)
            .into(),
        rows,
    });
}

/// Requests that are refused once each. Each has a model of its own: nobody learns from the last one.
fn flips(target: &Target, (size, name): (usize, &str), count: usize, errors: &Errors) {
    let mut client = Client::new(target);
    for number in 0..count {
        // One that is not refused before each that is: no client has all of the retry budget.
        for model in ["short", &format!("flip-{}{number}", name.replace(' ', ""))] {
            let request = target.request(Dialect::Responses, model, size);
            if let Err(why) = client.ask(&request, |_| {}) {
                errors.count(&why);
            }
        }
        // Nothing is left over from the one before.
        std::thread::sleep(Duration::from_millis(2));
    }
}
