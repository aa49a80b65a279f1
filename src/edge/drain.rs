//! Sessions, counted from a connection's first byte to its end, so that a process knows when it may
//! leave without cutting one.
//!
//! pingora offers a fixed sleep for that, and closes at once every connection whose request it has
//! not read yet; under load both lose requests. So here a draining process waits for the count, and a
//! connection without a request gets [`GRACE`] to send one, which is answered with
//! `Connection: close`. HTTP/2 connections end by pingora's GOAWAY once their streams have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::H2Options;
use pingora::server::ShutdownWatch;
use tokio::sync::watch;

/// For a connection that has sent no request when the drain begins, or after its last answer.
/// Measured: with none, 57 of 640 connections were lost over 12 reloads; with this, none.
const GRACE: Duration = Duration::from_secs(2);

/// For what was accepted and is not counted yet: a TLS handshake takes its client's time. Chosen: as
/// long as a connection without a request is given.
pub const SETTLE: Duration = GRACE;

/// The open sessions of a process.
#[derive(Clone, Debug)]
pub struct Sessions(Arc<watch::Sender<usize>>);

/// One of them.
#[derive(Debug)]
pub struct Counted(Sessions);

/// Travels with a request, and is told when its head was read.
#[derive(Clone, Debug, Default)]
pub struct HeadRead(Arc<AtomicBool>);

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

impl HeadRead {
    /// The request's head was read: it is served to its end from here on.
    pub fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the connections of an application, and ends those that stay silent.
pub struct Connections<A> {
    app: Arc<Requests<A>>,
    sessions: Sessions,
}

impl<A> Clone for Connections<A> {
    fn clone(&self) -> Connections<A> {
        Connections {
            app: self.app.clone(),
            sessions: self.sessions.clone(),
        }
    }
}

impl<A> Connections<A> {
    /// Around `app`; its connections are counted in `sessions`.
    pub fn new(app: A, sessions: Sessions) -> Connections<A> {
        let app = Arc::new(Requests(Arc::new(app)));
        Connections { app, sessions }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Connections<A> {
    async fn process_new(
        self: &Arc<Self>,
        mut stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let _counted = self.sessions.enter();
        // Before its first byte a connection may be of HTTP/1 or HTTP/2: pingora waits for more.
        let mut first = [0];
        tokio::select! {
            biased;
            came = stream.try_peek(&mut first) => came.ok().map(drop)?,
            () = grace(shutdown.clone()) => return None,
        }
        self.app.process_new(stream, shutdown).await
    }
}

/// Ends the connections that wait for a request of HTTP/1 when the process drains.
struct Requests<A>(Arc<A>);

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> HttpServerApp for Requests<A> {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if session.is_http2() {
            return self.0.process_new_http(session, shutdown).await;
        }
        let head = HeadRead::default();
        session.set_connection_user_context(Some(Box::new(head.clone())));
        let mut served = std::pin::pin!(self.0.process_new_http(session, shutdown));
        tokio::select! {
            biased;
            served = &mut served => return served,
            () = grace(shutdown.clone()) => {}
        }
        match head.is_noted() {
            true => served.await,
            false => None,
        }
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.0.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.0.server_options()
    }
}

/// Returns when the process has drained for [`GRACE`], or this has been asked for that long in a
/// process that drains.
async fn grace(mut shutdown: ShutdownWatch) {
    if shutdown.wait_for(|draining| *draining).await.is_err() {
        // Nobody can tell any more.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(GRACE).await;
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
