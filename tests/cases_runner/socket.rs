//! WebSocket as bytes: messages, closes, and the key of the handshake. Both sides of the runner use
//! it; no case negotiates compression.

use std::io;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;

use super::exchange::{Answer, SocketSeen};
use super::format::{Action, Request};
use super::http1::{Wire, named};

const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A masking key as good as any: the mask hides nothing, it only has to be undone.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A whole message or a control frame.
pub struct Message {
    opcode: u8,
    pub payload: Vec<u8>,
}

impl Message {
    /// The code of a close; 1005 where it has none.
    fn close(&self) -> Option<u16> {
        let code = || {
            self.payload
                .first_chunk()
                .map_or(1005, |code| u16::from_be_bytes(*code))
        };
        (self.opcode == CLOSE).then(code)
    }
}

/// The answer to a `sec-websocket-key` (RFC 6455, 4.2.2).
pub fn accept(key: &str) -> String {
    let digest = Sha1::digest(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    STANDARD.encode(digest)
}

/// One frame; `masked` as a client must.
fn frame(opcode: u8, payload: &[u8], masked: bool) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    let mask = if masked { 0x80 } else { 0 };
    match payload.len() {
        short @ 0..126 => frame.push(mask | short as u8),
        middle @ 126..65_536 => {
            frame.push(mask | 126);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(mask | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    if !masked {
        frame.extend_from_slice(payload);
        return frame;
    }
    frame.extend(MASK);
    frame.extend(
        payload
            .iter()
            .zip(MASK.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

pub fn text(payload: &[u8], masked: bool) -> Vec<u8> {
    frame(TEXT, payload, masked)
}

pub fn close(code: u16, masked: bool) -> Vec<u8> {
    frame(CLOSE, &code.to_be_bytes(), masked)
}

/// The next message, its fragments put together.
pub async fn read(wire: &mut Wire) -> io::Result<Message> {
    let (mut whole, mut kind) = (Vec::new(), TEXT);
    loop {
        let [first, second] = take(wire).await?;
        let length = match second & 0x7f {
            126 => usize::from(u16::from_be_bytes(take(wire).await?)),
            127 => u64::from_be_bytes(take(wire).await?) as usize,
            short => usize::from(short),
        };
        let mask = if second & 0x80 != 0 {
            take(wire).await?
        } else {
            [0; 4]
        };
        while wire.buffer.len() < length {
            wire.fill().await?;
        }
        let payload: Vec<u8> = wire.buffer.drain(..length).collect();
        let payload = payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask);
        let opcode = first & 0x0f;
        if opcode >= CLOSE {
            return Ok(Message {
                opcode,
                payload: payload.collect(),
            });
        }
        if opcode != 0 {
            kind = opcode;
        }
        whole.extend(payload);
        if first & 0x80 != 0 {
            return Ok(Message {
                opcode: kind,
                payload: whole,
            });
        }
    }
}

async fn take<const N: usize>(wire: &mut Wire) -> io::Result<[u8; N]> {
    loop {
        if let Some(bytes) = wire.buffer.first_chunk().copied() {
            wire.buffer.drain(..N);
            return Ok(bytes);
        }
        wire.fill().await?;
    }
}

/// The client's side after the 101: a message at a time, the next one when a turn is complete.
pub async fn talk(
    wire: &mut Wire,
    write: &mut OwnedWriteHalf,
    request: &Request,
    answer: &mut Answer,
) -> Option<Action> {
    let mut seen = SocketSeen::default();
    let mut turns = request.ws_send.iter();
    let leaves = loop {
        let turn_over = seen
            .texts
            .last()
            .is_none_or(|last| named(String::new(), last) == "response.completed");
        if turn_over && let Some(message) = turns.next() {
            let payload = super::script::message(message).unwrap_or_default();
            if write.write_all(&text(&payload, true)).await.is_err() {
                break None;
            }
            answer.sent = Instant::now();
        }
        let Ok(message) = read(wire).await else {
            break None;
        };
        if let Some(code) = message.close() {
            seen.close = Some(code);
            // The other side may be gone already: it has said what there was to say.
            let _ = write.write_all(&close(code.max(1000), true)).await;
            break None;
        }
        match message.opcode {
            PING => {
                let _ = write.write_all(&frame(PONG, &message.payload, true)).await;
            }
            PONG => {}
            _ => {
                seen.first.get_or_insert_with(Instant::now);
                seen.texts
                    .push(String::from_utf8_lossy(&message.payload).into_owned());
            }
        }
        let stream: String = seen
            .texts
            .iter()
            .map(|text| format!("data: {text}\n\n"))
            .collect();
        let due = |action: &&Action| super::client::due(action, stream.as_bytes()).is_some();
        if let Some(action) = request.actions.iter().find(due) {
            break Some(action.clone());
        }
    };
    seen.over = Some(Instant::now());
    answer.socket = Some(seen);
    leaves
}
