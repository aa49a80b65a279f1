//! What all parts of the page write with.

use std::fmt::{self, Write};

/// Text that is text, in an element as in an attribute.
pub(super) struct Escaped<'t>(pub &'t str);

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

/// Opens a table. The roles are those of the elements: as cards, on a small screen, they would lose
/// them.
pub(super) fn table(page: &mut String, caption: &str, heads: &[&str]) -> fmt::Result {
    write!(
        page,
        "<table role=\"table\">\n<caption>{caption}</caption>\n<thead role=\"rowgroup\"><tr role=\"row\">"
    )?;
    for head in heads {
        write!(page, "<th scope=\"col\" role=\"columnheader\">{head}</th>")?;
    }
    page.write_str("</tr></thead>\n")
}

/// A cell; on a small screen it bears its column's name.
pub(super) fn cell(page: &mut String, column: &str, inside: impl fmt::Display) -> fmt::Result {
    write!(
        page,
        "<td role=\"cell\" data-column=\"{column}\">{inside}</td>"
    )
}

/// `1 request`, `2 requests`.
pub(super) fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {what}{s}")
}

/// The model of a pair, in words.
pub(super) fn model(name: &str) -> &str {
    match name {
        "*" => "every model",
        "none" => "no model named",
        name => name,
    }
}
