//! The log as a file: its lines from the front, or one line from the back.
//!
//! Nothing is read whole: memory is one block and one line, however long the file. What is asked for by
//! its id was most likely served lately, so it is looked for from the end; whole blocks are searched for
//! the id's bytes and only what is around a hit is taken for a line. A line is at most [`LONGEST`]: what
//! is longer was not written by berth, and is given cut, so that it does not parse.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memchr::{memchr, memchr_iter, memmem, memrchr};

/// Bytes read at once. Chosen: large enough that the system calls do not count.
const BLOCK: usize = 1 << 20;

/// The longest line, bytes. Chosen: a line with ten attempts is below 8 KiB.
const LONGEST: usize = 256 << 10;

/// Gives every line of the file to `take`, in order and without its end, until `take` has enough.
///
/// # Errors
///
/// The file cannot be read.
pub fn each_line(
    path: &Path,
    mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BLOCK];
    let mut filled = 0;
    // In the rest of a line that was too long.
    let mut skipping = false;
    let mut give = |line: &[u8], skipping: &mut bool| match std::mem::take(skipping) {
        true => ControlFlow::Continue(()),
        false => take(line),
    };
    loop {
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let read = match file.read(room) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let seen = filled;
        filled += read;
        let mut rest = buffer.get(..filled).unwrap_or_default();
        let mut from = seen;
        while let Some(end) = rest.get(from..).and_then(|new| memchr(b'\n', new)) {
            let (line, after) = rest.split_at(from + end);
            if give(line, &mut skipping).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            rest = after.get(1..).unwrap_or_default();
            from = 0;
        }
        if read == 0 && rest.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        if read == 0 {
            return Ok(give(rest, &mut skipping));
        }
        let unfinished = rest.len();
        if unfinished > LONGEST {
            if give(rest, &mut skipping).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            skipping = true;
            filled = 0;
        } else {
            buffer.copy_within(filled - unfinished..filled, 0);
            filled = unfinished;
        }
    }
}

/// What a search came to.
#[derive(Debug)]
pub enum Search {
    /// The line, without its end.
    Found(Vec<u8>),
    /// This many lines were looked through.
    Nothing {
        /// How many.
        lines: u64,
    },
}

/// Looks from the end of the file for a line that holds `needle` and that `is_it` takes.
///
/// # Errors
///
/// The file cannot be read, or became shorter meanwhile.
pub fn find_last(path: &Path, needle: &[u8], is_it: impl Fn(&[u8]) -> bool) -> io::Result<Search> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let finder = memmem::Finder::new(needle);
    // A needle may lie across the end of a block: each is read with the first bytes of the next.
    let overlap = needle.len().saturating_sub(1) as u64;
    let (mut end, mut lines) = (length, 0);
    let mut buffer = Vec::with_capacity(BLOCK + needle.len());
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        read_at(&file, &mut buffer, start, (end + overlap).min(length))?;
        for hit in finder.find_iter(&buffer) {
            let line = line_around(&file, start + hit as u64, length)?;
            if is_it(&line) {
                return Ok(Search::Found(line));
            }
        }
        let block = buffer.get(..(end - start) as usize).unwrap_or_default();
        lines += memchr_iter(b'\n', block).count() as u64;
        end = start;
    }
    Ok(Search::Nothing { lines })
}

/// The first line of the file that `read` can read, and the last.
///
/// # Errors
///
/// The file cannot be read.
pub fn ends<T>(path: &Path, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<(T, T)>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut buffer = Vec::new();
    read_at(&file, &mut buffer, 0, length.min(LONGEST as u64))?;
    let first = buffer.split(|b| *b == b'\n').find_map(&read);
    let start = length.saturating_sub(LONGEST as u64);
    read_at(&file, &mut buffer, start, length)?;
    let last = buffer.rsplit(|b| *b == b'\n').find_map(&read);
    Ok(first.zip(last))
}

/// The line around a place of the file, at most [`LONGEST`] of it to either side.
fn line_around(file: &File, place: u64, length: u64) -> io::Result<Vec<u8>> {
    let start = place.saturating_sub(LONGEST as u64);
    let end = place.saturating_add(LONGEST as u64).min(length);
    let mut around = Vec::new();
    read_at(file, &mut around, start, end)?;
    let at = (place - start) as usize;
    let before = around.get(..at).unwrap_or_default();
    let after = around.get(at..).unwrap_or_default();
    let first = memrchr(b'\n', before).map_or(0, |end| end + 1);
    let last = memchr(b'\n', after).map_or(around.len(), |end| at + end);
    Ok(around.get(first..last).unwrap_or_default().to_vec())
}

fn read_at(file: &File, buffer: &mut Vec<u8>, start: u64, end: u64) -> io::Result<()> {
    buffer.resize((end - start) as usize, 0);
    file.read_exact_at(buffer, start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    fn lines(content: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let _ = each_line(file(content).path(), |line| {
            all.push(line.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        all
    }

    #[test]
    fn every_line_comes_whole_wherever_a_block_ends() {
        assert_eq!(lines(b"\na\n\nbc\nd"), [&b""[..], b"a", b"", b"bc", b"d"]);
        assert_eq!(lines(b"a\n"), [b"a"]);
        assert!(lines(b"").is_empty());
        for length in [1, 7, 1000, LONGEST - 1] {
            let count = 3 * BLOCK / length.max(100) + 3;
            let line = vec![b'x'; length];
            let content = [&line[..], b"\n"].concat().repeat(count);
            let read = lines(&content);
            assert_eq!(read.len(), count, "{length}");
            assert!(read.iter().all(|it| it.len() == length), "{length}");
        }
    }

    #[test]
    fn a_line_without_end_is_given_once_and_cut() {
        let content = [&b"a\n"[..], &vec![b'x'; 5 * BLOCK], b"\nb\n"].concat();
        let read = lines(&content);
        assert_eq!(read.len(), 3);
        assert!(read[1].len() <= BLOCK);
        assert_eq!(read[2], b"b");
    }

    #[test]
    fn reading_ends_when_enough_was_read() {
        let mut count = 0;
        let done = each_line(file(b"a\nb\nc\n").path(), |_| {
            count += 1;
            ControlFlow::Break(())
        });
        assert_eq!((done.unwrap(), count), (ControlFlow::Break(()), 1));
    }

    #[test]
    fn a_needle_is_found_across_every_place_of_a_block_s_end() {
        let needle = b"needle";
        for before in (0..2 * needle.len()).map(|n| BLOCK - n) {
            let after = vec![b'.'; before];
            let content = [b"first\n<needle>\n", &after[..]].concat();
            let file = file(&content);
            match find_last(file.path(), needle, |_| true).unwrap() {
                Search::Found(line) => assert_eq!(line, b"<needle>", "{before}"),
                Search::Nothing { .. } => panic!("not found with {before} bytes after it"),
            }
        }
    }

    #[test]
    fn what_is_not_there_is_said_with_the_number_of_lines() {
        let file = file(&b"a needle that is not meant\nb\n".repeat(100_000));
        let search = find_last(file.path(), b"needle", |_| false).unwrap();
        assert!(
            matches!(search, Search::Nothing { lines: 200_000 }),
            "{search:?}"
        );
        let read = |line: &[u8]| (!line.is_empty()).then(|| line.to_vec());
        let (first, last) = ends(file.path(), read).unwrap().unwrap();
        assert_eq!((first.len(), last.len()), (26, 1));
    }
}
