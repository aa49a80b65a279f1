//! berth as a service: it starts, hands over to a fresh process, drains and ends, and loses no session
//! and no listening socket on the way.
//!
//! `life` is the order of it, `handover` and `takeover` are the two sides of a reload, `listeners` the
//! sockets that go from one to the other, `doors` what is put behind them, `drain` the count of what
//! still runs. People and systemd reach it through `control` and `notify`, commands through `client`.
//!
//! Measured under systemd with pingora's own way instead: a broken new build left a unit that was
//! "active" and refused every connection, streams were cut, and 57 of 640 connections were lost over
//! 12 reloads.

mod channel;
pub mod client;
mod control;
mod doors;
mod handover;
mod heir;
mod life;
mod listeners;
mod notify;
mod privacy;
mod takeover;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use control::{Haste, Place};
pub use doors::{Doors, Entrance, Serving};
pub use handover::Refusal;
pub use privacy::keep as keep_private;
pub use takeover::detach;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config;
use crate::edge::serve::first_look_up;
use crate::edge::state::Edge;
use crate::start::assemble;
use control::Control;
use handover::Program;
use life::{Life, Signals};
use listeners::Sockets;
use takeover::Takeover;

/// How long names are looked up before anything is served.
const NAMES: Duration = Duration::from_secs(5);

/// Serves the configuration at `path` until a signal or an order ends it.
///
/// # Errors
///
/// Why it cannot be served.
pub fn run(path: &Path) -> Result<(), Refusal> {
    raise_open_files();
    let (edge, serving) = prepare(path)?;
    let fresh = Fresh::new(path, edge, serving, Sockets::of_systemd())?;
    fresh.open()?;
    notify::ready("serving");
    fresh.keep_sockets();
    fresh.life.live()
}

/// Takes over from the process that serves, and then does the same.
///
/// # Errors
///
/// Why it cannot; that process knows it too, and serves on.
pub fn take_over(path: &Path) -> Result<(), Refusal> {
    let mut old = Takeover::begin()?;
    let taken = take(&mut old, path);
    if let Err(refusal) = &taken {
        old.refuse(refusal);
    }
    let life = taken?;
    // The other end learns by this end's end that this process has died, so it is kept.
    heir::hear(old.into_channel(), life.edge.clone());
    life.live()
}

/// Opens the doors of `edge` and nothing more: no control socket, no signals. For `berth demo`.
///
/// # Errors
///
/// An address cannot be listened on.
pub fn open(edge: &Arc<Edge>, serving: &Serving) -> Result<Doors, Refusal> {
    let (sockets, _) = Sockets::default()
        .claim(&serving.addresses())
        .map_err(failed)?;
    let doors = Doors::new(edge, serving).map_err(failed)?;
    doors.open(serving, &sockets).map_err(failed)?;
    Ok(doors)
}

fn take(old: &mut Takeover, path: &Path) -> Result<Life, Refusal> {
    let (edge, serving) = prepare(path)?;
    let sockets = old.sockets()?;
    if let Some(learned) = old.learned()? {
        edge.take_over(&learned, Instant::now());
    }
    let most = serving.process.max_generations as usize;
    let fresh = Fresh::new(path, edge, serving, sockets)?;
    fresh.life.doors.prove().map_err(Refusal::Failed)?;
    old.ready()?;
    fresh.open()?;
    if let Err(why) = old.serving() {
        // Whoever died there serves no more, and this process does.
        log::warn!(reason:% = why; "the process before this one is lost, this one serves all the same");
    }
    notify::ready("serving");
    fresh.keep_sockets();
    notify::barrier();
    old.settled();
    client::hurry_beyond(fresh.life.control.place(), most);
    Ok(fresh.life)
}

/// Takes as many open files as the system allows: the usual limit of 1024 is there for programs that
/// use select(2). A successor inherits it.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        log::warn!(error:% = e; "the limit of open files cannot be raised");
    }
}

/// All that is slow or may fail, and needs no socket.
fn prepare(path: &Path) -> Result<(Arc<Edge>, Serving), Refusal> {
    let config =
        config::load(path).map_err(|problems| Refusal::Configuration(problems.to_string()))?;
    let (edge, serving) = assemble(config).map_err(Refusal::Failed)?;
    first_look_up(&edge, NAMES);
    Ok((edge, serving))
}

/// A process that could serve.
struct Fresh {
    life: Life,
    serving: Serving,
    gone: Vec<std::net::SocketAddr>,
}

impl Fresh {
    fn new(
        path: &Path,
        edge: Arc<Edge>,
        serving: Serving,
        inherited: Sockets,
    ) -> Result<Fresh, Refusal> {
        let (sockets, gone) = inherited.claim(&serving.addresses()).map_err(failed)?;
        for address in &gone {
            log::info!(address:%; "an address is not listened on any more");
        }
        let program = Program::own(path).map_err(failed)?;
        let doors = Doors::new(&edge, &serving).map_err(failed)?;
        let place = Place::new(&serving.process.runtime_dir, path);
        let (control, signals) = {
            let _inside = doors.office().enter();
            let control = Control::bind(place).map_err(failed)?;
            (control, Signals::catch().map_err(failed)?)
        };
        let life = Life {
            edge,
            doors,
            sockets: Arc::new(sockets),
            control,
            program,
            process: serving.process.clone(),
            signals,
        };
        Ok(Fresh {
            life,
            serving,
            gone,
        })
    }

    fn open(&self) -> Result<(), Refusal> {
        let Life {
            doors,
            sockets,
            control,
            ..
        } = &self.life;
        // Whoever finds the doors open finds the control socket too.
        control.publish().map_err(failed)?;
        doors.open(&self.serving, sockets).map_err(failed)
    }

    fn keep_sockets(&self) {
        notify::keep(&self.life.sockets);
        notify::forget(&self.gone);
    }
}

fn failed(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}
