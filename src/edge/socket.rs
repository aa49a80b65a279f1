//! A client's socket, as pingora is given it.
//!
//! pingora sizes the buffers of the sockets that it accepts itself and offers no way to for others, so
//! they are here, under its own stream. Less is read ahead than its 64 KiB, which every idle connection
//! would hold.
//!
//! Nobody is read from for long without a break. tokio's own measure is 128 reads, which is 2 MiB of
//! frames of HTTP/2 that ask for nothing: with as many such clients as there are workers, everybody
//! else waits for that.
//!
//! A head and what follows it go out together ([`Cork`]): pingora flushes after each, and a packet costs
//! more than all that berth does with its bytes.
//!
//! Who takes nothing of what is written to him is cut by the kernel: `TCP_USER_TIMEOUT` also ends
//! waiting that pingora puts no limit on, such as for the head of an answer or for its last flush. A
//! reader of single bytes is one who takes nothing, since his window stays shut.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pingora::http::ResponseHeader;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::l4::virt::{VirtualSockOpt, VirtualSocket, VirtualSocketStream};
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{GetProxyDigest, GetSocketDigest, SocketDigest};
use pingora::proxy::Session;
use tokio::io::{AsyncRead, AsyncWrite, BufStream, ReadBuf};
use tokio::net::TcpStream;

/// Chosen: a TLS record. Larger pieces of a body pass it by.
const READ: usize = 16 * 1024;

/// Bytes that are read without a break. Chosen: half of what h2 reads at once.
const IN_A_ROW: usize = 4 * 1024;

/// As pingora's: a packet.
const WRITE: usize = 1460;

/// A stream of pingora's on an accepted socket, whose client may take nothing for `patience`.
///
/// # Errors
///
/// The client has left.
pub fn stream(socket: TcpStream, address: SocketAddr, patience: Duration) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    let millis = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&socket, millis)?;
    let digest = SocketDigest::from_raw_fd(socket.as_raw_fd());
    // Fresh: nobody has set it.
    let _ = digest.peer_addr.set(Some(address.into()));
    let cork = Cork::default();
    let buffered = Buffered {
        socket: BufStream::with_capacity(READ, WRITE, socket),
        in_a_row: 0,
        cork: cork.clone(),
    };
    let mut stream = Stream::from(VirtualSocketStream::new(Box::new(buffered)));
    stream.set_socket_digest(digest);
    // The one place of a connection in which pingora carries what it does not know.
    let head = ResponseHeader::build(200, Some(0)).map_err(io::Error::other)?;
    stream.set_proxy_digest(ProxyDigest::new(Box::new(head), Some(Box::new(cork))));
    Ok(stream)
}

/// Keeps a client's socket from sending what was written to it before there is more, or it is full.
#[derive(Clone, Debug, Default)]
pub struct Cork(Arc<AtomicBool>);

/// The socket sends nothing of its own accord until this is dropped. What was written goes out with what is
/// flushed after that, so something must be.
#[derive(Debug)]
pub struct Corked<'a>(&'a Cork);

impl Cork {
    /// Of a request's connection; `None` for HTTP/2, which gathers by itself what all requests write.
    pub fn of(session: &Session) -> Option<Cork> {
        let client = session.as_downstream();
        let digest = client.digest().filter(|_| !client.is_http2())?;
        let given = digest.proxy_digest.as_ref()?.user_data.as_ref()?;
        given.downcast_ref::<Cork>().cloned()
    }

    /// Puts it in.
    pub fn put_in(&self) -> Corked<'_> {
        self.0.store(true, Ordering::Relaxed);
        Corked(self)
    }
}

impl Drop for Corked<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Buffered {
    socket: BufStream<TcpStream>,
    in_a_row: usize,
    cork: Cork,
}

impl VirtualSocket for Buffered {
    /// Done above.
    fn set_socket_option(&self, _: VirtualSockOpt) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Buffered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.in_a_row >= IN_A_ROW {
            self.in_a_row = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        match read {
            Poll::Ready(_) => self.in_a_row += buffer.filled().len() - before,
            Poll::Pending => self.in_a_row = 0,
        }
        read
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.cork.0.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
