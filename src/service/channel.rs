//! The channel between a process and its successor: whole messages, some with sockets attached.
//!
//! Both ends are berth, but not the same build of it. So a message is JSON that a later build may
//! extend: unknown fields are left out, and an unknown message is [`None`] to its reader. Its length
//! comes first and is bounded, and every read has a deadline: a successor that says nothing is one
//! that failed.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes; chosen: three times what full tables of sessions, owners and scores come to.
const MAX_MESSAGE: usize = 128 << 20;

/// Sockets in one message; the kernel's own limit (`SCM_MAX_FD`).
pub const MAX_SOCKETS: usize = 253;

/// One end of the channel.
#[derive(Debug)]
pub struct Channel(UnixStream);

/// Ends a channel from another thread, whoever reads there.
#[derive(Debug)]
pub struct Closer(UnixStream);

/// The other end said nothing that could be used.
#[derive(Debug)]
pub enum ChannelError {
    /// It is gone.
    Ended,
    /// It was silent until the deadline.
    Late,
    /// It sent what cannot be read.
    Garbled(String),
    /// The socket failed.
    Io(io::Error),
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChannelError::Ended => f.write_str("it ended"),
            ChannelError::Late => f.write_str("it did not answer in time"),
            ChannelError::Garbled(what) => write!(f, "it sent what cannot be read: {what}"),
            ChannelError::Io(e) => write!(f, "the channel to it failed: {e}"),
        }
    }
}

impl Channel {
    /// Two ends: one to keep, and one to give to a child.
    pub fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Channel(ours), theirs.into()))
    }

    /// The end that was given to this process as its standard input.
    pub fn of_stdin() -> io::Result<Channel> {
        use std::os::fd::AsFd;
        let end = std::io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Channel(UnixStream::from(end)))
    }

    /// A way to end it from elsewhere.
    pub fn closer(&self) -> io::Result<Closer> {
        self.0.try_clone().map(Closer)
    }

    /// The socket, to wait for its end.
    pub fn into_stream(self) -> UnixStream {
        self.0
    }

    /// Sends one message and copies of `sockets`.
    pub fn send(
        &mut self,
        message: &impl Serialize,
        sockets: &[BorrowedFd<'_>],
        until: Instant,
    ) -> Result<(), ChannelError> {
        let body = serde_json::to_vec(message).map_err(|e| ChannelError::Garbled(e.to_string()))?;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
        if body.len() > MAX_MESSAGE || sockets.len() > MAX_SOCKETS {
            let what = format!("{} bytes, {} sockets", body.len(), sockets.len());
            return Err(ChannelError::Garbled(format!("too much to send: {what}")));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(sockets));
        }
        // Four bytes fit into an empty socket: they are sent whole or not at all.
        let head = [IoSlice::new(&length)];
        sendmsg(&self.0, &head, &mut control, SendFlags::NOSIGNAL).map_err(io::Error::from)?;
        self.empty(&body, until)
    }

    /// Writes all of it; a reader that takes nothing more costs no more than the time.
    fn empty(&mut self, mut rest: &[u8], until: Instant) -> Result<(), ChannelError> {
        while !rest.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ChannelError::Late);
            }
            self.0.set_write_timeout(Some(left))?;
            let written = self.0.write(rest)?;
            if written == 0 {
                return Err(ChannelError::Ended);
            }
            rest = rest.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// The next message and its sockets; `None` for a message that this build does not know.
    pub fn receive<M: DeserializeOwned>(
        &mut self,
        until: Instant,
    ) -> Result<(Option<M>, Vec<OwnedFd>), ChannelError> {
        let mut length = [0; 4];
        self.patient(until)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut length)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .map_err(io::Error::from)?
        .bytes;
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                sockets.extend(rights);
            }
        }
        match length.get_mut(read..) {
            _ if read == 0 => return Err(ChannelError::Ended),
            Some(rest) => self.fill(rest, until)?,
            None => {}
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_MESSAGE {
            return Err(ChannelError::Garbled(format!("{length} bytes")));
        }
        let mut body = vec![0; length];
        self.fill(&mut body, until)?;
        let value: serde_json::Value =
            serde_json::from_slice(&body).map_err(|e| ChannelError::Garbled(e.to_string()))?;
        Ok((serde_json::from_value(value).ok(), sockets))
    }

    fn fill(&mut self, mut rest: &mut [u8], until: Instant) -> Result<(), ChannelError> {
        while !rest.is_empty() {
            self.patient(until)?;
            let read = self.0.read(rest)?;
            if read == 0 {
                return Err(ChannelError::Ended);
            }
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }

    fn patient(&self, until: Instant) -> Result<(), ChannelError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Late);
        }
        Ok(self.0.set_read_timeout(Some(left))?)
    }
}

impl Closer {
    /// Ends the channel: the reader on either side sees its end.
    pub fn close(&self) {
        // It fails only where the channel has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl From<io::Error> for ChannelError {
    fn from(e: io::Error) -> ChannelError {
        match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ChannelError::Late,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ChannelError::Ended,
            _ => ChannelError::Io(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsFd;
    use std::time::Duration;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    #[serde(tag = "is", rename_all = "snake_case")]
    enum Word {
        Hello { name: String },
        Bye,
    }

    fn pair() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel(UnixStream::from(theirs)))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[test]
    fn a_socket_arrives_with_its_message_and_still_listens() {
        let (mut here, mut there) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        here.send(&Word::Bye, &[listener.as_fd(), listener.as_fd()], soon())
            .unwrap();
        drop(listener);
        let (word, mut sockets) = there.receive::<Word>(soon()).unwrap();
        assert_eq!((word, sockets.len()), (Some(Word::Bye), 2));
        let arrived = TcpListener::from(sockets.pop().unwrap());
        std::net::TcpStream::connect(address).unwrap();
        arrived.accept().unwrap();
    }

    #[test]
    fn a_later_build_may_say_more() {
        let (mut here, mut there) = pair();
        let state = serde_json::json!({"is": "state", "version": 7});
        here.send(&state, &[], soon()).unwrap();
        here.send(
            &serde_json::json!({"is": "hello", "name": "n", "more": 1}),
            &[],
            soon(),
        )
        .unwrap();
        assert_eq!(there.receive::<Word>(soon()).unwrap().0, None);
        let hello = Word::Hello { name: "n".into() };
        assert_eq!(there.receive(soon()).unwrap().0, Some(hello));
    }

    #[test]
    fn a_reader_that_takes_nothing_costs_no_more_than_the_time() {
        let (mut here, _there) = pair();
        let word = Word::Hello {
            name: "n".repeat(8 << 20),
        };
        let until = Instant::now() + Duration::from_millis(50);
        let late = here.send(&word, &[], until);
        assert!(matches!(late, Err(ChannelError::Late)), "{late:?}");
    }

    #[test]
    fn silence_an_end_and_a_flood_are_told_apart() {
        let (mut here, mut there) = pair();
        let now = Instant::now() + Duration::from_millis(1);
        let late = there.receive::<Word>(now);
        assert!(matches!(late, Err(ChannelError::Late)), "{late:?}");
        here.0.write_all(&u32::MAX.to_be_bytes()).unwrap();
        let flood = there.receive::<Word>(soon());
        assert!(matches!(flood, Err(ChannelError::Garbled(_))), "{flood:?}");
        here.closer().unwrap().close();
        let ended = there.receive::<Word>(soon());
        assert!(matches!(ended, Err(ChannelError::Ended)), "{ended:?}");
    }
}
