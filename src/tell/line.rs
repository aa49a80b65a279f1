//! A line of the audit log, read back.
//!
//! What was written by [`crate::observe::record`] is read without copying. A line of another version
//! may lack a field or have one more; neither makes it unreadable. Words stay words: [`super::words`]
//! knows which of them it can explain.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::SystemTime;

use memchr::memchr;
use serde::Deserialize;

use super::words;
use crate::admission::Verdict;

/// How a line of the audit begins.
pub const TIME_COMES_FIRST: &[u8] = br#"{"ts":""#;

/// One request of a client.
#[derive(Debug, Deserialize)]
pub struct Line<'a> {
    /// When it came.
    #[serde(borrow)]
    pub ts: Text<'a>,
    /// Its id.
    #[serde(borrow)]
    pub request_id: Text<'a>,
    /// Who asked.
    #[serde(borrow, default)]
    pub client: Option<Text<'a>>,
    /// The prefix of its route.
    #[serde(borrow, default)]
    pub route: Option<Text<'a>>,
    /// Its method.
    #[serde(borrow, default)]
    pub method: Text<'a>,
    /// Its path.
    #[serde(borrow, default)]
    pub path: Text<'a>,
    /// The model it asked for.
    #[serde(borrow, default)]
    pub model: Option<Text<'a>>,
    /// Its session's hash.
    #[serde(borrow, default)]
    pub session: Option<Text<'a>>,
    /// How it asked.
    #[serde(borrow, default)]
    pub transport: Text<'a>,
    /// Every attempt upstream, in order.
    #[serde(borrow, default)]
    pub attempts: Vec<Attempt<'a>>,
    /// Why the answer was let through.
    #[serde(borrow, default)]
    pub commit_reason: Option<Text<'a>>,
    /// How it ended.
    #[serde(borrow, default)]
    pub outcome: Text<'a>,
    /// Why it was not tried elsewhere.
    #[serde(borrow, default)]
    pub blocked: Option<Text<'a>>,
    /// The code that was replaced.
    #[serde(borrow, default)]
    pub rewrote: Option<Rewrote<'a>>,
    /// The client's status.
    #[serde(default)]
    pub status: Option<u16>,
    /// Bytes of body that the client got.
    #[serde(default)]
    pub bytes_out: u64,
    /// What the answer says it used.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// From its head to its end.
    #[serde(default)]
    pub ms_total: u64,
}

/// One attempt upstream.
#[derive(Debug, Deserialize)]
pub struct Attempt<'a> {
    /// Whose secret was used.
    #[serde(borrow)]
    pub credential: Text<'a>,
    /// The model asked for.
    #[serde(borrow, default)]
    pub model: Option<Text<'a>>,
    /// What it came to.
    #[serde(borrow)]
    pub verdict: Text<'a>,
    /// Where a refusal was written.
    #[serde(borrow, default)]
    pub shape: Option<Text<'a>>,
    /// The upstream's status.
    #[serde(default)]
    pub status: Option<u16>,
    /// The upstream's error code.
    #[serde(borrow, default)]
    pub code: Option<Text<'a>>,
    /// The rule that decided.
    #[serde(borrow, default)]
    pub rule: Option<Text<'a>>,
    /// From the request sent to the verdict.
    #[serde(default)]
    pub ms_to_verdict: Option<u64>,
    /// Frames held when the verdict came.
    #[serde(default)]
    pub held_frames: u64,
    /// Bytes held when the verdict came.
    #[serde(default)]
    pub held_bytes: u64,
    /// Whether its answer went to the client.
    #[serde(default)]
    pub committed: bool,
    /// The upstream's own id of it.
    #[serde(borrow, default)]
    pub upstream_request_id: Option<Text<'a>>,
    /// The upstream may have done the work all the same.
    #[serde(default)]
    pub possible_duplicate: bool,
    /// What was done next.
    #[serde(borrow, default)]
    pub then: Text<'a>,
}

/// An error code that was turned into another.
#[derive(Debug, Deserialize)]
pub struct Rewrote<'a> {
    /// The upstream's.
    #[serde(borrow)]
    pub from: Text<'a>,
    /// The client's.
    #[serde(borrow)]
    pub to: Text<'a>,
}

/// Tokens, as the answer counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Of the request.
    pub input: u64,
    /// Of `input`: read from a cache.
    pub cached: u64,
    /// Of the answer.
    pub output: u64,
    /// Of `output`: reasoning.
    pub reasoning: u64,
}

/// Text that is borrowed from its line where it has no escapes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A time with its zone (`Z`). The formatter fails after the year 9999, which an edited log may reach.
pub fn rfc3339(time: SystemTime) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(24);
    match write!(text, "{}", humantime::format_rfc3339_millis(time)) {
        Ok(()) => text,
        Err(_) => "a time after the year 9999".to_owned(),
    }
}

/// The audit's part of a line: the whole, or what follows the head that berth's own log, and a journal
/// before it, give to each line. `None` where the line is about something else.
pub fn of_audit(bytes: &[u8]) -> Option<&[u8]> {
    let start = memchr(b'{', bytes)?;
    let line = bytes.get(start..)?;
    (start == 0 || line.starts_with(TIME_COMES_FIRST)).then_some(line)
}

impl<'a> Line<'a> {
    /// `None` where that is no line of an audit log.
    pub fn read(bytes: &'a [u8]) -> Option<Line<'a>> {
        let line: Line<'a> = serde_json::from_slice(of_audit(bytes)?).ok()?;
        line.came().map(|_| line)
    }

    /// When the request came; always known of a line that was read.
    pub fn came(&self) -> Option<SystemTime> {
        humantime::parse_rfc3339(&self.ts).ok()
    }
}

impl Attempt<'_> {
    /// Whether the upstream had a seat for it; as the record says it.
    pub fn was_admitted(&self) -> bool {
        match words::member(&Verdict::ALL, Verdict::as_str, &self.verdict) {
            Some(Verdict::ClientGone) => self.committed,
            Some(verdict) => verdict.was_admitted(),
            None => false,
        }
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// As [`Text`] is shown: a log that somebody has edited must not steer a terminal.
impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use std::fmt::Write as _;
        self.0.chars().try_for_each(|c| match c {
            ' '..='~' => f.write_char(c),
            _ => f.write_char('?'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let written = include_bytes!("../../tests/golden/audit_line.json");
        let line = Line::read(written.trim_ascii_end()).unwrap();
        assert_eq!(&*line.request_id, "br-01kn4h0000abcdefghjkmnpqrs");
        assert_eq!(line.attempts.len(), 2);
        assert_eq!(&*line.attempts[0].verdict, "capacity");
        assert!(matches!(&line.attempts[0].verdict.0, Cow::Borrowed(_)));
        assert_eq!(line.usage.unwrap().reasoning, 30);
    }

    #[test]
    fn a_line_of_another_version_is_read_and_half_a_line_is_not() {
        let other =
            br#"{"ts":"2026-11-29T16:52:28.454Z","request_id":"br-x","more":[1],"attempts":[]}"#;
        assert!(Line::read(other).is_some());
        for cut in 0..other.len() {
            assert!(Line::read(&other[..cut]).is_none(), "cut at {cut}");
        }
        assert!(Line::read(br#"{"ts":"yesterday","request_id":"br-x"}"#).is_none());
    }

    #[test]
    fn text_cannot_steer_a_terminal() {
        let line =
            br#"{"ts":"2026-11-29T16:52:28.454Z","request_id":"br-x","model":"a\u001b[2J\u202eb"}"#;
        let line = Line::read(line).unwrap();
        assert_eq!(line.model.unwrap().to_string(), "a?[2J?b");
    }
}
