//! The listening sockets of one process: taken over, bound, passed on.
//!
//! A socket that an address already has is used and never bound anew, so that a connection in its
//! queue is not lost when processes change. What no listener claims any more is closed, or it would
//! queue connections that nobody accepts.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use pingora::server::Fds;

/// The listening sockets of a process.
#[derive(Debug, Default)]
pub struct Sockets(Vec<Socket>);

#[derive(Debug)]
struct Socket {
    /// As the configuration names it, or as the kernel does where it was inherited.
    address: SocketAddr,
    listener: TcpListener,
}

/// An address cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    address: SocketAddr,
    source: io::Error,
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, source) = (self.address, &self.source);
        let mend = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "Ports below 1024 need a socket unit (systemd/berth.socket) or CAP_NET_BIND_SERVICE."
            }
            _ => "Stop what listens there, or choose another address.",
        };
        write!(f, "cannot listen on {address}: {source}. {mend}")
    }
}

impl std::error::Error for ListenError {}

impl Sockets {
    /// What systemd gives: of a socket unit, or kept in its store over a crash.
    pub fn of_systemd() -> Sockets {
        let mut given = listenfd::ListenFd::from_env();
        let mut sockets = Sockets::default();
        for index in 0..given.len() {
            match given.take_tcp_listener(index) {
                Ok(Some(listener)) => sockets.inherit(listener),
                Ok(None) => {}
                Err(e) => log::warn!(error:% = e; "a socket that systemd gave is left alone"),
            }
        }
        sockets
    }

    /// What the process before this one sent.
    pub fn of_predecessor(sent: Vec<OwnedFd>) -> Sockets {
        let mut sockets = Sockets::default();
        sent.into_iter()
            .for_each(|fd| sockets.inherit(TcpListener::from(fd)));
        sockets
    }

    /// Sorts out what `wanted` claims of these, and binds what is missing. Also gives the addresses
    /// that nobody claims: their sockets are closed here.
    ///
    /// # Errors
    ///
    /// The first address that cannot be listened on.
    pub fn claim(
        mut self,
        wanted: &[SocketAddr],
    ) -> Result<(Sockets, Vec<SocketAddr>), ListenError> {
        let mut claimed = Vec::with_capacity(wanted.len());
        for address in wanted.iter().copied() {
            let inherited = self.0.iter().position(|socket| socket.address == address);
            let socket = match inherited {
                Some(index) => self.0.swap_remove(index),
                None => bind(address).map_err(|source| ListenError { address, source })?,
            };
            claimed.push(socket);
        }
        let gone = self.0.into_iter().map(|socket| socket.address).collect();
        Ok((Sockets(claimed), gone))
    }

    /// Their addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(|socket| socket.address)
    }

    /// The sockets themselves, to be sent.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0
            .iter()
            .map(|socket| socket.listener.as_fd())
            .collect()
    }

    /// A copy of the one at `address`.
    ///
    /// # Errors
    ///
    /// The limit on open files is reached.
    pub fn copy(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let found = self.0.iter().find(|socket| socket.address == address);
        found.ok_or(io::ErrorKind::NotFound)?.listener.try_clone()
    }

    /// The same for pingora, which takes it by its address.
    ///
    /// # Errors
    ///
    /// The limit on open files is reached.
    pub fn table(&self, address: SocketAddr) -> io::Result<Fds> {
        let mut table = Fds::new();
        table.add(address.to_string(), self.copy(address)?.into_raw_fd());
        Ok(table)
    }

    fn inherit(&mut self, listener: TcpListener) {
        // A blocking accept would stop a worker for good, and systemd's sockets do block.
        let ready = listener
            .set_nonblocking(true)
            .and_then(|()| listener.local_addr());
        match ready {
            Ok(address) if self.addresses().any(|known| known == address) => {}
            Ok(address) => self.0.push(Socket { address, listener }),
            Err(e) => log::warn!(error:% = e; "an inherited socket cannot be used"),
        }
    }
}

/// A socket's name in systemd's store, where a colon may not be.
pub fn store_name(address: SocketAddr) -> String {
    address.to_string().replace(':', "_")
}

fn bind(address: SocketAddr) -> io::Result<Socket> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(Socket { address, listener })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn what_is_there_is_kept_and_the_rest_bound_or_closed() {
        let ((kept, a), (gone, b)) = (bound(), bound());
        let (free, c) = bound();
        drop(free);
        let inherited = Sockets::of_predecessor(vec![kept.into(), gone.into()]);
        let (claimed, unclaimed) = inherited.claim(&[a, c]).unwrap();
        assert_eq!(claimed.addresses().collect::<Vec<_>>(), [a, c]);
        assert_eq!(unclaimed, [b]);
        std::net::TcpStream::connect(a).unwrap();
        std::net::TcpStream::connect(c).unwrap();
        std::net::TcpStream::connect(b).unwrap_err();
    }

    #[test]
    fn a_taken_port_is_named() {
        let (_taken, address) = bound();
        let error = Sockets::default()
            .claim(&[address])
            .unwrap_err()
            .to_string();
        assert!(error.contains(&address.to_string()), "{error}");
        assert!(error.contains("Stop what listens there"), "{error}");
    }

    #[test]
    fn the_same_socket_given_twice_is_one() {
        let (listener, address) = bound();
        let copy = listener.try_clone().unwrap();
        let inherited = Sockets::of_predecessor(vec![listener.into(), copy.into()]);
        assert_eq!(inherited.addresses().collect::<Vec<_>>(), [address]);
    }
}
