//! `berth explain`: the story of one request, from its line in the audit log.

use std::io;
use std::process::ExitCode;

use clap::Args;

use super::line::{Line, rfc3339};
use super::log::{self, Looked, Search};
use super::{Found, Source, ticket, timeline, unreadable};
use crate::observe::ids::RequestId;
use crate::terminal::{self, Failure, Paint};

/// What was asked.
#[derive(Args, Debug)]
pub struct Options {
    /// The request's id, with or without `br-`: `x-berth-request-id` of its answer.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    source: Source,
    /// For the vendor's support: times, model, path, upstream request ids, shapes; nothing private.
    #[arg(long)]
    ticket: bool,
}

/// Tells the request on standard output.
pub fn run(options: &Options) -> ExitCode {
    match tell(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn tell(options: &Options) -> Result<(), Failure> {
    let id = parse(&options.id)?;
    let found = options.source.find()?;
    let bytes = look_for(id, &found)?;
    let Some(line) = Line::read(&bytes) else {
        return Err(Failure::Undone(format!(
            "the line of {id} is there and cannot be read: it is cut (a full disk leaves half lines)"
        )));
    };
    if options.ticket {
        if line.attempts.is_empty() {
            let problem =
                format!("no upstream was asked for {id}: there is nothing to ask a vendor");
            return Err(Failure::Undone(problem));
        }
        if let Some(note) = ticket::note(&line) {
            eprintln!("{note}");
        }
        return terminal::print(&ticket::ticket(&line));
    }
    let out = io::stdout();
    let story = timeline::story(&line, terminal::width(&out), Paint::on(&out));
    terminal::print(&story)
}

fn parse(id: &str) -> Result<RequestId, Failure> {
    let text = id.trim().to_ascii_lowercase();
    let digits = text.strip_prefix("br-").unwrap_or(&text);
    RequestId::parse(&format!("br-{digits}")).ok_or_else(|| {
        Failure::Asked(
            "that is no request id: `br-` and 26 characters, as `x-berth-request-id` of an answer \
             and `request_id` of the audit log have it"
                .to_owned(),
        )
    })
}

/// The line of the request: the newest file first. Where only half of it is there, that half.
fn look_for(id: RequestId, found: &Found) -> Result<Vec<u8>, Failure> {
    // As it is written; quotes within a value are escaped, so no value can pretend to be it.
    let needle = format!("\"request_id\":\"{id}\"");
    let is_it =
        |bytes: &[u8]| Line::read(bytes).is_some_and(|line| *line.request_id == *id.to_string());
    let ts = |bytes: &[u8]| Line::read(bytes).map(|line| line.ts.to_string());
    let (mut through, mut half) = (String::new(), None);
    for (number, path) in found.files.iter().enumerate() {
        match log::find(path, needle.as_bytes(), is_it, ts).map_err(|e| unreadable(path, &e))? {
            Search::Found(line) => {
                if number > 0 {
                    eprintln!("found in {}", path.display());
                }
                return Ok(line);
            }
            Search::Nothing(Looked { lines, cut, ends }) => {
                half = half.or(cut);
                let times = match ends {
                    Some((first, last)) => format!(", from {first} to {last}"),
                    None => String::new(),
                };
                through.push_str(&format!("\n  {}: {lines} lines{times}", path.display()));
            }
        }
    }
    if let Some(half) = half {
        return Ok(half);
    }
    let came = rfc3339(id.came());
    Err(Failure::Undone(format!(
        "no request {id}. By its id it came at {came}; looked through:{through}\n\
         Name the log of that time with --audit FILE (without `audit.path` these lines are in berth's own \
         log: `journalctl -u berth | berth explain ID --audit /dev/stdin`). A request has its line when \
         it has ended."
    )))
}
