//! The policy laboratory: berth's own pool and the policies of other relays in the same situations.
//!
//! ```text
//! cargo run --release --example policy_lab                 the table of docs/policy.md
//! cargo run --release --example policy_lab -- c,l berth 2  two situations, one policy, two seeds
//! cargo run --release --example policy_lab -- extra        the short situations alone
//! ```
//!
//! No network and no clock: the same seeds give the same table. `docs/policy.md` says what the
//! situations are, what the columns mean, and what this does not show.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use berth::admission::dice::Dice;

#[path = "policy_lab/edge.rs"]
mod edge;
#[path = "policy_lab/extra.rs"]
mod extra;
#[path = "policy_lab/figures.rs"]
mod figures;
#[path = "policy_lab/first.rs"]
mod first;
#[path = "policy_lab/policies.rs"]
mod policies;
#[path = "policy_lab/rivals.rs"]
mod rivals;
#[path = "policy_lab/run.rs"]
mod run;
#[path = "policy_lab/world.rs"]
mod world;

use figures::{COLUMNS, Cell, Figures, cells, is_as_good};
use policies::Policy;
use rivals::{Kind, Rival};
use world::World;

/// The policies, ours last.
const POLICIES: [&str; 8] = [
    "none",
    "account 600 s",
    "codex2api",
    "sub2api",
    "CLIProxyAPI",
    "codex-lb",
    "first version",
    "berth",
];
const OURS: usize = POLICIES.len() - 1;
/// The seeds of the table; the rules were tuned on others (1 to 12).
const FIRST_SEED: u64 = 101;
const SEEDS: u64 = 6;

/// Situation and policy, by place.
type Key = (usize, usize);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let wanted = args.next().unwrap_or_else(|| "all".to_owned());
    let policy = args.next().unwrap_or_else(|| "all".to_owned());
    let seeds = args.next().and_then(|it| it.parse().ok()).unwrap_or(SEEDS);
    if wanted == "extra" {
        return extra::report();
    }
    let started = Instant::now();
    let among = |list: &str, name: &str| list == "all" || list.split(',').any(|it| it == name);
    let mut jobs = Vec::new();
    for (situation, (name, _)) in world::ALL.iter().enumerate() {
        for (at, of) in POLICIES.iter().enumerate() {
            if among(&wanted, name) && among(&policy, of) {
                jobs.extend((0..seeds).map(|seed| ((situation, at), FIRST_SEED + seed)));
            }
        }
    }
    let table = work(&jobs);
    print(&table);
    if wanted == "all" && policy == "all" {
        extra::print();
        conclude(&table, seeds);
    }
    eprintln!("{:.0} s", started.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// Runs every job, on two threads.
fn work(jobs: &[(Key, u64)]) -> BTreeMap<Key, Vec<Figures>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((key, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let figures = one(*key, *seed);
                    let mut done = done.lock().expect("no thread panics");
                    done.entry(*key)
                        .or_insert_with(Vec::new)
                        .push((*seed, figures));
                }
            });
        }
    });
    let done = done.into_inner().expect("no thread panics");
    let sorted = done.into_iter().map(|(key, mut runs)| {
        runs.sort_by_key(|(seed, _)| *seed);
        (key, runs.into_iter().map(|(_, figures)| figures).collect())
    });
    sorted.collect()
}

fn one((situation, policy): Key, seed: u64) -> Figures {
    let (name, load) = world::ALL[situation];
    let mut dice = Dice::new(seed * 7_919 + 13);
    let world = World::new(name, load, &mut dice);
    let rival = |kind| Box::new(Rival::new(kind, &world));
    let mut policy: Box<dyn Policy> = match POLICIES[policy] {
        "none" => rival(Kind::None),
        "account 600 s" => rival(Kind::Out600),
        "codex2api" => rival(Kind::Breaker),
        "sub2api" => rival(Kind::Sub2api),
        "CLIProxyAPI" => rival(Kind::CliProxy),
        "codex-lb" => rival(Kind::CodexLb),
        "first version" => Box::new(first::First::new(&world, seed)),
        _ => Box::new(edge::Berth::new(&world, seed)),
    };
    run::Run::new(&world, &mut *policy, dice, seed)
        .finish()
        .figures()
}

fn print(table: &BTreeMap<Key, Vec<Figures>>) {
    let names: Vec<_> = COLUMNS.iter().map(|(name, ..)| *name).collect();
    println!("| situation | policy | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for ((situation, policy), runs) in table {
        let (name, load) = world::ALL[*situation];
        let load = if load == 1.0 {
            String::new()
        } else {
            format!(" {load} x")
        };
        let cells: Vec<_> = cells(runs)
            .iter()
            .zip(COLUMNS)
            .map(|(cell, (_, decimals, _))| shown(cell, decimals, *policy == OURS))
            .collect();
        println!(
            "| {name}{load} | {} | {} |",
            POLICIES[*policy],
            cells.join(" | ")
        );
    }
}

fn shown(cell: &Cell, decimals: usize, with_spread: bool) -> String {
    let Cell { mean, least, most } = cell;
    match with_spread {
        true => format!("**{mean:.decimals$}** ({least:.decimals$} to {most:.decimals$})"),
        false => format!("{mean:.decimals$}"),
    }
}

/// The one line that says how berth compares, and where it is worse.
fn conclude(table: &BTreeMap<Key, Vec<Figures>>, seeds: u64) {
    let (mut good, mut fair, mut all) = (0, 0, 0);
    let mut worse = Vec::new();
    for (situation, (name, load)) in world::ALL.iter().enumerate() {
        let means = |policy| table.get(&(situation, policy)).map(|runs| cells(runs));
        let rows: Vec<_> = (0..POLICIES.len()).filter_map(means).collect();
        let Some(ours) = rows.last() else { continue };
        // Who turns clients away saves attempts, moves and waits: that is no better policy.
        let serves = |row: &&[Cell; COLUMNS.len()]| {
            [0, 1].iter().all(|column| {
                let pair = [ours[*column].mean, row[*column].mean];
                is_as_good(*column, row[*column].mean, pair.into_iter())
            })
        };
        for (column, (title, ..)) in COLUMNS.iter().enumerate() {
            all += 1;
            let (mine, of) = (ours[column].mean, |row: &[Cell; COLUMNS.len()]| {
                row[column].mean
            });
            good += u32::from(is_as_good(column, mine, rows.iter().map(of)));
            match is_as_good(column, mine, rows.iter().filter(serves).map(of)) {
                true => fair += 1,
                false => worse.push(format!("{name} {load}x {title}")),
            }
        }
    }
    println!(
        "\nWorse by more than a tenth than one that turns away and loses no more: {}.",
        worse.join(", ")
    );
    println!(
        "\nIn {fair} of {all} cells ({} situations, {} columns, {seeds} seeds) berth is the best of {} \
         policies or within 10 % of it, among those that turn away and lose no more clients than it \
         does; in {good} of {all} among all.",
        world::ALL.len(),
        COLUMNS.len(),
        POLICIES.len()
    );
}
