//! What the one sentence means here and now.
//!
//! "Selected model is at capacity" is what clients print for three different things, and each wants
//! something else done: wait, nothing, or look at one account. The page says which it is.

use std::fmt::{self, Write};

use super::markup::{Escaped, model, plural};
use crate::observe::brief::brief;
use crate::observe::status::{PairStatus, Status};

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
        return page.write_str("No: no model is refused by everybody.</dd>\n");
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

fn streams(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<dt>The stream was refused</dt>\n<dd id=\"streams\">")?;
    let seats = status
        .refusals
        .iter()
        .filter(|it| it.verdict.starts_with("capacity"));
    let (inside, plain): (Vec<_>, Vec<_>) =
        seats.partition(|it| matches!(&*it.shape, "sse" | "json_200" | "websocket"));
    if inside.is_empty() {
        return writeln!(
            page,
            "No: none of the latest {} for want of a seat came inside an answer that had begun with \
             200.</dd>",
            plural(plain.len() as u64, "refusal")
        );
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
        return page.write_str("No: no credential turns away what its siblings serve.</dd>\n");
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
