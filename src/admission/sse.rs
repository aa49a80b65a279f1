//! Event streams: where a frame ends, and what stands in it.
//!
//! The problem: a refusal hides in the middle of a stream that the network cuts wherever it likes,
//! with LF, CRLF or CR as line ends, with a byte order mark or without, with or without an `event:`
//! line, with JSON spread over several `data:` lines. The promise: for any bytes and any cuts,
//! [`Splitter`] finds the same frame ends as a parser that had the whole stream at once, and it never
//! touches a byte; [`Event`] reads a whole frame as the HTML standard's event-stream rules do.
//!
//! Refused: a parser that yields decoded events and writes them out again. It would be shorter, and
//! would normalise line ends, comments and spacing of healthy streams, which nobody asked for.
//!
//! Limit: a frame that ends in CR at the very end of a chunk is complete at once; a LF that follows
//! in the next chunk becomes a frame of its own, without content. Waiting for it would hold back the
//! last frame of a CR-only stream for ever.

use std::borrow::Cow;

use memchr::memchr2;

/// Finds the ends of frames in a stream that arrives in pieces. A frame ends with an empty line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitter {
    /// The current line has no byte yet.
    line_is_empty: bool,
    /// What a LF at the beginning of the next piece belongs to.
    last: Last,
}

/// The last byte seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// A CR that ended a line within a frame.
    CrInFrame,
    /// A CR that ended a frame.
    CrAtEnd,
    /// Anything else.
    Other,
}

impl Default for Splitter {
    fn default() -> Self {
        Splitter {
            line_is_empty: true,
            last: Last::Other,
        }
    }
}

impl Splitter {
    /// The length of what belongs to the current frame, if the frame ends in `bytes`. `None` takes
    /// all of `bytes` into the frame; the next call goes on from there.
    pub fn next_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        if let Some(first) = bytes.first() {
            match (std::mem::replace(&mut self.last, Last::Other), first) {
                (Last::CrAtEnd, b'\n') => return Some(1),
                (Last::CrInFrame, b'\n') => at = 1,
                _ => {}
            }
        }
        while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'\n', b'\r', rest)) {
            let line_end = at + found;
            let blank = self.line_is_empty && found == 0;
            self.line_is_empty = true;
            at = line_end + 1;
            if bytes.get(line_end) == Some(&b'\r') {
                match (bytes.get(at), blank) {
                    (Some(b'\n'), _) => at += 1,
                    (Some(_), _) => {}
                    (None, true) => self.last = Last::CrAtEnd,
                    (None, false) => self.last = Last::CrInFrame,
                }
            }
            if blank {
                return Some(at);
            }
        }
        if at < bytes.len() {
            self.line_is_empty = false;
        }
        None
    }
}

/// One frame, read.
#[derive(Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event:` line, where there is one.
    pub name: Option<&'a [u8]>,
    /// The `data:` lines, joined by LF; `None` where there is none.
    pub data: Option<Cow<'a, [u8]>>,
}

impl<'a> Event<'a> {
    /// Reads a frame. `first` says that it is the first of its stream, where a byte order mark may
    /// stand.
    pub fn read(frame: &'a [u8], first: bool) -> Event<'a> {
        let mut event = Event {
            name: None,
            data: None,
        };
        for line in lines(without_mark(frame, first)) {
            match field(line) {
                Some((b"event", value)) => event.name = Some(value),
                Some((b"data", value)) => {
                    event.data = Some(match event.data.take() {
                        None => Cow::Borrowed(value),
                        Some(earlier) => {
                            let mut joined = earlier.into_owned();
                            joined.push(b'\n');
                            joined.extend_from_slice(value);
                            Cow::Owned(joined)
                        }
                    });
                }
                _ => {}
            }
        }
        event
    }
}

/// The lines of a frame, without their ends. A last line without an end is a line too.
pub fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let Some(end) = memchr2(b'\n', b'\r', bytes) else {
            return Some(std::mem::take(&mut bytes));
        };
        let (line, rest) = bytes.split_at(end);
        bytes = rest
            .strip_prefix(b"\r\n")
            .or_else(|| rest.get(1..))
            .unwrap_or_default();
        Some(line)
    })
}

/// A line's field name and value; `None` for a comment or an empty line.
pub fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    match memchr::memchr(b':', line) {
        Some(0) => None,
        Some(colon) => {
            let (name, value) = line.split_at(colon);
            let value = value.get(1..).unwrap_or_default();
            Some((name, value.strip_prefix(b" ").unwrap_or(value)))
        }
        None if line.is_empty() => None,
        None => Some((line, b"")),
    }
}

fn without_mark(frame: &[u8], first: bool) -> &[u8] {
    if first {
        frame.strip_prefix(b"\xef\xbb\xbf").unwrap_or(frame)
    } else {
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The frames found when `bytes` arrive in pieces of the given lengths.
    fn frames(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let (mut splitter, mut frames, mut current) = (Splitter::default(), vec![], vec![]);
        let mut start = 0;
        let mut ends: Vec<usize> = cuts.iter().map(|c| c % (bytes.len() + 1)).collect();
        ends.push(bytes.len());
        ends.sort_unstable();
        for end in ends {
            let mut chunk = &bytes[start..end];
            start = end;
            while let Some(length) = splitter.next_end(chunk) {
                current.extend_from_slice(&chunk[..length]);
                frames.push(std::mem::take(&mut current));
                chunk = &chunk[length..];
            }
            current.extend_from_slice(chunk);
        }
        frames.push(current);
        frames
    }

    /// A frame's name and data.
    type Said = (Option<Vec<u8>>, Option<Vec<u8>>);

    /// What the frames say, which is what must not depend on the cuts.
    fn said(frames: &[Vec<u8>]) -> Vec<Said> {
        let read = |(i, f): (usize, &Vec<u8>)| {
            let event = Event::read(f, i == 0);
            (
                event.name.map(<[u8]>::to_vec),
                event.data.map(Cow::into_owned),
            )
        };
        frames
            .iter()
            .enumerate()
            .map(read)
            .filter(|(name, data)| name.is_some() || data.is_some())
            .collect()
    }

    #[test]
    fn each_line_end_ends_a_frame() {
        for (text, expected) in [
            ("a: 1\n\nb: 2\n\n", vec!["a: 1\n\n", "b: 2\n\n", ""]),
            (
                "a: 1\r\n\r\nb: 2\r\n\r\n",
                vec!["a: 1\r\n\r\n", "b: 2\r\n\r\n", ""],
            ),
            ("a: 1\r\rb: 2\r\r", vec!["a: 1\r\r", "b: 2\r\r", ""]),
            ("a: 1\r\n\nb: 2\n\r\n", vec!["a: 1\r\n\n", "b: 2\n\r\n", ""]),
            (": ping\n\n", vec![": ping\n\n", ""]),
            ("\n\n", vec!["\n", "\n", ""]),
            ("data: half", vec!["data: half"]),
        ] {
            let found = frames(text.as_bytes(), &[]);
            let found: Vec<_> = found
                .iter()
                .map(|f| std::str::from_utf8(f).unwrap())
                .collect();
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn a_frame_is_read_like_the_standard_says() {
        let event = Event::read(
            b"\xef\xbb\xbfevent: x\ndata:{\ndata:  \"a\"\nid: 7\n\n",
            true,
        );
        assert_eq!(event.name, Some(&b"x"[..]));
        assert_eq!(event.data.as_deref(), Some(&b"{\n \"a\""[..]));
        assert_eq!(Event::read(b": comment\n\n", false).data, None);
        assert_eq!(
            Event::read(b"data\n\n", false).data.as_deref(),
            Some(&b""[..])
        );
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            bytes in prop::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'\r'), Just(b':'), Just(b' '), Just(b'd'), any::<u8>()],
                0..120,
            ),
            cuts in prop::collection::vec(any::<usize>(), 0..20),
        ) {
            let whole = frames(&bytes, &[]);
            let every: Vec<usize> = (0..=bytes.len()).collect();
            for cuts in [&cuts, &every] {
                let cut = frames(&bytes, cuts);
                prop_assert_eq!(cut.concat(), bytes.clone());
                prop_assert_eq!(said(&cut), said(&whole), "cuts {:?}", cuts);
            }
        }

        #[test]
        fn generated_frames_come_out_as_they_went_in(
            datas in prop::collection::vec("[a-z\"{}:]{0,12}", 1..8),
            end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
            cuts in prop::collection::vec(any::<usize>(), 0..20),
        ) {
            let text: String =
                datas.iter().map(|d| format!("event: e{end}data: {d}{end}{end}")).collect();
            let found = said(&frames(text.as_bytes(), &cuts));
            let expected: Vec<_> = datas
                .iter()
                .map(|d| (Some(b"e".to_vec()), Some(d.clone().into_bytes())))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
