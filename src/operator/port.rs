//! One question to a running berth, over its admin port or its control socket.
//!
//! Plain and blocking: a command asks one thing of a process on this machine as a rule, so a client
//! with pools and redirects would be more to keep safe than what is here. Whoever answers may be
//! anything that listens there: the answer is bounded in bytes and in time, and a token goes to the
//! configured address only.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use http::Uri;
use secrecy::{ExposeSecret, SecretString};

use crate::observe::spec::AdminSpec;
use crate::pool::read_secret;

/// The whole question may take so long (chosen: a person waits).
const TIME: Duration = Duration::from_secs(5);
/// Longest answer, head included (chosen: ten times the status of the largest pool).
const MAX_ANSWER: usize = 16 << 20;
/// Most headers of an answer; berth sends seven.
const MAX_HEADERS: usize = 64;

/// The admin port of a berth, or its control socket.
#[derive(Debug)]
pub struct AdminPort {
    at: At,
    token: Option<SecretString>,
}

/// Where somebody may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The admin port.
    Port(SocketAddr),
    /// The control socket, whose permissions let in who may.
    Socket(PathBuf),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Port(address) => address.fmt(f),
            At::Socket(path) => path.display().fmt(f),
        }
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// Nobody listens there.
    NotRunning(At),
    /// It does not accept the token.
    Token(At),
    /// It wants a token, and there was none.
    NoToken(At),
    /// It knows no such path: this is no admin port.
    NoAdmin(At),
    /// Somebody listens, but what comes is not berth's answer.
    Unusable(At, String),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::NotRunning(at) => write!(f, "no berth is running at {at}"),
            AskError::Token(at) => write!(
                f,
                "the berth at {at} does not accept this token; use the admin.token that it was started with"
            ),
            AskError::NoToken(at) => write!(
                f,
                "the berth at {at} wants its admin.token, and none was sent: put it into \
                 BERTH_ADMIN_TOKEN, name its file with --token-file, or use -c FILE, which asks over \
                 the control socket"
            ),
            AskError::NoAdmin(at) => write!(
                f,
                "what listens at {at} is no admin port (its status is 404): name the one in \
                 admin.address, or use -c FILE"
            ),
            AskError::Unusable(at, why) => {
                write!(f, "what listens at {at} gives no usable answer: {why}")
            }
        }
    }
}

impl std::error::Error for AskError {}

impl AdminPort {
    /// The port at `address`, asked with `token` where it has one.
    pub fn new(address: SocketAddr, token: Option<SecretString>) -> AdminPort {
        let here = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        AdminPort {
            at: At::Port(SocketAddr::new(here, address.port())),
            token,
        }
    }

    /// The control socket at `path`.
    pub fn socket(path: &Path) -> AdminPort {
        AdminPort {
            at: At::Socket(path.to_owned()),
            token: None,
        }
    }

    /// The port of the berth that runs with this configuration.
    ///
    /// # Errors
    ///
    /// Why the token cannot be read.
    pub fn configured(admin: &AdminSpec) -> Result<AdminPort, String> {
        let token = match &admin.token {
            None => None,
            Some(source) => Some(read_secret(source).map_err(|e| format!("admin.token: {e}"))?),
        };
        Ok(AdminPort::new(admin.address, token))
    }

    /// The port at a URL such as `http://127.0.0.1:9090`.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL; it is not repeated, since a password may be in it.
    pub fn at(url: &str, token: Option<SecretString>) -> Result<AdminPort, String> {
        let uri: Uri = url.parse().map_err(|_| NO_URL)?;
        let authority = uri.authority().ok_or(NO_URL)?;
        if uri.scheme_str() != Some("http") || !matches!(uri.path(), "" | "/") {
            return Err(NO_URL.to_owned());
        }
        if authority.as_str().contains('@') {
            return Err(NO_PASSWORD.to_owned());
        }
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(80);
        let mut addresses = (host, port)
            .to_socket_addrs()
            .map_err(|e| format!("--admin: the name {host} cannot be looked up: {e}"))?;
        let address = addresses
            .next()
            .ok_or_else(|| format!("--admin: the name {host} has no address"))?;
        Ok(AdminPort::new(address, token))
    }

    /// The body of the answer to `GET path`.
    ///
    /// # Errors
    ///
    /// There is none, or it is not a 200.
    pub fn get(&self, path: &str) -> Result<Vec<u8>, AskError> {
        let unusable = |why: String| AskError::Unusable(self.at.clone(), why);
        let answer = self.ask(path).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
                AskError::NotRunning(self.at.clone())
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                unusable(format!("it takes longer than {} s", TIME.as_secs()))
            }
            _ => unusable(error.to_string()),
        })?;
        let (status, body) = parse(&answer).ok_or_else(|| unusable("it is not HTTP".into()))?;
        match status {
            200 => Ok(body.to_vec()),
            401 if self.token.is_none() => Err(AskError::NoToken(self.at.clone())),
            401 => Err(AskError::Token(self.at.clone())),
            404 => Err(AskError::NoAdmin(self.at.clone())),
            status => Err(unusable(format!("its status is {status}"))),
        }
    }

    /// The whole answer, as bytes.
    fn ask(&self, path: &str) -> io::Result<Vec<u8>> {
        let end = Instant::now() + TIME;
        let left = || match end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(left),
        };
        let (mut line, host): (Box<dyn Line>, String) = match &self.at {
            At::Port(address) => {
                let stream = TcpStream::connect_timeout(address, left()?)?;
                (Box::new(stream), address.to_string())
            }
            At::Socket(path) => (Box::new(UnixStream::connect(path)?), "localhost".to_owned()),
        };
        line.wait_at_most(left()?)?;
        let token = self.token.as_ref().map_or(String::new(), |token| {
            format!("authorization: Bearer {}\r\n", token.expose_secret())
        });
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{token}connection: close\r\n\r\n");
        line.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut piece = [0; 16 << 10];
        while !is_whole(&answer) {
            line.wait_at_most(left()?)?;
            let length = line.read(&mut piece)?;
            if length == 0 {
                break;
            }
            answer.extend_from_slice(piece.get(..length).unwrap_or_default());
            if answer.len() > MAX_ANSWER {
                return Err(io::Error::other("it is longer than 16 MiB"));
            }
        }
        Ok(answer)
    }
}

/// A connection on which nothing takes for ever.
trait Line: Read + Write {
    /// From now on each reading and writing takes at most so long.
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Line for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl Line for UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

/// Status and body of an answer that is there to its stated length.
fn parse(answer: &[u8]) -> Option<(u16, &[u8])> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(answer).ok()? else {
        return None;
    };
    let stated = head
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))?;
    let stated: usize = std::str::from_utf8(stated.value)
        .ok()?
        .trim()
        .parse()
        .ok()?;
    let body = answer.get(length..)?.get(..stated)?;
    Some((head.code?, body))
}

fn is_whole(answer: &[u8]) -> bool {
    // A head is parsed anew with each piece, which is cheap for the few that an answer has.
    parse(answer).is_some()
}

const NO_URL: &str = "--admin takes a URL such as http://127.0.0.1:9090; the admin port speaks plain \
    HTTP, so reach another machine's through a tunnel";
const NO_PASSWORD: &str =
    "--admin takes no user and password: put the token into BERTH_ADMIN_TOKEN, or use --token-file";

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    /// Somebody who answers one question with these bytes and keeps the connection open until it is
    /// closed; gives what was asked.
    fn somebody(answer: impl Into<Vec<u8>>) -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, answer) = (listener.local_addr().unwrap(), answer.into());
        let heard = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = Vec::new();
            while !heard.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                heard.extend(byte);
            }
            let _ = stream.write_all(&answer);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read(&mut [0]);
            String::from_utf8(heard).unwrap()
        });
        (at, heard)
    }

    fn port(at: SocketAddr) -> AdminPort {
        AdminPort::new(at, Some("let-me-in".to_owned().into()))
    }

    #[test]
    fn the_body_comes_and_the_token_goes() {
        let (at, heard) = somebody("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}more");
        assert_eq!(port(at).get("/status").unwrap(), b"{}");
        let heard = heard.join().unwrap();
        assert!(heard.starts_with("GET /status HTTP/1.1\r\n"), "{heard}");
        assert!(heard.contains(&format!("\r\nhost: {at}\r\n")), "{heard}");
        assert!(
            heard.contains("\r\nauthorization: Bearer let-me-in\r\n"),
            "{heard}"
        );
        assert!(!format!("{:?}", port(at)).contains("let-me-in"));
    }

    #[test]
    fn what_is_no_answer_is_said_in_words() {
        let mut count = 0;
        for (answer, why) in [
            ("HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n", "this token"),
            (
                "HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n",
                "is no admin port (its status is 404)",
            ),
            (
                "HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nshort",
                "it is not HTTP",
            ),
            (
                "HTTP/1.1 200 X\r\ncontent-length: -1\r\n\r\n",
                "it is not HTTP",
            ),
            ("SSH-2.0-x\r\n", "it is not HTTP"),
            ("", "it is not HTTP"),
        ] {
            let (at, heard) = somebody(answer);
            let said = port(at).get("/status").unwrap_err().to_string();
            assert!(said.contains(why), "{answer:?}: {said}");
            heard.join().unwrap();
            count += 1;
        }
        assert_eq!(count, 6);
    }

    #[test]
    fn who_sent_no_token_is_told_how_to_send_one() {
        let (at, _heard) = somebody("HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n");
        let error = AdminPort::new(at, None).get("/status").unwrap_err();
        let said = error.to_string();
        for way in [
            "none was sent",
            "BERTH_ADMIN_TOKEN",
            "--token-file",
            "-c FILE",
        ] {
            assert!(said.contains(way), "{said}");
        }
    }

    #[test]
    fn an_answer_without_end_is_cut() {
        let endless = vec![b'x'; MAX_ANSWER + 1];
        let mut answer = b"HTTP/1.1 200 X\r\ncontent-length: 99999999\r\n\r\n".to_vec();
        answer.extend(endless);
        let (at, _heard) = somebody(answer);
        let said = port(at).get("/status").unwrap_err().to_string();
        assert!(said.contains("longer than 16 MiB"), "{said}");
    }

    #[test]
    fn where_nobody_listens_nobody_runs() {
        let at = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let error = port(at).get("/status").unwrap_err();
        assert!(
            matches!(error, AskError::NotRunning(At::Port(it)) if it == at),
            "{error}"
        );
        let everywhere = AdminPort::new("[::]:9".parse().unwrap(), None);
        assert_eq!(everywhere.at.to_string(), "[::1]:9");
    }

    #[test]
    fn a_url_names_a_port_and_nothing_else() {
        let good = [
            ("http://127.0.0.1:9090", "127.0.0.1:9090"),
            ("http://[::1]:9090/", "[::1]:9090"),
            ("http://0.0.0.0", "127.0.0.1:80"),
        ];
        for (url, address) in good {
            let port = AdminPort::at(url, None).unwrap();
            assert_eq!(port.at.to_string(), address, "{url}");
        }
        let bad = [
            "",
            "127.0.0.1:9090",
            "https://127.0.0.1:9090",
            "http://127.0.0.1:9090/status",
            "http://me:sk-secret@127.0.0.1:9090",
            "http://",
        ];
        for url in bad {
            let said = AdminPort::at(url, None).unwrap_err();
            assert!(said.starts_with("--admin takes"), "{url}: {said}");
            assert!(!said.contains("sk-secret"), "{said}");
        }
    }
}
