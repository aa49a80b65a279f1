//! The clients of this process, and the two files that go with them: the list that an operator may
//! change while berth runs, and the tokens that were spent today.
//!
//! Promises. A list that cannot be read changes nothing: the clients from before stay, the log says once
//! what is wrong and where, and the status goes on saying it. Tokens are written by one process at a
//! time, the one that serves: who has handed over tells its successor instead (`news`). A disk that does not
//! take them costs at most a restart that begins with nothing spent.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::admission::day::Day;
use crate::admission::policy::Mode;
use crate::clients::{ClientSpec, NOT_COUNTED, NOT_KEPT, Register, SpendingHandover};

/// Where clients come from.
pub struct ClientsSource {
    /// Those of the configuration.
    pub listed: Vec<ClientSpec>,
    /// Where there are more.
    pub file: Option<ClientsFile>,
    /// Where what was spent is kept.
    pub state_dir: Option<PathBuf>,
}

/// A list of clients that may change.
pub struct ClientsFile {
    /// Where it is.
    pub path: PathBuf,
    /// Reads it; what is wrong with it has its place.
    pub read: Read,
}

/// How a list is read.
pub type Read = Arc<dyn Fn() -> Result<Vec<ClientSpec>, String> + Send + Sync>;

/// The clients.
pub struct Clients {
    /// Who they are and what they do.
    pub register: Register,
    source: ClientsSource,
    seen: Mutex<Seen>,
}

/// What was seen of the files.
struct Seen {
    /// Of the list that is in force.
    stamp: Option<Stamp>,
    /// What is wrong with the list now.
    complaint: Option<String>,
    saved: Instant,
    /// What was wrong when the tokens were last written.
    unsaved: Option<String>,
}

/// A file that was replaced has another inode, one that was written another time or length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

/// How often the list is looked at. Chosen: a key works within a second or two.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often tokens are written down. Chosen: a crash forgets no more than this.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Of the tokens, in the state directory.
const SPENT: &str = "client-tokens.json";

/// More of that file is not read (chosen: above what the most clients with the longest names make).
const LARGEST: u64 = 16 << 20;

impl Clients {
    /// Reads the list and what was spent.
    ///
    /// # Errors
    ///
    /// What is wrong with the list.
    pub fn open(source: ClientsSource, now: Instant) -> Result<Clients, String> {
        let mut specs = source.listed.clone();
        let mut stamp = None;
        if let Some(file) = &source.file {
            // Before it is read: what is written meanwhile is seen later.
            stamp = Stamp::of(&file.path);
            specs.extend((file.read)().map_err(|e| format!("clients_file: {e}"))?);
        }
        let register = Register::new(specs, now);
        if let Some(folder) = &source.state_dir {
            match remembered(&folder.join(SPENT)) {
                Ok(spent) => register.remember(&spent, Day::of(SystemTime::now())),
                Err(e) => log::warn!(error:% = e; "what clients spent today is not known"),
            }
        }
        Ok(Clients {
            register,
            source,
            seen: Mutex::new(Seen {
                stamp,
                complaint: None,
                saved: now,
                unsaved: None,
            }),
        })
    }

    /// Takes a new list, if there is one. Blocks on the disk.
    pub fn look(&self, now: Instant) {
        let Some(file) = &self.source.file else {
            return;
        };
        let stamp = Stamp::of(&file.path);
        let mut seen = self.seen();
        if stamp.is_some() && stamp == seen.stamp {
            seen.complaint = None;
            return;
        }
        match (file.read)() {
            Ok(more) => {
                let mut specs = self.source.listed.clone();
                specs.extend(more);
                self.register.replace(specs, now);
                match self.register.count() {
                    0 => log::warn!(
                        "clients_file was read and names nobody: no key is good any more"
                    ),
                    clients => log::info!(clients; "clients_file was read"),
                }
                seen.complaint = None;
                seen.stamp = stamp;
            }
            Err(complaint) if seen.complaint.as_ref() != Some(&complaint) => {
                log::error!(error:% = complaint; "clients_file cannot be used, the clients from before stay");
                seen.complaint = Some(complaint);
            }
            Err(_) => {}
        }
    }

    /// Writes down what was spent, where it is time. Blocks on the disk.
    pub fn save_sometimes(&self, now: Instant) {
        if now.saturating_duration_since(self.seen().saved) >= SAVE_EVERY {
            self.save(now);
        }
    }

    /// Writes down what was spent. Blocks on the disk.
    pub fn save(&self, now: Instant) {
        let Some(folder) = &self.source.state_dir else {
            return;
        };
        let mut seen = self.seen();
        seen.saved = now;
        let Some(spent) = self.register.unwritten() else {
            return;
        };
        let written = write(folder, &spent).map_err(|e| e.to_string());
        if let Err(why) = &written {
            self.register.not_written();
            if seen.unsaved.as_ref() != Some(why) {
                log::error!(folder:% = folder.display(), error = why; "what clients spent cannot be written");
            }
        }
        seen.unsaved = written.err();
    }

    /// What an operator should look at.
    pub fn warnings(&self, mode: Mode) -> Vec<String> {
        let seen = self.seen();
        let list = seen.complaint.iter();
        let list = list.map(|it| format!("clients_file: {it}; the clients from before stay"));
        let disk = seen.unsaved.iter();
        let disk = disk.map(|it| format!("what clients spent cannot be written down: {it}"));
        let limited = self.register.limits_tokens();
        let uncounted = (limited && mode == Mode::Off).then(|| NOT_COUNTED.to_owned());
        let unkept = limited && self.source.state_dir.is_none();
        let unkept = unkept.then(|| NOT_KEPT.to_owned());
        list.chain(disk).chain(uncounted).chain(unkept).collect()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let found = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: found.modified().ok(),
            length: found.len(),
            inode: found.ino(),
        })
    }
}

impl fmt::Debug for ClientsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientsSource")
            .field("listed", &self.listed)
            .field("file", &self.file.as_ref().map(|file| &file.path))
            .finish_non_exhaustive()
    }
}

fn remembered(path: &Path) -> std::io::Result<SpendingHandover> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(SpendingHandover::default());
        }
        Err(e) => return Err(e),
    };
    let mut text = Vec::new();
    file.take(LARGEST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// The old document or the new one is there, never half of one.
fn write(folder: &Path, spent: &SpendingHandover) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(spent)?)?;
    file.as_file().sync_data()?;
    file.persist(folder.join(SPENT))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::{ClientId, KeyDigest};

    fn spec(id: &str) -> ClientSpec {
        ClientSpec {
            id: ClientId::new(id).unwrap(),
            key: KeyDigest::of(id.as_bytes()),
            requests_per_minute: None,
            max_in_flight: None,
            models: None,
            tokens_per_day: std::num::NonZeroU64::new(100),
            expires: None,
        }
    }

    /// Clients whose list is a file of names.
    fn clients(folder: &Path) -> Clients {
        let path = folder.join("clients");
        let read = {
            let path = path.clone();
            move || {
                let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
                let broken = text.contains('!').then(|| "1:1: broken".to_owned());
                broken.map_or_else(|| Ok(text.lines().map(spec).collect()), Err)
            }
        };
        let file = ClientsFile {
            path,
            read: Arc::new(read),
        };
        let source = ClientsSource {
            listed: vec![spec("listed")],
            file: Some(file),
            state_dir: Some(folder.to_owned()),
        };
        Clients::open(source, Instant::now()).unwrap()
    }

    #[test]
    fn a_list_that_cannot_be_read_changes_nothing_and_is_complained_of() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let path = folder.path().join("clients");
        fs::write(&path, "a\n").unwrap();
        let clients = clients(folder.path());
        assert_eq!(clients.register.count(), 2);
        fs::write(&path, "a\nb\nc\n").unwrap();
        clients.look(now);
        assert_eq!(clients.register.count(), 4);
        for broken in ["!", ""] {
            match broken {
                "" => fs::remove_file(&path).unwrap(),
                text => fs::write(&path, text).unwrap(),
            }
            clients.look(now);
            assert_eq!(clients.register.count(), 4);
            let warnings = clients.warnings(Mode::Enforce);
            assert!(
                warnings[0].contains("the clients from before stay"),
                "{warnings:?}"
            );
        }
        fs::write(&path, "a\n").unwrap();
        clients.look(now);
        assert_eq!(clients.register.count(), 2);
        assert_eq!(clients.warnings(Mode::Enforce), Vec::<String>::new());
    }

    #[test]
    fn what_was_spent_outlives_the_process() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        fs::write(folder.path().join("clients"), "").unwrap();
        let today = Day::of(SystemTime::now());
        let spent = |clients: &Clients| clients.register.views(now, today)[0].tokens;
        let first = clients(folder.path());
        first.register.spent("listed", 7, today);
        first.save_sometimes(now);
        assert_eq!(spent(&clients(folder.path())), 0, "it is not time yet");
        first.save_sometimes(now + 2 * SAVE_EVERY);
        assert_eq!(spent(&clients(folder.path())), 7);
        let mode = fs::metadata(folder.path().join(SPENT)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.path().join(SPENT), "{").unwrap();
        assert_eq!(spent(&clients(folder.path())), 0, "half a document is none");
    }

    #[test]
    fn a_disk_that_takes_nothing_is_told_and_tried_again() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        fs::write(folder.path().join("clients"), "").unwrap();
        let mut clients = clients(folder.path());
        let gone = folder.path().join("gone");
        clients.source.state_dir = Some(gone.clone());
        clients
            .register
            .spent("listed", 7, Day::of(SystemTime::now()));
        clients.save(now);
        assert_eq!(clients.warnings(Mode::Enforce).len(), 1);
        fs::create_dir(&gone).unwrap();
        clients.save(now);
        assert_eq!(clients.warnings(Mode::Enforce), Vec::<String>::new());
        assert!(gone.join(SPENT).exists());
    }
}
