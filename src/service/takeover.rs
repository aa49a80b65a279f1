//! Taking over from the serving process: the other side of `handover`.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::channel::{Channel, ChannelError};
use super::handover::{Answer, PROTOCOL, Program, Refusal, Word};
use super::listeners::Sockets;
use crate::edge::handover::EdgeHandover;

/// How long the serving process may take for its part. It is quick, and has its own limit.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// A takeover that was begun.
pub struct Takeover {
    channel: Channel,
}

/// Starts the process that will serve, and ends, so that it becomes the child of whoever looks after
/// orphans. systemd only sees the end of its own children: a successor that died while the process
/// that started it still drains would be missed for as long as that takes.
///
/// # Errors
///
/// It cannot be started.
pub fn detach(config: &Path) -> io::Result<()> {
    let program = Program::own(config)?;
    Command::new(program.path)
        .arg("run")
        .arg("--take-over")
        .arg("-c")
        .arg(program.config)
        .stdin(Stdio::inherit())
        .spawn()
        .map(drop)
}

impl Takeover {
    /// Says that this process runs.
    ///
    /// # Errors
    ///
    /// The standard input is no channel to a serving process.
    pub fn begin() -> Result<Takeover, Refusal> {
        let channel = Channel::of_stdin().map_err(|e| lost(ChannelError::Io(e)))?;
        let mut takeover = Takeover { channel };
        takeover.say(&Answer::Started {
            protocol: PROTOCOL,
            pid: std::process::id(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        Ok(takeover)
    }

    /// Asks for the sockets.
    ///
    /// # Errors
    ///
    /// The serving process is gone, as in all that follows.
    pub fn sockets(&mut self) -> Result<Sockets, Refusal> {
        self.say(&Answer::Asks)?;
        let sent = self.hear(|word| matches!(word, Word::Sockets))?;
        Ok(Sockets::of_predecessor(sent))
    }

    /// What the serving process has learned; `None` where this version cannot read it, which costs the
    /// knowledge and not the takeover.
    pub fn learned(&mut self) -> Result<Option<EdgeHandover>, Refusal> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (word, _) = self.channel.receive(until).map_err(lost)?;
            if let Some(Word::Learned { learned }) = word {
                return Ok(serde_json::from_value(learned)
                    .inspect_err(|e| {
                        log::warn!(error:% = e; "what was learned so far is lost, it cannot be read");
                    })
                    .ok());
            }
        }
    }

    /// The channel, for what comes after.
    pub fn into_channel(self) -> Channel {
        self.channel
    }

    /// Says that this process could serve, and waits until it may.
    pub fn ready(&mut self) -> Result<(), Refusal> {
        self.say(&Answer::Ready)?;
        self.hear(|word| matches!(word, Word::Go)).map(drop)
    }

    /// Says that it does, and waits until the service is its own.
    pub fn serving(&mut self) -> Result<(), Refusal> {
        self.say(&Answer::Serving)?;
        self.hear(|word| matches!(word, Word::Yours)).map(drop)
    }

    /// Says that all is done.
    pub fn settled(&mut self) {
        if let Err(why) = self.say(&Answer::Settled) {
            log::warn!(reason:% = why; "the process before this one does not know that all is done");
        }
    }

    /// Says why not.
    pub fn refuse(&mut self, refusal: &Refusal) {
        // Where nobody hears it any more, the log has it.
        let _ = self.say(&Answer::Refused(refusal.clone()));
    }

    fn say(&mut self, answer: &Answer) -> Result<(), Refusal> {
        let until = Instant::now() + PATIENCE;
        self.channel.send(answer, &[], until).map_err(lost)
    }

    fn hear(
        &mut self,
        wanted: impl Fn(&Word) -> bool,
    ) -> Result<Vec<std::os::fd::OwnedFd>, Refusal> {
        let until = Instant::now() + PATIENCE;
        loop {
            let (word, sockets) = self.channel.receive(until).map_err(lost)?;
            if word.as_ref().is_some_and(&wanted) {
                return Ok(sockets);
            }
        }
    }
}

fn lost(error: ChannelError) -> Refusal {
    Refusal::Failed(format!("the process to take over from: {error}"))
}
