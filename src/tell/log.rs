//! One file of the log: its lines from the front, or one line from the back.
//!
//! Nothing is read whole: memory is one block and one line, however long the file, or however much a
//! packed one unpacks to. What is asked for by its id was most likely served lately, so it is looked for
//! from the end; whole blocks are searched for the id's bytes and only what is around a hit is taken for
//! a line. Where there is no end to begin at, in a pipe and in a packed file, it is looked for from the
//! front. A line is at most [`LONGEST`]: what is longer was not written by berth, and is given cut, so
//! that it does not parse.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use memchr::{memchr, memchr_iter, memmem, memrchr};

/// Bytes read at once. Chosen: large enough that the system calls do not count.
const BLOCK: usize = 1 << 20;

/// The longest line, bytes. Chosen: a line with ten attempts is below 8 KiB.
const LONGEST: usize = 256 << 10;

/// What a packed file begins with (RFC 1952).
const PACKED: [u8; 2] = [0x1f, 0x8b];

/// A file, opened.
enum Opened {
    /// It can be read at any place.
    Plain(File),
    /// It can be read once, from its beginning.
    Stream(Box<dyn Read>),
}

fn open(path: &Path) -> io::Result<Opened> {
    let mut file = File::open(path)?;
    let mut first = Vec::new();
    if file.metadata()?.is_file() {
        let length = file.metadata()?.len().min(PACKED.len() as u64);
        read_at(&file, &mut first, 0, length)?;
        return Ok(match first == PACKED {
            true => Opened::Stream(Box::new(MultiGzDecoder::new(file))),
            false => Opened::Plain(file),
        });
    }
    (&mut file)
        .take(PACKED.len() as u64)
        .read_to_end(&mut first)?;
    let is_packed = first == PACKED;
    let whole = Cursor::new(first).chain(file);
    Ok(match is_packed {
        true => Opened::Stream(Box::new(MultiGzDecoder::new(whole))),
        false => Opened::Stream(Box::new(whole)),
    })
}

/// Gives every line of the file to `take`, in order and without its end, until `take` has enough.
///
/// # Errors
///
/// The file cannot be read.
pub fn each_line(
    path: &Path,
    take: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    match open(path)? {
        Opened::Plain(file) => lines_of(file, take),
        Opened::Stream(stream) => lines_of(stream, take),
    }
}

fn lines_of(
    mut file: impl Read,
    mut take: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
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
    /// It is not there.
    Nothing(Looked),
}

/// What was looked through in vain.
#[derive(Debug, Default)]
pub struct Looked {
    /// How many lines.
    pub lines: u64,
    /// A line that holds what was looked for and that was not taken.
    pub cut: Option<Vec<u8>>,
    /// The first line, and the last.
    pub ends: Option<(String, String)>,
}

/// Looks for a line that holds `needle` and that `is_it` takes; the last one, where the file has an end.
/// `name` says of a line what it is called, if anything.
///
/// # Errors
///
/// The file cannot be read, or became shorter meanwhile.
pub fn find(
    path: &Path,
    needle: &[u8],
    is_it: impl Fn(&[u8]) -> bool,
    name: impl Fn(&[u8]) -> Option<String>,
) -> io::Result<Search> {
    match open(path)? {
        Opened::Plain(file) => Ok(match find_last(&file, needle, is_it)? {
            Search::Nothing(looked) => Search::Nothing(Looked {
                ends: ends(&file, name)?,
                ..looked
            }),
            found => found,
        }),
        Opened::Stream(stream) => find_first(stream, needle, is_it, name),
    }
}

/// What `read` makes of the first line that it can read, not far from the beginning of the file.
///
/// # Errors
///
/// The file cannot be read.
pub fn first<T>(path: &Path, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<T>> {
    let (mut found, mut seen) = (None, 0);
    let done = each_line(path, |line| {
        found = read(line);
        seen += line.len() + 1;
        match found.is_some() || seen > LONGEST {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    done.map(|_| found)
}

fn find_first(
    stream: impl Read,
    needle: &[u8],
    is_it: impl Fn(&[u8]) -> bool,
    name: impl Fn(&[u8]) -> Option<String>,
) -> io::Result<Search> {
    let finder = memmem::Finder::new(needle);
    let (mut found, mut looked) = (None, Looked::default());
    let (mut first, mut last) = (None, Vec::new());
    let _ = lines_of(stream, |line| {
        looked.lines += 1;
        if finder.find(line).is_some() {
            match is_it(line) {
                true => {
                    found = Some(line.to_vec());
                    return ControlFlow::Break(());
                }
                false => looked.cut = Some(line.to_vec()),
            }
        }
        if !line.is_empty() {
            first = first.take().or_else(|| name(line));
            last.clear();
            last.extend_from_slice(line);
        }
        ControlFlow::Continue(())
    })?;
    looked.ends = first.zip(name(&last));
    Ok(match found {
        Some(line) => Search::Found(line),
        None => Search::Nothing(looked),
    })
}

fn find_last(file: &File, needle: &[u8], is_it: impl Fn(&[u8]) -> bool) -> io::Result<Search> {
    let length = file.metadata()?.len();
    let finder = memmem::Finder::new(needle);
    // A needle may lie across the end of a block: each is read with the first bytes of the next.
    let overlap = needle.len().saturating_sub(1) as u64;
    let (mut end, mut looked) = (length, Looked::default());
    let mut buffer = Vec::with_capacity(BLOCK + needle.len());
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        read_at(file, &mut buffer, start, (end + overlap).min(length))?;
        // A line is looked at once, however often it holds the needle.
        let mut seen = start;
        for hit in finder.find_iter(&buffer) {
            let place = start + hit as u64;
            if place < seen {
                continue;
            }
            let line = line_around(file, place, length)?;
            if is_it(&line.bytes) {
                return Ok(Search::Found(line.bytes));
            }
            seen = line.end;
            looked.cut = Some(line.bytes);
        }
        let block = buffer.get(..(end - start) as usize).unwrap_or_default();
        looked.lines += memchr_iter(b'\n', block).count() as u64;
        end = start;
    }
    Ok(Search::Nothing(looked))
}

fn ends<T>(file: &File, read: impl Fn(&[u8]) -> Option<T>) -> io::Result<Option<(T, T)>> {
    let length = file.metadata()?.len();
    let mut buffer = Vec::new();
    read_at(file, &mut buffer, 0, length.min(LONGEST as u64))?;
    let first = buffer.split(|b| *b == b'\n').find_map(&read);
    let start = length.saturating_sub(LONGEST as u64);
    read_at(file, &mut buffer, start, length)?;
    let last = buffer.rsplit(|b| *b == b'\n').find_map(&read);
    Ok(first.zip(last))
}

/// A line, and where it ends in its file.
struct Placed {
    bytes: Vec<u8>,
    end: u64,
}

/// The line around a place of the file, at most [`LONGEST`] of it to either side.
fn line_around(file: &File, place: u64, length: u64) -> io::Result<Placed> {
    let start = place.saturating_sub(LONGEST as u64);
    let end = place.saturating_add(LONGEST as u64).min(length);
    let mut around = Vec::new();
    read_at(file, &mut around, start, end)?;
    let at = (place - start) as usize;
    let before = around.get(..at).unwrap_or_default();
    let after = around.get(at..).unwrap_or_default();
    let first = memrchr(b'\n', before).map_or(0, |end| end + 1);
    let last = memchr(b'\n', after).map_or(around.len(), |end| at + end);
    Ok(Placed {
        bytes: around.get(first..last).unwrap_or_default().to_vec(),
        end: start + last as u64,
    })
}

fn read_at(file: &File, buffer: &mut Vec<u8>, start: u64, end: u64) -> io::Result<()> {
    buffer.resize((end - start) as usize, 0);
    file.read_exact_at(buffer, start)
}

#[cfg(test)]
mod tests;
