//! The way out through an HTTP CONNECT proxy.
//!
//! pingora's own proxy option speaks to a Unix socket only, so this is a connector of ours: TCP to the
//! proxy, one CONNECT with the upstream's name (the proxy looks it up), and from then on the bytes are
//! the upstream's. The proxy's answer is read a byte at a time, so that nothing of the tunnel is taken
//! with it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::{Error, ErrorType, OrErr};
use secrecy::ExposeSecret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pool::read_secret;

use super::spec::ProxySpec;

/// The longest head that a proxy may answer with, bytes.
const LONGEST_HEAD: usize = 8 * 1024;

/// A proxy and what is behind it.
pub struct ConnectProxy {
    /// The request, secrets included: never shown.
    request: Vec<u8>,
    target: String,
    timeout: Duration,
}

impl ConnectProxy {
    /// A way to `target` (`host:port`).
    ///
    /// # Errors
    ///
    /// The user or the password cannot be read.
    pub fn new(spec: &ProxySpec, target: String, timeout: Duration) -> Result<Self, String> {
        let read = |source: &Option<_>| -> Result<String, String> {
            match source {
                None => Ok(String::new()),
                Some(source) => read_secret(source)
                    .map(|secret| secret.expose_secret().to_owned())
                    .map_err(|e| format!("`proxy`: {e}")),
            }
        };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if spec.user.is_some() {
            let pair = format!("{}:{}", read(&spec.user)?, read(&spec.password)?);
            let token = base64::engine::general_purpose::STANDARD.encode(pair);
            request.push_str(&format!("Proxy-Authorization: Basic {token}\r\n"));
        }
        request.push_str("\r\n");
        Ok(ConnectProxy {
            request: request.into_bytes(),
            target,
            timeout,
        })
    }

    async fn tunnel(&self, address: std::net::SocketAddr) -> pingora::Result<TcpStream> {
        let failed = ErrorType::ConnectProxyFailure;
        let mut stream = TcpStream::connect(address)
            .await
            .or_err(failed.clone(), "the proxy cannot be reached")?;
        let _ = stream.set_nodelay(true);
        stream
            .write_all(&self.request)
            .await
            .or_err(failed.clone(), "the proxy closed the connection")?;
        let mut head = Vec::with_capacity(256);
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= LONGEST_HEAD {
                return Error::e_explain(failed, "the proxy's answer is too long");
            }
            let byte = stream
                .read_u8()
                .await
                .or_err(failed.clone(), "the proxy closed the connection")?;
            head.push(byte);
        }
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut answer = httparse::Response::new(&mut headers);
        let _ = answer.parse(&head);
        match answer.code {
            Some(200..=299) => Ok(stream),
            Some(code) => Error::e_explain(failed, format!("the proxy answered {code}")),
            None => Error::e_explain(failed, "the proxy's answer is not HTTP"),
        }
    }
}

#[async_trait]
impl L4Connect for ConnectProxy {
    async fn connect(&self, address: &SocketAddr) -> pingora::Result<Stream> {
        let SocketAddr::Inet(address) = address else {
            return Error::e_explain(ErrorType::InternalError, "a proxy has an IP address");
        };
        match tokio::time::timeout(self.timeout, self.tunnel(*address)).await {
            Ok(stream) => Ok(Stream::from(stream?)),
            Err(_) => Error::e_explain(ErrorType::ConnectTimedout, "the proxy did not answer"),
        }
    }
}

impl fmt::Debug for ConnectProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectProxy(to {})", self.target)
    }
}
