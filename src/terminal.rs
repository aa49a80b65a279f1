//! How a command speaks: in colours and to the width of a terminal, plainly anywhere else.
//!
//! Output that goes into a file or a pipe has one form, whatever the terminal beside it: no colours,
//! [`PLAIN_WIDTH`] columns. A command that fails says what happened and what to do, in one place.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use terminal_size::terminal_size_of;

/// Whether colours are used: on a terminal, unless `NO_COLOR` is set to something.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// For what is written to `out`.
    pub fn on(out: &impl IsTerminal) -> Paint {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Paint(out.is_terminal() && !plain)
    }

    /// A heading.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// What is there for the eye only.
    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    /// What went well.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// What did not.
    pub fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Columns where there is no terminal (chosen: what a mail or an issue shows without wrapping).
pub const PLAIN_WIDTH: usize = 100;

/// Columns of `out`, within what a person can read.
pub fn width(out: &impl AsFd) -> usize {
    match terminal_size_of(out) {
        Some((columns, _)) => usize::from(columns.0).clamp(60, 160),
        None => PLAIN_WIDTH,
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// The command line or the configuration is bad: exit code 2. The text stands alone.
    Asked(String),
    /// It could not be done: exit code 1.
    Undone(String),
}

impl Failure {
    /// Says so on standard error; the exit code.
    pub fn tell(&self) -> ExitCode {
        eprintln!("{self}");
        match self {
            Failure::Asked(_) => ExitCode::from(2),
            Failure::Undone(_) => ExitCode::FAILURE,
        }
    }

    /// What standard output did not take. A reader that has enough (`| head`) is no failure.
    pub fn of_output(error: &io::Error) -> Option<Failure> {
        match error.kind() {
            io::ErrorKind::BrokenPipe => None,
            _ => Some(Failure::Undone(format!(
                "standard output cannot be written: {error}"
            ))),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Asked(text) | Failure::Undone(text) => write!(f, "berth: {text}"),
        }
    }
}

/// A JSON text in printable ASCII, which says the same: what is not is written as `\u` and its number.
/// A terminal obeys characters that do not print, the C1 controls and the direction marks among them.
pub fn ascii_json(text: &[u8]) -> Cow<'_, [u8]> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n');
    if text.iter().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 64);
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            ' '..='~' | '\n' => plain.push(c),
            // Raw, they stand between values only.
            '\t' | '\r' => plain.push(' '),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string does not fail.
                    let _ = write!(plain, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(plain.into_bytes())
}

/// Writes `text` to standard output.
///
/// # Errors
///
/// It cannot be written, and somebody still reads.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match done.as_ref().err().and_then(Failure::of_output) {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_same_in_plain_letters() {
        let text = "{\t\"a\":\r\"\u{9b}31m\u{202e}é\u{1f600}\u{7f}\"\n}";
        let plain = String::from_utf8(ascii_json(text.as_bytes()).into_owned()).unwrap();
        assert_eq!(
            plain,
            "{ \"a\": \"\\u009b31m\\u202e\\u00e9\\ud83d\\ude00\\u007f\"\n}"
        );
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&plain), read(text));
        // What is no UTF-8 is no JSON; a terminal may take it for a control all the same.
        assert_eq!(&*ascii_json(b"a\x9bb"), b"a\\ufffdb");
    }
}
