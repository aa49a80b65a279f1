//! What an answer's head says, in the gate's words.

use http::header;
use pingora::http::ResponseHeader;

use crate::admission::coding::{Coding, Decoder};
use crate::admission::gate::{AnswerHead, Media};
use crate::admission::retry_after;

/// A head, read.
pub struct Head {
    /// For the gate.
    pub answer: AnswerHead,
    /// For its body, where it is in a content coding.
    pub decoder: Option<Decoder>,
}

/// Reads a head. `head_only` says that the request was a HEAD.
pub fn read(head: &ResponseHeader, head_only: bool) -> Head {
    let value = |name| head.headers.get(name).map(http::HeaderValue::as_bytes);
    let coding = match value(header::CONTENT_ENCODING) {
        None => Some(Coding::Identity),
        Some(name) => Coding::named(name),
    };
    let status = head.status.as_u16();
    let media = match coding {
        None => Media::Coded,
        Some(_) => media(value(header::CONTENT_TYPE)),
    };
    let answer = AnswerHead {
        status,
        media,
        challenge: head.headers.contains_key("cf-mitigated"),
        spent: status == 429 && retry_after::says_spent(&head.headers),
        bodiless: head_only || matches!(status, 204 | 304),
    };
    Head {
        answer,
        decoder: coding.and_then(Decoder::new),
    }
}

fn media(content_type: Option<&[u8]>) -> Media {
    let Some(value) = content_type else {
        return Media::Unstated;
    };
    let essence = value.split(|b| *b == b';').next().unwrap_or_default();
    let essence = essence.trim_ascii().to_ascii_lowercase();
    match essence.as_slice() {
        b"text/event-stream" => Media::Stream,
        b"text/html" | b"application/xhtml+xml" => Media::Page,
        b"" | b"text/plain" => Media::Unstated,
        other if other == b"application/json" || other.ends_with(b"+json") => Media::Json,
        _ => Media::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_type_is_read_without_its_parameters() {
        for (value, expected) in [
            (Some("text/event-stream; charset=utf-8"), Media::Stream),
            (Some("Application/JSON"), Media::Json),
            (Some("application/problem+json"), Media::Json),
            (Some("text/html; charset=UTF-8"), Media::Page),
            (Some("text/plain"), Media::Unstated),
            (Some("audio/mpeg"), Media::Other),
            (None, Media::Unstated),
        ] {
            assert_eq!(media(value.map(str::as_bytes)), expected, "{value:?}");
        }
    }

    #[test]
    fn an_unknown_coding_is_not_read() {
        let mut head = ResponseHeader::build(200, None).unwrap();
        head.insert_header("content-encoding", "x-test").unwrap();
        head.insert_header("content-type", "text/event-stream")
            .unwrap();
        assert_eq!(read(&head, false).answer.media, Media::Coded);
    }
}
