//! The text of an answer, the pieces that it comes in, and the body that they make.

use super::step::Admit;
use super::streams::{Asked, voice};

/// The pieces of an admission's output.
pub(super) fn pieces_of(asked: &Asked, how: &Admit) -> Vec<String> {
    let deltas = how.deltas as usize;
    match &how.call {
        Some(call) => split(&call.arguments, deltas),
        None if deltas == 0 => Vec::new(),
        None => {
            let bytes = usize::try_from(how.bytes).unwrap_or(usize::MAX);
            split(&text(asked, bytes.max(deltas)), deltas)
        }
    }
}

/// The first `deltas` pieces of a text that would have gone on.
pub(super) fn first_pieces(asked: &Asked, deltas: u32) -> Vec<String> {
    let wanted = deltas as usize;
    let all = wanted.saturating_add(2);
    let mut pieces = split(&text(asked, all), all);
    pieces.truncate(wanted);
    pieces
}

/// The greeting, which names who answered, repeated up to a length.
pub(super) fn text(asked: &Asked, at_least: usize) -> String {
    let greeting = format!("Hello from {}.", asked.credential);
    let mut text = greeting.clone();
    while text.len() < at_least {
        text.push(' ');
        text.push_str(&greeting);
    }
    let end = text.floor_char_boundary(at_least.max(greeting.len()));
    text.truncate(end);
    text
}

/// A text in nearly equal pieces, never through a character.
fn split(text: &str, pieces: usize) -> Vec<String> {
    let mut rest = text;
    let mut found = Vec::new();
    for left in (1..=pieces).rev() {
        let (piece, more) = rest.split_at(rest.ceil_char_boundary(rest.len().div_ceil(left)));
        found.push(piece.to_owned());
        rest = more;
    }
    found
}

/// A whole, correct body, without HTTP's framing.
pub(super) fn plain_body(asked: &Asked) -> String {
    let mut voice = voice(asked, None);
    let pieces = split(&text(asked, 0), 3);
    let whole = pieces.concat();
    if !asked.stream {
        return voice.document(&whole).to_string();
    }
    let mut frames = voice.lifecycle(2, false);
    frames.extend(voice.open());
    frames.extend(pieces.iter().map(|piece| voice.delta(piece)));
    frames.extend(voice.close(&whole));
    frames.extend(voice.terminal(&whole));
    String::from_utf8_lossy(&frames.concat()).into_owned()
}
