//! `berth audit`: some lines of the audit log, as they are or summed up.
//!
//! Lines are read once, in order, and given out as the bytes they are. What cannot be read is counted
//! and said at the end, on standard error.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use super::filter::{Filter, Wanted};
use super::group::Groups;
use super::line::Line;
use super::tally::{By, Tally};
use super::{Found, Source, log, unreadable};
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
    let mut unread = Unread::default();
    match &options.by {
        Some(by) => {
            let mut tally = Tally::new(by.clone(), groups(by, &found)?);
            each_line(&found, &filter, &mut unread, |_, line| {
                tally.count(line, &filter);
                ControlFlow::Continue(())
            })?;
            terminal::print(&tally.table())?;
        }
        None => print_lines(&found, &filter, &mut unread)?,
    }
    unread.tell();
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

fn print_lines(found: &Found, filter: &Filter<'_>, unread: &mut Unread) -> Result<(), Failure> {
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut failed = None;
    each_line(found, filter, unread, |bytes, _| {
        match out.write_all(bytes).and_then(|()| out.write_all(b"\n")) {
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

/// Gives every line that `filter` wants to `take`, until it has enough.
fn each_line(
    found: &Found,
    filter: &Filter<'_>,
    unread: &mut Unread,
    mut take: impl FnMut(&[u8], &Line<'_>) -> ControlFlow<()>,
) -> Result<(), Failure> {
    for path in &found.files {
        let mut number = 0;
        let done = log::each_line(path, |bytes| {
            number += 1;
            // A batch of berth's begins with an empty line where the one before was cut.
            if bytes.is_empty() || !filter.may_want(bytes) {
                return ControlFlow::Continue(());
            }
            match Line::read(bytes) {
                Some(line) if filter.wants(&line) => take(bytes, &line),
                Some(_) => ControlFlow::Continue(()),
                None => {
                    unread.count(path, number);
                    ControlFlow::Continue(())
                }
            }
        });
        if done.map_err(|error| unreadable(path, &error))?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Lines that might have been meant and cannot be read.
#[derive(Default)]
struct Unread {
    count: u64,
    first: Option<String>,
}

impl Unread {
    fn count(&mut self, path: &Path, number: u64) {
        self.count += 1;
        self.first
            .get_or_insert_with(|| format!("{}, line {number}", path.display()));
    }

    fn tell(&self) {
        if let Some(first) = &self.first {
            eprintln!(
                "warning: left out what cannot be read, lines: {}; the first is {first} (a full disk \
                 leaves half lines)",
                self.count
            );
        }
    }
}
