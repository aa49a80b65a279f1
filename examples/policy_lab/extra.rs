//! Short situations for the rules that the large table does not reach. Each prints one line: what was
//! done, and what came of it.

use std::process::ExitCode;
use std::time::Duration;

use berth::admission::dice::Dice;
use berth::admission::{Policy as Rules, Verdict};
use berth::pool::{
    Ask, Choice, CredentialIndex, Lease, Lineage, Reach, Refused, RouteIndex, Settlement, Stated,
};

use super::edge::Berth;
use super::figures::Figures;
use super::policies::{Policy, Request, Start};
use super::run::Run;
use super::world::World;

const SEED: u64 = 101;

pub fn report() -> ExitCode {
    print();
    ExitCode::SUCCESS
}

pub fn print() {
    println!("\n| rule | situation | what came of it |\n|---|---|---|");
    widening();
    stated();
    own_retry_after();
    rooms();
    budgets();
    edges();
}

fn line(rule: &str, situation: &str, result: &str) {
    println!("| {rule} | {situation} | {result} |");
}

/// Two models of one credential are shunned: where do newcomers of a third one go?
fn widening() {
    let berth = berth("a");
    let shares = |model| share_of_first(&berth, model, 10.0);
    let before = shares("third");
    for session in 0..4 {
        blame(&berth, "m0", session);
    }
    let one = shares("third");
    for session in 0..4 {
        blame(&berth, "m1", session);
    }
    let two = shares("third");
    let result = format!("{before} % before, {one} % with one model shunned, {two} % with two");
    line(
        "widening",
        "a third model's newcomers at the credential",
        &result,
    );
}

/// What a credential says about itself is kept to the second.
fn stated() {
    for (verdict, name, secs) in [
        (Verdict::RateLimit, "rate limit", 30),
        (Verdict::Quota, "quota", 600),
    ] {
        let berth = berth("a");
        let first = Some(CredentialIndex(0));
        let lease = lease(&berth, (0, first), "m0", 10.0).expect("all are ready");
        let stated = Stated {
            after: Duration::from_secs(secs),
            basis: "retry_after",
            pair_only: false,
        };
        lease.learn(Some("m0"), verdict, Some(stated), berth.at(10.0));
        drop(lease);
        let during = share_of_first(&berth, "m0", 9.0 + secs as f64);
        let after = share_of_first(&berth, "m0", 11.0 + secs as f64);
        let result = format!("{during} % of newcomers until then, {after} % after");
        line(name, &format!("a credential states {secs} s"), &result);
    }
}

/// A refusal that says when to come back, in a pair that cools.
fn own_retry_after() {
    let berth = berth("a");
    let settle = |session, time, stated| {
        let refused = [Refused {
            credential: CredentialIndex(0),
            stated,
        }];
        settle(&berth, ("m0", session), &refused, time);
    };
    settle(1, 10.0, None);
    settle(2, 10.0, Some(Duration::from_secs(40)));
    let at = |time| share_of_first(&berth, "m0", time);
    let result = format!(
        "{} % after 20 s, {} % after 39 s, {} % after 49 s",
        at(30.0),
        at(49.0),
        at(59.0)
    );
    line(
        "a refusal's own `Retry-After`",
        "40 s with the second refusal",
        &result,
    );
}

/// The waiting room: a full model, six times the sessions.
fn rooms() {
    for most in [10, 100, 1_000] {
        let mut rules = Rules::default();
        rules.wait.max_waiting = most;
        let figures = run("c", 6.0, |world| Box::new(Berth::with(world, rules, SEED)));
        line(
            "waiting room",
            &format!("c with 6 x the sessions, {most} places"),
            &told(&figures),
        );
    }
}

/// The retry budget, where everybody refuses three of five.
fn budgets() {
    for (ratio, least) in [(1.0, 10), (0.2, 1), (0.0, 0)] {
        let mut rules = Rules::default();
        rules.retry_budget.ratio = ratio;
        rules.retry_budget.min_per_second = least;
        let figures = run("n", 1.0, |world| Box::new(Berth::with(world, rules, SEED)));
        let situation = format!("n, ratio {ratio}, at least {least} a second");
        line("retry budget", &situation, &told(&figures));
    }
}

/// Several edges in front of the same credentials, that know nothing of each other.
fn edges() {
    for count in [1, 2, 4] {
        let figures = run("b", 2.0, |world| {
            let edges = (0..count).map(|it| Berth::new(world, SEED + it));
            Box::new(Edges(edges.collect()))
        });
        let situation = match count {
            1 => "b with 2 x the sessions, scores shared (one edge)".to_owned(),
            _ => format!("the same over {count} edges that share nothing"),
        };
        line("several edges", &situation, &told(&figures));
    }
}

fn told([seen, lost, attempts, ..]: &Figures) -> String {
    format!("seen {seen:.2}, lost {lost:.2}, att {attempts:.3}")
}

fn run(name: &'static str, load: f64, policy: impl FnOnce(&World) -> Box<dyn Policy>) -> Figures {
    let mut dice = Dice::new(SEED * 7_919 + 13);
    let world = World::new(name, load, &mut dice);
    let mut policy = policy(&world);
    Run::new(&world, &mut *policy, dice, SEED)
        .finish()
        .figures()
}

fn berth(name: &'static str) -> Berth {
    let world = World::new(name, 1.0, &mut Dice::new(SEED));
    Berth::new(&world, SEED)
}

fn lease(
    berth: &Berth,
    (session, only): (u64, Option<CredentialIndex>),
    model: &str,
    time: f64,
) -> Option<Lease> {
    let ask = Ask {
        route: RouteIndex(0),
        model: Some(model),
        tried: &[],
        only,
        session: Some(Lineage::root(session)),
        reach: Reach::Anywhere,
    };
    match berth.pool.choose(&ask, berth.at(time)) {
        Choice::Take(lease) => Some(lease),
        Choice::None(_) => None,
    }
}

/// Which part of six hundred newcomers goes to the first credential, in percent.
fn share_of_first(berth: &Berth, model: &str, time: f64) -> usize {
    let first = |session: &u64| {
        let lease = lease(berth, (1_000 + session, None), model, time);
        lease.is_some_and(|it| it.credential().index().0 == 0)
    };
    (0..600).filter(first).count() / 6
}

fn blame(berth: &Berth, model: &str, session: u64) {
    let refused = [Refused {
        credential: CredentialIndex(0),
        stated: None,
    }];
    settle(berth, (model, session), &refused, 10.0);
}

fn settle(berth: &Berth, (model, session): (&str, u64), refused: &[Refused], time: f64) {
    let settlement = Settlement {
        route: RouteIndex(0),
        model: Some(model),
        session: Some(Lineage::root(session)),
        refused,
        admitted: Some(CredentialIndex(1)),
        began: berth.at(time),
    };
    berth.pool.settle(&settlement, berth.at(time));
}

/// Edges side by side: each session asks one of them.
struct Edges(Vec<Berth>);

impl Edges {
    fn of(&mut self, slot: usize) -> &mut Berth {
        let count = self.0.len();
        &mut self.0[slot % count]
    }
}

impl Policy for Edges {
    fn start(&mut self, request: &Request, now: f64) -> Start {
        self.of(request.slot).start(request, now)
    }
    fn may_go_on(&mut self, request: &Request, now: f64) -> bool {
        self.of(request.slot).may_go_on(request, now)
    }
    fn choose(&mut self, request: &Request, now: f64) -> Option<usize> {
        self.of(request.slot).choose(request, now)
    }
    fn refused(&mut self, request: &Request, credential: usize, now: f64) {
        self.of(request.slot).refused(request, credential, now);
    }
    fn admitted(&mut self, request: &Request, credential: usize, now: f64) {
        self.of(request.slot).admitted(request, credential, now);
    }
    fn done(&mut self, slot: usize, credential: usize) {
        self.of(slot).done(slot, credential);
    }
    fn give_up(&mut self, request: &Request, now: f64) -> f64 {
        self.of(request.slot).give_up(request, now)
    }
    fn in_flight(&self, credential: usize) -> usize {
        self.0.iter().map(|it| it.in_flight(credential)).sum()
    }
    fn withholds(&mut self, credential: usize, model: usize, now: f64) -> bool {
        self.0
            .iter_mut()
            .any(|it| it.withholds(credential, model, now))
    }
    fn lives_at(&mut self, session: u64, credential: usize, now: f64) -> bool {
        self.0
            .iter_mut()
            .all(|it| it.lives_at(session, credential, now))
    }
}
