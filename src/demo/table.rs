//! How it is told: one line for a case, where its dialects have the same story.

use std::io::{self, Write};
use std::time::Duration;

use super::cases::Case;
use super::stage::Stage;
use super::story::Story;
use crate::terminal::Paint;

/// The table, and what it has told so far.
pub struct Table {
    out: io::Stdout,
    paint: Paint,
    name: usize,
    says: usize,
    requests: usize,
    attempts: usize,
    as_stated: usize,
}

/// Widths of what is not known before it happens; longer words push the rest to the right.
const DID: usize = 23;
const TRIED: usize = 9;
const SAW: usize = 36;

impl Table {
    /// Prints the heading.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written.
    pub fn begin(cases: &[Case]) -> io::Result<Table> {
        let out = io::stdout();
        let width = |of: fn(&Case) -> &str| cases.iter().map(|c| of(c).len()).max().unwrap_or(0);
        let mut table = Table {
            paint: Paint::on(&out),
            out,
            name: width(|case| case.name),
            says: width(|case| case.says),
            requests: 0,
            attempts: 0,
            as_stated: 0,
        };
        let heading = "berth demo: a simulated upstream, an edge in front of it, and one client.\n\
            Each case has credentials of its own: a does what is said, the next ones admit unless they\n\
            are said not to. Each is met in three dialects: Responses, Chat Completions and Messages;\n\
            what differs in one of them has a line of its own.\n\n";
        table.out.write_all(heading.as_bytes())?;
        let columns = table.columns([
            "case",
            "credential a",
            "read as: goes to",
            "tried",
            "the client sees",
            "took",
        ]);
        let columns = table.paint.dim(&columns);
        writeln!(table.out, "{columns}")?;
        Ok(table)
    }

    /// Tells a case.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written.
    pub fn tell(&mut self, case: &Case, stories: &[Story]) -> io::Result<()> {
        if let Some(heading) = case.heading {
            let heading = self.paint.bold(heading);
            writeln!(self.out, "\n{heading}")?;
        }
        for (n, (first, alike)) in grouped(stories).into_iter().enumerate() {
            let slowest = alike.iter().map(|s| s.seen.took).max().unwrap_or_default();
            let names: Vec<_> = alike.iter().map(|s| s.dialect.name()).collect();
            let (name, says) = match n {
                0 => (case.name, case.says.to_owned()),
                _ => ("", format!("  in {}", names.join(" and "))),
            };
            let took = format!("{} ms", slowest.as_millis());
            let line = self.columns([
                name,
                &says,
                &first.did(),
                &first.tried(),
                &first.saw(),
                &took,
            ]);
            let bad = alike.iter().any(|story| !story.differs.is_empty());
            let mark = match bad {
                false => self.paint.good("ok"),
                true => self.paint.bad("NOT AS STATED"),
            };
            writeln!(self.out, "{line}  {mark}")?;
            for story in &alike {
                for difference in &story.differs {
                    let dialect = story.dialect.name();
                    writeln!(self.out, "      {dialect}: {difference}")?;
                }
            }
        }
        for story in stories {
            self.requests += 1;
            self.attempts += story.audit.attempts.len();
            self.as_stated += usize::from(story.differs.is_empty());
        }
        self.out.flush()
    }

    /// Prints the summary; whether all was as stated.
    ///
    /// # Errors
    ///
    /// Standard output cannot be written.
    pub fn end(&mut self, took: Duration) -> io::Result<bool> {
        let good = self.as_stated == self.requests && self.requests > 0;
        let summary = format!(
            "{} requests, {} attempts at the upstream, {} as stated, {} not; {:.1} s.",
            self.requests,
            self.attempts,
            self.as_stated,
            self.requests - self.as_stated,
            took.as_secs_f64()
        );
        let summary = match good {
            true => self.paint.good(&summary),
            false => self.paint.bad(&summary),
        };
        writeln!(self.out, "\n{summary}")?;
        self.out.flush()?;
        Ok(good)
    }

    fn columns(&self, [case, says, did, tried, saw, took]: [&str; 6]) -> String {
        format!(
            "  {case:name$}  {says:said$}  {did:DID$}  {tried:TRIED$}  {saw:SAW$}  {took:>8}",
            name = self.name,
            said = self.says,
        )
    }
}

/// Where everything is, for those who want to play.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn invite(stage: &Stage) -> io::Result<()> {
    let (edge, admin, sim) = (stage.edge(), stage.admin(), stage.sim().url());
    let text = format!(
        "
Still serving. Three credentials take turns at refusing; no key is needed.

  clients     http://{edge}/v1             (OpenAI)
              http://{edge}/anthropic      (Anthropic)
  admin page  http://{admin}/
  metrics     http://{admin}/metrics
  simulator   {sim}/__sim/log
  audit log   {audit}

  curl -iN http://{edge}/v1/responses -d '{{\"model\": \"gpt-sim\", \"input\": \"hi\", \"stream\": true}}'

x-berth-attempts and x-berth-credential in the answer say what it took. Ctrl-C ends it.
",
        audit = stage.audit().display(),
    );
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Stories that read the same together, in the order of the first of each.
fn grouped(stories: &[Story]) -> Vec<(&Story, Vec<&Story>)> {
    let same = |a: &Story, b: &Story| {
        let told = |s: &Story| (s.did(), s.tried(), s.saw(), s.differs.is_empty());
        told(a) == told(b)
    };
    let mut groups: Vec<(&Story, Vec<&Story>)> = Vec::new();
    for story in stories {
        match groups.iter_mut().find(|(first, _)| same(first, story)) {
            Some((_, alike)) => alike.push(story),
            None => groups.push((story, vec![story])),
        }
    }
    groups
}
