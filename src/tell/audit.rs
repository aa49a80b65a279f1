//! `berth audit`: some lines of the audit log, as they are or summed up.
//!
//! Lines are read once, in order, and given out as they are, but for what could steer a terminal, which
//! JSON can write in plain letters too. Which files were read, and what of them could not be, is said at
//! the end, on standard error.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::filter::{Filter, Wanted};
use super::group::Groups;
use super::line::{self, Line};
use super::tally::{By, Tally};
use super::{Found, Source, files, known, log, unreadable};
use crate::terminal::{self, Failure};

/// What was asked.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    wanted: Wanted,
    /// Sum up, by hour, day, client, model, credential, verdict, shape; with -c also by label:NAME,
    /// route (the host and iss claims of a token) or upstream of the credentials.
    #[arg(long, value_name = "WHAT", value_parser = By::parse)]
    by: Option<By>,
}

/// Prints what was asked.
pub fn run(options: &Options) -> ExitCode {
    match look(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn look(options: &Options) -> Result<(), Failure> {
    let found = options.source.find()?;
    let filter = options.wanted.filter();
    let mut read = Reading::of(&found, &filter)?;
    match &options.by {
        Some(by) => {
            let mut tally = Tally::new(by.clone(), groups(by, &found)?);
            read.each_line(&filter, |_, line| {
                tally.count(line, &filter);
                ControlFlow::Continue(())
            })?;
            read.check(&filter, &found)?;
            terminal::print(&tally.table())?;
        }
        None => {
            print_lines(&filter, &mut read)?;
            read.check(&filter, &found)?;
        }
    }
    read.tell();
    Ok(())
}

fn groups(by: &By, found: &Found) -> Result<Groups, Failure> {
    match (by, &found.config) {
        (By::Kind(kind), Some(config)) => kind.groups(config),
        (By::Kind(_), None) => Err(Failure::Asked(
            "the log knows credentials by their names only: add -c FILE to say of what kind they are"
                .to_owned(),
        )),
        _ => Ok(Groups::new()),
    }
}

fn print_lines(filter: &Filter<'_>, read: &mut Reading) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut failed = None;
    read.each_line(filter, |bytes, _| {
        let line = terminal::ascii_json(bytes);
        match out.write_all(&line).and_then(|()| out.write_all(b"\n")) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Err(error) = out.flush() {
        failed.get_or_insert(error);
    }
    match failed.as_ref().and_then(Failure::of_output) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// The files that are read, and what they were.
struct Reading {
    /// The oldest first.
    files: Vec<PathBuf>,
    /// When the first request of all came.
    begins: Option<String>,
    /// Lines that were meant.
    meant: u64,
    /// Lines about something else.
    other: u64,
    /// Lines that might have been meant and cannot be read.
    unread: u64,
    first_unread: Option<String>,
}

impl Reading {
    /// As many files of the log as `filter` needs.
    fn of(found: &Found, filter: &Filter<'_>) -> Result<Reading, Failure> {
        let mut files = match filter.since() {
            None => found.files.clone(),
            Some(since) => files::needed(&found.files, since)
                .map_err(|(path, error)| unreadable(&path, &error))?,
        };
        files.reverse();
        Ok(Reading {
            files,
            begins: None,
            meant: 0,
            other: 0,
            unread: 0,
            first_unread: None,
        })
    }

    /// Gives every line that `filter` wants to `take`, until it has enough.
    fn each_line(
        &mut self,
        filter: &Filter<'_>,
        mut take: impl FnMut(&[u8], &Line<'_>) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        for path in std::mem::take(&mut self.files) {
            let mut number = 0;
            let done = log::each_line(&path, |whole| {
                number += 1;
                // A batch of berth's begins with an empty line where the one before was cut.
                if whole.is_empty() {
                    return ControlFlow::Continue(());
                }
                let Some(bytes) = line::of_audit(whole) else {
                    self.other += 1;
                    return ControlFlow::Continue(());
                };
                if self.begins.is_none() {
                    self.begins = Line::read(bytes).map(|line| line.ts.to_string());
                }
                if !filter.may_want(bytes) {
                    return ControlFlow::Continue(());
                }
                match Line::read(bytes) {
                    Some(line) if filter.wants(&line) => {
                        self.meant += 1;
                        return take(bytes, &line);
                    }
                    Some(_) => {}
                    None => {
                        self.unread += 1;
                        self.first_unread
                            .get_or_insert_with(|| format!("{}, line {number}", path.display()));
                    }
                }
                ControlFlow::Continue(())
            });
            let done = done.map_err(|error| unreadable(&path, &error))?;
            self.files.push(path);
            if done.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// A name that neither the log nor the configuration knows is a slip of the fingers.
    fn check(&self, filter: &Filter<'_>, found: &Found) -> Result<(), Failure> {
        match (filter.credential(), &found.config) {
            (Some(id), Some(config)) if self.meant == 0 => known(&[id.to_owned()], config),
            _ => Ok(()),
        }
    }

    /// Says on standard error what was read, and what was not.
    fn tell(&self) {
        let names: Vec<String> = self
            .files
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let begins = match &self.begins {
            Some(begins) => format!("; its first request came at {begins}"),
            None => "; no request is in it".to_owned(),
        };
        eprintln!("read: {}{begins}", names.join(", "));
        if self.meant == 0 && self.begins.is_some() {
            eprintln!("no request is what was asked for");
        }
        if self.other > 0 {
            eprintln!(
                "lines that are not of an audit log, left out: {}",
                self.other
            );
        }
        if let Some(first) = &self.first_unread {
            eprintln!(
                "warning: left out what cannot be read, lines: {}; the first is {first} (a full disk \
                 leaves half lines)",
                self.unread
            );
        }
    }
}
