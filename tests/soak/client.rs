//! One request of a client, and what came of it: a whole answer, an honest failure, or a lie.

use std::net::SocketAddr;
use std::time::Duration;

use berth::admission::dice::Dice;
use serde_json::Value;

use crate::common::wire::{Answer, Client, Client2, Ends, body, large_body, post};

/// Every answer ends within this: the hold limits of the configuration and the longest stream.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// The whole answer, in order.
    Whole,
    /// An error instead of an answer, with its status.
    Refused(u16),
    /// After output: a stream that says itself that it failed.
    Failed,
    /// After output: a connection that visibly broke.
    Cut,
    /// The client left, as it meant to.
    Left,
    /// What must not be.
    Wrong(String),
}

/// Asks once, in a way that the dice choose, and gives berth's id of the request where one came.
pub async fn ask(berth: SocketAddr, mut dice: Dice) -> (Met, Option<String>) {
    match tokio::time::timeout(PATIENCE, answer_of(berth, &mut dice)).await {
        Ok(Some((kind, answer))) => {
            let id = answer.header("x-berth-request-id").map(str::to_owned);
            (judge(kind, &answer), id)
        }
        Ok(None) => (Met::Left, None),
        Err(_) => (Met::Wrong(format!("no end within {PATIENCE:?}")), None),
    }
}

#[derive(Clone, Copy)]
struct Kind {
    path: &'static str,
    stream: bool,
}

async fn answer_of(berth: SocketAddr, dice: &mut Dice) -> Option<(Kind, Answer)> {
    let roll = dice.roll() % 100;
    let (path, stream) = match roll {
        0..45 => ("/v1/responses", true),
        45..60 => ("/v1/responses", false),
        60..75 => ("/v1/chat/completions", true),
        75..80 => ("/v1/chat/completions", false),
        80..95 => ("/anthropic/v1/messages", true),
        _ => ("/anthropic/v1/messages", false),
    };
    let kind = Kind { path, stream };
    let session = format!("session-{}", dice.roll() % 500);
    let large = path == "/v1/responses" && stream && dice.roll().is_multiple_of(8);
    let body = match large {
        true => large_body(1 << 20),
        false => body(path, stream).into_bytes(),
    };
    if dice.roll().is_multiple_of(4) {
        let client = Client2::connect(berth).await;
        let answer = client.ask(path, &[("session-id", &session)], body).await;
        return Some((kind, answer));
    }
    let mut client = match Client::try_connect(berth).await {
        Ok(client) => client,
        Err(error) => panic!("nobody listens: {error}"),
    };
    let more = format!("session-id: {session}\r\n");
    client.send(post(path, &more, body)).await;
    if dice.roll().is_multiple_of(16) {
        let patience = Duration::from_millis(dice.roll() % 400);
        // It leaves whether anything came or not.
        let _ = tokio::time::timeout(patience, client.stream.readable()).await;
        client.reset();
        return None;
    }
    Some((kind, client.answer().await))
}

fn judge(kind: Kind, answer: &Answer) -> Met {
    let text = answer.text();
    for secret in ["sk-", "server_is_overloaded", "slow_down"] {
        // berth says itself what it rewrote.
        let mut headers = answer
            .headers
            .iter()
            .filter(|(name, _)| name != "x-berth-rewrote");
        if text.contains(secret) || headers.any(|(_, it)| it.contains(secret)) {
            return Met::Wrong(format!("`{secret}` reached a client: {answer:?}"));
        }
    }
    match answer.status {
        200 if !kind.stream => document(answer),
        200 => stream(kind, answer, &text),
        // The upstream's own statements about a request go through.
        400..=499 | 502..=504 if answer.ends == Ends::Whole => Met::Refused(answer.status),
        _ => Met::Wrong(format!("{}: {answer:?}", kind.path)),
    }
}

fn document(answer: &Answer) -> Met {
    if answer.ends != Ends::Whole {
        return Met::Cut;
    }
    let Ok(document) = serde_json::from_slice::<Value>(&answer.body) else {
        return Met::Wrong(format!("half a document that looks whole: {answer:?}"));
    };
    let said = [
        "/output/0/content/0/text",
        "/choices/0/message/content",
        "/content/0/text",
    ]
    .iter()
    .find_map(|at| document.pointer(at)?.as_str());
    match said {
        Some(said) if is_greeting(said) => Met::Whole,
        _ => Met::Wrong(format!("not what was said: {answer:?}")),
    }
}

fn stream(kind: Kind, answer: &Answer, text: &str) -> Met {
    let frames: Vec<&str> = text
        .split("\n\n")
        .flat_map(str::lines)
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    let mut said = String::new();
    let (mut completed, mut failed, mut next) = (0, 0, 0);
    for (at, frame) in frames.iter().enumerate() {
        let is_last = at + 1 == frames.len();
        if *frame == "[DONE]" {
            completed += 1;
            continue;
        }
        let Ok(frame) = serde_json::from_str::<Value>(frame) else {
            // Cut in mid frame: only the last, and only where the framing says so as well.
            match is_last && answer.ends != Ends::Whole {
                true => return Met::Cut,
                false => return Met::Wrong(format!("a broken frame: {answer:?}")),
            }
        };
        if let Some(number) = frame["sequence_number"].as_u64() {
            if number != next {
                return Met::Wrong(format!("frame {number} instead of {next}: {text}"));
            }
            next += 1;
        }
        let kind = frame["type"].as_str();
        match kind {
            Some("response.completed" | "message_stop") => completed += 1,
            Some("response.failed" | "error") => failed += 1,
            None if frame.get("error").is_some() => failed += 1,
            _ => {}
        }
        let piece = match kind {
            Some("response.output_text.delta") => frame["delta"].as_str(),
            Some("content_block_delta") => frame["delta"]["text"].as_str(),
            None => frame["choices"][0]["delta"]["content"].as_str(),
            _ => None,
        };
        said.push_str(piece.unwrap_or_default());
    }
    let whole = answer.ends == Ends::Whole;
    match (completed, failed) {
        (1, 0) if whole && is_greeting(&said) => Met::Whole,
        (0, 1..) => Met::Failed,
        (0, 0) if !whole => Met::Cut,
        _ => Met::Wrong(format!("{}: {answer:?}", kind.path)),
    }
}

/// Whether it is what the simulated upstream says: one greeting again and again, from its first letter on.
fn is_greeting(said: &str) -> bool {
    let Some(end) = said.find('.') else {
        return false;
    };
    let greeting = format!("{} ", &said[..=end]);
    let again = greeting.chars().cycle().take(said.chars().count());
    said.starts_with("Hello from ") && again.eq(said.chars())
}
