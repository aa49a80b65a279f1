//! The fake upstream: what a request is answered, its model's name says.
//!
//! | model | answer |
//! |---|---|
//! | `short` | a whole short stream, at once |
//! | `paced-COUNT-MICROS` | an opening, then COUNT events, one each MICROS, each with its time in it |
//! | `held-ID` | an opening, and the rest once [`Upstream::release`] is called |
//! | `flip-ID` | the first time a refusal inside the stream, the second time as `short` |
//!
//! A thread for each connection: it is part of the load generator, and its times are the yardstick.

use std::collections::HashMap;
use std::io::Result;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::answers::{self, Dialect, chunk};
use crate::clock;
use crate::wire::{Framing, Wire, find};

/// No held stream is kept longer.
const LONGEST: Duration = Duration::from_secs(60);
/// So much of a body is looked at for the model.
const LOOKED_AT: usize = 16 * 1024;
/// Bodies from here on are read by a thread that gives way.
const LARGE: u64 = 4 * 1024 * 1024;

/// A running upstream.
#[derive(Clone)]
pub struct Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// When the last byte of a refusal was written, by the request's id.
    refused: Mutex<HashMap<String, u64>>,
    /// From there to the whole request at the next attempt, nanoseconds.
    moved: Mutex<Vec<u64>>,
    /// How often held streams have been released.
    releases: Mutex<u64>,
    released: Condvar,
}

impl Upstream {
    /// Listens on a free port.
    pub fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let upstream = Upstream {
            address: listener.local_addr()?,
            shared: Arc::default(),
        };
        let shared = upstream.shared.clone();
        spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // A peer that goes away, or a contender that is ended, is not the upstream's concern.
                spawn(move || drop(serve(&shared, stream)));
            }
        });
        Ok(upstream)
    }

    /// Lets all held streams go on.
    pub fn release(&self) {
        *lock(&self.shared.releases) += 1;
        self.shared.released.notify_all();
    }

    /// Takes the times from refusals to the next attempts.
    pub fn moved(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.shared.moved))
    }
}

/// A thread with a small stack: there are thousands.
pub fn spawn(work: impl FnOnce() + Send + 'static) {
    let built = thread::Builder::new().stack_size(128 * 1024).spawn(work);
    built.expect("a thread");
}

fn serve(shared: &Shared, stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::new(stream);
    while let Some(head) = wire.head()? {
        if head.expects {
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        if !matches!(head.framing, Framing::Length(0..4096)) {
            wire.widen();
        }
        let is_large = matches!(head.framing, Framing::Length(LARGE..));
        if is_large {
            clock::give_way();
        }
        let mut body = Vec::new();
        wire.body(head.framing, |piece| {
            let room = LOOKED_AT.saturating_sub(body.len()).min(piece.len());
            body.extend_from_slice(&piece[..room]);
        })?;
        let whole = clock::now();
        if is_large {
            clock::go_first();
        }
        let dialect = match find(&body, b"\"messages\"") {
            Some(_) => Dialect::Chat,
            None => Dialect::Responses,
        };
        let model = model(&body).unwrap_or_default();
        match model.split('-').collect::<Vec<_>>()[..] {
            ["paced", count, micros] => paced(&mut wire, number(count), number(micros))?,
            ["held", _] => held(&mut wire, shared)?,
            ["flip", id] => flip(&mut wire, shared, id, whole)?,
            _ => short(&mut wire, dialect)?,
        }
        if head.closes {
            break;
        }
    }
    Ok(())
}

fn short(wire: &mut Wire<TcpStream>, dialect: Dialect) -> Result<()> {
    let mut out = answers::head();
    for frame in dialect.short() {
        chunk(&mut out, &frame);
    }
    out.extend_from_slice(answers::LAST);
    wire.send(&out)
}

fn paced(wire: &mut Wire<TcpStream>, count: u64, micros: u64) -> Result<()> {
    let mut out = answers::head();
    chunk(&mut out, &answers::opening());
    wire.send(&out)?;
    let began = Instant::now();
    for turn in 1..=count {
        clock::sleep_until(began + Duration::from_micros(turn * micros));
        out.clear();
        chunk(&mut out, &answers::event(clock::now()));
        wire.send(&out)?;
    }
    out.clear();
    chunk(&mut out, &answers::end());
    out.extend_from_slice(answers::LAST);
    wire.send(&out)
}

fn held(wire: &mut Wire<TcpStream>, shared: &Shared) -> Result<()> {
    let mut out = answers::head();
    chunk(&mut out, &answers::opening());
    let releases = lock(&shared.releases);
    let before = *releases;
    wire.send(&out)?;
    let waited = shared
        .released
        .wait_timeout_while(releases, LONGEST, |now| *now == before);
    drop(waited);
    out.clear();
    for frame in &Dialect::Responses.short()[1..] {
        chunk(&mut out, frame);
    }
    out.extend_from_slice(answers::LAST);
    wire.send(&out)
}

fn flip(wire: &mut Wire<TcpStream>, shared: &Shared, id: &str, whole: u64) -> Result<()> {
    let earlier = lock(&shared.refused).remove(id);
    if let Some(refused) = earlier {
        lock(&shared.moved).push(whole.saturating_sub(refused));
        return short(wire, Dialect::Responses);
    }
    let mut out = answers::head();
    chunk(&mut out, &answers::opening());
    chunk(&mut out, &answers::refusal());
    out.extend_from_slice(answers::LAST);
    lock(&shared.refused).insert(id.to_owned(), clock::now());
    wire.send(&out)
}

/// The value of `"model"`, whatever white space is around it.
fn model(body: &[u8]) -> Option<String> {
    let after = &body[find(body, b"\"model\"")? + 7..];
    let start = after.iter().position(|b| *b == b'"')? + 1;
    let value = after.get(start..)?;
    let end = value.iter().position(|b| *b == b'"')?;
    String::from_utf8(value[..end].to_vec()).ok()
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
