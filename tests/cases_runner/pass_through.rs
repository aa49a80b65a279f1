//! A proxy that only forwards, with the first credential. It exists so that the runner can be seen
//! to fail: whatever needs a switch, a hold or a rewrite must be reported against it.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::format::Case;
use super::http1::Wire;

pub struct PassThrough {
    pub address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for PassThrough {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl PassThrough {
    pub async fn start(upstream: SocketAddr, case: &Case) -> Result<PassThrough, String> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let auth = case
            .setup
            .credentials
            .first()
            .ok_or("no credential")?
            .upstream_auth
            .clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let auth = auth.clone();
                tokio::spawn(async move {
                    // An error ends both connections, and that is what the client then sees.
                    let _ = forward(client, upstream, &auth).await;
                });
            }
        });
        Ok(PassThrough { address, accepting })
    }
}

async fn forward(client: TcpStream, upstream: SocketAddr, auth: &str) -> std::io::Result<()> {
    let (read, mut back) = client.into_split();
    let mut wire = Wire::new(read);
    let head = wire.head().await?;
    let server = TcpStream::connect(upstream).await?;
    let (mut answers, mut forth) = server.into_split();
    let lines = head.text.trim_end().split("\r\n");
    let kept = lines.filter(|line| !line.to_lowercase().starts_with("authorization:"));
    let head = kept.collect::<Vec<_>>().join("\r\n");
    forth
        .write_all(format!("{head}\r\nauthorization: {auth}\r\n\r\n").as_bytes())
        .await?;
    forth.write_all(&wire.buffer).await?;
    // The answer's end ends it all; until then both sides may speak, as sockets do.
    tokio::select! {
        copied = tokio::io::copy(&mut answers, &mut back) => copied?,
        error = async {
            let copied = tokio::io::copy(&mut wire.stream, &mut forth).await;
            match copied {
                Err(error) => error,
                Ok(_) => std::future::pending().await,
            }
        } => return Err(error),
    };
    back.shutdown().await
}
