//! docs/performance.md: what was measured, and below it what people wrote, which is kept.

use std::fmt::Write as _;
use std::fs;
use std::io::Result;
use std::path::Path;

use crate::figures::written;

/// From this line on the document is written by hand.
const BY_HAND: &str = "<!-- From here on by hand: `make bench` keeps it. -->";

/// What a bench has found.
#[derive(Default)]
pub struct Report {
    goals: Vec<[String; 6]>,
    tables: Vec<Table>,
    missing: Vec<String>,
}

/// Figures of everybody who was measured in the same way.
pub struct Table {
    /// What it shows.
    pub title: &'static str,
    /// How it was measured.
    pub about: String,
    /// The first column names who.
    pub columns: Vec<String>,
    /// One for each contender.
    pub rows: Vec<Vec<String>>,
}

impl Report {
    /// A figure that is to be at most so much.
    pub fn at_most(
        &mut self,
        what: &str,
        shown: (&str, &str),
        figure: f64,
        limit: f64,
        unit: &str,
    ) {
        let goal = format!("at most {limit}{unit}");
        self.goal(what, shown, (figure, unit), goal, figure <= limit);
    }

    /// A figure that is to be at least so much.
    pub fn at_least(
        &mut self,
        what: &str,
        shown: (&str, &str),
        figure: f64,
        limit: f64,
        unit: &str,
    ) {
        let goal = format!("at least {limit}{unit}");
        self.goal(what, shown, (figure, unit), goal, figure >= limit);
    }

    fn goal(
        &mut self,
        what: &str,
        (berth, other): (&str, &str),
        (figure, unit): (f64, &str),
        goal: String,
        reached: bool,
    ) {
        let reached = match (figure.is_nan(), reached) {
            (true, _) => "not measured",
            (false, true) => "yes",
            (false, false) => "**no**",
        };
        let figure = format!("{}{unit}", written(figure));
        eprintln!("  {what}: {figure} ({goal}: {reached})");
        self.goals.push([
            what.to_owned(),
            berth.to_owned(),
            other.to_owned(),
            figure,
            goal,
            reached.to_owned(),
        ]);
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        let mut text = String::new();
        write_table(&mut text, &table.columns, &table.rows);
        eprintln!("{text}");
        self.tables.push(table);
    }

    /// Says what could not be measured, and why.
    pub fn missing(&mut self, what: String) {
        eprintln!("  not measured: {what}");
        self.missing.push(what);
    }

    /// Writes the document, and keeps what was written by hand in it.
    pub fn write(&self, path: &Path, machine: &str) -> Result<()> {
        let earlier = fs::read_to_string(path).unwrap_or_default();
        let by_hand = earlier.split_once(BY_HAND).map_or("\n", |(_, text)| text);
        let mut text = format!(
            "# Performance\n\nWritten by `make bench`: berth beside what people would use instead, in one run on one \
             machine.\n\n{machine}\n## What was to be reached\n\n"
        );
        let columns = [
            "measured",
            "berth",
            "beside it",
            "figure",
            "to reach",
            "reached",
        ];
        write_table(&mut text, &columns, &self.goals);
        for table in &self.tables {
            let _ = write!(text, "\n## {}\n\n{}\n\n", table.title, table.about);
            write_table(&mut text, &table.columns, &table.rows);
        }
        text.push_str("\n## Not measured\n\n");
        for what in &self.missing {
            let _ = writeln!(text, "- {what}");
        }
        text.push_str(NOT_MEASURED);
        let _ = write!(text, "\n{BY_HAND}{by_hand}");
        fs::write(path, text)
    }
}

const NOT_MEASURED: &str = "\
- A network: everything is on loopback, where nothing is lost or late and packets are large.
- Generator, upstream and proxy on machines of their own: here they share the cores, so requests per second
  at saturation are those of all three together, and a proxy that needs less leaves more to the other two.
  CPU per request is the figure that carries over to other machines.
- TLS to the upstream, HTTP/2 on either side, a proxy on the way out.
- More than two cores, other processors, other kernels.
- Days: a run of minutes shows no leak that takes hours.
";

fn write_table<C: AsRef<str>, R: AsRef<[String]>>(text: &mut String, columns: &[C], rows: &[R]) {
    let line = |text: &mut String, cells: &mut dyn Iterator<Item = &str>| {
        for cell in cells {
            let _ = write!(text, "| {cell} ");
        }
        text.push_str("|\n");
    };
    line(text, &mut columns.iter().map(AsRef::as_ref));
    line(text, &mut columns.iter().map(|_| "---"));
    for row in rows {
        line(text, &mut row.as_ref().iter().map(String::as_str));
    }
}
