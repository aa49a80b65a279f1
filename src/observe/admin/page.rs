//! The status as a page: plain HTML, no script, nothing loaded, every value escaped.

use std::fmt::{self, Write};

use crate::observe::status::{SpanCounts, Status};

/// Nothing may run or be loaded, framed or sent, whatever slips into the page.
pub(super) const CSP: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(super) fn html(status: &Status) -> String {
    let mut page = String::with_capacity(4_096);
    // Writing to a `String` cannot fail.
    let _ = write_page(&mut page, status);
    page
}

fn write_page(page: &mut String, status: &Status) -> fmt::Result {
    page.push_str("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>berth</title>\n<h1>berth</h1>\n");
    let draining = if status.draining { ", draining" } else { "" };
    writeln!(
        page,
        "<p>Version {}, up {} s{draining}. Memory {} of {} bytes.</p>",
        Escaped(status.version),
        status.uptime_s,
        status.memory.used,
        status.memory.limit
    )?;
    for warning in &status.warnings {
        writeln!(page, "<p><strong>{}</strong></p>", Escaped(warning))?;
    }
    table(
        page,
        "Credentials",
        &["credential", "upstream", "state", "in flight"],
    )?;
    for credential in &status.credentials {
        let in_flight = credential.in_flight.to_string();
        row(
            page,
            &[
                &credential.id,
                &credential.upstream,
                credential.state,
                &in_flight,
            ],
        )?;
    }
    page.push_str("</table>\n");
    let heads = [
        "credential",
        "model",
        "state",
        "left",
        "basis",
        "refused 15m / 1h / 24h",
        "admitted 15m / 1h / 24h",
    ];
    table(page, "Pairs", &heads)?;
    for pair in &status.pairs {
        let left = pair
            .left_ms
            .map_or_else(String::new, |ms| format!("{} s", ms.div_ceil(1_000)));
        let (refused, admitted) = (spans(pair.refused), spans(pair.admitted));
        row(
            page,
            &[
                &pair.credential,
                &pair.model,
                pair.state,
                &left,
                &pair.basis,
                &refused,
                &admitted,
            ],
        )?;
    }
    page.push_str("</table>\n");
    table(page, "Models", &["model", "full", "waiting"])?;
    for model in &status.models {
        let full = if model.full { "full" } else { "" };
        row(page, &[&model.model, full, &model.waiting.to_string()])?;
    }
    page.push_str("</table>\n");
    let heads = ["rule", "source", "verdict", "hits", "last hit", "expires"];
    table(page, "Rules", &heads)?;
    for rule in &status.rules {
        let expires = match (&rule.expires, rule.expired) {
            (Some(day), true) => format!("{day}, over"),
            (day, _) => day.clone().unwrap_or_default(),
        };
        let last = rule.last_hit.as_deref().unwrap_or_default();
        let hits = rule.hits.to_string();
        let cells = [
            &*rule.name,
            rule.source,
            rule.verdict,
            &hits,
            last,
            &expires,
        ];
        row(page, &cells)?;
    }
    page.push_str("</table>\n</html>\n");
    Ok(())
}

fn table(page: &mut String, title: &str, heads: &[&str]) -> fmt::Result {
    write!(
        page,
        "<h2>{title}</h2>\n<table border=\"1\" cellpadding=\"4\">\n<tr>"
    )?;
    heads
        .iter()
        .try_for_each(|head| write!(page, "<th>{head}</th>"))?;
    page.write_str("</tr>\n")
}

fn row(page: &mut String, cells: &[&str]) -> fmt::Result {
    page.write_str("<tr>")?;
    cells
        .iter()
        .try_for_each(|cell| write!(page, "<td>{}</td>", Escaped(cell)))?;
    page.write_str("</tr>\n")
}

fn spans(counts: SpanCounts) -> String {
    format!("{} / {} / {}", counts.quarter, counts.hour, counts.day)
}

struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::hits::RuleHits;
    use crate::observe::safe::SafeText;
    use crate::observe::scrape::tests::pool;
    use std::time::Duration;

    #[test]
    fn a_hostile_name_is_text_on_the_page() {
        let mut snapshot = pool();
        snapshot.pairs[0].model = Some(SafeText::new("<script>alert('&\"')</script>"));
        snapshot.warnings = vec!["<b>".to_owned()];
        let page = html(&Status::new(
            &snapshot,
            Vec::new(),
            &RuleHits::default(),
            Duration::ZERO,
        ));
        assert!(page.contains("&lt;script&gt;alert(&#39;&amp;&quot;&#39;)&lt;/script&gt;"));
        assert!(!page.contains("<script") && !page.contains("<b>"));
    }

    #[test]
    fn the_page_shows_every_pair() {
        let page = html(&Status::new(
            &pool(),
            Vec::new(),
            &RuleHits::default(),
            Duration::ZERO,
        ));
        let shown = "<tr><td>campus-a</td><td>gpt-5.6-sol</td><td>cooling</td><td>4 s</td>";
        assert!(page.contains(shown), "{page}");
        assert!(page.contains("<td>campus-b</td><td>*</td><td>drained</td>"));
    }
}
