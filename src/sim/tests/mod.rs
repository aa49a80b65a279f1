//! The simulator seen from the wire, and the client that looks at it: raw TCP, so that what is
//! asserted is what was sent. Every wait has a deadline and ends at a signal.

mod dialects;
mod docs;
mod effects;
mod programs;
mod service;

use super::*;
use std::{collections::BTreeMap, future::Future};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const DEADLINE: Duration = Duration::from_secs(20);

/// How an answer ended, seen by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Complete by its own framing; the connection is open.
    Whole,
    /// FIN before it was complete.
    Fin,
    /// RST.
    Rst,
    /// More came than was asked for.
    More,
}

#[derive(Debug)]
struct Answer {
    /// `None` where no head came.
    status: Option<u16>,
    headers: BTreeMap<String, String>,
    /// Without transfer coding.
    body: String,
    /// Everything, as it came.
    raw: Vec<u8>,
    ends: Ends,
}

struct Peer {
    stream: TcpStream,
    /// What came and is no part of an answer that was already returned.
    rest: Vec<u8>,
}

fn sim(program: Program) -> Sim {
    Sim::start(([127, 0, 0, 1], 0).into(), program).unwrap()
}

/// One credential `campus-a` with the key `sk-a`.
fn one(steps: impl IntoIterator<Item = Step>) -> Sim {
    sim(Program::default().with("sk-a", "campus-a", steps, Then::Last))
}

fn body(stream: bool) -> String {
    format!(r#"{{"model":"gpt-sim","stream":{stream},"input":"hi","messages":[]}}"#)
}

fn request(method: &str, path: &str, key: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: sim\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(DEADLINE, what).await;
    waited.expect("nothing happened within the deadline")
}

/// One request on a connection of its own.
async fn ask(sim: &Sim, path: &str, stream: bool) -> Answer {
    let mut peer = Peer::connect(sim).await;
    peer.send(&request("POST", path, "sk-a", &body(stream)))
        .await;
    peer.answer().await
}

async fn get(sim: &Sim, path: &str) -> Answer {
    let mut peer = Peer::connect(sim).await;
    peer.send(&request("GET", path, "sk-a", "")).await;
    peer.answer().await
}

impl Peer {
    async fn connect(sim: &Sim) -> Peer {
        let stream = within(TcpStream::connect(sim.addr())).await.unwrap();
        Peer {
            stream,
            rest: Vec::new(),
        }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within(self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    async fn answer(&mut self) -> Answer {
        self.answer_up_to(usize::MAX).await
    }

    /// An answer, or the first `limit` bytes of one that is longer.
    async fn answer_up_to(&mut self, limit: usize) -> Answer {
        let mut got = std::mem::take(&mut self.rest);
        loop {
            if let Some((mut answer, length)) = parse(&got) {
                self.rest = got.split_off(length);
                answer.raw = got;
                return answer;
            }
            let mut piece = vec![0; 16 << 10];
            let ends = match within(self.stream.read(&mut piece)).await {
                _ if got.len() >= limit => Ends::More,
                Ok(0) => Ends::Fin,
                Ok(length) => {
                    got.extend_from_slice(&piece[..length]);
                    continue;
                }
                Err(why) => {
                    assert_eq!(why.kind(), io::ErrorKind::ConnectionReset);
                    Ends::Rst
                }
            };
            return partial(got, ends);
        }
    }

    /// Reads until these bytes have come.
    async fn wait_for(&mut self, needle: &str) {
        while !String::from_utf8_lossy(&self.rest).contains(needle) {
            let mut piece = vec![0; 16 << 10];
            let length = within(self.stream.read(&mut piece)).await.unwrap();
            assert_ne!(length, 0, "closed before `{needle}` came");
            self.rest.extend_from_slice(&piece[..length]);
        }
    }
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {}", self.body))
    }

    /// The event names of a stream, or what stands for them in one without names.
    fn events(&self) -> Vec<String> {
        self.frames()
            .iter()
            .map(|frame| match frame.strip_prefix("event: ") {
                Some(named) => named.split('\n').next().unwrap().to_owned(),
                None => frame.clone(),
            })
            .collect()
    }

    fn frames(&self) -> Vec<String> {
        self.body
            .split_terminator("\n\n")
            .map(String::from)
            .collect()
    }

    /// The data of every frame that is JSON.
    fn data(&self) -> Vec<serde_json::Value> {
        self.frames()
            .iter()
            .filter_map(|frame| frame.split("data: ").nth(1))
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect()
    }
}

fn parse_head(got: &[u8]) -> Option<(u16, BTreeMap<String, String>, usize)> {
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut slots);
    let Ok(httparse::Status::Complete(length)) = head.parse(got) else {
        return None;
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers = head.headers.iter();
    let headers = headers
        .map(|each| (each.name.to_owned(), text(each.value)))
        .collect();
    Some((head.code.unwrap(), headers, length))
}

/// A complete answer, and how long it is.
fn parse(got: &[u8]) -> Option<(Answer, usize)> {
    let (status, headers, head) = parse_head(got)?;
    let (body, length) = match headers.get("content-length") {
        Some(length) => {
            let end = head + length.parse::<usize>().unwrap();
            (got.get(head..end)?.to_vec(), end)
        }
        None => {
            let (body, length) = dechunk(&got[head..]);
            (body, head + length?)
        }
    };
    let body = String::from_utf8(body).unwrap();
    let answer = Answer {
        status: Some(status),
        headers,
        body,
        raw: Vec::new(),
        ends: Ends::Whole,
    };
    Some((answer, length))
}

/// The chunks that are whole, and the length of all where the last one is there.
fn dechunk(mut got: &[u8]) -> (Vec<u8>, Option<usize>) {
    let all = got.len();
    let mut body = Vec::new();
    while let Ok(httparse::Status::Complete((line, size))) = httparse::parse_chunk_size(got) {
        let end = line + size as usize;
        if got.get(end..end + 2) != Some(b"\r\n") {
            break;
        }
        body.extend_from_slice(&got[line..end]);
        got = &got[end + 2..];
        if size == 0 {
            return (body, Some(all - got.len()));
        }
    }
    (body, None)
}

fn partial(raw: Vec<u8>, ends: Ends) -> Answer {
    let Some((status, headers, head)) = parse_head(&raw) else {
        return Answer {
            status: None,
            headers: BTreeMap::new(),
            body: String::new(),
            raw,
            ends,
        };
    };
    let body = if headers.contains_key("content-length") {
        raw[head..].to_vec()
    } else {
        dechunk(&raw[head..]).0
    };
    let body = String::from_utf8_lossy(&body).into_owned();
    Answer {
        status: Some(status),
        headers,
        body,
        raw,
        ends,
    }
}
