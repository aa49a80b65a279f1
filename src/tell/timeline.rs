//! One request as a person reads it: who asked what, each attempt as a bar, how it ended.
//!
//! All bars have one scale, from the request's head to its end. The log knows how long each attempt
//! took to its verdict and not when it began, so the bars are laid end to end; time between attempts
//! (a seat waited for, a connection made) is not drawn where it was spent. After the verdict on the
//! attempt that was delivered comes its answer, drawn otherwise, up to the end.

use std::fmt::Write as _;

use super::line::{Attempt, Line};
use super::words;
use crate::terminal::Paint;

/// The story of `line`, in lines of at most `width` columns where words allow.
pub fn story(line: &Line<'_>, width: usize, paint: Paint) -> String {
    let mut page = Page {
        text: String::new(),
        width,
        paint,
    };
    page.heading(line);
    page.attempts(line);
    page.end(line);
    page.text
}

struct Page {
    text: String,
    width: usize,
    paint: Paint,
}

impl Page {
    fn heading(&mut self, line: &Line<'_>) {
        let id = self.paint.bold(&line.request_id.to_string());
        self.line(&id);
        let model = match &line.model {
            Some(model) => format!(", model {model}"),
            None => ", no model named".to_owned(),
        };
        self.said(
            0,
            &format!("{}  {} {}{model}", line.ts, line.method, line.path),
        );
        let client = match &line.client {
            Some(client) => format!("client {client}"),
            None => "a client without a name".to_owned(),
        };
        let route = match &line.route {
            Some(route) => format!("route {route}"),
            None => "no route".to_owned(),
        };
        let session = match &line.session {
            Some(session) => format!("session {session}"),
            None => "no session".to_owned(),
        };
        let transport = &line.transport;
        self.said(0, &format!("{client}, {route}, {session}, {transport}"));
        self.line("");
    }

    fn attempts(&mut self, line: &Line<'_>) {
        if line.attempts.is_empty() {
            self.said(0, "No upstream was asked.");
            self.line("");
            return;
        }
        let names = line.attempts.iter().map(|it| it.credential.chars().count());
        let names = names.max().unwrap_or_default().min(MOST_NAME);
        let verdicts = line.attempts.iter().map(|it| it.verdict.chars().count());
        let verdicts = verdicts.max().unwrap_or_default().min(MOST_NAME);
        let taken = line.attempts.iter().filter_map(|it| it.ms_to_verdict);
        let taken = taken.fold(0, u64::saturating_add);
        // A log that somebody has edited may say that the parts are longer than the whole.
        let whole = line.ms_total.max(taken).max(1);
        let beside = "1  ".len() + names + "  ||  ".len() + TIME + "  ".len() + verdicts;
        let scale = Scale {
            columns: self.width.saturating_sub(beside).clamp(10, 100),
            whole,
        };
        let end = format!("{whole} ms");
        let axis = format!(
            "{:indent$}0{end:>rest$}",
            "",
            indent = names + 5,
            rest = scale.columns - 1
        );
        let axis = self.paint.dim(&axis);
        self.line(&axis);
        let mut at = 0;
        for (n, attempt) in line.attempts.iter().enumerate() {
            let until = u64::saturating_add(at, attempt.ms_to_verdict.unwrap_or_default());
            let bar = match attempt.committed {
                true => scale.bar(at, until, whole),
                false => scale.bar(at, until, until),
            };
            let time = match attempt.ms_to_verdict {
                Some(ms) => format!("{ms} ms"),
                None => "-".to_owned(),
            };
            let word = attempt.verdict.to_string();
            let verdict = match words::is_good(&word) {
                true => self.paint.good(&word),
                false => self.paint.bad(&word),
            };
            let name = attempt.credential.to_string();
            let text = format!(
                "{}  {name:names$}  |{bar}|  {time:>TIME$}  {verdict}",
                n + 1
            );
            self.line(&text);
            self.reasons(line, attempt);
            at = until;
        }
    }

    fn reasons(&mut self, line: &Line<'_>, attempt: &Attempt<'_>) {
        let mut why = capitalised(&words::attempt(attempt));
        if let Some(shape) = &attempt.shape {
            let _ = write!(why, ", {}", words::shape(shape));
        }
        let facts = [
            attempt.status.map(|status| format!("status {status}")),
            attempt.code.as_ref().map(|code| format!("code {code}")),
            attempt.rule.as_ref().map(|rule| format!("rule {rule}")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            let _ = write!(why, " ({})", facts.join(", "));
        }
        self.said(REASON, &format!("{why}."));
        if attempt.model.as_deref() != line.model.as_deref()
            && let Some(model) = &attempt.model
        {
            self.said(
                REASON,
                &format!("Asked for model {model}, a configured fallback."),
            );
        }
        if attempt.held_bytes > 0 {
            let (frames, bytes) = (attempt.held_frames, attempt.held_bytes);
            let time = attempt.ms_to_verdict.unwrap_or_default();
            let held = match frames {
                0 => format!("{bytes} bytes"),
                1 => format!("1 frame, {bytes} bytes"),
                _ => format!("{frames} frames, {bytes} bytes"),
            };
            self.said(
                REASON,
                &format!("Held: {held}, until the verdict after {time} ms."),
            );
        }
        let mut then = capitalised(&words::then(&attempt.then));
        if attempt.possible_duplicate {
            then.push_str("; the upstream may have done the work all the same");
        }
        self.said(REASON, &format!("{then}."));
        if let Some(id) = &attempt.upstream_request_id {
            self.said(REASON, &format!("The upstream calls it {id}."));
        }
        self.line("");
    }

    fn end(&mut self, line: &Line<'_>) {
        let last = line.attempts.last();
        let stayed = match &line.blocked {
            Some(blocked) => Some(words::blocked(blocked)),
            None => last
                .and_then(|it| words::final_verdict(&it.verdict))
                .map(str::to_owned),
        };
        if let Some(why) = stayed {
            self.said(0, &format!("Not tried elsewhere: {why}."));
        }
        if let Some(reason) = &line.commit_reason {
            self.said(
                0,
                &format!("Let through: {}.", words::commit_reason(reason)),
            );
        }
        if let Some(codes) = &line.rewrote {
            let (from, to) = (&codes.from, &codes.to);
            let text = format!(
                "Rewritten: the client was told {to} in place of {from} \
                 (`admission.client_error_code`)."
            );
            self.said(0, &text);
        }
        let status = match line.status {
            Some(status) => format!("status {status}, {} bytes", line.bytes_out),
            None => "no answer".to_owned(),
        };
        let outcome = words::outcome(&line.outcome);
        let ended = format!(
            "The client got {outcome}; {status}, after {} ms.",
            line.ms_total
        );
        self.said(0, &ended);
        if let Some(usage) = line.usage {
            let tokens = format!(
                "Tokens: {} in ({} from a cache), {} out ({} of reasoning).",
                usage.input, usage.cached, usage.output, usage.reasoning
            );
            self.said(0, &tokens);
        }
    }

    /// A line as it is.
    fn line(&mut self, text: &str) {
        self.text.push_str(text.trim_end());
        self.text.push('\n');
    }

    /// A sentence, broken between words.
    fn said(&mut self, indent: usize, text: &str) {
        let mut row = String::new();
        for word in text.split(' ') {
            let room = self.width.saturating_sub(indent);
            if !row.is_empty() && row.len() + 1 + word.len() > room {
                let full = std::mem::take(&mut row);
                self.line(&format!("{:indent$}{full}", ""));
                row.push_str("  ");
            } else if !row.is_empty() {
                row.push(' ');
            }
            row.push_str(word);
        }
        self.line(&format!("{:indent$}{row}", ""));
    }
}

/// Columns of the longest time that has a place, `12345678 ms`.
const TIME: usize = 11;

/// Columns of the longest name or verdict that has a place of its own.
const MOST_NAME: usize = 32;

/// Columns before a reason.
const REASON: usize = 3;

/// From milliseconds to columns.
struct Scale {
    columns: usize,
    whole: u64,
}

impl Scale {
    /// Nothing until `at`, held until `until`, the answer until `end`.
    fn bar(&self, at: u64, until: u64, end: u64) -> String {
        let (at, until, end) = (self.column(at), self.column(until), self.column(end));
        // An attempt that took no time can still be seen.
        let at = at.min(self.columns - 1);
        let until = until.max(at + 1);
        let end = end.max(until);
        let part = |sign: &str, from: usize, to: usize| sign.repeat(to - from);
        [
            part(" ", 0, at),
            part("#", at, until),
            part("=", until, end),
            part(" ", end, self.columns),
        ]
        .concat()
    }

    fn column(&self, ms: u64) -> usize {
        let columns = u128::from(ms) * self.columns as u128 / u128::from(self.whole);
        columns.min(self.columns as u128) as usize
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_always_fills_its_place_and_shows_every_attempt() {
        for columns in [10, 33, 100] {
            for whole in [1, 7, 1000, u64::MAX] {
                let scale = Scale { columns, whole };
                for at in [0, 1, whole / 3, whole] {
                    for until in [at, at.saturating_add(1), whole, u64::MAX] {
                        let bar = scale.bar(at, until, whole.max(until));
                        assert_eq!(bar.len(), columns, "{at} {until} of {whole}");
                        assert!(bar.contains('#'), "{at} {until} of {whole}");
                    }
                }
            }
        }
        let scale = Scale {
            columns: 10,
            whole: 100,
        };
        assert_eq!(scale.bar(20, 50, 100), "  ###=====");
    }
}
