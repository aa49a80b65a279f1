//! The splitter: any bytes, any cuts, the same frames as one who reads the whole by the standard.

use crate::admission::sse::{Event, Splitter};

use super::Choices;

/// An event's name and data.
pub type Said = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Panics if a byte is lost or a frame ends elsewhere than in [`by_the_standard`].
pub fn run(bytes: &[u8]) {
    let Some((choices, stream)) = Choices::split(bytes) else {
        return;
    };
    let mut splitter = Splitter::default();
    let (mut frames, mut current) = (Vec::new(), Vec::new());
    for mut piece in choices.cut(stream) {
        while let Some(length) = splitter.next_end(piece) {
            assert!(
                (1..=piece.len()).contains(&length),
                "an end outside of the piece"
            );
            current.extend_from_slice(&piece[..length]);
            frames.push(std::mem::take(&mut current));
            piece = &piece[length..];
        }
        current.extend_from_slice(piece);
    }
    frames.push(current);
    assert_eq!(frames.concat(), stream, "the frames are not the stream");
    let said = |(index, frame): (usize, &Vec<u8>)| {
        let event = Event::read(frame, index == 0);
        let data = event.data.map(|data| data.into_owned());
        (event.name.map(<[u8]>::to_vec), data)
    };
    let found: Vec<Said> = frames.iter().enumerate().map(said).collect();
    let found: Vec<Said> = found.into_iter().filter(says_something).collect();
    let expected: Vec<Said> = by_the_standard(stream)
        .into_iter()
        .filter(says_something)
        .collect();
    assert_eq!(found, expected);
}

/// The events of a stream as the HTML standard has it: every line end becomes LF, and then it goes line
/// by line. The last one is what is not finished, nothing where all are.
pub fn by_the_standard(stream: &[u8]) -> Vec<Said> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let mut text = Vec::new();
    for (index, byte) in stream.iter().enumerate() {
        match byte {
            b'\r' => text.push(b'\n'),
            b'\n' if index > 0 && stream[index - 1] == b'\r' => {}
            byte => text.push(*byte),
        }
    }
    let (mut events, mut event): (Vec<Said>, Said) = (Vec::new(), (None, None));
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    // Behind the last line end there is no line yet.
    lines.pop_if(|line| line.is_empty());
    for line in lines {
        if line.is_empty() {
            events.push(std::mem::take(&mut event));
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = match colon {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        let value = match value.first() {
            Some(b' ') => &value[1..],
            _ => value,
        };
        match (name, &mut event) {
            (b"event", (name, _)) => *name = Some(value.to_vec()),
            (b"data", (_, Some(data))) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            (b"data", (_, data)) => *data = Some(value.to_vec()),
            _ => {}
        }
    }
    events.push(event);
    events
}

fn says_something((name, data): &Said) -> bool {
    name.is_some() || data.is_some()
}
