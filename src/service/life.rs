//! The life of a process that serves: signals, orders, the handover to a successor, the drain.
//!
//! ```text
//! serving ── a successor serves ──▶ draining (drain_timeout) ──┐
//!    │                                 │ SIGTERM, stop         │ no session left,
//!    └── SIGTERM, stop ──▶ draining (stop_timeout) ────────────┼──▶ ended
//!                                      │ SIGTERM, stop --now   │ or no time left
//!                                      └── at once ────────────┘
//! ```
//!
//! A configuration never changes while its process lives, so a reload is an upgrade and there is one
//! mechanism. Whatever ends a handover before the successor serves leaves this process as it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::channel::Closer;
use super::control::{Control, Haste, NotReloaded, Order, Reloaded};
use super::doors::Doors;
use super::handover::{Handover, Program, Refusal, Successor};
use super::heir::Heir;
use super::listeners::Sockets;
use super::notify;
use crate::edge::drain;
use crate::edge::spec::Process;
use crate::edge::state::Edge;
use crate::observe::words::Handover as Came;

/// How often a draining process says how many sessions are left.
const SAY: Duration = Duration::from_secs(10);

/// For the answers to orders. Chosen: their readers wait for them.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The signals that a process listens to.
pub struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

/// A process that serves.
pub struct Life {
    /// What it serves.
    pub edge: Arc<Edge>,
    /// Its doors, open.
    pub doors: Doors,
    /// Its listening sockets, for a successor.
    pub sockets: Arc<Sockets>,
    /// Where orders come from.
    pub control: Control,
    /// What a successor is started from.
    pub program: Program,
    /// Its times.
    pub process: Process,
    /// Its signals.
    pub signals: Signals,
}

/// Who waits for a reload.
type Asker = oneshot::Sender<Result<Reloaded, NotReloaded>>;

/// A handover that is under way.
struct UnderWay {
    closer: Closer,
    outcome: JoinHandle<Result<Successor, Refusal>>,
    asker: Option<Asker>,
}

/// Why a process does not serve any more.
enum End {
    /// Another does.
    HandedOver(Successor),
    /// It was told so, perhaps by somebody who wants to know how long it may take.
    Stopped(Haste, Option<oneshot::Sender<Duration>>),
}

impl Signals {
    /// From now on signals do not end the process, but wait for [`Life`].
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn catch() -> std::io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

impl Life {
    /// Serves, drains, and ends.
    ///
    /// # Errors
    ///
    /// The successor died while this process drained, and nobody else serves.
    pub fn live(self) -> Result<(), Refusal> {
        let Life {
            edge,
            doors,
            sockets,
            control,
            program,
            process,
            mut signals,
        } = self;
        let watched = notify::watchdog().map(|every| doors.watch(every));
        let (sender, mut orders) = mpsc::channel(8);
        let lived = doors.office().block_on(async {
            let ended = async {
                let own = (&program, &sockets, &edge);
                let end = serve(own, &control, &mut signals, &mut orders).await;
                drop(sockets);
                if let (End::HandedOver(_), Some(watched)) = (&end, watched) {
                    // systemd hears the successor from now on.
                    watched.abort();
                }
                let own = (&*edge, &doors, &control);
                let drained = drains(own, &process, end, &mut signals, &mut orders).await;
                // Whoever ordered the end still has to hear of it.
                let answered = control.sessions().none_left(Duration::ZERO);
                let _ = tokio::time::timeout(LAST_WORD, answered).await;
                drained
            };
            tokio::select! {
                ended = ended => ended,
                () = control.serve(doors.admin().clone(), sender) => Ok(()),
            }
        });
        drop(control);
        doors.end();
        edge.flush();
        log::info!("ended");
        lived
    }
}

/// What a successor is given.
type Own<'a> = (&'a Program, &'a Arc<Sockets>, &'a Arc<Edge>);

/// What is to be done where a reload failed: the successor may have moved the link to its own control
/// socket, and whoever asked for the reload may have moved the audit file.
fn goes_on(edge: &Edge, control: &Control) {
    if let Err(e) = control.publish() {
        log::error!(error:% = e; "the control socket is lost");
    }
    edge.trail.reopen_audit();
}

async fn serve(
    own: Own<'_>,
    control: &Control,
    signals: &mut Signals,
    orders: &mut mpsc::Receiver<Order>,
) -> End {
    let mut under_way: Option<UnderWay> = None;
    loop {
        tokio::select! {
            outcome = outcome(&mut under_way) => {
                let asker = under_way.take().and_then(|it| it.asker);
                match outcome {
                    Ok(successor) => {
                        own.2.trail.handed_over(Came::Ok);
                        let (pid, build) = (successor.pid, successor.build.clone());
                        log::info!(pid, version:% = build; "a new process serves now");
                        tell(asker, Ok(Reloaded { pid, build }));
                        return End::HandedOver(successor);
                    }
                    Err(refusal) => {
                        own.2.trail.handed_over(Came::Failed);
                        log::error!(reason:% = refusal; "not reloaded, this process serves on");
                        goes_on(own.2, control);
                        notify::ready("serving; the last reload failed, see the log");
                        tell(asker, Err(NotReloaded::Refused(refusal)));
                    }
                }
            }
            _ = signals.hangup.recv() => match under_way {
                None => under_way = begin(own, None),
                Some(_) => log::warn!(reason = BUSY; "a SIGHUP is left alone"),
            },
            _ = signals.terminate.recv() => {
                give_up(under_way).await;
                return End::Stopped(Haste::Stop, None);
            }
            _ = signals.interrupt.recv() => {
                give_up(under_way).await;
                return End::Stopped(Haste::Now, None);
            }
            Some(order) = orders.recv() => match order {
                Order::Reload(asker) if under_way.is_some() => {
                    tell(Some(asker), Err(NotReloaded::Busy(BUSY)));
                }
                Order::Reload(asker) if asker.is_closed() => {
                    log::warn!("a reload was asked for by somebody who has left: not reloaded");
                }
                Order::Reload(asker) => under_way = begin(own, Some(asker)),
                Order::Stop(haste, asker) => {
                    give_up(under_way).await;
                    return End::Stopped(haste, Some(asker));
                }
            },
        }
    }
}

async fn drains(
    (edge, doors, control): (&Edge, &Doors, &Control),
    process: &Process,
    end: End,
    signals: &mut Signals,
    orders: &mut mpsc::Receiver<Order>,
) -> Result<(), Refusal> {
    edge.drain();
    doors.shut();
    let sessions = doors.sessions();
    let (mut haste, mut heir) = match end {
        End::HandedOver(successor) => {
            doors.shut_admin();
            edge.succeeded();
            // A reload is also what logrotate asks for.
            edge.trail.reopen_audit();
            let heir = Heir::new(successor.channel, successor.news);
            (Haste::Leisurely, Some(heir))
        }
        End::Stopped(haste, asker) => {
            notify::stopping("stopping: the last sessions are served");
            tell(asker, process.time(haste));
            (haste, None)
        }
    };
    let (mut successor, mut orphaned) = (heir.is_some(), false);
    let mut until = Instant::now() + process.time(haste);
    let mut say = tokio::time::interval(SAY);
    loop {
        let wanted = tokio::select! {
            () = sessions.none_left(drain::SETTLE) => break,
            () = tokio::time::sleep_until(until.into()) => {
                let open = sessions.open();
                log::warn!(open, limit = haste.key(); "sessions are cut, their time is over");
                break;
            }
            _ = say.tick() => {
                log::info!(open = sessions.open(); "draining");
                continue;
            }
            () = told(&mut heir, edge), if successor => {
                successor = false;
                // Where both were told to stop, nothing is wrong.
                if haste == Haste::Leisurely {
                    orphaned = !control.place().is_served().await;
                    match orphaned {
                        true => log::error!(
                            "the process that took over has ended, this one only drains"
                        ),
                        false => log::info!("the process that took over has handed over too"),
                    }
                }
                continue;
            }
            _ = signals.terminate.recv() => haste.more(),
            _ = signals.interrupt.recv() => Haste::Now,
            _ = signals.hangup.recv() => {
                log::warn!(reason = DRAINS; "a SIGHUP is left alone");
                continue;
            }
            Some(order) = orders.recv() => match order {
                Order::Reload(asker) => {
                    tell(Some(asker), Err(NotReloaded::Busy(DRAINS)));
                    continue;
                }
                Order::Stop(wanted, asker) => {
                    tell(Some(asker), process.time(wanted.max(haste)));
                    wanted
                }
            },
        };
        if wanted > haste {
            haste = wanted;
            until = until.min(Instant::now() + process.time(haste));
            log::info!(limit = haste.key(); "draining is hurried");
        }
    }
    if let Some(heir) = heir.filter(|_| successor) {
        heir.finish(edge).await;
    }
    match orphaned {
        true => Err(Refusal::Failed(
            "the process that took over has ended".to_owned(),
        )),
        false => Ok(()),
    }
}

impl Haste {
    /// One step more.
    fn more(self) -> Haste {
        match self {
            Haste::Leisurely => Haste::Stop,
            Haste::Stop | Haste::Now => Haste::Now,
        }
    }

    /// What limits it.
    fn key(self) -> &'static str {
        match self {
            Haste::Leisurely => "process.drain_timeout",
            Haste::Stop => "process.stop_timeout",
            Haste::Now => "the time",
        }
    }
}

impl Process {
    fn time(&self, haste: Haste) -> Duration {
        match haste {
            Haste::Leisurely => self.drain_timeout,
            Haste::Stop => self.stop_timeout,
            Haste::Now => Duration::ZERO,
        }
    }
}

/// Starts a successor; `None` where that failed at once, and was told.
fn begin((program, sockets, edge): Own<'_>, asker: Option<Asker>) -> Option<UnderWay> {
    if std::process::id() == 1 {
        // A container ends with its first process, however well another serves.
        tell(asker, Err(NotReloaded::Busy(FIRST)));
        edge.trail.handed_over(Came::Failed);
        log::error!(reason = FIRST; "not reloaded, this process serves on");
        return None;
    }
    log::info!(program:% = program.path.display(); "reloading");
    match Handover::begin(program) {
        Ok((handover, closer)) => {
            notify::reloading();
            let (sockets, edge) = (sockets.clone(), edge.clone());
            let outcome = tokio::task::spawn_blocking(move || handover.complete(&sockets, &edge));
            Some(UnderWay {
                closer,
                outcome,
                asker,
            })
        }
        Err(refusal) => {
            edge.trail.handed_over(Came::Failed);
            log::error!(reason:% = refusal; "not reloaded, this process serves on");
            tell(asker, Err(NotReloaded::Refused(refusal)));
            None
        }
    }
}

/// What came of a handover; never, where there is none.
async fn outcome(under_way: &mut Option<UnderWay>) -> Result<Successor, Refusal> {
    match under_way {
        Some(it) => match (&mut it.outcome).await {
            Ok(outcome) => outcome,
            Err(e) => Err(Refusal::Failed(format!("the handover failed: {e}"))),
        },
        None => std::future::pending().await,
    }
}

/// Ends a handover: this process is to stop, and nobody is to serve in its place.
async fn give_up(mut under_way: Option<UnderWay>) {
    if under_way.is_none() {
        return;
    }
    if let Some(it) = &under_way {
        it.closer.close();
    }
    if let Ok(successor) = outcome(&mut under_way).await {
        log::warn!(pid = successor.pid; "the new process serves already, and has to be stopped too");
    }
    let asker = under_way.and_then(|it| it.asker);
    tell(asker, Err(NotReloaded::Busy(STOPS)));
}

fn tell<T>(asker: Option<oneshot::Sender<T>>, answer: T) {
    // Who asked may have left.
    asker.map(|asker| asker.send(answer));
}

/// Tells the successor what happens, and returns when it has ended; never, where there is none.
async fn told(heir: &mut Option<Heir>, edge: &Edge) {
    match heir {
        Some(heir) => heir.tell(edge).await,
        None => std::future::pending().await,
    }
}

const BUSY: &str = "a reload is under way; wait for its end";
const DRAINS: &str = "this process drains, another serves or is to";
const STOPS: &str = "berth was told to stop during the reload";
const FIRST: &str = "berth is the first process of its container, which would end with it: start a \
                     new container, or run berth under an init";
