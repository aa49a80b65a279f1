//! The admission rules in force.

use std::fmt::{self, Write};

use super::markup::{Escaped, cell, table};
use crate::observe::status::{RuleStatus, Status};

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"rules\">\n<h2 id=\"rules\">Rules</h2>\n\
         <details id=\"all-rules\"><summary>What an answer is read by</summary>\n",
    )?;
    table(
        page,
        "In the order in which they are asked; <code>berth rules</code> shows their conditions.",
        &["Rule", "Source", "Verdict", "Hits", "Last hit", "Expires"],
    )?;
    page.write_str("<tbody role=\"rowgroup\">\n")?;
    status.rules.iter().try_for_each(|rule| row(page, rule))?;
    page.write_str("</tbody>\n</table>\n</details>\n</section>\n")
}

fn row(page: &mut String, rule: &RuleStatus) -> fmt::Result {
    write!(
        page,
        "<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">{}</th>",
        Escaped(&rule.name)
    )?;
    cell(page, "Source", rule.source.replace('_', " "))?;
    cell(page, "Verdict", rule.verdict.replace('_', " "))?;
    cell(page, "Hits", rule.hits)?;
    let last = rule.last_hit.as_deref().unwrap_or("never");
    cell(page, "Last hit", Escaped(last))?;
    match (&rule.expires, rule.expired) {
        (Some(day), true) => cell(page, "Expires", format!("{}, over", Escaped(day)))?,
        (Some(day), false) => cell(page, "Expires", Escaped(day))?,
        (None, _) => cell(page, "Expires", "never")?,
    }
    page.write_str("</tr>\n")
}
