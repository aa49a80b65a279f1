//! The simulated upstream: an AI API whose every byte can be scripted, per credential.
//!
//! It answers as OpenAI (Responses, Chat Completions, embeddings) and Anthropic (Messages) do, well
//! enough for their SDKs and for Codex, and on demand it refuses in every shape that real upstreams
//! refuse in, or breaks HTTP. `berth sim` serves it alone, `berth demo` and the tests build on it;
//! `docs/sim.md` is its manual.
//!
//! Promises: the same program, seed and order of requests give the same answers; a request is in the
//! log before the first byte of its answer, and how it ended is added when it has; nothing that
//! arrives can make it panic or grow without bound.
//!
//! Refused alternative: an HTTP server library. It would frame, buffer and correct what a fault
//! injector must be able to get wrong, and hide when the peer left.
//!
//! Limits: HTTP/1.1 without TLS; no WebSocket (426, at which clients turn to HTTP).
//!
//! | file | question it answers |
//! |---|---|
//! | `program`, `step`, `params` | what can be scripted? |
//! | `streams`, `faults`, `pieces` | what do the APIs say? |
//! | `script` | which bytes, when, and how does the connection end? |
//! | `server`, `http`, `request` | how do bytes come and go? |
//! | `journal`, `control` | what happened, and how is it asked for? |

mod control;
mod faults;
mod http;
mod journal;
mod params;
mod pieces;
mod program;
mod request;
mod script;
mod server;
mod step;
mod streams;
mod units;

pub use journal::{CredentialStats, Record, Stats};
pub use program::{Credential, Program, ProgramError, Then, Track};
pub use step::{
    Admit, Announce, Call, Chance, Cut, Early503, Flap, KeepalivesForever, Malformed, Quota,
    RateLimit, Refuse, RefuseAfterOutput, ResetAfter, Seats, Shape, Stall, State, Step,
};

use journal::Journal;
use std::{
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinHandle;

/// A simulated upstream that is serving. Dropped or stopped, it closes its port and every connection.
pub struct Sim {
    addr: SocketAddr,
    journal: Arc<Journal>,
    serving: JoinHandle<()>,
}

impl Sim {
    /// Binds and serves; port 0 takes a free one. Must be called on a tokio runtime.
    pub fn start(listen: SocketAddr, program: Program) -> io::Result<Sim> {
        program
            .check()
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let listener = server::bind(listen)?;
        let addr = listener.local_addr()?;
        let journal = Arc::new(Journal::new(program));
        let serving = tokio::spawn(server::serve(listener, journal.clone()));
        Ok(Sim {
            addr,
            journal,
            serving,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://ADDR`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Closes the port and every connection, and returns when both are closed.
    pub async fn stop(mut self) {
        self.serving.abort();
        // The only error is the cancellation that was just asked for.
        let _ = (&mut self.serving).await;
    }

    /// The requests since the last reset, the oldest first.
    pub fn log(&self) -> Vec<Record> {
        self.journal.log()
    }

    /// Counts since the last reset.
    pub fn stats(&self) -> Stats {
        self.journal.stats()
    }

    /// Replaces the program; every credential starts at its first step.
    pub fn set_program(&self, program: Program) -> Result<(), ProgramError> {
        self.journal.set_program(program)
    }

    /// Forgets the log, the counts and the positions in the program.
    pub fn reset(&self) {
        self.journal.reset();
    }

    /// Waits until the log and the counts are as `wanted` says; false if they are not by `deadline`.
    pub async fn until(
        &self,
        deadline: Duration,
        mut wanted: impl FnMut(&[Record], &Stats) -> bool,
    ) -> bool {
        let mut changes = self.journal.changes();
        let watch = async {
            loop {
                changes.mark_unchanged();
                if wanted(&self.log(), &self.stats()) {
                    return true;
                }
                if changes.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(deadline, watch).await.unwrap_or(false)
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// `berth sim`: serves a program from a file, or the built-in one, until the process is interrupted.
///
/// Prints one line with the URL when ready and, for the built-in program, the keys to try.
pub async fn serve(listen: SocketAddr, program: Option<&Path>) -> Result<(), String> {
    let (program, built_in) = match program {
        Some(path) => {
            let name = path.display();
            let yaml = std::fs::read_to_string(path)
                .map_err(|why| format!("the program {name} cannot be read: {why}"))?;
            let program = Program::parse(&yaml).map_err(|why| format!("{name}: {why}"))?;
            (program, false)
        }
        None => (Program::built_in(), true),
    };
    let sim = Sim::start(listen, program).map_err(|why| {
        format!(
            "cannot listen on {listen}: {why}. Stop what listens there, or choose another address."
        )
    })?;
    let mut greeting = format!("sim: serving on {}\n", sim.url());
    if built_in {
        greeting.push_str(&control::page(&Program::built_in()));
    }
    let printed = io::stdout().write_all(greeting.as_bytes());
    printed.map_err(|why| format!("standard output: {why}"))?;
    interrupted()
        .await
        .map_err(|why| format!("signals: {why}"))?;
    sim.stop().await;
    Ok(())
}

/// Returns at the first SIGINT or SIGTERM.
async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        pressed = tokio::signal::ctrl_c() => pressed,
    }
}

#[cfg(test)]
mod tests;
