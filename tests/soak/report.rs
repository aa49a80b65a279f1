//! What a soak found, as a table for people and as a verdict.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::client::Met;
use crate::trouble::Done;

/// What a process occupies.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub pid: u32,
    pub resident: u64,
    pub files: usize,
}

/// What a soak found.
pub struct Report {
    pub time: Duration,
    pub seed: u64,
    pub met: BTreeMap<Met, u64>,
    /// Requests that were due when as many as may be were under way already.
    pub late: u64,
    pub done: Done,
    /// By verdict.
    pub attempts: BTreeMap<String, u64>,
    /// Requests that got an answer and have no line in the audit.
    pub untold: usize,
    /// Of warm processes.
    pub samples: Vec<Process>,
    /// The last one, when all clients are gone.
    pub last: Process,
    pub left: Vec<String>,
}

/// A process may grow by so much in the last third: tables that fill with sessions, fragments.
const GROWTH: u64 = 32 << 20;
const FILES: usize = 64;

const BEGIN: &str = "<!-- soak: written by `make soak` -->\n";
const END: &str = "<!-- soak: end -->\n";

impl Process {
    /// Of a process that lives.
    pub fn of(pid: u32) -> Process {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| {
            let rest = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
            rest.parse::<u64>().ok()
        });
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        Process {
            pid,
            resident: resident.unwrap_or_default() << 10,
            files: files.map_or(0, Iterator::count),
        }
    }
}

impl Report {
    /// What must not be, one sentence each.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = self.left.clone();
        for (met, count) in &self.met {
            if let Met::Wrong(what) = met {
                wrong.push(format!("{count} x {what}"));
            }
        }
        if self.untold > 0 {
            wrong.push(format!("{} answers without an audit line", self.untold));
        }
        if self.count(|met| *met == Met::Whole) == 0 || self.faults() == 0 {
            wrong.push("nothing happened".to_owned());
        }
        if let Some((first, last)) = self.of_the_last() {
            if last.resident > first.resident + GROWTH {
                wrong.push(format!(
                    "{} to {}",
                    size(first.resident),
                    size(last.resident)
                ));
            }
        }
        if self.last.files > FILES + self.samples.first().map_or(0, |it| it.files) {
            wrong.push(format!("{} files open at the end", self.last.files));
        }
        wrong
    }

    /// The table.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let _ = self.tell(&mut text);
        text
    }

    fn tell(&self, text: &mut String) -> std::fmt::Result {
        let requests: u64 = self.met.values().sum();
        let part = |count: u64| {
            format!(
                "{count} ({:.2} %)",
                100.0 * count as f64 / requests.max(1) as f64
            )
        };
        writeln!(text, "| what | how much |\n|---|---|")?;
        writeln!(
            text,
            "| time, seed, build | {} min, {}, {} |",
            self.time.as_secs() / 60,
            self.seed,
            if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
        )?;
        writeln!(text, "| requests | {requests} |")?;
        writeln!(
            text,
            "| put off, because 1,000 were under way | {} |",
            self.late
        )?;
        writeln!(
            text,
            "| programs changed, upstreams killed, orders of an operator, reloads | {}, {}, {}, {} |",
            self.done.moods, self.done.deaths, self.done.orders, self.done.reloads
        )?;
        writeln!(
            text,
            "| attempts that upstreams refused or broke | {} |",
            self.faults()
        )?;
        writeln!(
            text,
            "| whole answers | {} |",
            part(self.count(|met| *met == Met::Whole))
        )?;
        writeln!(
            text,
            "| errors instead of an answer | {} |",
            part(self.count(|met| matches!(met, Met::Refused(_))))
        )?;
        for (met, count) in &self.met {
            if let Met::Refused(status) = met {
                writeln!(text, "| of these with status {status} | {count} |")?;
            }
        }
        writeln!(
            text,
            "| streams that failed after output and said so | {} |",
            part(self.count(|met| *met == Met::Failed))
        )?;
        writeln!(
            text,
            "| connections that broke after output, visibly | {} |",
            part(self.count(|met| *met == Met::Cut))
        )?;
        writeln!(
            text,
            "| clients that left on purpose | {} |",
            part(self.count(|met| *met == Met::Left))
        )?;
        writeln!(
            text,
            "| **answers lost, doubled, out of order, cut and whole to the eye, or with a secret** | **{}** |",
            self.count(|met| matches!(met, Met::Wrong(_)))
        )?;
        writeln!(text, "| answers without an audit line | {} |", self.untold)?;
        if let Some((first, last)) = self.of_the_last() {
            writeln!(
                text,
                "| memory of the last process, warm and at the end of the load | {}, {} |",
                size(first.resident),
                size(last.resident)
            )?;
        }
        let most = self.samples.iter().map(|it| it.resident).max();
        writeln!(
            text,
            "| most memory of a warm process | {} |",
            size(most.unwrap_or_default())
        )?;
        writeln!(
            text,
            "| at rest afterwards: memory, open files, requests in flight | {}, {}, {} |",
            size(self.last.resident),
            self.last.files,
            self.left
                .iter()
                .filter(|it| it.starts_with("berth_in_flight"))
                .count()
        )?;
        writeln!(text, "\n| verdict | attempts |\n|---|---|")?;
        for (verdict, count) in &self.attempts {
            writeln!(text, "| `{verdict}` | {count} |")?;
        }
        Ok(())
    }

    /// Replaces the section of a document that is written by this.
    pub fn write(&self, path: &str) {
        let document = std::fs::read_to_string(path).unwrap();
        let (before, rest) = document.split_once(BEGIN).expect("no section of the soak");
        let (_, after) = rest.split_once(END).expect("no end of the soak's section");
        let text = self.text();
        std::fs::write(path, format!("{before}{BEGIN}\n{text}\n{END}{after}")).unwrap();
    }

    fn count(&self, which: impl Fn(&Met) -> bool) -> u64 {
        let counts = self.met.iter().filter(|(met, _)| which(met));
        counts.map(|(_, count)| count).sum()
    }

    /// Attempts that an upstream did not serve.
    fn faults(&self) -> u64 {
        let all: u64 = self.attempts.values().sum();
        let count = |verdict: &str| self.attempts.get(verdict).copied().unwrap_or_default();
        all - count("admitted") - count("client_gone")
    }

    /// The first and the last sample of the process that served last.
    fn of_the_last(&self) -> Option<(Process, Process)> {
        let last = *self.samples.last()?;
        let first = self.samples.iter().find(|it| it.pid == last.pid)?;
        Some((*first, last))
    }
}

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
