//! As much as goes: CPU per request and per event, requests per second, a TLS connection for each.

use crate::answers::Dialect;
use crate::bench::{Bench, Rounds, column};
use crate::contenders::{Contender, Who};
use crate::figures::{median, ratio, spread, written};
use crate::load::{Connections, Saturation, Throughput, Unit, saturate};
use crate::report::Table;

/// Short answers on kept connections.
pub const SHORT: Saturation = Saturation {
    dialect: Dialect::Responses,
    model: "short",
    size: 2048,
    clients: 16,
    connections: Connections::Kept,
    unit: Unit::Requests,
    warm_up: std::time::Duration::ZERO,
    time: std::time::Duration::ZERO,
};

/// CPU per request and requests per second.
pub fn requests(bench: &mut Bench) {
    let all = [Who::Nobody, Who::Bare, Who::Berth, Who::Nginx, Who::Haproxy];
    let contenders = bench.start(&all);
    let load = timed(bench, SHORT);
    let rounds = bench.alternate(&contenders, 5, |it| {
        saturate(&it.target, &load, it.process.as_ref())
    });
    drop(contenders);
    let about = "2 KB of request, a stream of 214 bytes, 16 clients that ask again at once, audit and metrics on. \
                 Medians of the rounds, and from where to where they went; CPU is the process's own accounting. \
                 \"no proxy\" is what generator and upstream reach by themselves.";
    table(
        bench,
        "CPU per request, requests per second",
        about,
        "request",
        &rounds,
    );
    let cpu = |who| column(&rounds, who, |it| it.cpu);
    let rate = |who| column(&rounds, who, |it| it.rate);
    let shown = |of: &[f64]| format!("{} us", written(median(of)));
    bench.report.at_most(
        "CPU per request, against bare Pingora",
        (&shown(&cpu(Who::Berth)), &shown(&cpu(Who::Bare))),
        ratio(&cpu(Who::Berth), &cpu(Who::Bare)),
        1.5,
        " x",
    );
    let shown = |of: &[f64]| format!("{}/s", written(median(of)));
    bench.report.at_least(
        "requests per second at saturation, against bare Pingora",
        (&shown(&rate(Who::Berth)), &shown(&rate(Who::Bare))),
        ratio(&rate(Who::Berth), &rate(Who::Bare)),
        0.75,
        " x",
    );
}

/// CPU per event of a stream.
pub fn events(bench: &mut Bench) {
    let all = [Who::Bare, Who::Berth, Who::Nginx, Who::Haproxy];
    let contenders = bench.start(&all);
    let load = Saturation {
        model: "paced-500-2000",
        clients: 32,
        unit: Unit::Events,
        ..timed(bench, SHORT)
    };
    let rounds = bench.alternate(&contenders, 5, |it| {
        saturate(&it.target, &load, it.process.as_ref())
    });
    drop(contenders);
    let about = "Streams of 500 events of 200 bytes, one every 2 ms and each in a packet of its own, 32 at a time; \
                 the request's own cost is spread over its events.";
    table(bench, "CPU per event", about, "event", &rounds);
    let cpu = |who| column(&rounds, who, |it| it.cpu);
    let shown = |of: &[f64]| format!("{} us", written(median(of)));
    bench.report.at_most(
        "CPU per event after commit, against bare Pingora",
        (&shown(&cpu(Who::Berth)), &shown(&cpu(Who::Bare))),
        ratio(&cpu(Who::Berth), &cpu(Who::Bare)),
        1.1,
        " x",
    );
}

/// A TLS connection for each request.
pub fn tls(bench: &mut Bench) {
    let contenders = bench.start(&[Who::Bare, Who::Berth]);
    let load = Saturation {
        clients: 8,
        connections: Connections::OwnEach,
        ..timed(bench, SHORT)
    };
    let rounds = bench.alternate(&contenders, 5, |it| {
        let target = it.tls.as_ref().unwrap_or(&it.target);
        saturate(target, &load, it.process.as_ref())
    });
    drop(contenders);
    let about = "The same request, but each over a TLS 1.3 connection of its own with a full handshake (ECDSA, P-256), \
                 8 clients.";
    table(
        bench,
        "A TLS connection for each request",
        about,
        "request",
        &rounds,
    );
    let rate = |who| column(&rounds, who, |it| it.rate);
    let shown = |of: &[f64]| format!("{}/s", written(median(of)));
    bench.report.at_least(
        "requests per second with a TLS connection each, against bare Pingora",
        (&shown(&rate(Who::Berth)), &shown(&rate(Who::Bare))),
        ratio(&rate(Who::Berth), &rate(Who::Bare)),
        0.9,
        " x",
    );
}

/// The load with the bench's times.
pub fn timed(bench: &Bench, load: Saturation) -> Saturation {
    Saturation {
        warm_up: bench.seconds(0.5),
        time: bench.seconds(3.0),
        ..load
    }
}

/// What throughputs look like.
pub fn table(
    bench: &mut Bench,
    title: &'static str,
    about: &str,
    unit: &str,
    rounds: &Rounds<Throughput>,
) {
    let rows = rounds.keys().map(|who| {
        let errors: f64 = column(rounds, *who, |it| it.errors as f64).iter().sum();
        let mut row = vec![
            who.name().to_owned(),
            spread(&column(rounds, *who, |it| it.cpu)),
            spread(&column(rounds, *who, |it| it.rate)),
            format!("{errors}"),
        ];
        if *who == Who::Nobody {
            row[1] = "-".to_owned();
        }
        row
    });
    let rows = rows.collect();
    bench.report.table(Table {
        title,
        about: about.to_owned(),
        columns: vec![
            String::new(),
            format!("CPU per {unit}, us"),
            format!("{unit}s per second"),
            "failed".to_owned(),
        ],
        rows,
    });
}

/// Whether somebody is among those that run.
pub fn has(contenders: &[Contender], who: Who) -> bool {
    contenders.iter().any(|it| it.who == who)
}
