//! The doors of one process: the listeners for clients and the admin listener, opened and shut.
//!
//! pingora's own `Server` was refused: it shuts down whether or not a successor lives, gives sessions
//! a fixed sleep, and ends on a bind failure with a process that listens nowhere. Its services are
//! used as they are, on two runtimes: one with the workers, and one for everything that must answer
//! while the workers are busy.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::l4::stream::Stream;
use pingora::server::ListenFds;
use pingora::services::Service as _;
use pingora::services::listening::Service;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::listeners::Sockets;
use crate::edge::connection::Connections;
use crate::edge::drain::Sessions;
use crate::edge::entrance;
use crate::edge::serve::{Application, application};
use crate::edge::spec::Process;
use crate::edge::state::{Edge, tend};
use crate::edge::tls::Certificates;
use crate::observe::admin::{Admin, AdminApp, Door};

/// How the process serves.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Where clients come.
    pub listeners: Vec<Entrance>,
    /// Where operators come.
    pub admin: SocketAddr,
    /// The admin port's token.
    pub token: Option<Vec<u8>>,
    /// The process itself.
    pub process: Process,
}

/// Where clients come, and what they are shown there.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// Address and port.
    pub address: SocketAddr,
    /// With TLS, where there are some.
    pub certificates: Option<Certificates>,
}

/// The doors of a process.
pub struct Doors {
    workers: Runtime,
    office: Runtime,
    clients: watch::Sender<bool>,
    operators: watch::Sender<bool>,
    app: Connections<Application>,
    admin: Arc<Admin>,
    sessions: Sessions,
}

impl Serving {
    /// Every address of the process.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let clients = self.listeners.iter().map(|l| l.address);
        clients.chain([self.admin]).collect()
    }
}

impl Doors {
    /// Everything is built, and nothing is open.
    ///
    /// # Errors
    ///
    /// The system gives no more threads or files.
    pub fn new(edge: &Arc<Edge>, serving: &Serving) -> io::Result<Doors> {
        let threads = serving.process.threads;
        /// How many tasks a busy worker looks after before it looks who else has something to read.
        /// Measured with four clients who send PING after PING: with tokio's 61 others wait 200 ms.
        const LOOK_AROUND: u32 = 4;
        let runtime = |name: &str, threads: usize| {
            Builder::new_multi_thread()
                .worker_threads(threads)
                .thread_name(name)
                .event_interval(LOOK_AROUND)
                .enable_all()
                .build()
        };
        let sessions = Sessions::default();
        let app = application(edge.clone(), threads);
        let app = Connections::new(app, edge.clone(), sessions.clone());
        let admin = Admin::new(edge.clone(), edge.trail.clone(), serving.token.as_deref());
        let doors = Doors {
            workers: runtime("worker", threads)?,
            office: runtime("office", 1)?,
            clients: watch::Sender::new(false),
            operators: watch::Sender::new(false),
            app,
            admin: Arc::new(admin),
            sessions,
        };
        doors.workers.spawn(tend(edge.clone()));
        Ok(doors)
    }

    /// Proves that requests are served, through a door of its own: a listener would also bring
    /// clients, whom a process that may still fail must not take.
    ///
    /// # Errors
    ///
    /// What came instead of an answer.
    pub fn prove(&self) -> Result<(), String> {
        /// Chosen: it takes a millisecond.
        const PROOF: Duration = Duration::from_secs(5);
        let (app, shut) = (self.app.clone(), self.clients.subscribe());
        let proof = self.workers.spawn(async move {
            let (mut ours, theirs) = UnixStream::pair()?;
            tokio::spawn(async move {
                app.serve(Stream::from(theirs), None, shut).await;
            });
            ours.write_all(PROBE).await?;
            let mut answer = Vec::new();
            ours.take(4096).read_to_end(&mut answer).await?;
            Ok::<_, io::Error>(answer)
        });
        let waited = async { tokio::time::timeout(PROOF, proof).await };
        match self.office.block_on(waited) {
            Ok(Ok(Ok(answer))) if answer.starts_with(b"HTTP/1.1 200 ") => Ok(()),
            Ok(Ok(Ok(_))) => Err("its own /healthz is not 200".to_owned()),
            Ok(Ok(Err(e))) => Err(format!("its own /healthz cannot be read: {e}")),
            Ok(Err(_)) => Err("its own /healthz failed".to_owned()),
            Err(_) => Err(format!("its own /healthz did not answer within {PROOF:?}")),
        }
    }

    /// Opens the doors.
    ///
    /// # Errors
    ///
    /// The limit on open files is reached.
    pub fn open(&self, serving: &Serving, sockets: &Sockets) -> io::Result<()> {
        let admin_table = sockets.table(serving.admin)?;

        let _inside = self.workers.enter();
        for Entrance {
            address,
            certificates,
        } in &serving.listeners
        {
            let acceptor = certificates.as_ref().map(Certificates::acceptor);
            let tls = acceptor.transpose().map_err(io::Error::other)?;
            let listener = TcpListener::from_std(sockets.copy(*address)?)?;
            let (inside, shut) = (self.app.clone(), self.clients.subscribe());
            self.workers
                .spawn(entrance::take(listener, tls.map(Arc::new), inside, shut));
        }

        let app = AdminApp::new(self.admin.clone(), Door::Network);
        let mut operators = Service::new("admin".to_owned(), app);
        operators.add_tcp(&serving.admin.to_string());
        let shut = self.operators.subscribe();
        self.office.spawn(async move {
            let table = ListenFds::new(admin_table.into());
            operators.start_service(Some(table), shut, 1).await;
        });
        for entrance in &serving.listeners {
            let scheme = match entrance.certificates {
                Some(_) => "https",
                None => "http",
            };
            let (address, admin) = (entrance.address, serving.admin);
            log::info!(
                listener:% = format_args!("{scheme}://{address}"),
                admin:% = format_args!("http://{admin}");
                "serving"
            );
        }
        Ok(())
    }

    /// Takes no more clients; those that are there are told to go when they are served.
    pub fn shut(&self) {
        self.clients.send_replace(true);
    }

    /// Takes no more operators: they find the next process at the same address.
    pub fn shut_admin(&self) {
        self.operators.send_replace(true);
    }

    /// The clients' sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// The admin interface.
    pub fn admin(&self) -> &Arc<Admin> {
        &self.admin
    }

    /// Where everything but clients is served.
    pub fn office(&self) -> &Handle {
        self.office.handle()
    }

    /// Tells systemd's watchdog that the workers take up work, for as long as they do.
    pub fn watch(&self, every: Duration) -> JoinHandle<()> {
        let workers = self.workers.handle().clone();
        self.office.spawn(async move {
            let mut turn = tokio::time::interval(every / 2);
            loop {
                turn.tick().await;
                let work = workers.spawn(async {});
                if tokio::time::timeout(every, work).await.is_ok() {
                    super::notify::alive();
                }
            }
        })
    }

    /// Ends what is still there. A request that is cut here leaves no line in the audit.
    pub fn end(self) {
        /// Chosen: dropping a task takes no time unless it hangs.
        const LAST: Duration = Duration::from_secs(1);
        self.workers.shutdown_timeout(LAST);
        self.office.shutdown_timeout(LAST);
    }
}

const PROBE: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: berth\r\nconnection: close\r\n\r\n";
