//! Who asks, and how much of what it may.

use std::fmt::{self, Display, Write};

use super::markup::{Escaped, cell, table};
use crate::observe::status::{ClientStatus, Status};

pub(super) fn section(page: &mut String, status: &Status) -> fmt::Result {
    if status.clients.is_empty() {
        return Ok(());
    }
    page.write_str(
        "<section aria-labelledby=\"clients\">\n<h2 id=\"clients\">Clients</h2>\n\
         <details id=\"all-clients\"><summary>Who asks, and how much</summary>\n",
    )?;
    table(
        page,
        "The busiest first, each beside its limit; days are in UTC.",
        &[
            "Client",
            "In flight",
            "Last minute",
            "Tokens today",
            "Expires",
        ],
    )?;
    page.write_str("<tbody role=\"rowgroup\">\n")?;
    status
        .clients
        .iter()
        .try_for_each(|client| row(page, client))?;
    page.write_str("</tbody>\n</table>\n")?;
    if status.clients_left_out > 0 {
        writeln!(page, "<p>And {} more.</p>", status.clients_left_out)?;
    }
    page.write_str("</details>\n</section>\n")
}

fn row(page: &mut String, client: &ClientStatus) -> fmt::Result {
    write!(
        page,
        "<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">{}</th>",
        Escaped(&client.id)
    )?;
    cell(
        page,
        "In flight",
        of(client.in_flight, client.max_in_flight),
    )?;
    cell(
        page,
        "Last minute",
        of(client.requests, client.requests_per_minute),
    )?;
    cell(
        page,
        "Tokens today",
        of(client.tokens_today, client.tokens_per_day),
    )?;
    match (&client.expires, client.expired) {
        (Some(day), true) => cell(page, "Expires", format!("{}, over", Escaped(day)))?,
        (Some(day), false) => cell(page, "Expires", Escaped(day))?,
        (None, _) => cell(page, "Expires", "never")?,
    }
    page.write_str("</tr>\n")
}

fn of<T: Display>(used: T, limit: Option<T>) -> String {
    match limit {
        Some(limit) => format!("{used} of {limit}"),
        None => used.to_string(),
    }
}
