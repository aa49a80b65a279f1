//! What the one sentence means here and now.
//!
//! "Selected model is at capacity" is what clients print for three different things, and each wants
//! something else done: wait, nothing, or look at one account. The page says which it is.

use std::fmt::{self, Write};

use super::markup::{Escaped, model, plural};
use crate::admission::Verdict;
use crate::observe::brief::brief;
use crate::observe::refusals::RefusalStatus;
use crate::observe::status::{PairStatus, Status};
use crate::observe::words::Outcome;
use crate::pool::NO_MODEL;

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"sentence\">\n<h2 id=\"sentence\">What does \
         <q>Selected model is at capacity</q> mean here?</h2>\n\
         <p>Clients print this one sentence for three things. As of now:</p>\n<dl>\n",
    )?;
    full(page, status)?;
    streams(page, status)?;
    credentials(page, status)?;
    page.write_str("</dl>\n</section>\n")
}

fn full(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<dt>The model is full</dt>\n<dd id=\"full\">")?;
    let full: Vec<_> = status.models.iter().filter(|it| it.full).collect();
    if full.is_empty() {
        return not_full(page, status);
    }
    page.write_str("Yes: every credential that was asked refuses ")?;
    for (number, it) in full.iter().take(MOST_NAMED).enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        write!(page, "{comma}<b>{}</b>", Escaped(model(&it.model)))?;
    }
    more(page, full.len())?;
    let waiting = full.iter().map(|it| it.waiting).max().unwrap_or(0);
    writeln!(
        page,
        ". {} for a seat. Another attempt would only add load: who gets none is told when to come \
         again.</dd>",
        match waiting {
            1 => "1 request waits".to_owned(),
            many => format!("{many} requests wait"),
        }
    )
}

/// A request that nobody took does not prove that nobody takes one: it may have been bad luck.
fn not_full(page: &mut String, status: &Status) -> fmt::Result {
    let nowhere = refused_everywhere(status);
    let Some(latest) = nowhere.first() else {
        return page
            .write_str("No: none of the latest refusals left a request without a seat.</dd>\n");
    };
    let requests = nowhere
        .chunk_by(|one, other| one.request_id == other.request_id)
        .count();
    let verb = if requests == 1 { "was" } else { "were" };
    writeln!(
        page,
        "Not proven: {} {verb} refused by every credential asked, the last with {}, its verdict at \
         <time datetime=\"{at}\">{at}</time>. A model counts as full once different sessions meet that \
         within seconds of each other (<code>admission.full</code>).</dd>",
        plural(requests as u64, "request"),
        Escaped(model(latest.model.as_deref().unwrap_or(NO_MODEL))),
        at = Escaped(&latest.at),
    )
}

/// Refusals for want of a seat, of requests for which nobody had one; newest first, those of a request
/// side by side.
fn refused_everywhere(status: &Status) -> Vec<&RefusalStatus> {
    let of_request = |it: &&RefusalStatus| {
        it.verdict == Verdict::Capacity.as_str() && it.outcome == Outcome::RefusedAll.as_str()
    };
    status.refusals.iter().filter(of_request).collect()
}

fn streams(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<dt>The stream was refused</dt>\n<dd id=\"streams\">")?;
    let seats = status
        .refusals
        .iter()
        .filter(|it| it.verdict.starts_with("capacity"));
    let (inside, plain): (Vec<_>, Vec<_>) =
        seats.partition(|it| matches!(&*it.shape, "sse" | "json_200" | "websocket"));
    if inside.is_empty() {
        return match plain.len() as u64 {
            0 => page.write_str("No: no refusal for want of a seat is among the latest.</dd>\n"),
            all => writeln!(
                page,
                "No: {} for want of a seat, and none inside an answer that had begun with 200: clients \
                 saw the status of an error.</dd>",
                plural(all, "refusal")
            ),
        };
    }
    let elsewhere = inside.iter().filter(|it| it.next.is_some()).count();
    let late = inside
        .iter()
        .filter(|it| it.verdict == "capacity_after_commit")
        .count();
    writeln!(
        page,
        "Yes: {} of the latest {} for want of a seat came inside an answer that had begun with 200. \
         {elsewhere} of them went to another credential before the client saw a byte; {late} came after \
         output, where there is no way back.</dd>",
        inside.len(),
        plural((inside.len() + plain.len()) as u64, "refusal"),
    )
}

fn credentials(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<dt>This credential is refused</dt>\n<dd id=\"refused\">")?;
    let scored = |it: &&PairStatus| matches!(it.state, "cooling" | "shunned" | "probing");
    let refused: Vec<_> = status.pairs.iter().filter(scored).collect();
    if refused.is_empty() {
        let known = match refused_everywhere(status).is_empty() {
            true => "No: no credential turns away what its siblings serve.",
            false => {
                "Not proven: no credential is known to turn away what its siblings serve, and a request \
                 that all of them refuse speaks against none."
            }
        };
        return writeln!(page, "{known}</dd>");
    }
    page.write_str("Yes, while its siblings are served: ")?;
    for (number, it) in refused.iter().take(MOST_NAMED).enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        write!(
            page,
            "{comma}<b>{}</b> with {} ({}",
            Escaped(&it.credential),
            Escaped(model(&it.model)),
            it.state
        )?;
        if let Some(ms) = it.left_ms {
            write!(page, ", {} left", brief(ms))?;
        }
        page.write_char(')')?;
    }
    more(page, refused.len())?;
    page.write_str(". They are asked last; look at these accounts.</dd>\n")
}

fn more(page: &mut String, all: usize) -> fmt::Result {
    match all.checked_sub(MOST_NAMED).filter(|more| *more > 0) {
        Some(more) => write!(page, " and {more} more"),
        None => Ok(()),
    }
}

/// Names in a sentence; more are in the table.
const MOST_NAMED: usize = 5;
