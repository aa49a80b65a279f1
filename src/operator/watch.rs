//! The same again and again, on a screen of its own.
//!
//! In a terminal the alternate screen is used, as `less` does: what was there before is there afterwards,
//! and nothing of the watching is left in what can be scrolled back. Each line is cleared and written anew, all in
//! one go, so that nothing flickers. A signal ends it, and the terminal is as it was.
//! Elsewhere each text follows the one before.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use terminal_size::Height;
use tokio::signal::unix::{SignalKind, signal};

use super::status::{print, terminal};

/// Chosen: a person sees a change, and berth does not notice the watching.
const EVERY: Duration = Duration::from_secs(2);
/// The alternate screen, no cursor, and no line goes on in the next.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Shows `first`, then what `next` says every two seconds, until a signal ends it.
///
/// # Errors
///
/// Nothing can be printed any more.
pub fn watch(first: String, next: Arc<dyn Fn() -> String + Send + Sync>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let screen = Screen::enter()?;
    let watched = runtime.block_on(async {
        let ended = |kind| signal(kind).map_err(|e| e.to_string());
        let mut interrupt = ended(SignalKind::interrupt())?;
        let mut terminate = ended(SignalKind::terminate())?;
        let mut hangup = ended(SignalKind::hangup())?;
        let mut resized = ended(SignalKind::window_change())?;
        let mut shown = first;
        loop {
            screen.show(&shown)?;
            let next = next.clone();
            // It blocks, and a signal must not wait for it.
            let later = async {
                tokio::time::sleep(EVERY).await;
                tokio::task::spawn_blocking(move || next()).await
            };
            tokio::select! {
                told = later => shown = told.map_err(|e| e.to_string())?,
                _ = resized.recv() => {}
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
            }
        }
    });
    runtime.shutdown_background();
    watched
}

/// Where it is shown; as it was before, once this is gone.
struct Screen {
    own: bool,
}

impl Screen {
    fn enter() -> Result<Screen, String> {
        let own = terminal().is_some();
        if own {
            print(ENTER)?;
        }
        Ok(Screen { own })
    }

    fn show(&self, text: &str) -> Result<(), String> {
        match terminal().filter(|_| self.own) {
            Some((_, Height(rows))) => print(&drawn(text, usize::from(rows))),
            None => print(&format!("{text}\n")),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.own {
            let mut out = std::io::stdout();
            // Nobody is left to be told.
            let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// What draws `text` over whatever is there, in so many rows.
fn drawn(text: &str, rows: usize) -> String {
    let lines = text.lines().count();
    let fits = lines <= rows;
    let shown = if fits { rows } else { rows.saturating_sub(1) };
    let mut drawn: Vec<String> = text
        .lines()
        .take(shown)
        .map(|line| format!("{CLEAR_LINE}{line}"))
        .collect();
    if !fits {
        drawn.push(format!("{CLEAR_LINE}{} more lines", lines - shown));
    }
    format!("{HOME}{}{CLEAR_BELOW}", drawn.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_fits_and_leaves_nothing_of_before() {
        assert_eq!(drawn("a\nb\n", 2), "\x1b[H\x1b[Ka\r\n\x1b[Kb\x1b[J");
        assert_eq!(
            drawn("a\nb\nc\n", 2),
            "\x1b[H\x1b[Ka\r\n\x1b[K2 more lines\x1b[J"
        );
        assert_eq!(drawn("", 0), "\x1b[H\x1b[J");
    }
}
