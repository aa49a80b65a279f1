//! Load: as much as goes, at a fixed rate, or many streams at once.
//!
//! Where latency is measured, requests are sent at times fixed beforehand, and each counts from the
//! time at which it should have been sent: a proxy that stalls delays those behind, and they say so.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::answers::{Dialect, EVENT, stamps};
use crate::client::{Connection, Request, Target, Then};
use crate::clock;
use crate::process::Process;
use crate::wire::find;

/// Whether a connection serves one request after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// It does.
    Kept,
    /// Each request brings its own.
    OwnEach,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Whole answers.
    Requests,
    /// Events of a stream, as they come.
    Events,
}

/// A load of as much as goes.
#[derive(Clone, Copy)]
pub struct Saturation {
    /// What is asked for.
    pub dialect: Dialect,
    /// Which answer.
    pub model: &'static str,
    /// Bytes of the body.
    pub size: usize,
    /// Requests under way at once.
    pub clients: usize,
    /// How they come.
    pub connections: Connections,
    /// What of them is counted.
    pub unit: Unit,
    /// Before anything is counted.
    pub warm_up: Duration,
    /// While it is counted.
    pub time: Duration,
}

/// What went through in the time.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    /// Units per second.
    pub rate: f64,
    /// CPU time of the process under test for one, microseconds.
    pub cpu: f64,
    /// Requests that failed.
    pub errors: u64,
}

/// Asks as much as goes; `process` is whose CPU time counts.
pub fn saturate(target: &Target, load: &Saturation, process: Option<&Process>) -> Throughput {
    let (done, errors, stop) = (AtomicU64::new(0), Errors::default(), AtomicBool::new(false));
    let cpu = || process.map_or(0.0, Process::cpu);
    thread::scope(|scope| {
        for _ in 0..load.clients {
            scope.spawn(|| {
                let request = target.request(load.dialect, load.model, load.size);
                let mut client = Client::new(target);
                while !stop.load(Relaxed) {
                    let asked = match load.unit {
                        Unit::Requests => client.ask(&request, |_| {}),
                        Unit::Events => client.ask(&request, |piece| {
                            done.fetch_add(piece.len() as u64, Relaxed);
                        }),
                    };
                    match asked {
                        Ok(()) if load.unit == Unit::Requests => _ = done.fetch_add(1, Relaxed),
                        Ok(()) => {}
                        Err(why) => errors.count(&why),
                    }
                    if load.connections == Connections::OwnEach {
                        client.leave();
                    }
                }
            });
        }
        thread::sleep(load.warm_up);
        let (began, before, spent) = (Instant::now(), done.load(Relaxed), cpu());
        thread::sleep(load.time);
        let done = (done.load(Relaxed) - before) as f64;
        let (seconds, spent) = (began.elapsed().as_secs_f64(), cpu() - spent);
        let units = match load.unit {
            Unit::Requests => done,
            Unit::Events => done / EVENT as f64,
        };
        stop.store(true, Relaxed);
        Throughput {
            rate: units / seconds,
            cpu: spent / units * 1e6,
            errors: errors.number(),
        }
    })
}

/// A load at a fixed rate.
#[derive(Clone, Copy)]
pub struct Fixed {
    /// What is asked for.
    pub dialect: Dialect,
    /// Bytes of the body.
    pub size: usize,
    /// Requests per second.
    pub rate: f64,
    /// Before anything is counted.
    pub warm_up: Duration,
    /// While it is counted.
    pub time: Duration,
}

/// Times to the first token from when the request should have been sent, nanoseconds; and failures.
pub fn first_tokens(target: &Target, load: &Fixed) -> (Vec<u64>, u64) {
    // So many that a thread is free again long before its next time.
    const THREADS: u32 = 16;
    let marker: &[u8] = match load.dialect {
        Dialect::Responses => b"output_text.delta",
        Dialect::Chat => b"\"word\"",
    };
    let (all, errors) = (Mutex::new(Vec::new()), Errors::default());
    let began = Instant::now() + Duration::from_millis(20);
    let counted = began + load.warm_up;
    let end = counted + load.time;
    let (all_times, errors_seen) = (&all, &errors);
    thread::scope(|scope| {
        for place in 0..THREADS {
            scope.spawn(move || {
                let request = target.request(load.dialect, "short", load.size);
                let mut client = Client::new(target);
                let mut times = Vec::new();
                for turn in 0.. {
                    let number = f64::from(turn * THREADS + place);
                    let at = began + Duration::from_secs_f64(number / load.rate);
                    if at >= end {
                        break;
                    }
                    clock::sleep_until(at);
                    let mut first = None;
                    let asked = client.ask(&request, |piece| {
                        if first.is_none() && find(piece, marker).is_some() {
                            first = Some(at.elapsed());
                        }
                    });
                    match (asked, first) {
                        (Ok(()), Some(first)) if at >= counted => times.push(clock::nanos(first)),
                        (Ok(()), Some(_)) => {}
                        (Ok(()), None) => errors_seen.count(&"an answer without a token"),
                        (Err(why), _) => errors_seen.count(&why),
                    }
                }
                all_times
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend(times);
            });
        }
    });
    let times = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    (times, errors.number())
}

/// Many streams at once.
pub struct Streams {
    clients: Vec<JoinHandle<Vec<u64>>>,
    errors: Arc<Errors>,
}

impl Streams {
    /// Starts `count` streams of `model`, evenly over `within`; in a model's name `#` is the number of
    /// the stream. Returns once all requests are on their way.
    pub fn start(
        target: &Target,
        (model, size): (&str, usize),
        count: usize,
        within: Duration,
    ) -> Streams {
        let errors = Arc::new(Errors::default());
        let all = Arc::new(Barrier::new(count + 1));
        let began = Instant::now() + Duration::from_millis(50);
        let clients = (0..count).map(|number| {
            let (target, errors, all) = (target.clone(), errors.clone(), all.clone());
            let model = model.replace('#', &number.to_string());
            let at = began + within.mul_f64(number as f64 / count as f64);
            let stream = move || {
                let mut delays = Vec::new();
                let request = target.request(Dialect::Responses, &model, size);
                clock::sleep_until(at);
                let connection = target.connect();
                all.wait();
                let asked = connection.and_then(|mut connection| {
                    connection.exchange(&request, |piece| {
                        let now = clock::now();
                        stamps(piece, |stamp| delays.push(now.saturating_sub(stamp)));
                    })
                });
                if let Err(why) = asked {
                    errors.count(&why);
                }
                delays
            };
            let thread = thread::Builder::new().stack_size(256 * 1024).spawn(stream);
            thread.expect("a thread")
        });
        let clients = clients.collect();
        all.wait();
        Streams { clients, errors }
    }

    /// Waits for their ends: for each stream, how late each event came; and failures.
    pub fn join(self) -> (Vec<Vec<u64>>, u64) {
        let joined = self.clients.into_iter().map(|it| it.join());
        let delays = joined.map(|it| it.unwrap_or_default()).collect();
        (delays, self.errors.number())
    }
}

/// Failures, of which the first is shown.
#[derive(Default)]
pub struct Errors(AtomicU64);

impl Errors {
    /// One more.
    pub fn count(&self, why: &dyn std::fmt::Display) {
        if self.0.fetch_add(1, Relaxed) == 0 {
            eprintln!("    a request failed: {why}");
        }
        // What fails at once must not turn into a busy loop.
        thread::sleep(Duration::from_millis(1));
    }

    /// How many.
    pub fn number(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A client that keeps its connection where it can.
pub struct Client<'a> {
    target: &'a Target,
    connection: Option<Connection>,
}

impl<'a> Client<'a> {
    /// One that has not connected yet.
    pub fn new(target: &'a Target) -> Client<'a> {
        Client {
            target,
            connection: None,
        }
    }

    /// One exchange.
    pub fn ask(&mut self, request: &Request, take: impl FnMut(&[u8])) -> std::io::Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.target.connect()?,
        };
        if connection.exchange(request, take)? == Then::Keep {
            self.connection = Some(connection);
        }
        Ok(())
    }

    /// Closes the connection.
    pub fn leave(&mut self) {
        self.connection = None;
    }
}
