//! Large bodies take turns, so that nobody else waits behind them.
//!
//! A socket that always has more to read, or room for more, never lets its task wait, and a hundred such
//! tasks are a long queue for everybody who only wants a few words. So of all that handle bodies larger
//! than [`LARGE`] half as many as there are cores go on at once, one piece each and then the next. To read a
//! body for its model and session takes a turn as well, of another kind, for that is done in one go.
//!
//! Who waits for a socket has no turn meanwhile. But who waits for a turn is given it whether he looks or not,
//! and holds everybody up if he does not: a turn is only asked for where nothing else is waited for.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::thread::available_parallelism;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bodies above this take turns, bytes. Chosen: what is below is through in a millisecond or two.
pub const LARGE: usize = 1024 * 1024;

/// Who may go on.
#[derive(Debug)]
pub struct Turns {
    pieces: Semaphore,
    readings: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Turns {
        let cores = available_parallelism().map_or(1, usize::from);
        let at_once = (cores / 2).max(1);
        Turns {
            pieces: Semaphore::new(at_once),
            readings: Arc::new(Semaphore::new(at_once)),
        }
    }
}

impl Turns {
    /// Does a piece of work in its turn, and lets others go on after it.
    pub async fn piece<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        let done = loop {
            // An error would mean that the turns are over, which they never are.
            let turn = self.pieces.acquire().await;
            let polled = once(work.as_mut()).await;
            drop(turn);
            match polled {
                Poll::Ready(done) => break done,
                // It will wake this task, and needs no turn to wait.
                Poll::Pending => woken().await,
            }
        };
        tokio::task::yield_now().await;
        done
    }

    /// A turn to read a whole body of this size, to be dropped when it has been read; `None` for a small one.
    pub async fn reading(&self, size: usize) -> Option<OwnedSemaphorePermit> {
        if size <= LARGE {
            return None;
        }
        self.readings.clone().acquire_owned().await.ok()
    }
}

/// Asks `work` once how far it is, without waiting. What it waits for goes on waking the task.
pub async fn once<F: Future + ?Sized>(mut work: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await
}

/// Waits until something wakes the task, or it is looked at anyway.
async fn woken() {
    let mut waited = false;
    poll_fn(|_| match std::mem::replace(&mut waited, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::sync::oneshot;

    use super::*;

    fn one() -> Turns {
        Turns {
            pieces: Semaphore::new(1),
            readings: Arc::new(Semaphore::new(1)),
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_socket_holds_nobody_up() {
        let turns = Arc::new(one());
        let (come, socket) = oneshot::channel();
        let waiting = tokio::spawn({
            let turns = turns.clone();
            async move { turns.piece(socket).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(turns.piece(async { 7 }).await, 7);
        come.send(8).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(8));
    }

    #[tokio::test]
    async fn a_body_that_never_waits_lets_others_between_its_pieces() {
        let (turns, done) = (Arc::new(one()), Arc::new(AtomicUsize::new(0)));
        let busy = tokio::spawn({
            let (turns, done) = (turns.clone(), done.clone());
            async move {
                for _ in 0..100 {
                    turns.piece(async { done.fetch_add(1, Relaxed) }).await;
                }
            }
        });
        let mut seen = Vec::new();
        while !busy.is_finished() {
            tokio::task::yield_now().await;
            seen.push(done.load(Relaxed));
        }
        // Somebody else had his say after each piece or two.
        assert!(seen.len() >= 50, "{seen:?}");
    }

    #[tokio::test]
    async fn only_large_bodies_are_read_one_after_the_other() {
        let turns = one();
        let first = turns.reading(LARGE + 1).await;
        assert!(first.is_some());
        assert!(turns.reading(LARGE).await.is_none());
        let second = turns.reading(LARGE + 1);
        let mut second = pin!(second);
        assert!(once(second.as_mut()).await.is_pending());
        drop(first);
        assert!(second.await.is_some());
    }
}
