//! Sessions, counted from a connection's first byte to its end, so that a process knows when it may
//! leave without cutting one.
//!
//! pingora offers a fixed sleep for that, and closes at once every connection whose request it has
//! not read yet; under load both lose requests. So here a draining process waits for the count, and
//! `connection` ends those that stay silent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// For what was accepted and is not counted yet. Chosen: far more than that takes.
pub const SETTLE: Duration = Duration::from_secs(2);

/// The open sessions of a process.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<watch::Sender<usize>>);

/// One of them.
#[derive(Debug)]
pub struct Counted(Sessions);

impl Default for Sessions {
    fn default() -> Sessions {
        Sessions(Arc::new(watch::Sender::new(0)))
    }
}

impl Sessions {
    /// How many are open.
    pub fn open(&self) -> usize {
        *self.0.borrow()
    }

    /// Returns once none has been open for so long.
    pub async fn none_left(&self, settle: Duration) {
        let mut count = self.0.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = count.wait_for(|open| *open == 0).await;
            let again = count.wait_for(|open| *open > 0);
            if tokio::time::timeout(settle, again).await.is_err() {
                return;
            }
        }
    }

    /// One more, until what this gives is dropped.
    pub fn enter(&self) -> Counted {
        self.0.send_modify(|open| *open += 1);
        Counted(self.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let one_less = |open: &mut usize| *open = open.saturating_sub(1);
        self.0.0.send_modify(one_less);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_may_leave_when_its_last_session_has_ended() {
        let sessions = Sessions::default();
        let (first, second) = (sessions.enter(), sessions.enter());
        assert_eq!(sessions.open(), 2);
        let left = tokio::spawn({
            let sessions = sessions.clone();
            async move { sessions.none_left(SETTLE).await }
        });
        drop(first);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!left.is_finished());
        drop(second);
        left.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_comes_late_is_waited_for() {
        let sessions = Sessions::default();
        let left = tokio::spawn({
            let sessions = sessions.clone();
            async move { sessions.none_left(SETTLE).await }
        });
        tokio::time::sleep(SETTLE / 2).await;
        let late = sessions.enter();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!left.is_finished());
        drop(late);
        left.await.unwrap();
    }
}
