//! The table of credentials and their models.

use std::fmt::{self, Write};

use super::chart::Chart;
use super::markup::{Escaped, cell, model, plural, table};
use crate::observe::allowances::AllowanceStatus;
use crate::observe::brief::brief;
use crate::observe::rank::{self, Rest};
use crate::observe::status::{CredentialStatus, PairStatus, Pieces, Status};

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"pairs\">\n<h2 id=\"pairs\">Credentials and models</h2>\n",
    )?;
    table(
        page,
        "By credential and model: its state, and how many attempts were refused for want of a seat \
         and how many admitted. In the charts admitted goes up, refused down.",
        &["Model", "State", "15 minutes", "1 hour", "24 hours"],
    )?;
    for credential in &status.credentials {
        page.write_str("<tbody role=\"rowgroup\">\n")?;
        heading(page, credential)?;
        let pairs = status.pairs.iter().filter(|it| tells(it, credential));
        let (pairs, rest) = rank::shown(pairs, status.credentials.len(), |pair| rank::Facts {
            model: &pair.model,
            state: pair.state,
            refused: pair.refused,
            admitted: pair.admitted,
        });
        if pairs.is_empty() {
            unused(page, credential)?;
        }
        pairs.iter().try_for_each(|pair| row(page, pair))?;
        if let Some(rest) = rest {
            summed(page, credential, &rest)?;
        }
        page.write_str("</tbody>\n")?;
    }
    page.write_str("</table>\n")?;
    states(page)?;
    page.write_str("</section>\n")
}

/// Whether a pair is this credential's and says something: "ready with every model" goes without.
fn tells(pair: &PairStatus, credential: &CredentialStatus) -> bool {
    pair.credential == credential.id && (pair.model != "*" || pair.state != "ready")
}

fn heading(page: &mut String, credential: &CredentialStatus) -> fmt::Result {
    let id = Escaped(&credential.id);
    write!(
        page,
        "<tr role=\"row\" class=\"credential\"><th role=\"rowheader\" scope=\"rowgroup\" colspan=\"5\">\
         <span class=\"name\">{id}</span> <span class=\"facts\">at {}, {} in flight",
        Escaped(&credential.upstream),
        plural(credential.in_flight, "request"),
    )?;
    for (name, value) in &credential.labels {
        write!(page, ", {} {}", Escaped(name), Escaped(value))?;
    }
    write!(
        page,
        "</span> <a class=\"facts\" id=\"to-{id}\" data-credential=\"{id}\" href=\"#orders\" \
         aria-label=\"Orders for {id}\">Orders</a>"
    )?;
    for allowance in &credential.allowance {
        write!(page, "<span class=\"allowance\">{}</span>", Left(allowance))?;
    }
    page.write_str("</th></tr>\n")
}

fn row(page: &mut String, pair: &PairStatus) -> fmt::Result {
    let name = Escaped(model(&pair.model));
    write!(
        page,
        "<tr role=\"row\" data-pair=\"{} with {name}\" data-state=\"{}\">\
         <th role=\"rowheader\" scope=\"row\">{name}</th>",
        Escaped(&pair.credential),
        pair.state,
    )?;
    let left = pair
        .left_ms
        .map_or_else(String::new, |ms| format!(", {} left", brief(ms)));
    let mut state = format!("<span>{}{left}</span>", Badge(pair.state));
    if !pair.basis.is_empty() {
        write!(
            state,
            "<span class=\"basis\">{}</span>",
            Escaped(&pair.basis)
        )?;
    }
    cell(page, "State", state)?;
    let (refused, admitted) = (pair.refused, pair.admitted);
    let spans = [
        (
            "15 minutes",
            refused.quarter,
            admitted.quarter,
            &pair.series.quarter,
        ),
        ("1 hour", refused.hour, admitted.hour, &pair.series.hour),
        ("24 hours", refused.day, admitted.day, &pair.series.day),
    ];
    for (column, refused, admitted, pieces) in spans {
        cell(page, column, Span(refused, admitted, pieces))?;
    }
    page.write_str("</tr>\n")
}

/// The pairs without a row.
fn summed(page: &mut String, credential: &CredentialStatus, rest: &Rest) -> fmt::Result {
    write!(
        page,
        "<tr role=\"row\" data-rest=\"{}\"><th role=\"rowheader\" scope=\"row\">{} more</th>",
        Escaped(&credential.id),
        rest.pairs,
    )?;
    cell(page, "State", "each in <a href=\"status\">/status</a>")?;
    let spans = [
        ("15 minutes", rest.refused.quarter, rest.admitted.quarter),
        ("1 hour", rest.refused.hour, rest.admitted.hour),
        ("24 hours", rest.refused.day, rest.admitted.day),
    ];
    for (column, refused, admitted) in spans {
        cell(
            page,
            column,
            format_args!("{refused} refused, {admitted} admitted"),
        )?;
    }
    page.write_str("</tr>\n")
}

/// A credential of which nothing is known yet.
fn unused(page: &mut String, credential: &CredentialStatus) -> fmt::Result {
    write!(
        page,
        "<tr role=\"row\" data-pair=\"{} with every model\" data-state=\"{}\">\
         <th role=\"rowheader\" scope=\"row\">every model</th>",
        Escaped(&credential.id),
        credential.state,
    )?;
    cell(page, "State", Badge(credential.state))?;
    for column in ["15 minutes", "1 hour", "24 hours"] {
        cell(page, column, "not asked")?;
    }
    page.write_str("</tr>\n")
}

fn states(page: &mut String) -> fmt::Result {
    page.write_str("<details id=\"states\"><summary>What the states mean</summary>\n<dl>\n")?;
    for (state, meaning) in STATES {
        writeln!(page, "<dt>{}</dt><dd>{meaning}</dd>", Badge(state))?;
    }
    page.write_str("</dl></details>\n")
}

/// A state: a mark for the eye, and its word.
pub(super) struct Badge<'s>(pub &'s str);

impl fmt::Display for Badge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, mark) = match self.0 {
            "ready" => ("good", "✓"),
            "cooling" | "probing" | "limited" => ("soon", "◐"),
            "held_out" | "drained" => ("told", "‖"),
            _ => ("bad", "✕"),
        };
        write!(
            f,
            "<span class=\"state {class}\"><span aria-hidden=\"true\">{mark}</span> {}</span>",
            self.0.replace('_', " ")
        )
    }
}

/// The counts and the chart of a span.
struct Span<'p>(u32, u32, &'p Pieces);

impl fmt::Display for Span<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span(refused, admitted, pieces) = self;
        if (*refused, *admitted) == (0, 0) {
            return f.write_str("none");
        }
        write!(
            f,
            "<span class=\"counts\">{refused} refused, {admitted} admitted</span>{}",
            Chart(pieces)
        )
    }
}

/// What is left of an allowance, in a sentence.
struct Left<'a>(&'a AllowanceStatus);

impl fmt::Display for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let it = self.0;
        let name = match it.meter {
            "codex_primary" => "Codex, shorter window",
            "codex_secondary" => "Codex, longer window",
            "five_hours" => "Subscription, 5 hours",
            "seven_days" => "Subscription, 7 days",
            "requests" => "Requests",
            "input_tokens" => "Input tokens",
            "output_tokens" => "Output tokens",
            _ => "Tokens",
        };
        f.write_str(name)?;
        if let (Some(secs), true) = (it.window_s, it.meter.starts_with("codex")) {
            write!(f, " of {}", brief(secs.saturating_mul(1_000)))?;
        }
        if let Some(used) = it.used_percent {
            let left = 100.0 - used;
            write!(
                f,
                ": <meter min=\"0\" max=\"100\" low=\"15\" value=\"{left:.0}\" aria-label=\"{name}\">\
                 </meter> {left:.0} % left"
            )?;
        }
        if let Some(remaining) = it.remaining {
            let colon = if it.used_percent.is_none() { ":" } else { "," };
            write!(f, "{colon} {remaining}")?;
            match it.limit {
                Some(limit) => write!(f, " of {limit}")?,
                None => f.write_str(" left")?,
            }
        }
        match it.resets_in_s {
            Some(0) => f.write_str("; has begun anew since")?,
            Some(secs) => write!(f, "; begins anew in {}", brief(secs.saturating_mul(1_000)))?,
            None => {}
        }
        let age = brief(it.age_s.saturating_mul(1_000));
        write!(f, " (the upstream said so {age} ago)")
    }
}

const STATES: [(&str, &str); 11] = [
    ("ready", "takes requests"),
    (
        "cooling",
        "turned newcomers away while its siblings served them: asked last for a few seconds",
    ),
    (
        "shunned",
        "did so again and again: asked last until probes bring it back",
    ),
    ("probing", "single requests try whether it serves again"),
    (
        "limited",
        "its rate limit: out until the time that it stated",
    ),
    ("spent", "its quota is used up: out until the stated reset"),
    (
        "rejected",
        "its key, account or permission is refused: a person must mend it",
    ),
    ("unsupported", "it does not serve this model"),
    (
        "unreachable",
        "it could not be reached three times in a row",
    ),
    ("held_out", "out for a time, by order"),
    ("drained", "out until enabled, by order"),
];
