//! What is asked of the simulator itself rather than of the API it plays: its page, its log, its
//! program. These requests are neither logged nor counted.

use super::journal::Journal;
use super::program::{Program, Then};
use super::step::Step;
use std::fmt::Write as _;

/// An answer of the control API.
pub(super) struct Reply {
    pub status: u16,
    pub kind: &'static str,
    pub body: String,
}

/// Answers a control request; `None` where the path is none of the simulator's own.
pub(super) fn answer(journal: &Journal, method: &str, path: &str, body: &[u8]) -> Option<Reply> {
    let reply = match (method, path) {
        ("GET", "/") => text(200, page(&journal.program())),
        ("GET", "/__sim/log") => {
            let lines = journal.log().iter().map(line).collect();
            Reply {
                status: 200,
                kind: "application/x-ndjson",
                body: lines,
            }
        }
        ("GET", "/__sim/stats") => Reply {
            status: 200,
            kind: "application/json",
            body: line(&journal.stats()),
        },
        ("POST", "/__sim/reset") => {
            journal.reset();
            text(200, "reset\n".into())
        }
        ("POST", "/__sim/program") => match set_program(journal, body) {
            Ok(()) => text(200, "program set\n".into()),
            Err(why) => text(400, format!("{why}\n")),
        },
        _ if path.starts_with("/__sim/") => text(
            404,
            "GET /__sim/log, GET /__sim/stats, POST /__sim/program, POST /__sim/reset\n".into(),
        ),
        _ => return None,
    };
    Some(reply)
}

/// The page of a program: its keys, and what each does.
pub(super) fn page(program: &Program) -> String {
    let mut page = String::from(
        "A simulated AI API. Each key behaves in its own way:\n\
         \n  curl -N URL/v1/responses -H 'authorization: Bearer KEY' \\\n\
         \x20      -d '{\"model\": \"gpt-sim\", \"input\": \"hi\", \"stream\": true}'\n\n",
    );
    for (key, credential) in &program.credentials {
        let mut steps: Vec<String> = credential.steps.iter().take(8).map(words).collect();
        if credential.steps.len() > 8 {
            steps.push("...".into());
        }
        match (credential.then, credential.steps.len()) {
            (_, 0) => steps.push("admit".into()),
            (Then::Last, _) => {}
            (Then::Cycle, _) => steps.push("again from the first".into()),
            (Then::Admit, _) => steps.push("admit".into()),
        }
        // Writing to a String cannot fail.
        let _ = writeln!(page, "  {key:<30} {}", steps.join(", then "));
    }
    if program.accept_any {
        page.push_str("  any other key is served as well\n");
    }
    page.push_str("\nGET /__sim/log, GET /__sim/stats, POST /__sim/program, POST /__sim/reset\n");
    page
}

fn words(step: &Step) -> String {
    match step {
        Step::Refuse(how) => {
            let named = super::step::Shape::ALL
                .iter()
                .find(|(_, shape)| *shape == how.shape);
            format!("refuse ({})", named.map_or("", |(name, _)| name))
        }
        other => other.name().to_owned(),
    }
}

fn set_program(journal: &Journal, body: &[u8]) -> Result<(), String> {
    let yaml = std::str::from_utf8(body).map_err(|_| "the program is not UTF-8".to_owned())?;
    let program = Program::parse(yaml).map_err(|why| why.to_string())?;
    journal.set_program(program).map_err(|why| why.to_string())
}

fn text(status: u16, body: String) -> Reply {
    Reply {
        status,
        kind: "text/plain; charset=utf-8",
        body,
    }
}

fn line(value: &impl serde::Serialize) -> String {
    // Plain structs with string keys: this cannot fail.
    let mut line = serde_json::to_string(value).unwrap_or_default();
    line.push('\n');
    line
}
