//! The commands that read the audit log: `explain` tells one request, `audit` picks and sums up many.
//!
//! They read a file that another process is writing, that may be a gigabyte, and that may hold half a
//! line where a disk was full. So the file is read in blocks, never whole ([`log`]); a line that does
//! not parse is counted and said, and ends nothing ([`line`]). Words become sentences in one place
//! ([`words`]).
//!
//! What is printed is what the log holds, which is names that `observe::safe` has let through; the
//! ticket for a vendor is less than that ([`ticket`]).

pub mod audit;
pub mod explain;
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
    /// The audit log. `FILE.1`, to which a rotation has moved its older lines, is read too.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// The configuration, whose `audit.path` is read where no log is named.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The files of a log, and the configuration where one was named.
#[derive(Debug)]
struct Found {
    /// The older one first; never empty.
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
        let mut older = path.clone().into_os_string();
        older.push(".1");
        let older = PathBuf::from(older);
        let mut files = vec![path];
        if older.is_file() {
            files.insert(0, older);
        }
        Ok(Found { files, config })
    }
}

/// A log that cannot be read.
fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::Undone(format!(
        "the audit log {} cannot be read: {error}; name one that you may read, with --audit FILE",
        path.display()
    ))
}
