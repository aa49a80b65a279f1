//! Handing over to a successor, and what is said on the way.
//!
//! ```text
//! the serving process                       its successor
//!     starts it, by its path ────────▶  reads configuration, secrets, names
//!                            ◀──────── started, asks
//!     sockets, learned      ─────────▶  binds what is missing, builds, asks its own /healthz
//!                            ◀──────── ready
//!     go                    ─────────▶  accepts
//!                            ◀──────── serving
//!     MAINPID= to systemd
//!     yours                 ─────────▶  READY=1 to systemd
//!                            ◀──────── settled
//!     stops accepting, drains
//! ```
//!
//! Up to `serving` the successor may refuse, die or fall silent: the serving process goes on as if
//! nothing had happened. Before `go` the successor accepts nobody, so its failure costs no client. The
//! successor is not a child of the serving process (`takeover::detach`): systemd has to see its end.
//!
//! What the edge has learned goes along with the sockets; what it still learns while it drains comes
//! after (`heir`). A build that cannot read the one starts without, and skips the other.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::channel::{Channel, ChannelError, Closer};
use super::listeners::Sockets;
use super::notify;
use crate::edge::news::{News, Newsreel};
use crate::edge::state::Edge;

/// What a successor may take until it serves. Chosen: names are looked up for 5 s at most, all else
/// takes less than one.
const LIMIT: Duration = Duration::from_secs(30);

/// What it may take from there until systemd knows.
const SETTLE: Duration = Duration::from_secs(10);

/// The version of this conversation. A successor of another version is refused.
pub const PROTOCOL: u32 = 1;

/// What a successor says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Answer {
    /// It runs.
    Started {
        protocol: u32,
        pid: u32,
        build: String,
    },
    /// It has done what is slow or may fail, and asks for the sockets.
    Asks,
    /// It could serve.
    Ready,
    /// It accepts.
    Serving,
    /// systemd knows it.
    Settled,
    /// It cannot.
    Refused(Refusal),
}

/// What the serving process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Word {
    /// The sockets come with this message.
    Sockets,
    /// What this process knows of credentials and sessions.
    Learned { learned: serde_json::Value },
    /// What has happened since.
    News { news: Box<News> },
    /// Accept.
    Go,
    /// The service is yours.
    Yours,
}

/// Why a process cannot serve.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", content = "reason", rename_all = "snake_case")]
pub enum Refusal {
    /// The configuration is bad; its problems with their places.
    Configuration(String),
    /// Anything else, in a sentence.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Refusal::Configuration(reason) | Refusal::Failed(reason)) = self;
        f.write_str(reason)
    }
}

/// What is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// The binary, by its path: one that was replaced is found there.
    pub path: PathBuf,
    /// Its configuration.
    pub config: PathBuf,
}

/// A process that serves in this one's place.
#[derive(Debug)]
pub struct Successor {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub build: String,
    /// Ends when it does.
    pub channel: Channel,
    /// What it is to be told.
    pub news: Newsreel,
}

/// A handover that was begun.
pub struct Handover {
    channel: Channel,
    child: Child,
    until: Instant,
    /// What was started, once that has said so.
    started: Option<(u32, String)>,
}

impl Program {
    /// This process's own program.
    ///
    /// # Errors
    ///
    /// The system does not tell where it lies.
    pub fn own(config: &std::path::Path) -> io::Result<Program> {
        // As it was called: the path may be a link that is to point to the next version, and
        // `/proc/self/exe` names the file behind it, even after that was removed.
        let called = std::env::args_os().next().map(PathBuf::from);
        let path = match called.filter(|path| path.components().count() > 1) {
            Some(path) => std::path::absolute(path)?,
            None => std::env::current_exe()?,
        };
        let config = std::path::absolute(config)?;
        Ok(Program { path, config })
    }
}

impl Handover {
    /// Starts a successor. The second value ends the handover from elsewhere.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn begin(program: &Program) -> Result<(Handover, Closer), Refusal> {
        let failed = |e: io::Error| {
            let path = program.path.display();
            Refusal::Failed(format!("{path} cannot be started: {e}"))
        };
        let (channel, theirs) = Channel::pair().map_err(failed)?;
        let closer = channel.closer().map_err(failed)?;
        let child = Command::new(&program.path)
            .arg("take-over")
            .arg("-c")
            .arg(&program.config)
            // They name this process, or sockets that it has.
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(failed)?;
        let handover = Handover {
            channel,
            child,
            until: Instant::now() + LIMIT,
            started: None,
        };
        Ok((handover, closer))
    }

    /// Goes on to the end. Blocks; `sockets` and `edge` are the ones of this process.
    ///
    /// # Errors
    ///
    /// Why the successor does not serve. It has ended then, or is ended here.
    pub fn complete(mut self, sockets: &Sockets, edge: &Edge) -> Result<Successor, Refusal> {
        let served = self.until_it_serves(sockets, edge);
        if served.is_err() {
            // It may hang: then nothing else ends it.
            let _ = self.child.kill();
            self.started.iter().for_each(|(pid, _)| kill(*pid));
        }
        let _ = self.child.wait();
        let (pid, build, news) = served?;
        notify::main_pid(pid);
        let until = Instant::now() + SETTLE;
        let settled = self
            .say(&Word::Yours, &Sockets::default(), until)
            .and_then(|()| self.hear(until, |it| matches!(it, Answer::Settled).then_some(())));
        if settled.is_err() {
            log::warn!(pid; "the new process serves, but has not said that systemd knows it");
        }
        Ok(Successor {
            pid,
            build,
            channel: self.channel,
            news,
        })
    }

    fn until_it_serves(
        &mut self,
        sockets: &Sockets,
        edge: &Edge,
    ) -> Result<(u32, String, Newsreel), Refusal> {
        let until = self.until;
        let started = self.hear(until, |it| match it {
            Answer::Started {
                protocol,
                pid,
                build,
            } => Some((protocol, pid, build)),
            _ => None,
        });
        let (protocol, pid, build) = started?;
        self.started = Some((pid, build.clone()));
        if protocol != PROTOCOL {
            return Err(Refusal::Failed(format!(
                "version {build} hands over in another way (protocol {protocol}, here {PROTOCOL}): \
                 restart berth instead"
            )));
        }
        self.hear(until, |it| matches!(it, Answer::Asks).then_some(()))?;
        self.say(&Word::Sockets, sockets, until)?;
        let news = self.tell_learned(edge, until)?;
        self.hear(until, |it| matches!(it, Answer::Ready).then_some(()))?;
        self.say(&Word::Go, &Sockets::default(), until)?;
        self.hear(until, |it| matches!(it, Answer::Serving).then_some(()))?;
        Ok((pid, build, news))
    }

    fn say(&mut self, word: &Word, sockets: &Sockets, until: Instant) -> Result<(), Refusal> {
        self.channel
            .send(word, &sockets.fds(), until)
            .map_err(Handover::lost)
    }

    /// What the edge has learned. What would be too much to send is left out: that costs the successor
    /// some refusals, and refusing it would cost the reload. Gives what happens from here on.
    fn tell_learned(&mut self, edge: &Edge, until: Instant) -> Result<Newsreel, Refusal> {
        let (learned, news) = edge.bequeath(Instant::now());
        let learned = serde_json::to_value(learned).unwrap_or_default();
        let told = self.channel.send(&Word::Learned { learned }, &[], until);
        match told {
            // Nothing of it was sent.
            Err(ChannelError::Garbled(why)) => {
                log::warn!(reason:% = why; "what was learned is not handed over");
                let learned = serde_json::Value::Null;
                self.say(&Word::Learned { learned }, &Sockets::default(), until)?;
            }
            told => told.map_err(Handover::lost)?,
        }
        Ok(news)
    }

    /// The next answer that `wanted` takes; a refusal ends the handover.
    fn hear<T>(
        &mut self,
        until: Instant,
        wanted: impl Fn(Answer) -> Option<T>,
    ) -> Result<T, Refusal> {
        loop {
            let (answer, _) = self.channel.receive(until).map_err(Handover::lost)?;
            match answer {
                Some(Answer::Refused(refusal)) => return Err(refusal),
                Some(answer) => {
                    if let Some(taken) = wanted(answer) {
                        return Ok(taken);
                    }
                }
                None => {}
            }
        }
    }

    fn lost(error: ChannelError) -> Refusal {
        Refusal::Failed(match error {
            ChannelError::Ended => {
                "the new process ended before it served; its last words are in the log".to_owned()
            }
            ChannelError::Late => format!("the new process did not serve within {LIMIT:?}"),
            other => format!("the new process cannot be understood: {other}"),
        })
    }
}

/// Ends a process that is no child of this one, if it still lives.
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let Some(process) = process {
        // It fails only where the process has ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}
