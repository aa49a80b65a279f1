//! Credentials of one kind side by side, where the address asks for it.

use std::fmt::{self, Write};

use super::markup::{Escaped, cell, model, plural, table};
use crate::observe::groups::{GroupStatus, GroupsStatus};
use crate::observe::status::Status;

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str(
        "<section aria-labelledby=\"groups\">\n<h2 id=\"groups\">Whose refusals?</h2>\n",
    )?;
    links(page, status)?;
    if let Some(groups) = &status.groups {
        rows(page, groups)?;
    }
    page.write_str("</section>\n")
}

fn links(page: &mut String, status: &Status) -> fmt::Result {
    page.write_str("<p>Compare by:")?;
    let asked = status.groups.as_ref().map(|it| it.by.as_str());
    for kind in status.kinds() {
        let word = kind.word();
        let current = match asked == Some(&*word) {
            true => " aria-current=\"true\"",
            false => "",
        };
        let (to, name) = (kind.query(), Escaped(kind.name()));
        write!(page, " <a href=\"./?{to}#groups\"{current}>{name}</a>")?;
    }
    if asked.is_some() {
        page.write_str(" <a href=\"./#groups\">nothing</a>")?;
    }
    page.write_str("</p>\n")
}

fn rows(page: &mut String, groups: &GroupsStatus) -> fmt::Result {
    table(
        page,
        "By group and model: refused for want of a seat / admitted.",
        &[
            "Group",
            "Model",
            "Ready",
            "15 minutes",
            "1 hour",
            "24 hours",
        ],
    )?;
    page.write_str("<tbody role=\"rowgroup\">\n")?;
    let shown = groups.rows.iter().take(MOST_ROWS);
    shown.clone().try_for_each(|it| row(page, it))?;
    page.write_str("</tbody>\n</table>\n")?;
    match groups.rows.len() - shown.len() {
        0 => Ok(()),
        more => writeln!(page, "<p>{more} more rows are in /status.</p>"),
    }
}

fn row(page: &mut String, row: &GroupStatus) -> fmt::Result {
    write!(
        page,
        "<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">{}</th>",
        Escaped(&row.group)
    )?;
    cell(page, "Model", Escaped(model(&row.model)))?;
    let all = plural(row.credentials as u64, "credential");
    cell(page, "Ready", format!("{} of {all}", row.ready))?;
    let (refused, admitted) = (row.refused, row.admitted);
    for (column, refused, admitted) in [
        ("15 minutes", refused.quarter, admitted.quarter),
        ("1 hour", refused.hour, admitted.hour),
        ("24 hours", refused.day, admitted.day),
    ] {
        cell(page, column, format!("{refused}/{admitted}"))?;
    }
    page.write_str("</tr>\n")
}

/// Chosen: what a person compares.
const MOST_ROWS: usize = 200;
