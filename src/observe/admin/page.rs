//! The status as a page: for whoever asks in a browser why an account gets no seats.
//!
//! Promises: the page is whole without JavaScript and needs nothing from anywhere else; with
//! JavaScript it renews its own middle, which changes nothing that a person holds in hand (the focus,
//! what is typed, what is opened). Every value is escaped, and nothing may run or be loaded but the one
//! script and the one style that are compiled in: the policy names their hashes. What a glyph, a colour
//! or a bar says is said in words too.
//!
//! An order is never sent by a form: a browser could be made to post one from any page. The script
//! sends it with the token as bearer, which no other page can; without a script the page says which
//! `curl` to run.

mod chart;
mod clients;
mod credentials;
mod groups;
mod markup;
mod orders;
mod refusals;
mod rules;
mod sentence;

use std::fmt::{self, Write};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use sha2::{Digest, Sha256};

use super::guard::Orders;
use crate::observe::brief::brief;
use crate::observe::status::Status;
use markup::{Escaped, plural};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// What the page may do, whatever slips into it.
pub(super) fn policy() -> HeaderValue {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
             img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            hash(SCRIPT),
            hash(STYLE)
        );
        let nothing = HeaderValue::from_static("default-src 'none'");
        HeaderValue::try_from(policy).unwrap_or(nothing)
    });
    POLICY.clone()
}

/// The page.
pub(super) fn html(status: &Status, orders: Orders) -> String {
    let mut page = String::with_capacity(32 * 1_024);
    // Writing to a `String` cannot fail.
    let _ = write_page(&mut page, status, orders);
    page
}

fn write_page(page: &mut String, status: &Status, orders: Orders) -> fmt::Result {
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>berth status</title>\n<link rel=\"icon\" href=\"data:,\">\n\
         <style>{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#live\">Skip to the state</a>\n\
         <header>\n<h1>berth</h1>\n<p><a href=\"./\">Reload</a> \
         <button type=\"button\" id=\"pause\" hidden>Pause</button> <span id=\"when\"></span></p>\n\
         <p id=\"said\" role=\"status\"></p>\n</header>\n<main>\n\
         <div id=\"live\" tabindex=\"-1\">\n"
    )?;
    summary(page, status)?;
    credentials::section(page, status)?;
    groups::section(page, status)?;
    sentence::section(page, status)?;
    refusals::section(page, status)?;
    clients::section(page, status)?;
    rules::section(page, status)?;
    page.write_str("</div>\n")?;
    orders::section(page, status, orders)?;
    write!(
        page,
        "</main>\n<footer><p>berth {}. The same as JSON: <a href=\"status\">/status</a>; \
         for Prometheus: <a href=\"metrics\">/metrics</a>.</p></footer>\n\
         <script>{SCRIPT}</script>\n</body>\n</html>\n",
        Escaped(status.version)
    )
}

fn summary(page: &mut String, status: &Status) -> fmt::Result {
    let all = status.credentials.len();
    let ready = status.credentials.iter().filter(|it| it.state == "ready");
    let in_flight = status.credentials.iter().map(|it| it.in_flight);
    let in_flight = in_flight.fold(0, u64::saturating_add);
    writeln!(
        page,
        "<p>{} of {} ready, {} in flight; up {}, {} of {} MiB of memory used.</p>",
        ready.count(),
        plural(all as u64, "credential"),
        plural(in_flight, "request"),
        brief(status.uptime_s.saturating_mul(1_000)),
        status.memory.used.div_ceil(MIB),
        status.memory.limit / MIB,
    )?;
    if status.draining {
        page.write_str(
            "<p class=\"warning\">This process drains: it takes no new requests.</p>\n",
        )?;
    }
    for warning in &status.warnings {
        writeln!(page, "<p class=\"warning\">{}</p>", Escaped(warning))?;
    }
    Ok(())
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests;
