//! The gateways in Python and JavaScript: throughput, and the first token at a rate that they carry.

use super::saturation::{SHORT, has, table, timed};
use crate::answers::Dialect;
use crate::bench::{Bench, column};
use crate::contenders::Who;
use crate::figures::{median, percentile, ratio, spread, written};
use crate::load::{Fixed, Saturation, first_tokens, saturate};
use crate::report::Table;

/// Requests per second that all of them carry.
const RATE: f64 = 20.0;

/// berth beside LiteLLM and Portkey, where they run.
pub fn measure(bench: &mut Bench) {
    let all = [Who::Nobody, Who::Berth, Who::LiteLlm, Who::Portkey];
    let contenders = bench.start(&all);
    if !has(&contenders, Who::LiteLlm) && !has(&contenders, Who::Portkey) {
        return;
    }
    let load = Saturation {
        dialect: Dialect::Chat,
        ..timed(bench, SHORT)
    };
    let rounds = bench.alternate(&contenders, 3, |it| {
        saturate(&it.target, &load, it.process.as_ref())
    });
    let about = "The same over `/v1/chat/completions`, which all of them know: 2 KB of request, four frames, 16 clients. \
                 LiteLLM with a worker for each core, as its guide to production says.";
    table(bench, "Gateways at saturation", about, "request", &rounds);
    let rate = |who| column(&rounds, who, |it| it.rate);
    let shown = |of: &[f64]| format!("{}/s", written(median(of)));
    if has(&contenders, Who::LiteLlm) {
        bench.report.at_least(
            "requests per second at saturation, against LiteLLM",
            (&shown(&rate(Who::Berth)), &shown(&rate(Who::LiteLlm))),
            ratio(&rate(Who::Berth), &rate(Who::LiteLlm)),
            100.0,
            " x",
        );
    }

    let load = Fixed {
        dialect: Dialect::Chat,
        size: 2048,
        rate: RATE,
        warm_up: bench.seconds(0.5),
        time: bench.seconds(4.0),
    };
    let rounds = bench.alternate(&contenders, 2, |it| {
        let (times, errors) = first_tokens(&it.target, &load);
        (percentile(&times, 0.5), percentile(&times, 0.99), errors)
    });
    let rows = rounds.keys().map(|who| {
        let errors: f64 = column(&rounds, *who, |it| it.2 as f64).iter().sum();
        vec![
            who.name().to_owned(),
            spread(&column(&rounds, *who, |it| it.0)),
            spread(&column(&rounds, *who, |it| it.1)),
            format!("{errors}"),
        ]
    });
    let rows = rows.collect();
    bench.report.table(Table {
        title: "Gateways: time to the first token",
        about: format!(
            "At {RATE} requests per second, sent at fixed times and counted from them. Milliseconds in all, not added ones."
        ),
        columns: ["", "p50, ms", "p99, ms", "failed"].map(str::to_owned).into(),
        rows,
    });
}
