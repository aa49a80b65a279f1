//! The audit log: one JSON line per client request.
//!
//! A request must never wait for a disk. So [`Audit::write`] puts the record into a bounded queue
//! and returns; a thread of its own makes lines of the records and writes them in batches. What
//! does not fit, in the queue or on the disk, is dropped and counted: a full disk costs lines and
//! never a request, and when space returns so do the lines. The thread lets records gather for a moment
//! before it writes: woken for each, it would cost a busy edge more than the lines do. Blocking writes on a worker thread were
//! refused (one slow disk stops every stream), and so was an unbounded queue (the same disk ends in
//! the memory).
//!
//! Several processes append to the same file while one hands over to the next, so a batch is one
//! `write` to a file opened for appending, and a failed write is not undone by truncation. What it
//! leaves is half a line; the next batch begins with a line feed, so that half is a line alone. A
//! reader skips lines that are empty or do not parse.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::record::Record;
use super::spec::AuditSpec;

/// Where finished requests are written down. Dropping it writes what is queued.
pub struct Audit {
    shared: Arc<Shared>,
}

impl Audit {
    /// Appends to the file at `spec.path`, made with mode 0600 where it does not exist.
    pub fn to_file(spec: &AuditSpec) -> Result<Audit, AuditError> {
        let started = LogFile::open(&spec.path).and_then(|log| Audit::start(Sink::File(log)));
        started.map_err(|source| AuditError {
            path: spec.path.clone(),
            source,
        })
    }

    /// One line at level info, target `berth::audit`, on the process's log.
    pub fn to_log() -> io::Result<Audit> {
        Audit::start(Sink::Log)
    }

    /// Queues `record`; drops and counts it where the queue is full. Never blocks on a disk.
    pub fn write(&self, record: Record) {
        let mut queue = self.shared.lock();
        if queue.records.len() >= QUEUE {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.records.push_back(record);
        // The writer sleeps until the first, and then gathers until the batch is full.
        let wakes = matches!(queue.records.len(), 1 | BATCH);
        drop(queue);
        if wakes {
            self.shared.work.notify_one();
        }
    }

    /// Records that were dropped since the start.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Opens the path anew before the next line: `logrotate` has moved the file away. Where that
    /// fails, the old file is kept and a warning logged.
    pub fn reopen(&self) {
        self.shared.lock().reopen = true;
        self.shared.work.notify_one();
    }

    /// Waits until everything queued so far is written or lost; `false` where that took longer
    /// than `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        let queue = self.shared.lock();
        let busy = |queue: &mut Queue| queue.writing || queue.reopen || !queue.records.is_empty();
        let waited = self.shared.idle.wait_timeout_while(queue, patience, busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn start(sink: Sink) -> io::Result<Audit> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || Writer::new(of_thread, sink).run())?;
        Ok(Audit { shared })
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        // A hanging disk must not keep the process from ending.
        if !self.flush(LAST_PATIENCE) {
            log::warn!(within:? = LAST_PATIENCE; "the last audit lines could not be written");
        }
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit")
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

/// The audit log cannot be started.
#[derive(Debug)]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for AuditError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "audit.path: cannot append to {}: {}; its folder must exist and be writable for berth",
            self.path.display(),
            self.source
        )
    }
}

impl std::error::Error for AuditError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is something to do for the writer.
    work: Condvar,
    /// The writer has nothing to do.
    idle: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct Queue {
    records: VecDeque<Record>,
    reopen: bool,
    closed: bool,
    writing: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Sink {
    File(LogFile),
    Log,
}

/// The thread's side.
struct Writer {
    shared: Arc<Shared>,
    sink: Sink,
    warned: Option<Instant>,
}

impl Writer {
    fn new(shared: Arc<Shared>, sink: Sink) -> Writer {
        let warned = None;
        Writer {
            shared,
            sink,
            warned,
        }
    }

    fn run(mut self) {
        while let Some((batch, reopen)) = self.next() {
            if reopen {
                self.reopen();
            }
            let lost = self.write(&batch);
            if lost > 0 {
                self.shared.lost.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }

    /// Says that the last batch is done, and waits for the next; `None` at the end.
    fn next(&mut self) -> Option<(Vec<Record>, bool)> {
        let mut queue = self.shared.lock();
        queue.writing = false;
        while queue.records.is_empty() && !queue.reopen {
            self.shared.idle.notify_all();
            if queue.closed {
                return None;
            }
            queue = self
                .shared
                .work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let gathering =
            |queue: &mut Queue| !queue.closed && !queue.reopen && queue.records.len() < BATCH;
        let gathered = self
            .shared
            .work
            .wait_timeout_while(queue, GATHER, gathering);
        queue = gathered.unwrap_or_else(PoisonError::into_inner).0;
        queue.writing = true;
        let reopen = std::mem::take(&mut queue.reopen);
        let count = queue.records.len().min(BATCH);
        Some((queue.records.drain(..count).collect(), reopen))
    }

    /// The number of lines that were lost.
    fn write(&mut self, batch: &[Record]) -> u64 {
        let lines: Vec<String> = batch
            .iter()
            .filter_map(|record| record.to_line().ok())
            .collect();
        let unwritable = batch.len() - lines.len();
        let failed = match &mut self.sink {
            Sink::Log => {
                lines
                    .iter()
                    .for_each(|line| log::info!(target: super::log::AUDIT, "{line}"));
                None
            }
            Sink::File(log) => log.tail.append(&mut log.file, &lines).err(),
        };
        let Some(failed) = failed else {
            return unwritable as u64;
        };
        if self.may_warn() {
            log::warn!(error:% = failed.source; "audit lines are being lost");
        }
        (unwritable + failed.lost) as u64
    }

    fn reopen(&mut self) {
        let Sink::File(log) = &mut self.sink else {
            return;
        };
        match LogFile::open(&log.path) {
            Ok(fresh) => *log = fresh,
            Err(error) => {
                let path = log.path.display().to_string();
                if self.may_warn() {
                    log::warn!(path, error:%; "the audit log cannot be reopened, the old file is kept");
                }
            }
        }
    }

    /// At most once in [`WARN_EVERY`]: a full disk meets every batch.
    fn may_warn(&mut self) -> bool {
        let now = Instant::now();
        let due = self
            .warned
            .is_none_or(|last| now.duration_since(last) >= WARN_EVERY);
        if due {
            self.warned = Some(now);
        }
        due
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    tail: Tail,
}

impl LogFile {
    fn open(path: &Path) -> io::Result<LogFile> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let torn = ends_torn(&mut file)?;
        let path = path.to_owned();
        Ok(LogFile {
            path,
            file,
            tail: Tail { torn },
        })
    }
}

/// How the file ends.
struct Tail {
    /// In half a line.
    torn: bool,
}

struct Failed {
    lost: usize,
    source: io::Error,
}

impl Tail {
    /// Appends `lines`, all in one `write` where the system takes them so.
    fn append(&mut self, file: &mut impl Write, lines: &[String]) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        if self.torn && !lines.is_empty() {
            bytes.push(b'\n');
        }
        for line in lines {
            bytes.extend_from_slice(line.as_bytes());
            bytes.push(b'\n');
        }
        let (written, failure) = write_what_fits(file, &bytes);
        let taken = bytes.get(..written).unwrap_or_default();
        let mended = usize::from(self.torn && written > 0);
        if let Some(last) = taken.last() {
            self.torn = *last != b'\n';
        }
        match failure {
            None => Ok(()),
            Some(source) => {
                let whole = taken.iter().filter(|byte| **byte == b'\n').count() - mended;
                let lost = lines.len() - whole;
                Err(Failed { lost, source })
            }
        }
    }
}

/// Whether the file that a predecessor left ends in half a line.
fn ends_torn(file: &mut File) -> io::Result<bool> {
    let about = file.metadata()?;
    if !about.is_file() || about.len() == 0 {
        return Ok(false);
    }
    let mut last = [b'\n'];
    file.seek(SeekFrom::End(-1))?;
    // Another process may have truncated the file in between: then nothing is read, or torn.
    let _ = file.read(&mut last)?;
    Ok(last != *b"\n")
}

/// How much of `bytes` the file took, and why not more. `write_all` does not tell the first.
fn write_what_fits(file: &mut impl Write, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match file.write(rest) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}

/// Records; chosen: some seconds of a busy edge, at most about 8 MiB.
const QUEUE: usize = 8_192;
/// Records in one `write`; chosen: about 256 KiB.
const BATCH: usize = 256;
/// How long records gather before they are written; chosen: nobody who reads a log notices, and a busy
/// edge wakes the thread a hundred times a second instead of once per request.
const GATHER: Duration = Duration::from_millis(10);
/// Chosen: often enough to be seen, too rare to flood.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Chosen: a healthy disk takes a full queue in far less.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
