//! What systemd is told. Without systemd every call here does nothing.
//!
//! Nothing waits for systemd and nothing fails for it, with one exception: when the main process
//! changes, the next step is only right once the change is known, so [`barrier`] waits for that.

use std::io::{PipeReader, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

use super::listeners::{Sockets, store_name};

/// How long systemd may take to read what it was told; chosen, as its own library has it.
const BARRIER: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// This process serves.
pub fn ready(status: &str) {
    let main = NotifyState::MainPid(std::process::id());
    say(&[NotifyState::Ready, main, NotifyState::Status(status)]);
}

/// A successor is being started.
pub fn reloading() {
    let status = NotifyState::Status("starting the next process");
    match NotifyState::monotonic_usec_now() {
        Ok(now) => say(&[NotifyState::Reloading, now, status]),
        Err(_) => say(&[status]),
    }
}

/// The service is now another process.
pub fn main_pid(pid: u32) {
    say(&[NotifyState::MainPid(pid)]);
    barrier();
}

/// The service stops.
pub fn stopping(status: &str) {
    say(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// The workers answer.
pub fn alive() {
    say(&[NotifyState::Watchdog]);
}

/// How often systemd wants to hear [`alive`]; `None` where it does not ask.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|every| !every.is_zero())
}

/// Gives systemd copies of the sockets: after a crash connections wait in them.
pub fn keep(sockets: &Sockets) {
    for (address, socket) in sockets.addresses().zip(sockets.fds()) {
        let name = store_name(address);
        let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
        if let Err(e) = sd_notify::notify_with_fds(&state, &[socket]) {
            log::warn!(address:%, error:% = e; "systemd cannot be given a socket");
        }
    }
}

/// Takes back the copies of sockets that no listener claims any more.
pub fn forget(gone: &[SocketAddr]) {
    for address in gone {
        let name = store_name(*address);
        say(&[NotifyState::FdStoreRemove, NotifyState::FdName(&name)]);
    }
}

/// Waits until systemd has read everything so far: it closes the pipe that it is given here.
pub fn barrier() {
    let waited = std::io::pipe().and_then(|(ours, theirs)| {
        sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[theirs.as_fd()])?;
        drop(theirs);
        closed(ours)
    });
    match waited {
        Ok(true) => {}
        Ok(false) => log::warn!(within_s = BARRIER.tv_sec; "systemd has not read its messages"),
        Err(e) => log::warn!(error:% = e; "systemd cannot be waited for"),
    }
}

fn closed(mut pipe: PipeReader) -> std::io::Result<bool> {
    let mut wait = [PollFd::new(&pipe, PollFlags::IN)];
    if poll(&mut wait, Some(&BARRIER))? == 0 {
        return Ok(false);
    }
    Ok(pipe.read(&mut [0])? == 0)
}

fn say(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        log::warn!(error:% = e; "systemd cannot be told");
    }
}
