//! The control socket: `berth reload`, `berth stop` and the admin interface without a token.
//!
//! Each process has one, `berth-KEY.PID.sock`, and `berth-KEY.sock` is a link to that of the process
//! which serves; KEY stands for the configuration's path. So a command finds every generation by the
//! configuration alone, after a crash too. The folder belongs to berth's user, the sockets are 0600,
//! and the other side's user is asked of the kernel. What is spoken is the admin interface's HTTP, so
//! `curl --unix-socket` can give any order.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use http::{Method, Response, StatusCode, header};
use pingora::apps::ServerApp;
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::handover::Refusal;
use crate::edge::drain::Sessions;
use crate::observe::admin::{Admin, Door};

/// Where the control sockets of one configuration lie.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    key: String,
}

/// The control socket of this process.
#[derive(Debug)]
pub struct Control {
    place: Place,
    path: PathBuf,
    listener: UnixListener,
    sessions: Sessions,
}

/// What is asked of the process.
#[derive(Debug)]
pub enum Order {
    /// Hand over to a fresh process.
    Reload(oneshot::Sender<Result<Reloaded, NotReloaded>>),
    /// Drain and end.
    Stop(Haste, oneshot::Sender<Duration>),
}

/// A process that serves in this one's place.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub build: String,
}

/// Why none does.
#[derive(Clone, Debug)]
pub enum NotReloaded {
    /// This process has something else to do first.
    Busy(&'static str),
    /// It was tried.
    Refused(Refusal),
}

/// How long sessions may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Haste {
    /// `process.drain_timeout`.
    Leisurely,
    /// `process.stop_timeout`.
    Stop,
    /// No time.
    Now,
}

/// The control socket cannot be had.
#[derive(Debug)]
pub struct ControlError {
    path: PathBuf,
    why: String,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let why = &self.why;
        write!(
            f,
            "process.runtime_dir: {path}: {why}; give a folder that only berth's user may write to"
        )
    }
}

impl Place {
    /// For the configuration at `config`, in `process.runtime_dir`.
    pub fn new(runtime_dir: &Path, config: &Path) -> Place {
        // Not resolved: a link that is to point to the next configuration keeps its name.
        let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
        let digest = Sha256::digest(config.as_os_str().as_encoded_bytes());
        let key = digest.iter().take(4).map(|byte| format!("{byte:02x}"));
        Place {
            folder: runtime_dir.to_owned(),
            key: key.collect(),
        }
    }

    /// The socket of the process that serves.
    pub fn serving(&self) -> PathBuf {
        self.folder.join(format!("berth-{}.sock", self.key))
    }

    /// Whether some process serves.
    pub async fn is_served(&self) -> bool {
        UnixStream::connect(self.serving()).await.is_ok()
    }

    /// The sockets of every generation, the oldest first.
    ///
    /// # Errors
    ///
    /// The folder is there and cannot be read.
    pub fn generations(&self) -> io::Result<Vec<PathBuf>> {
        let prefix = format!("berth-{}.", self.key);
        let entries = match fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found: Vec<(SystemTime, PathBuf)> = entries
            .filter_map(Result::ok)
            .filter(|entry| {
                let name = entry.file_name();
                let rest = name.to_str().and_then(|name| name.strip_prefix(&prefix));
                rest.and_then(|rest| rest.strip_suffix(".sock"))
                    .is_some_and(|pid| pid.bytes().all(|b| b.is_ascii_digit()))
            })
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    /// The folder that they lie in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn of(&self, pid: u32) -> PathBuf {
        self.folder.join(format!("berth-{}.{pid}.sock", self.key))
    }

    fn prepare(&self) -> Result<(), ControlError> {
        let fail = |why: String| ControlError {
            path: self.folder.clone(),
            why,
        };
        let made = fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&self.folder);
        made.map_err(|e| fail(e.to_string()))?;
        let about = fs::metadata(&self.folder).map_err(|e| fail(e.to_string()))?;
        if about.uid() != geteuid().as_raw() {
            return Err(fail("it belongs to another user".to_owned()));
        }
        if about.mode() & 0o022 != 0 {
            return Err(fail("others may write to it".to_owned()));
        }
        Ok(())
    }
}

impl Control {
    /// The socket of this process, which nobody is pointed to yet.
    ///
    /// # Errors
    ///
    /// The folder or the socket cannot be had.
    pub fn bind(place: Place) -> Result<Control, ControlError> {
        place.prepare()?;
        let path = place.of(std::process::id());
        let bound = || {
            // Of a process that had this id and was killed.
            let _ = fs::remove_file(&path);
            let listener = std::os::unix::net::UnixListener::bind(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        let listener = bound().map_err(|e| ControlError {
            path: path.clone(),
            why: e.to_string(),
        })?;
        Ok(Control {
            place,
            path,
            listener,
            sessions: Sessions::default(),
        })
    }

    /// From now on this is the process that serves.
    ///
    /// # Errors
    ///
    /// The link cannot be written.
    pub fn publish(&self) -> Result<(), ControlError> {
        let link = self.place.serving();
        let fresh = self.path.with_extension("next");
        let named = self.path.file_name().unwrap_or_default();
        let _ = fs::remove_file(&fresh);
        symlink(named, &fresh)
            .and_then(|()| fs::rename(&fresh, &link))
            .map_err(|e: io::Error| ControlError {
                path: link,
                why: e.to_string(),
            })
    }

    /// Where it lies.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Who is being served there.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Serves until the process ends.
    pub async fn serve(&self, admin: Arc<Admin>, orders: mpsc::Sender<Order>) {
        /// Chosen: at the limit of open files, somebody closes one soon.
        const AGAIN: Duration = Duration::from_millis(100);
        let app = Arc::new(ControlApp { admin, orders });
        // One request for each connection: to pingora, one that shuts down.
        let (_kept, once) = watch::channel(true);
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(e) => {
                    log::warn!(error:% = e; "the control socket cannot accept");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let ours = geteuid().as_raw();
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == ours || peer.uid() == 0 => {}
                _ => {
                    log::warn!("somebody of another user was turned away from the control socket");
                    continue;
                }
            }
            let (app, once) = (app.clone(), once.clone());
            let counted = self.sessions.enter();
            tokio::spawn(async move {
                app.process_new(Box::new(Stream::from(stream)), &once).await;
                drop(counted);
            });
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let link = self.place.serving();
        let named = fs::read_link(&link).ok();
        if named.as_deref().and_then(Path::file_name) == self.path.file_name() {
            let _ = fs::remove_file(&link);
        }
    }
}

/// The orders of this socket, and the admin interface for the rest.
struct ControlApp {
    admin: Arc<Admin>,
    orders: mpsc::Sender<Order>,
}

impl ControlApp {
    async fn reload(&self) -> Response<Vec<u8>> {
        let (tell, told) = oneshot::channel();
        let sent = self.orders.send(Order::Reload(tell)).await;
        let reloaded = match sent {
            Ok(()) => told.await.unwrap_or(Err(NotReloaded::Busy(ENDING))),
            Err(_) => Err(NotReloaded::Busy(ENDING)),
        };
        match reloaded {
            Ok(Reloaded { pid, build }) => json(
                StatusCode::OK,
                &serde_json::json!({"done": "reload", "pid": pid, "build": build}),
            ),
            Err(NotReloaded::Busy(why)) => error(StatusCode::CONFLICT, why),
            Err(NotReloaded::Refused(refusal)) => {
                let status = match refusal {
                    Refusal::Configuration(_) => StatusCode::UNPROCESSABLE_ENTITY,
                    Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
                };
                error(status, &refusal.to_string())
            }
        }
    }

    async fn stop(&self, haste: Haste) -> Response<Vec<u8>> {
        let (tell, told) = oneshot::channel();
        let _ = self.orders.send(Order::Stop(haste, tell)).await;
        // Where nobody tells any more, the process is about to end.
        let within = told.await.unwrap_or_default();
        let answer = serde_json::json!({"done": "stop", "within_seconds": within.as_secs()});
        json(StatusCode::OK, &answer)
    }
}

#[async_trait]
impl ServeHttp for ControlApp {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let request = session.req_header();
        let path = request
            .uri
            .path_and_query()
            .map_or("", |path| path.as_str());
        match (&request.method, path) {
            (&Method::POST, "/reload") => self.reload().await,
            (&Method::POST, "/stop") => self.stop(Haste::Stop).await,
            (&Method::POST, "/stop?now") => self.stop(Haste::Now).await,
            (method, _) => self.admin.respond(
                Door::ControlSocket,
                method,
                &request.uri,
                &request.headers,
                Instant::now(),
            ),
        }
    }
}

fn error(status: StatusCode, why: &str) -> Response<Vec<u8>> {
    json(status, &serde_json::json!({"error": {"message": why}}))
}

fn json(status: StatusCode, document: &serde_json::Value) -> Response<Vec<u8>> {
    let body = document.to_string().into_bytes();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let length = response.body().len().into();
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, length);
    response
}

const ENDING: &str = "the process is about to end";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_found_by_the_configuration_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path(), Path::new("/etc/berth/berth.yaml"));
        let other = Place::new(folder.path(), Path::new("/etc/berth/other.yaml"));
        let paths = [place.of(7), place.of(12), other.of(13), place.serving()];
        for (age, path) in paths.into_iter().rev().enumerate() {
            let time = SystemTime::now() - Duration::from_secs(age as u64);
            fs::File::create(path).unwrap().set_modified(time).unwrap();
        }
        fs::write(folder.path().join("stray"), "").unwrap();
        assert_eq!(place.generations().unwrap(), [place.of(7), place.of(12)]);
        assert_eq!(other.generations().unwrap(), [other.of(13)]);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = Path::new("/etc/berth/berth.yaml");
        let inside = folder.path().join("run");
        Place::new(&inside, config).prepare().unwrap();
        assert_eq!(fs::metadata(&inside).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o770)).unwrap();
        let refused = Place::new(&inside, config).prepare().unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("process.runtime_dir"), "{text}");
        assert!(text.contains("others may write to it"), "{text}");
    }
}
