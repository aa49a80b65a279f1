//! The endpoints that never stream: embeddings and Anthropic's token count.

use super::{Asked, Endpoint, Failure, Fault, Voice};
use bytes::Bytes;
use serde_json::{Value, json};

pub(super) struct Document {
    asked: Asked,
}

impl Document {
    pub(super) fn new(asked: Asked) -> Document {
        Document { asked }
    }
}

impl Voice for Document {
    // `script` asks for frames only of endpoints that can stream.
    fn lifecycle(&mut self, _count: u32, _rate_limits: bool) -> Vec<Bytes> {
        Vec::new()
    }
    fn open(&mut self) -> Vec<Bytes> {
        Vec::new()
    }
    fn delta(&mut self, _piece: &str) -> Bytes {
        Bytes::new()
    }
    fn close(&mut self, _whole: &str) -> Vec<Bytes> {
        Vec::new()
    }
    fn terminal(&mut self, _whole: &str) -> Vec<Bytes> {
        Vec::new()
    }
    fn failure(&mut self, _fault: &Fault, _how: Failure, _so_far: &str) -> Vec<Bytes> {
        Vec::new()
    }
    fn keepalive(&self) -> Bytes {
        Bytes::new()
    }

    fn document(&self, _whole: &str) -> Value {
        let tokens = self.asked.input_tokens;
        if self.asked.endpoint == Endpoint::CountTokens {
            return json!({"input_tokens": tokens});
        }
        let embedding = if self.asked.base64 {
            let bytes: Vec<u8> = VECTOR.iter().flat_map(|x| x.to_le_bytes()).collect();
            Value::from(base64(&bytes))
        } else {
            Value::from(VECTOR.to_vec())
        };
        let data: Vec<Value> = (0..self.asked.inputs)
            .map(|index| json!({"object": "embedding", "index": index, "embedding": embedding}))
            .collect();
        json!({
            "object": "list",
            "data": data,
            "model": self.asked.model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })
    }

    fn failed_document(&self, fault: &Fault, _so_far: &str) -> Value {
        self.asked.error_document(fault)
    }
}

/// The one vector that every input has. Exact in `f32`, so that both encodings read the same.
const VECTOR: [f32; 4] = [0.5, -0.25, 0.125, 0.75];

/// Base64 with padding: the SDKs ask for embeddings in it unless told otherwise. Twelve lines here
/// are less than a dependency of the whole program for the simulator's sake.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for position in 0..4 {
            let six = (bits >> (18 - 6 * position)) as usize & 63;
            let letter = ALPHABET.get(six).copied().unwrap_or(b'=');
            text.push(if position <= group.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::base64::{Engine, engine::general_purpose::STANDARD};

    #[test]
    fn base64_is_what_others_write() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            let bytes = &bytes[..length];
            assert_eq!(base64(bytes), STANDARD.encode(bytes), "{length} bytes");
        }
    }
}
