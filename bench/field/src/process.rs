//! A process under test: started, waited for, accounted for by the kernel's own figures, and ended.

use std::fs;
use std::io::{Error, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Ticks of the kernel's accounting in a second: the same on every Linux that this runs on.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

/// A running process with its children.
pub struct Process {
    child: Child,
    /// What ends it, where a signal is not the way.
    stop: Option<Command>,
}

impl Process {
    /// Starts it, in a group of its own; what it says goes to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Process> {
        let log = fs::File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Process { child, stop: None })
    }

    /// Ends it with this command first.
    pub fn stopped_by(mut self, command: Command) -> Process {
        self.stop = Some(command);
        self
    }

    /// Waits until it accepts connections.
    pub fn listens(&mut self, address: SocketAddr, within: Duration) -> Result<()> {
        let end = Instant::now() + within;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(Error::other(format!("it ended with {status}")));
            }
            if Instant::now() > end {
                return Err(Error::other(format!("it does not listen on {address}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// CPU seconds that it and its children have used.
    pub fn cpu(&self) -> f64 {
        let ticks = self.each(|pid| {
            // Of `stat`, after the name in brackets: user time is the 12th word, system time the 13th.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some(words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?)
        });
        ticks as f64 / TICKS
    }

    /// Bytes of memory that it and its children have in use.
    pub fn memory(&self) -> u64 {
        PAGE * self.each(|pid| {
            let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
            statm.split_whitespace().nth(1)?.parse().ok()
        })
    }

    fn each(&self, read: impl Fn(u32) -> Option<u64>) -> u64 {
        group(self.child.id()).into_iter().filter_map(read).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(stop) = &mut self.stop {
            let stop = stop.stdout(Stdio::null()).stderr(Stdio::null());
            let _ = stop.status();
        }
        // The child is not waited for yet, so its group is still its own.
        if let Ok(None) = self.child.try_wait() {
            if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        let _ = self.child.wait();
    }
}

/// An address of loopback that is free now.
pub fn free_address() -> Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// A process and all that it started: they are in its group.
fn group(leader: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let words = stat.rsplit_once(')').map(|(_, words)| words);
        let group = words.and_then(|words| words.split_whitespace().nth(2));
        group.is_some_and(|group| group == leader.to_string())
    })
    .collect()
}
