//! What goes wrong while clients ask: upstreams that change their mind, die and come back; operators
//! that drain, hold out and reload.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth::admission::dice::Dice;
use berth::sim::Program;
use tokio::time::{interval, sleep};

use crate::common::wire::Client;
use crate::common::{Berth, DEADLINE, free_port};

/// Upstreams, each with credentials of its own.
pub const UPSTREAMS: [(&str, &str); 3] = [("one", "abc"), ("two", "def"), ("three", "ghi")];

/// What a credential may do in a while, in the simulator's words. The first half is health.
const ADMITS: &str = "admit";
const MOODS: [&str; 24] = [
    ADMITS,
    "admit",
    "admit: {deltas: 20, delta_gap: 20ms}",
    "admit: {bytes: 64KiB, deltas: 200}",
    "admit: {first_output_after: 500ms}",
    "admit",
    "admit: {deltas: 50, delta_gap: 100ms}",
    "admit: {rate_limits: true}",
    "admit",
    "chance: {percent: 5, refuse: {cut: {after: 2, mid_frame: true}}}",
    "chance: {percent: 5, refuse: {reset_after: {deltas: 2}}}",
    "chance: {percent: 5, refuse: no_terminal}",
    "chance: {percent: 30, refuse: {refuse: {shape: sse}}}",
    "chance: {percent: 30, refuse: {refuse: {shape: http_400}}}",
    "chance: {percent: 30, refuse: {refuse: {shape: http_503}}}",
    "chance: {percent: 30, refuse: {refuse: {shape: json_200}}}",
    "chance: {percent: 10, refuse: {rate_limit: {retry_after: 2s}}}",
    "chance: {percent: 5, refuse: hang}",
    "chance: {percent: 5, refuse: hang_after_head}",
    "chance: {percent: 5, refuse: reset}",
    "chance: {percent: 5, refuse: garbage}",
    "chance: {percent: 5, refuse: half_head}",
    "chance: {percent: 5, refuse: endless_head}",
    "flap: {period: 5s}",
];

/// How often an upstream changes its mind, one is killed, an operator interferes.
const MOOD: Duration = Duration::from_secs(5);
const DEATH: Duration = Duration::from_secs(60);
const ORDER: Duration = Duration::from_secs(20);
/// How long a dead upstream stays dead.
const GONE: Duration = Duration::from_secs(3);
/// How often berth is reloaded.
const RELOAD: Duration = Duration::from_secs(60);

/// How often each thing was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub moods: u32,
    pub deaths: u32,
    pub orders: u32,
    pub reloads: u32,
}

/// A simulated upstream in a process of its own, on a port that it keeps.
pub struct Upstream {
    pub addr: SocketAddr,
    ids: &'static str,
    program: PathBuf,
    child: Child,
}

impl Upstream {
    pub async fn start(ids: &'static str) -> Upstream {
        let addr = free_port();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_berth"));
        let child = spawn(&program, addr);
        let upstream = Upstream {
            addr,
            ids,
            program,
            child,
        };
        upstream.is_up().await;
        upstream.plays(&program_of(ids, |_| ADMITS)).await;
        upstream
    }

    async fn is_up(&self) {
        let since = Instant::now();
        while Client::try_connect(self.addr).await.is_err() {
            assert!(since.elapsed() < DEADLINE, "the upstream does not listen");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn plays(&self, program: &Program) {
        let text = program.to_json();
        let request = format!(
            "POST /__sim/program HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        );
        let mut client = Client::connect(self.addr).await;
        client.send(request).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    async fn dies_and_comes_back(&mut self) {
        self.kill();
        sleep(GONE).await;
        self.child = spawn(&self.program, self.addr);
        self.is_up().await;
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Goes on until `calm`, reloads only until `settled`.
pub async fn make(
    mut upstreams: Vec<Upstream>,
    berth: Arc<Berth>,
    seed: u64,
    settled: Instant,
    calm: Instant,
) -> (Done, Vec<Upstream>) {
    let mut dice = Dice::new(seed);
    let mut done = Done::default();
    let (mut mood, mut death) = (interval(MOOD), interval(DEATH));
    let (mut order, mut reload) = (interval(ORDER), interval(RELOAD));
    for timer in [&mut death, &mut order, &mut reload] {
        timer.tick().await;
    }
    while Instant::now() < calm {
        tokio::select! {
            _ = mood.tick() => {
                let upstream = draw(&mut dice, &upstreams);
                let moods: Vec<&str> = upstream.ids.chars().map(|_| *draw(&mut dice, &MOODS)).collect();
                let program = program_of(upstream.ids, |at| moods[at]);
                upstream.plays(&program).await;
                done.moods += 1;
            }
            _ = death.tick() => {
                let at = usize::try_from(dice.roll() % upstreams.len() as u64).unwrap();
                upstreams[at].dies_and_comes_back().await;
                upstreams[at].plays(&program_of(upstreams[at].ids, |_| ADMITS)).await;
                done.deaths += 1;
            }
            _ = order.tick() => {
                let (_, ids) = draw(&mut dice, &UPSTREAMS);
                let id = draw(&mut dice, ids.as_bytes());
                operate(&berth, char::from(*id), &mut dice).await;
                done.orders += 1;
            }
            _ = reload.tick(), if Instant::now() < settled => {
                berth.reload().await;
                done.reloads += 1;
            }
        }
    }
    (done, upstreams)
}

/// What an operator may do to a credential; a drained one is enabled again.
async fn operate(berth: &Berth, id: char, dice: &mut Dice) {
    let id = id.to_string();
    match dice.roll() % 3 {
        0 => berth.hold_out(&id, "10s").await,
        1 => berth.reset(&id).await,
        _ => {
            berth.order_credential(&id, "drain").await;
            sleep(Duration::from_secs(2)).await;
            berth.order_credential(&id, "enable").await;
        }
    }
}

fn spawn(program: &PathBuf, addr: SocketAddr) -> Child {
    let mut command = Command::new(program);
    command.args(["sim", "--listen", &addr.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(Stdio::null()).spawn().unwrap()
}

/// Each credential in a mood of its own.
fn program_of<'a>(ids: &str, mood: impl Fn(usize) -> &'a str) -> Program {
    let mut text = "credentials:\n".to_owned();
    for (at, id) in ids.chars().enumerate() {
        let mood = mood(at);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  sk-{id}: {{name: {id}, steps: [{mood}]}}");
    }
    Program::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn draw<'a, T>(dice: &mut Dice, of: &'a [T]) -> &'a T {
    &of[usize::try_from(dice.roll() % of.len() as u64).unwrap()]
}
