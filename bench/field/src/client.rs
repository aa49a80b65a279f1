//! One client: where it asks, what it asks, and one exchange after the other.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::answers::Dialect;
use crate::wire::Wire;

/// Nobody waits longer: what takes so long is not measured, it is broken.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest request that is kept and sent in one piece.
const ONE_PIECE: usize = 64 * 1024;
/// What fills the largest request.
const LARGEST: usize = 20 * 1024 * 1024;

/// Where requests go.
#[derive(Clone)]
pub struct Target {
    /// The address.
    pub address: SocketAddr,
    /// With TLS, by these rules.
    pub tls: Option<Arc<ClientConfig>>,
    /// Headers beyond those of every request, each with its line end.
    pub headers: String,
    /// The loopback address that is asked from.
    pub from: Ipv4Addr,
}

impl Target {
    /// Without TLS, from the usual address.
    pub fn plain(address: SocketAddr) -> Target {
        Target {
            address,
            tls: None,
            headers: String::new(),
            from: Ipv4Addr::LOCALHOST,
        }
    }

    /// A request for `model` whose body has `size` bytes.
    pub fn request(&self, dialect: Dialect, model: &str, size: usize) -> Request {
        let (before, after) = dialect.around(model);
        let filling = size.saturating_sub(before.len() + after.len());
        let length = before.len() + filling + after.len();
        let mut opening = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             authorization: Bearer {}\r\n{}content-length: {length}\r\n\r\n{before}",
            dialect.path(),
            self.address,
            key(),
            self.headers,
        )
        .into_bytes();
        if size > ONE_PIECE {
            return Request {
                opening,
                filling,
                after,
            };
        }
        opening.extend(std::iter::repeat_n(b'x', filling));
        opening.extend_from_slice(after.as_bytes());
        Request {
            opening,
            filling: 0,
            after: "",
        }
    }

    /// A new connection.
    pub fn connect(&self) -> Result<Connection> {
        let stream = match self.from {
            Ipv4Addr::LOCALHOST => TcpStream::connect(self.address)?,
            from => connect_from(from, self.address)?,
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let socket = match &self.tls {
            None => Socket::Plain(stream),
            Some(rules) => {
                let name = ServerName::try_from("localhost").map_err(Error::other)?;
                let tls = ClientConnection::new(rules.clone(), name).map_err(Error::other)?;
                Socket::Tls(Box::new(StreamOwned::new(tls, stream)))
            }
        };
        Ok(Connection(Wire::new(socket)))
    }
}

/// A request, ready to be sent.
pub struct Request {
    opening: Vec<u8>,
    filling: usize,
    after: &'static str,
}

/// A connection to a [`Target`].
pub struct Connection(Wire<Socket>);

/// What an exchange says of its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It can be used again.
    Keep,
    /// It is over.
    Close,
}

impl Connection {
    /// Sends a request and reads its answer, which must be a 200, to its end.
    pub fn exchange(&mut self, request: &Request, take: impl FnMut(&[u8])) -> Result<Then> {
        let wire = &mut self.0;
        wire.send(&request.opening)?;
        if request.filling > 0 {
            wire.send(&filling()[..request.filling])?;
            wire.send(request.after.as_bytes())?;
        }
        let head = loop {
            match wire.head()? {
                Some(head) if head.status == 100 => {}
                Some(head) => break head,
                None => return Err(ErrorKind::UnexpectedEof.into()),
            }
        };
        let mut said = Vec::new();
        if head.status == 200 {
            wire.body(head.framing, take)?;
        } else {
            wire.body(head.framing, |piece| said.extend_from_slice(piece))?;
            let said = String::from_utf8_lossy(&said);
            let said: String = said.chars().take(200).collect();
            return Err(Error::other(format!("status {}: {said}", head.status)));
        }
        Ok(if head.closes { Then::Close } else { Then::Keep })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Tls(stream) = self {
            // As a client does that is done.
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    }
}

/// What clients show: nobody here looks at it but LiteLLM, which does not start without a strong one.
pub fn key() -> &'static str {
    static KEY: OnceLock<String> = OnceLock::new();
    KEY.get_or_init(|| {
        let mut bytes = [0; 32];
        let read = File::open("/dev/urandom").and_then(|mut it| it.read_exact(&mut bytes));
        read.expect("random bytes");
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        format!("sk-{}", digits.collect::<String>())
    })
}

fn filling() -> &'static [u8] {
    static FILLING: OnceLock<Vec<u8>> = OnceLock::new();
    FILLING.get_or_init(|| vec![b'x'; LARGEST])
}

fn connect_from(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::new(IpAddr::V4(from), 0))?;
    connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

enum Socket {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Socket::Plain(stream) => stream.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Socket::Plain(stream) => stream.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> Result<()> {
        match self {
            Socket::Plain(stream) => stream.flush(),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}
