//! `berth reload` and `berth stop`: the other end of the control socket.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Deserialize;

use super::control::{Haste, Place};
use super::handover::Refusal;

/// Above what a handover may take.
const RELOAD: Duration = Duration::from_secs(60);

/// What a process may take to say that it will stop. Chosen: it does so at once.
const STOP: Duration = Duration::from_secs(10);

/// Beyond the time that a process gives itself to stop.
const SPARE: Duration = Duration::from_secs(5);

/// An answer is a line of JSON; the problems of a configuration may take some.
const ANSWER: u64 = 1 << 20;

/// Asks the process that serves to hand over. Gives what it says.
///
/// # Errors
///
/// Its reason, or why it cannot be asked.
pub fn reload(place: &Place) -> Result<String, Refusal> {
    let path = place.serving();
    let stream = UnixStream::connect(&path).map_err(|e| {
        Refusal::Failed(format!(
            "no berth serves this configuration, or it runs as another user ({}: {e}); where \
             process.runtime_dir was changed, restart berth instead",
            path.display()
        ))
    })?;
    let lost = |e: io::Error| {
        Refusal::Failed(format!(
            "berth does not answer on {}: {e}; its log may say why",
            path.display()
        ))
    };
    let (status, answer) = post(stream, "/reload", RELOAD).map_err(lost)?;
    let reason = answer.error.map(|error| error.message).unwrap_or_default();
    match (status, answer.pid, answer.build) {
        (200, Some(pid), Some(build)) => Ok(format!("process {pid} (version {build}) serves now")),
        (422, _, _) => Err(Refusal::Configuration(reason)),
        _ => Err(Refusal::Failed(format!(
            "not reloaded, the old process serves on: {reason}"
        ))),
    }
}

/// Asks every generation to stop, and waits until all have ended. Gives how many there were.
///
/// # Errors
///
/// One that is still there.
pub fn stop(place: &Place, haste: Haste) -> Result<usize, Refusal> {
    let mut stopped = 0;
    // A handover may bring up another generation in the meantime, but not often.
    for _ in 0..4 {
        let generations = place.generations().map_err(|e| {
            let folder = place.folder().display();
            Refusal::Failed(format!(
                "{folder} cannot be read: {e}; call this as berth's user or as root"
            ))
        })?;
        let (mut ending, mut stuck) = (Vec::new(), None);
        // One that does not answer must not save the others.
        for path in generations {
            match ask_to_stop(&path, haste) {
                Ok(asked) => ending.extend(asked),
                Err(why) => stuck = Some(why),
            }
        }
        if ending.is_empty() {
            return stuck.map_or(Ok(stopped), Err);
        }
        stopped += ending.len();
        for (pid, process, until) in ending {
            if !ends(&process, until) {
                stuck = Some(Refusal::Failed(format!(
                    "process {pid} has not ended in its time; `berth stop --now` cuts its sessions"
                )));
            }
        }
        if let Some(why) = stuck {
            return Err(why);
        }
    }
    Err(Refusal::Failed(
        "new processes keep being started".to_owned(),
    ))
}

/// Hurries the oldest generations, so that not more than `most` go on at leisure.
pub fn hurry_beyond(place: &Place, most: usize) {
    let mut generations = place.generations().unwrap_or_default();
    generations.retain(|path| UnixStream::connect(path).is_ok());
    let spare = generations.len().saturating_sub(most);
    for path in generations.iter().take(spare) {
        match ask_to_stop(path, Haste::Stop) {
            Ok(Some((pid, _, _))) => {
                log::warn!(pid, max_generations = most; "an old process is hurried, there are too many");
            }
            Ok(None) => {}
            Err(why) => log::warn!(reason:% = why; "an old process cannot be hurried"),
        }
    }
}

/// `None` where nobody is there any more.
fn ask_to_stop(path: &Path, haste: Haste) -> Result<Option<(i32, OwnedFd, Instant)>, Refusal> {
    let Ok(stream) = UnixStream::connect(path) else {
        // Left by a process that was killed.
        let _ = std::fs::remove_file(path);
        return Ok(None);
    };
    let failed = |e: io::Error| {
        let path = path.display();
        Refusal::Failed(format!(
            "the process at {path} cannot be asked to stop: {e}"
        ))
    };
    let peer = socket_peercred(&stream).map_err(|e| failed(e.into()))?;
    let Ok(process) = pidfd_open(peer.pid, PidfdFlags::empty()) else {
        return Ok(None);
    };
    let request = match haste {
        Haste::Leisurely | Haste::Stop => "/stop",
        Haste::Now => "/stop?now",
    };
    let within = match post(stream, request, STOP) {
        Ok((_, answer)) => Duration::from_secs(answer.within_seconds.unwrap_or_default()),
        Err(_) if ends(&process, Instant::now() + SPARE) => return Ok(None),
        // It hangs, and is to end now.
        Err(_) if haste == Haste::Now && pidfd_send_signal(&process, Signal::KILL).is_ok() => {
            Duration::ZERO
        }
        Err(e) => return Err(failed(e)),
    };
    let pid = peer.pid.as_raw_nonzero().get();
    Ok(Some((pid, process, Instant::now() + within + SPARE)))
}

/// Whether a process ends until then.
fn ends(process: &OwnedFd, until: Instant) -> bool {
    let left = until.saturating_duration_since(Instant::now());
    let mut wait = [PollFd::new(process, PollFlags::IN)];
    let left = Timespec::try_from(left).ok();
    poll(&mut wait, left.as_ref()).is_ok_and(|ready| ready > 0)
}

#[derive(Default, Deserialize)]
struct Answer {
    pid: Option<u32>,
    build: Option<String>,
    within_seconds: Option<u64>,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    message: String,
}

fn post(mut stream: UnixStream, path: &str, within: Duration) -> io::Result<(u16, Answer)> {
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(STOP))?;
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER).read_to_end(&mut answer)?;
    let garbled = || io::Error::new(io::ErrorKind::InvalidData, "the answer cannot be read");
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let body = match head.parse(&answer) {
        Ok(httparse::Status::Complete(at)) => answer.get(at..).unwrap_or_default(),
        _ => return Err(garbled()),
    };
    let status = head.code.ok_or_else(garbled)?;
    let answer = serde_json::from_slice(body).map_err(|_| garbled())?;
    Ok((status, answer))
}
