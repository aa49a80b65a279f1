//! The policies of other relays, as their sources and documents state them.

use std::collections::VecDeque;

use super::policies::{Class, Ground, Policy, Request, until};
use super::world::World;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain failover without a memory.
    None,
    /// The account is out for 600 s after each refusal.
    Out600,
    /// Out for 30 min when a fifth of five requests or more in five minutes were refused (codex2api).
    Breaker,
    /// The pair is out for 10 s after the second, 45 s after each later refusal in a row (sub2api).
    Sub2api,
    /// The pair is out for 1 s, doubling to 30 min, ended by a success (CLIProxyAPI).
    CliProxy,
    /// Three refusals in 120 s put the account last for 60 s, doubling to 600 s (codex-lb).
    CodexLb,
}

pub struct Rival {
    kind: Kind,
    ground: Ground,
    /// By model and credential.
    pairs: Vec<Vec<Pair>>,
    accounts: Vec<Account>,
}

#[derive(Clone, Default)]
struct Pair {
    until: f64,
    in_a_row: i32,
    last: f64,
}

#[derive(Default)]
struct Account {
    until: f64,
    seen: VecDeque<(f64, bool)>,
    doublings: i32,
    doubled: f64,
}

impl Account {
    fn see(&mut self, refused: bool, within: f64, now: f64) {
        self.seen.push_back((now, refused));
        while self.seen.front().is_some_and(|it| now - it.0 > within) {
            self.seen.pop_front();
        }
    }
}

impl Rival {
    pub fn new(kind: Kind, world: &World) -> Rival {
        let count = world.weights.len();
        Rival {
            kind,
            ground: Ground::new(world),
            pairs: vec![vec![Pair::default(); count]; world.models],
            accounts: (0..count).map(|_| Account::default()).collect(),
        }
    }

    fn class(&self, credential: usize, model: usize, now: f64) -> Class {
        let closed = |until: f64| match now < until {
            true => Class::Closed,
            false => Class::Ready,
        };
        let account = self.accounts[credential].until;
        match self.kind {
            Kind::None => Class::Ready,
            Kind::Out600 | Kind::Breaker => closed(account),
            Kind::Sub2api | Kind::CliProxy => closed(self.pairs[model][credential].until),
            Kind::CodexLb if now < account => Class::Last(account),
            Kind::CodexLb => Class::Ready,
        }
    }
}

impl Policy for Rival {
    fn choose(&mut self, request: &Request, now: f64) -> Option<usize> {
        let classes: Vec<_> = (0..self.accounts.len())
            .map(|it| self.class(it, request.model, now))
            .collect();
        let chosen = self.ground.choose(request, |it| classes[it]);
        chosen.map(|(credential, _)| credential)
    }

    fn refused(&mut self, request: &Request, credential: usize, now: f64) {
        self.ground.over(credential);
        let pair = &mut self.pairs[request.model][credential];
        let account = &mut self.accounts[credential];
        match self.kind {
            Kind::None => {}
            Kind::Out600 => account.until = now + 600.0,
            Kind::Breaker => {
                account.see(true, 300.0, now);
                let refused = account.seen.iter().filter(|it| it.1).count();
                let many = refused as f64 >= 0.2 * account.seen.len() as f64;
                if account.seen.len() >= 5 && many && now >= account.until {
                    account.until = now + 1_800.0;
                    account.seen.clear();
                }
            }
            Kind::Sub2api => {
                if now - pair.last > 1_800.0 {
                    pair.in_a_row = 0;
                }
                pair.in_a_row += 1;
                pair.last = now;
                let out = [0.0, 10.0, 45.0][pair.in_a_row.min(3) as usize - 1];
                pair.until = pair.until.max(now + out);
            }
            Kind::CliProxy if now >= pair.until => {
                pair.until = now + 2_f64.powi(pair.in_a_row).min(1_800.0);
                pair.in_a_row = (pair.in_a_row + 1).min(20);
            }
            Kind::CliProxy => {}
            Kind::CodexLb => {
                account.see(true, 120.0, now);
                if now - account.doubled > 1_800.0 {
                    account.doublings = 0;
                }
                if account.seen.len() >= 3 && now >= account.until {
                    account.until = now + (60.0 * 2_f64.powi(account.doublings)).min(600.0);
                    account.doublings += 1;
                    account.doubled = now;
                    account.seen.clear();
                }
            }
        }
    }

    fn admitted(&mut self, request: &Request, credential: usize, now: f64) {
        self.ground.admitted(request, credential);
        let pair = &mut self.pairs[request.model][credential];
        match self.kind {
            Kind::Sub2api => pair.in_a_row = 0,
            Kind::CliProxy => *pair = Pair::default(),
            Kind::Breaker => self.accounts[credential].seen.push_back((now, false)),
            Kind::None | Kind::Out600 | Kind::CodexLb => {}
        }
    }

    fn done(&mut self, _slot: usize, credential: usize) {
        self.ground.over(credential);
    }

    fn give_up(&mut self, request: &Request, now: f64) -> f64 {
        let accounts = self.accounts.iter().map(|it| it.until);
        let pairs = self.pairs[request.model].iter().map(|it| it.until);
        let earliest = match self.kind {
            Kind::None | Kind::CodexLb => 0.0,
            Kind::Out600 | Kind::Breaker => accounts.fold(f64::MAX, f64::min),
            Kind::Sub2api | Kind::CliProxy => pairs.fold(f64::MAX, f64::min),
        };
        until(earliest, now)
    }

    fn in_flight(&self, credential: usize) -> usize {
        self.ground.in_flight(credential)
    }

    fn withholds(&mut self, credential: usize, model: usize, now: f64) -> bool {
        self.class(credential, model, now) != Class::Ready
    }

    fn lives_at(&mut self, _session: u64, _credential: usize, _now: f64) -> bool {
        true
    }
}
