//! The latest refusals, one a row.

use std::fmt::{self, Write};

use super::markup::{Escaped, cell, model, table};
use crate::observe::refusals::RefusalStatus;
use crate::observe::status::Status;

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"latest\">\n<h2 id=\"latest\">Latest refusals</h2>\n",
    )?;
    if status.refusals.is_empty() {
        return page.write_str("<p>None since this process started.</p>\n</section>\n");
    }
    table(
        page,
        "The newest first; each is here once its request has ended. Times are UTC.",
        &["Time", "Credential", "Model", "Refused", "Then"],
    )?;
    page.write_str("<tbody role=\"rowgroup\">\n")?;
    status
        .refusals
        .iter()
        .take(SHOWN)
        .try_for_each(|it| row(page, it))?;
    page.write_str("</tbody>\n</table>\n</section>\n")
}

fn row(page: &mut String, it: &RefusalStatus) -> fmt::Result {
    let clock = it.at.get(11..19).unwrap_or(&it.at);
    page.write_str("<tr role=\"row\">")?;
    // It may have come from the process before this one.
    let (at, clock) = (Escaped(&it.at), Escaped(clock));
    let time = format!("<time datetime=\"{at}\">{clock}</time>");
    cell(page, "Time", time)?;
    cell(page, "Credential", Escaped(&it.credential))?;
    let name = it.model.as_deref().unwrap_or("none");
    cell(page, "Model", Escaped(model(name)))?;
    let (verdict, place) = (it.verdict.replace('_', " "), shape(&it.shape));
    let mut refused = format!("{}, {}", Escaped(&verdict), Escaped(place));
    if let Some(code) = &it.code {
        write!(refused, ": <code>{}</code>", Escaped(code))?;
    }
    cell(page, "Refused", refused)?;
    match (&*it.then, &it.next) {
        (_, Some(next)) => cell(page, "Then", format!("{} was asked", Escaped(next)))?,
        ("commit", None) => cell(page, "Then", "passed on to the client")?,
        ("give_up", None) => cell(page, "Then", "the client had left")?,
        (_, None) => cell(page, "Then", "nobody else was asked: berth answered")?,
    }
    page.write_str("</tr>\n")
}

fn shape(shape: &str) -> &str {
    match shape {
        "http_400" => "status 400",
        "http_429" => "status 429",
        "http_500" => "status 500",
        "http_503" => "status 503",
        "http_529" => "status 529",
        "json_200" => "in a document under a 200",
        "sse" => "inside a 200 stream",
        "websocket" => "inside a WebSocket",
        "handshake" => "instead of a WebSocket",
        other => other,
    }
}

/// Of those in `/status`, what fits on a page.
const SHOWN: usize = 20;
