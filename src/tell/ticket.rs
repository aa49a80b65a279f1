//! One request as a vendor's support needs it: nothing that is the client's or the operator's.
//!
//! A support desk finds a request by its own id of it, or by time, path and model; shape, status and
//! code say what it was told. Everything else stays here: the client, the session, the route, the names
//! of credentials, berth's own id, what was held, what was used.
//!
//! The limit: whoever reads the ids of two attempts learns that two accounts have one owner. So the
//! ticket says in its note, which goes to the operator and not into the ticket, when it has several.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use super::line::{Line, Text, rfc3339};

/// The text for the vendor.
pub fn ticket(line: &Line<'_>) -> String {
    let mut text = String::from("An API request, attempt by attempt. Times are UTC.\n");
    let mut before: u64 = 0;
    for (n, attempt) in line.attempts.iter().enumerate() {
        let sent = line
            .came()
            .and_then(|it| it.checked_add(Duration::from_millis(before)));
        // What was waited before each attempt is not known.
        let sent = sent.map(|time| format!("{}, or a little later", rfc3339(time)));
        let ms = attempt.ms_to_verdict;
        let fields = [
            ("sent", sent),
            ("request", Some(format!("{} {}", line.method, line.path))),
            ("model", shown(&attempt.model)),
            ("your request id", shown(&attempt.upstream_request_id)),
            ("status", attempt.status.map(|status| status.to_string())),
            ("error code", shown(&attempt.code)),
            ("said in", shown(&attempt.shape)),
            ("read as", Some(attempt.verdict.to_string())),
            ("known after", ms.map(|ms| format!("{ms} ms"))),
        ];
        let _ = writeln!(text, "\nattempt {}", n + 1);
        for (name, value) in fields {
            let value = value.as_deref().unwrap_or("none");
            let _ = writeln!(text, "  {name:<17}{value}");
        }
        before = before.saturating_add(ms.unwrap_or_default());
    }
    text
}

/// What the operator should know before the ticket is sent; `None` where that is nothing.
pub fn note(line: &Line<'_>) -> Option<String> {
    let credentials: BTreeSet<&str> = line.attempts.iter().map(|it| &*it.credential).collect();
    (credentials.len() > 1).then(|| {
        format!(
            "note: these attempts used {} credentials. Who reads them all learns that the accounts \
             belong together; take out what this vendor need not see.",
            credentials.len()
        )
    })
}

fn shown(text: &Option<Text<'_>>) -> Option<String> {
    text.as_ref().map(ToString::to_string)
}
