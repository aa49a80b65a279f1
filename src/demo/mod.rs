//! `berth demo`: every refusal that berth knows, met on the wire, and what a client sees of it.
//!
//! The problem: what berth does happens between two connections and is invisible when it works. The
//! promise: without configuration and without keys, one command shows it, and fails if anything is not
//! as stated. Each case says in code what must happen ([`cases`]); what happened is read from the
//! client's own bytes and from the audit log, and the two are compared ([`story`]).
//!
//! Simulated upstream and edge live in this process, so whatever ends it ends them too; only the private
//! folder with the audit log has to be removed. Refused alternative: `berth run` as a child process,
//! which outlives a demo that is killed.
//!
//! Limits: HTTP/1.1 without TLS, one request at a time for each case and dialect.
//!
//! | file | question it answers |
//! |---|---|
//! | `cases` | what is shown, and what must happen? |
//! | `stage` | how do the simulator and the edge get their parts? |
//! | `client` | what does a client see? |
//! | `story` | what happened, and is it as stated? |
//! | `table` | how is it told? |

mod cases;
mod client;
mod stage;
mod story;
mod table;

use std::io;
use std::process::ExitCode;
use std::time::Instant;

use cases::{Case, Dialect, cases};
use tokio::signal::unix::{SignalKind, signal};

use stage::Stage;
use story::Story;
use table::Table;

/// Runs the demo; with `serve`, goes on serving until a signal comes.
///
/// # Errors
///
/// The demo could not be set up or told. What was not as stated is told, and in the exit code.
pub fn run(serve: bool) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| format!("the demo cannot start its threads: {e}"))?;
    let done = runtime.block_on(async {
        let shown = tokio::select! {
            shown = show(serve) => shown?,
            stopped = stopped() => {
                stopped?;
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
        if serve {
            table::invite(&shown.stage).map_err(unwritable)?;
            stopped().await?;
        }
        shown.stage.strike().await;
        Ok(match shown.as_stated {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    });
    runtime.shutdown_background();
    done
}

/// Everything has been shown, and the stage still stands.
struct Shown {
    stage: Stage,
    as_stated: bool,
}

async fn show(serve: bool) -> Result<Shown, String> {
    let started = Instant::now();
    let cases = cases();
    let stage = Stage::set(&cases, serve).await?;
    let mut table = Table::begin(&cases).map_err(unwritable)?;
    for case in &cases {
        let told = meet(&stage, case).await?;
        table.tell(case, &told).map_err(unwritable)?;
    }
    let as_stated = table.end(started.elapsed()).map_err(unwritable)?;
    Ok(Shown { stage, as_stated })
}

/// A case in all its dialects at once.
async fn meet(stage: &Stage, case: &Case) -> Result<Vec<Story>, String> {
    let one = async |dialect: Dialect| {
        let seen = client::ask(stage.edge(), case, dialect).await;
        story::tell(stage, case, dialect, seen).await
    };
    let (responses, chat, messages) = tokio::join!(
        one(Dialect::Responses),
        one(Dialect::Chat),
        one(Dialect::Messages)
    );
    Ok(vec![responses?, chat?, messages?])
}

/// Returns at the first signal that asks the process to end.
async fn stopped() -> Result<(), String> {
    let hear = |kind| signal(kind).map_err(|e| format!("signals cannot be heard: {e}"));
    let mut terminate = hear(SignalKind::terminate())?;
    let mut hang_up = hear(SignalKind::hangup())?;
    let mut interrupt = hear(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

fn unwritable(error: io::Error) -> String {
    format!("the demo's output cannot be written: {error}")
}

/// What shells call a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
