//! How it is told: a row for each credential, a row for each group, one sentence.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Row;
use super::meaning::{self, Answers};
use crate::admission::Shape;
use crate::observe::safe::{SafeCode, UpstreamRequestId};
use crate::tell::group::Groups;
use crate::terminal::Paint;

/// Columns of the table, `answer` painted.
const HEADING: [&str; 8] = [
    "credential",
    "answer",
    "shape",
    "status",
    "code",
    "ms",
    "upstream request id",
    "route",
];

/// Where the answer stands.
const ANSWER: usize = 1;

/// What has no value.
const NOTHING: &str = "-";

/// The whole text. `groups` are called as their first part says.
pub fn tell(rows: &[Row], groups: Option<(&str, &Groups)>, paint: Paint) -> String {
    let mut text = columns(rows, paint);
    let answers: Vec<Answers> = rows
        .iter()
        .map(|row| Answers::of(row.credential.as_str(), row.reply.finding))
        .collect();
    text.push('\n');
    if let Some((kind, groups)) = groups {
        let mut of_group: BTreeMap<&str, Answers> = BTreeMap::new();
        for (row, answer) in rows.iter().zip(&answers) {
            let group = groups
                .get(row.credential.as_str())
                .map_or(NOTHING, String::as_str);
            let sum = of_group
                .entry(group)
                .or_insert_with(|| Answers::none(group));
            sum.add(answer);
        }
        let of_group: Vec<Answers> = of_group.into_values().collect();
        let width = of_group
            .iter()
            .map(|it| it.name.chars().count())
            .max()
            .unwrap_or_default();
        for it in &of_group {
            let _ = writeln!(
                text,
                "{kind} {:width$}  {} admitted, {} refused, {} other",
                it.name, it.admitted, it.refused, it.other
            );
        }
        let _ = writeln!(text, "\n{}", meaning::of_groups(kind, &of_group));
        return text;
    }
    let _ = writeln!(text, "{}", meaning::of_credentials(&answers));
    text
}

fn columns(rows: &[Row], paint: Paint) -> String {
    let cells: Vec<[String; 8]> = rows.iter().map(cells).collect();
    let width = |n: usize| {
        let all = cells.iter().filter_map(|row| row.get(n));
        let all = all.map(|cell| cell.chars().count());
        let heading = HEADING.get(n).map_or(0, |it| it.len());
        all.max().unwrap_or_default().max(heading)
    };
    let widths: Vec<usize> = (0..HEADING.len()).map(width).collect();
    let mut text = String::new();
    let heading = HEADING.map(str::to_owned);
    let heading = row_of(&heading, &widths, |_, cell| cell);
    let _ = writeln!(text, "{}", paint.dim(&heading));
    for (row, cells) in rows.iter().zip(&cells) {
        let painted = |n, cell: String| match (n, row.reply.finding.was_admitted()) {
            (ANSWER, true) => paint.good(&cell),
            (ANSWER, false) => paint.bad(&cell),
            _ => cell,
        };
        let _ = writeln!(text, "{}", row_of(cells, &widths, painted));
    }
    text
}

fn row_of(
    cells: &[String; 8],
    widths: &[usize],
    painted: impl Fn(usize, String) -> String,
) -> String {
    let cells = cells
        .iter()
        .zip(widths)
        .enumerate()
        .map(|(n, (cell, width))| painted(n, format!("{cell:width$}")));
    let cells: Vec<String> = cells.collect();
    cells.join("  ").trim_end().to_owned()
}

fn cells(row: &Row) -> [String; 8] {
    let reply = &row.reply;
    let or_nothing = |text: Option<String>| text.unwrap_or_else(|| NOTHING.to_owned());
    let code = reply
        .code
        .as_ref()
        .map(SafeCode::as_str)
        .or(reply.fault.as_deref());
    [
        row.credential.to_string(),
        reply.finding.as_str().to_owned(),
        or_nothing(reply.shape.map(|it| Shape::as_str(it).to_owned())),
        or_nothing(reply.status.map(|it| it.to_string())),
        or_nothing(code.map(str::to_owned)),
        reply.took.as_millis().to_string(),
        or_nothing(
            reply
                .upstream_request_id
                .as_ref()
                .map(|it| UpstreamRequestId::as_str(it).to_owned()),
        ),
        or_nothing(row.route.as_ref().map(ToString::to_string)),
    ]
}
