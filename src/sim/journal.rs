//! What the simulated upstream remembers: where each credential is in its program, and what happened.
//!
//! One lock around plain data, never held across an await. A version number is published after each
//! change, so that a test can wait for what it expects to see rather than sleep.

use super::program::{Program, ProgramError, Track};
use super::step::Step;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// One request, as `GET /__sim/log` shows it. It is there from the moment its step is chosen, and
/// grows until it is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counted from 1; a reset does not start again.
    pub n: u64,
    /// When the request's head was complete, RFC 3339.
    pub time: String,
    /// The connection it came on, counted from 1.
    pub connection: u64,
    /// The credential's name; absent where the key is unknown.
    pub credential: Option<String>,
    pub method: String,
    pub path: String,
    pub model: Option<String>,
    pub stream: bool,
    /// Bytes of the body that were read, without transfer coding, as they came otherwise.
    pub body_bytes: u64,
    /// Of these bytes, in hexadecimal.
    pub body_sha256: String,
    /// In the order they came; values that are secrets are `<redacted>`.
    pub headers: Vec<(String, String)>,
    /// The step of the program; `models` or a rejection where no step was taken.
    pub step: String,
    /// What `flap`, `chance` or `seats` came to; else the same.
    pub played: String,
    /// The status that was answered, where one was.
    pub status: Option<u16>,
    /// Bytes written, heads and framing included.
    pub bytes_out: u64,
    /// Whether the answer was played to its end, or the peer left.
    pub over: bool,
    /// Milliseconds after the request when the peer left before the end of the answer.
    pub peer_left_after_ms: Option<u64>,
}

/// Counts since the last reset.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections open now; a reset does not change it.
    pub connections_open: u64,
    pub connections_accepted: u64,
    /// Requests of any kind, unknown keys included.
    pub requests: u64,
    /// Records that the log has dropped to stay within its bound.
    pub log_dropped: u64,
    /// By credential name.
    pub credentials: BTreeMap<String, CredentialStats>,
}

/// Counts of one credential.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CredentialStats {
    pub requests: u64,
    /// Answers that are being played now; a reset does not change it.
    pub in_flight: u64,
    /// By the step that was played.
    pub steps: BTreeMap<String, u64>,
}

/// The memory of one simulated upstream.
pub(super) struct Journal {
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

struct State {
    program: Arc<Program>,
    set_at: Instant,
    /// Requests so far, by key and by model where the model has a track of its own.
    taken: HashMap<(String, Option<String>), u64>,
    log: VecDeque<Record>,
    stats: Stats,
    /// These three are never reset: they make numbers and ids unique.
    records: u64,
    connections: u64,
    ids: u64,
}

/// What a request meets.
pub(super) struct Choice {
    pub credential: String,
    /// The program's step.
    pub step: Step,
    /// The step that it comes to.
    pub played: Step,
}

impl Journal {
    pub fn new(program: Program) -> Journal {
        let state = State {
            program: Arc::new(program),
            set_at: Instant::now(),
            taken: HashMap::new(),
            log: VecDeque::new(),
            stats: Stats::default(),
            records: 0,
            connections: 0,
            ids: 0,
        };
        Journal {
            state: Mutex::new(state),
            version: watch::Sender::new(0),
        }
    }

    pub fn program(&self) -> Arc<Program> {
        self.lock().program.clone()
    }

    /// Replaces the program; every credential starts at its first step.
    pub fn set_program(&self, program: Program) -> Result<(), ProgramError> {
        program.check()?;
        let mut state = self.lock();
        state.program = Arc::new(program);
        state.set_at = Instant::now();
        state.taken.clear();
        drop(state);
        self.changed();
        Ok(())
    }

    /// Forgets the log, the counts and the positions; the program stays.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.set_at = Instant::now();
        state.taken.clear();
        state.log.clear();
        let old = std::mem::take(&mut state.stats);
        state.stats.connections_open = old.connections_open;
        for (name, credential) in old.credentials {
            if credential.in_flight > 0 {
                let kept = CredentialStats {
                    in_flight: credential.in_flight,
                    ..Default::default()
                };
                state.stats.credentials.insert(name, kept);
            }
        }
        drop(state);
        self.changed();
    }

    pub fn log(&self) -> Vec<Record> {
        self.lock().log.iter().cloned().collect()
    }

    pub fn stats(&self) -> Stats {
        self.lock().stats.clone()
    }

    /// Told after each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Whether a key's step depends on the model, which only the body tells.
    pub fn needs_model(&self, key: &str) -> bool {
        let state = self.lock();
        let credential = state.program.credentials.get(key);
        credential.is_some_and(|credential| !credential.by_model.is_empty())
    }

    /// The name behind a key, where the key is served.
    pub fn name_of(&self, key: &str) -> Option<String> {
        let program = self.program();
        match program.credentials.get(key) {
            Some(credential) => Some(credential.name.clone()),
            None => program.accept_any.then(|| name_of_unknown(key)),
        }
    }

    /// The step of a key's next request; `None` where the key is not served.
    pub fn take(&self, key: &str, model: Option<&str>) -> Option<Choice> {
        let mut state = self.lock();
        let program = state.program.clone();
        let known = program.credentials.get(key);
        if known.is_none() && !program.accept_any {
            return None;
        }
        let of_model = known
            .zip(model)
            .and_then(|(each, model)| each.by_model.get(model));
        // Unknown keys come from outside: past the bound they share one count.
        let counted = if known.is_some() || state.taken.len() < MAX_COUNTS {
            key
        } else {
            ""
        };
        let running = state.set_at.elapsed();
        let place = (counted.to_owned(), of_model.and(model).map(String::from));
        let next = state.taken.entry(place).or_default();
        let index = *next;
        *next += 1;
        let step = match (of_model, known, &program.default) {
            (Some(track), _, _) => track.at(index),
            (None, Some(credential), _) => credential.at(index),
            (None, None, default) => default.as_ref().and_then(|track: &Track| track.at(index)),
        };
        let step = step.cloned().unwrap_or_else(Step::admit);
        let credential = known.map_or_else(|| name_of_unknown(key), |known| known.name.clone());
        let seed = match &step {
            Step::Chance(chance) => chance.seed.unwrap_or(program.seed),
            _ => program.seed,
        };
        let draw = mix(seed ^ mix(hash(&credential)) ^ mix(index)) % 100;
        let in_flight = state.stats.of(&credential).in_flight;
        let played = step.resolve(running, draw, in_flight).clone();
        Some(Choice {
            credential,
            step,
            played,
        })
    }

    /// An id that no other request of this upstream has.
    pub fn next_id(&self) -> String {
        let mut state = self.lock();
        state.ids += 1;
        let (seed, n) = (state.program.seed, state.ids);
        format!("{:016x}{n:08x}", mix(seed ^ mix(n)))
    }

    /// Adds a record and gives its number.
    pub fn begin(&self, mut record: Record) -> u64 {
        let mut state = self.lock();
        state.stats.requests += 1;
        state.records += 1;
        let n = state.records;
        record.n = n;
        if let Some(name) = &record.credential {
            let counts = state.stats.of(name);
            counts.requests += 1;
            counts.in_flight += 1;
            *counts.steps.entry(record.played.clone()).or_default() += 1;
        }
        if state.log.len() >= MAX_LOG {
            state.log.pop_front();
            state.stats.log_dropped += 1;
        }
        state.log.push_back(record);
        drop(state);
        self.changed();
        n
    }

    /// Says how a request ended.
    pub fn end(
        &self,
        n: u64,
        credential: Option<&str>,
        bytes_out: u64,
        left_after: Option<Duration>,
    ) {
        let mut state = self.lock();
        if let Some(name) = credential {
            let counts = state.stats.of(name);
            counts.in_flight = counts.in_flight.saturating_sub(1);
        }
        // A reset, or the log's bound, may have dropped it.
        if let Some(record) = state.log.iter_mut().rev().find(|record| record.n == n) {
            record.bytes_out = bytes_out;
            record.over = true;
            record.peer_left_after_ms =
                left_after.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        }
        drop(state);
        self.changed();
    }

    /// A connection was accepted; gives its number.
    pub fn connected(&self) -> u64 {
        let mut state = self.lock();
        state.stats.connections_open += 1;
        state.stats.connections_accepted += 1;
        state.connections += 1;
        let number = state.connections;
        drop(state);
        self.changed();
        number
    }

    pub fn disconnected(&self) {
        let mut state = self.lock();
        state.stats.connections_open = state.stats.connections_open.saturating_sub(1);
        drop(state);
        self.changed();
    }

    fn changed(&self) {
        self.version
            .send_modify(|version| *version = version.wrapping_add(1));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here can be left half done by a panic, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stats {
    /// A credential's counts. Names of unknown keys come from outside: past the bound they share one.
    fn of(&mut self, name: &str) -> &mut CredentialStats {
        let full = self.credentials.len() >= MAX_COUNTS && !self.credentials.contains_key(name);
        let name = if full { "other" } else { name };
        self.credentials.entry(name.to_owned()).or_default()
    }
}

/// The name of a key that no program knows: enough to tell two apart, not enough to use one.
fn name_of_unknown(key: &str) -> String {
    format!("unknown-{:08x}", hash(key) >> 32)
}

fn hash(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(8)
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// One step of SplitMix64: a generator that is the same in every version of every library.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Records kept. Chosen: about ten megabytes.
const MAX_LOG: usize = 10_000;
/// Keys counted one by one. Chosen: ten times the largest program.
const MAX_COUNTS: usize = 100_000;
