//! One clock for both ends: they are threads of one process.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Nanoseconds since the program began.
pub fn now() -> u64 {
    nanos(ORIGIN.get_or_init(Instant::now).elapsed())
}

/// A time as nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps until `at`; not at all where that is over.
pub fn sleep_until(at: Instant) {
    if let Some(left) = at.checked_duration_since(Instant::now()) {
        std::thread::sleep(left);
    }
}

/// From now on this thread, and what it starts, goes after everybody else.
pub fn give_way() {
    let _ = rustix::process::setpriority_process(None, 19);
}

/// As before that; without the right to it, it goes on giving way.
pub fn go_first() {
    let _ = rustix::process::setpriority_process(None, 0);
}
