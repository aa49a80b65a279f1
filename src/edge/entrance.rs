//! Where connections are taken: each gets a place, or is turned away at once.
//!
//! pingora's own accept loop was refused: it knows no limit, counts a connection only after its TLS
//! handshake, gives that a minute, and without a free file it sleeps for a second. Here a connection
//! that is over a limit costs a place for as long as its 503 takes, and nobody else anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::apps::HttpServerApp;
use pingora::listeners::tls::Acceptor;
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::answer::{self, Answer};
use super::connection::Connections;
use super::socket;
use super::state::Edge;
use crate::admission::Dialect;
use crate::observe::words::TurnedAway;

/// Connections that may read their 503 at a time; others are closed without one. Chosen: their files
/// are among those that `limits.connections` leaves free.
const TOLD_AT_ONCE: usize = 16;

/// For the 503 to be read: closed at once, unread bytes of the request would make it an RST.
const TELLING: Duration = Duration::from_secs(1);

/// Chosen: when no file is free, somebody closes one soon.
const AGAIN: Duration = Duration::from_millis(100);

/// Takes the connections of a listener until the process drains; with `tls`, where it has that.
pub async fn take<A: HttpServerApp + Send + Sync + 'static>(
    listener: TcpListener,
    tls: Option<Arc<Acceptor>>,
    inside: Connections<A>,
    mut shutdown: ShutdownWatch,
) {
    let telling = Arc::new(Semaphore::new(TOLD_AT_ONCE));
    let no_place: Arc<[u8]> = no_place(inside.edge()).into();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = shutdown.wait_for(|drains| *drains) => return,
        };
        let (socket, address) = match accepted {
            Ok(accepted) => accepted,
            Err(e) => {
                log::error!(error:% = e; "a connection cannot be taken");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        match inside.edge().places.take(address.ip()) {
            Ok(place) => {
                let (inside, tls, shutdown) = (inside.clone(), tls.clone(), shutdown.clone());
                // Counted before anybody can take the process for empty.
                let counted = inside.enter();
                tokio::spawn(async move {
                    serve(socket, address, tls, &inside, shutdown).await;
                    drop((counted, place));
                });
            }
            Err(why) => {
                inside.edge().trail.turned_away(why);
                log::warn!(limit = key(why), address:% = address.ip(); "a connection is turned away");
                if tls.is_none()
                    && let Ok(permit) = telling.clone().try_acquire_owned()
                {
                    let answer = no_place.clone();
                    tokio::spawn(async move {
                        let _ = tokio::time::timeout(TELLING, tell(socket, &answer)).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

async fn serve<A: HttpServerApp + Send + Sync + 'static>(
    socket: TcpStream,
    address: SocketAddr,
    tls: Option<Arc<Acceptor>>,
    inside: &Connections<A>,
    shutdown: ShutdownWatch,
) {
    match socket::stream(socket, address, inside.edge().limits.client_timeout) {
        Ok(stream) => inside.serve(stream, tls, shutdown).await,
        Err(e) => log::debug!(error:% = e; "a connection was gone at once"),
    }
}

/// When to come back, in HTTP/1.1, which a client reads before it has sent anything.
fn no_place(edge: &Edge) -> Vec<u8> {
    let message = "The gateway has no place for another connection. Please try again.";
    let after = answer::retry_after(None, edge.policy.retry_after);
    let answer = Answer::retry(Dialect::OpenAi, ("server_error", message), after);
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: {}\r\nconnection: close\r\n\r\n",
        answer.body.len(),
        answer.retry_after.unwrap_or_default()
    );
    [head.as_bytes(), &answer.body].concat()
}

async fn tell(mut socket: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    socket.write_all(answer).await?;
    socket.shutdown().await?;
    let mut unread = [0; 4096];
    while socket.read(&mut unread).await? > 0 {}
    Ok(())
}

/// What an operator may raise.
fn key(why: TurnedAway) -> &'static str {
    match why {
        TurnedAway::Connections => "limits.connections",
        TurnedAway::ConnectionsPerAddress => "limits.connections_per_address",
        TurnedAway::Handshake => "tls",
    }
}
