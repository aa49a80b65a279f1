//! Clients that come all the while, whatever is done to the service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::common::paced::{by_http2, is_whole, kept_alive, short};
use crate::common::wire::Client;

/// New connections a second.
const RATE: u64 = 50;

/// Clients of every kind, until told to end.
pub struct Load {
    over: Arc<AtomicBool>,
    clients: JoinSet<usize>,
    pace: tokio::task::JoinHandle<Loaded>,
}

#[derive(Default)]
pub struct Loaded {
    pub served: usize,
    pub failed: usize,
    /// Those of the failed that nobody listened to.
    pub refused: usize,
}

impl Load {
    pub fn start(addr: SocketAddr) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for _ in 0..4 {
            clients.spawn(kept_alive(addr, over.clone()));
            clients.spawn(by_http2(addr, over.clone()));
        }
        let pace = tokio::spawn(new_connections_at_pace(addr, over.clone()));
        Load {
            over,
            clients,
            pace,
        }
    }

    pub async fn end(mut self) -> Loaded {
        self.over.store(true, Ordering::SeqCst);
        let mut loaded = self.pace.await.unwrap();
        while let Some(client) = self.clients.join_next().await {
            match client {
                Ok(count) => loaded.served += count,
                Err(_) => loaded.failed += 1,
            }
        }
        loaded
    }
}

/// [`RATE`] a second, whatever becomes of those before.
async fn new_connections_at_pace(addr: SocketAddr, over: Arc<AtomicBool>) -> Loaded {
    let mut tick = tokio::time::interval(Duration::from_millis(1000 / RATE));
    let mut asked = JoinSet::new();
    while !over.load(Ordering::SeqCst) {
        tick.tick().await;
        asked.spawn(async move {
            let mut client = Client::try_connect(addr).await?;
            client.send(short()).await;
            is_whole(&client.answer().await);
            Ok::<_, std::io::Error>(())
        });
    }
    let mut loaded = Loaded::default();
    while let Some(one) = asked.join_next().await {
        match one {
            Ok(Ok(())) => loaded.served += 1,
            Ok(Err(_)) => loaded.refused += 1,
            Err(_) => loaded.failed += 1,
        }
    }
    loaded.failed += loaded.refused;
    loaded
}
