//! Answers that break in the middle, or lack their end.

use std::time::Duration;

use bytes::Bytes;

use super::{
    Act, CHUNKED, EVENT_STREAM, End, JSON, LAST_CHUNK, Script, Stream, admit, chunk, head, json,
    write,
};
use crate::sim::pieces::{first_pieces, pieces_of, plain_body, text};
use crate::sim::step::{Admit, Announce, Cut};
use crate::sim::streams::{Asked, Endpoint, voice};

pub(super) fn cut(asked: &Asked, how: &Cut, end: End) -> Script {
    let mut voice = voice(asked, None);
    if !asked.stream {
        let body = voice.document(&text(asked, 0)).to_string();
        let framing = format!("content-length: {}", body.len());
        let head = head(asked, 200, Some(JSON), &framing, &[]);
        let half = body.get(..body.len() / 2).unwrap_or_default();
        let acts = vec![write(head), write(half.to_owned())];
        return Script {
            status: Some(200),
            acts,
            end,
        };
    }
    let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
    stream.frames(voice.lifecycle(2, false));
    stream.output(&mut *voice, &first_pieces(asked, how.after), Duration::ZERO);
    if how.mid_frame {
        let framed = chunk(&voice.delta(" and so"));
        stream
            .acts
            .push(Act::Write(framed.slice(..framed.len() / 2)));
    }
    Script {
        end,
        acts: stream.acts,
        status: Some(200),
    }
}

/// A document is half of one, as where `cut` ends.
pub(super) fn malformed(asked: &Asked, after: u32) -> Script {
    if !asked.stream {
        let body = voice(asked, None).document(&text(asked, 0)).to_string();
        let half = body.get(..body.len() / 2).unwrap_or_default();
        return json(asked, 200, half, &[], Duration::ZERO);
    }
    let mut voice = voice(asked, None);
    let pieces = pieces_of(asked, &in_pieces(after.saturating_add(2)));
    let (before, rest) = pieces.split_at((after as usize).min(pieces.len()));
    let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
    stream.frames(voice.lifecycle(2, false));
    stream.output(&mut *voice, before, Duration::ZERO);
    stream.frames(vec![Bytes::from_static(
        b"data: {\"id\": \"half\", \"cho\n\n",
    )]);
    for piece in rest {
        stream.frames(vec![voice.delta(piece)]);
    }
    let whole = pieces.concat();
    stream.frames(voice.close(&whole));
    stream.frames(voice.terminal(&whole));
    stream.end()
}

pub(super) fn lying_length(asked: &Asked, announce: Announce) -> Script {
    let whole = plain_body(asked);
    let length = match announce {
        Announce::More => whole.len() + 64,
        Announce::Less => whole.len() / 2,
    };
    let kind = if asked.stream { EVENT_STREAM } else { JSON };
    let head = head(
        asked,
        200,
        Some(kind),
        &format!("content-length: {length}"),
        &[],
    );
    Script {
        status: Some(200),
        acts: vec![write(head), write(whole)],
        end: match announce {
            Announce::More => End::Close,
            Announce::Less => End::KeepAlive,
        },
    }
}

pub(super) fn double_chunk_end(asked: &Asked) -> Script {
    let kind = if asked.stream { EVENT_STREAM } else { JSON };
    let head = head(asked, 200, Some(kind), CHUNKED, &[]);
    let body = chunk(plain_body(asked).as_bytes());
    let twice = [LAST_CHUNK, LAST_CHUNK].concat();
    Script {
        status: Some(200),
        acts: vec![write(head), Act::Write(body), write(twice)],
        end: End::KeepAlive,
    }
}

pub(super) fn no_terminal(asked: &Asked) -> Script {
    if !asked.stream {
        return json(asked, 200, "", &[], Duration::ZERO);
    }
    let mut voice = voice(asked, None);
    let pieces = first_pieces(asked, 3);
    let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
    stream.frames(voice.lifecycle(2, false));
    stream.output(&mut *voice, &pieces, Duration::ZERO);
    // Chat's closing frame says that the choice has finished, after which only `[DONE]` is missing
    // and the answer counts as whole; so it is left out as well.
    if asked.endpoint != Endpoint::Chat {
        stream.frames(voice.close(&pieces.concat()));
    }
    stream.end()
}

pub(super) fn no_done(asked: &Asked) -> Script {
    if !asked.stream {
        return admit(asked, &Admit::default());
    }
    let mut voice = voice(asked, None);
    let pieces = pieces_of(asked, &Admit::default());
    let mut stream = Stream::new(asked, true, &[], Duration::ZERO);
    stream.frames(voice.lifecycle(2, false));
    stream.output(&mut *voice, &pieces, Duration::ZERO);
    stream.frames(voice.close(&pieces.concat()));
    stream.end()
}

fn in_pieces(deltas: u32) -> Admit {
    Admit {
        deltas,
        ..Admit::default()
    }
}
