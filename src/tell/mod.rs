//! The commands that read the audit log: `explain` tells one request, `audit` picks and sums up many.
//!
//! They read a file that another process is writing, that may be a gigabyte, and that may hold half a
//! line where a disk was full. So the file is read in blocks, never whole ([`log`]); a line that does
//! not parse is counted and said, and ends nothing ([`line`]). What a rotation has moved away is part of
//! the log ([`files`]). Words become sentences in one place ([`words`]).
//!
//! What is printed is what the log holds, which is names that `observe::safe` has let through; the
//! ticket for a vendor is less than that ([`ticket`]).

pub mod audit;
pub mod explain;
mod files;
mod filter;
pub mod group;
mod line;
mod log;
mod tally;
mod ticket;
mod timeline;
mod words;

use std::path::PathBuf;

use clap::Args;

use crate::config::{self, Config};
use crate::terminal::Failure;

/// Which log is read.
#[derive(Args, Debug)]
pub struct Source {
    /// The audit log, with what a rotation has moved away: FILE.1, FILE.2.gz, ... `/dev/stdin` is a pipe.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// The configuration, whose `audit.path` is read where no log is named.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The files of a log, and the configuration where one was named.
#[derive(Debug)]
struct Found {
    /// The newest first; never empty.
    files: Vec<PathBuf>,
    config: Option<Config>,
}

impl Source {
    fn find(&self) -> Result<Found, Failure> {
        let config = match &self.config {
            None => None,
            Some(path) => {
                let config = config::load(path);
                Some(config.map_err(|problems| Failure::Asked(problems.to_string()))?)
            }
        };
        let of_config = || Some(config.as_ref()?.audit.as_ref()?.path.clone());
        let Some(path) = self.audit.clone().or_else(of_config) else {
            let problem = match &self.config {
                None => "say where the audit log is: --audit FILE, or -c FILE for its `audit.path`"
                    .to_owned(),
                Some(path) => format!(
                    "{} has no `audit.path`: set it, or name the log with --audit FILE",
                    path.display()
                ),
            };
            return Err(Failure::Asked(problem));
        };
        let files = files::of(&path).unwrap_or_else(|error| {
            eprintln!(
                "warning: {} alone is read, and nothing that a rotation has moved away: its folder \
                 cannot be listed ({error})",
                path.display()
            );
            vec![path]
        });
        Ok(Found { files, config })
    }
}

/// Whether the configuration has all of these credentials.
///
/// # Errors
///
/// The names that there are, and the one that was perhaps meant.
pub fn known(ids: &[String], config: &Config) -> Result<(), Failure> {
    let known: Vec<&str> = config.credentials.iter().map(|it| it.id.as_str()).collect();
    match ids.iter().find(|id| !known.contains(&id.as_str())) {
        None => Ok(()),
        Some(id) => Err(Failure::Asked(format!(
            "no such credential; there are: {}{}",
            known.join(", "),
            config::suggestion(id, known.iter().copied())
        ))),
    }
}

/// A log that cannot be read.
fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::Undone(format!(
        "the audit log {} cannot be read: {error}; name one that you may read, with --audit FILE",
        path.display()
    ))
}
