//! The waiting room: who may wait for a seat, and whose turn it is.
//!
//! While a model is full one attempt a second goes to somebody who waits. First come first served
//! would give all of them to the client that asks most. So each model has a line of clients: they take
//! turns, and within a client whoever came first goes first.
//!
//! The room has a limit, shared by all models. One client alone may fill it. When another one comes
//! then, the client with the most gives up the place that it took last, as long as it keeps more than
//! the newcomer has; and while others ask or wait, a client that has half of the room gets no more of
//! it. So nobody who has less is turned away for somebody who has much more.
//!
//! Promises: never more waiting than the limit; a client without a place gets one unless every place
//! is a different client's; between two turns of a client every other in its line has one.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::share::{Askers, Client, half};

/// Those that wait.
#[derive(Debug)]
pub struct Room {
    limit: usize,
    taken: usize,
    last: u64,
    lines: HashMap<Box<str>, Line>,
    /// Places of each client that has one, over all models.
    of: HashMap<Client, usize>,
    askers: Askers,
}

/// The place of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    client: Client,
    /// Later ones are greater.
    number: u64,
}

/// What a place is worth now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is its turn.
    Next,
    /// Others are before it.
    Behind,
    /// It was given up for another client.
    Out,
}

/// What came of asking for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// This one is yours; another may have been given up for it.
    In(Ticket, Option<Ticket>),
    /// There is none for this client.
    Refused,
}

/// Those that wait for one model. No queue in it is empty.
#[derive(Debug, Default)]
struct Line {
    /// Each client once, the next one first.
    turns: VecDeque<Client>,
    queues: HashMap<Client, VecDeque<Ticket>>,
}

impl Room {
    /// An empty room of `limit` places.
    pub fn new(limit: usize) -> Room {
        Room {
            limit,
            taken: 0,
            last: 0,
            lines: HashMap::new(),
            of: HashMap::new(),
            askers: Askers::default(),
        }
    }

    /// `client` asks for a place in the line for `model`.
    pub fn enter(&mut self, model: &str, client: Client, now: Instant) -> Entry {
        let mine = self.places(client);
        let others = self.askers.asks(client, now) || self.of.keys().any(|it| *it != client);
        if others && mine as u64 >= half(self.limit as u64) {
            return Entry::Refused;
        }
        let given_up = match self.taken < self.limit {
            true => None,
            false => match self.most_recent_of_most(mine) {
                Some((model, ticket)) => {
                    self.leaves(&model, ticket);
                    Some(ticket)
                }
                None => return Entry::Refused,
            },
        };
        self.last += 1;
        let ticket = Ticket {
            client,
            number: self.last,
        };
        self.lines.entry(model.into()).or_default().push(ticket);
        self.taken += 1;
        *self.of.entry(client).or_default() += 1;
        Entry::In(ticket, given_up)
    }

    /// How many wait, for whatever.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// How a place stands.
    pub fn standing(&self, model: &str, ticket: Ticket) -> Standing {
        let line = self.lines.get(model);
        match line {
            Some(line) if line.next() == Some(ticket) => Standing::Next,
            Some(line) if line.has(ticket) => Standing::Behind,
            Some(_) | None => Standing::Out,
        }
    }

    /// Whose turn it is.
    pub fn next(&self, model: &str) -> Option<Ticket> {
        self.lines.get(model)?.next()
    }

    /// How many wait for a model.
    pub fn waiting(&self, model: &str) -> usize {
        let line = self.lines.get(model);
        line.map_or(0, |line| line.queues.values().map(VecDeque::len).sum())
    }

    /// A request starts: where that was its turn, its client goes to the end of the line.
    pub fn starts(&mut self, model: &str, ticket: Ticket) {
        if let Some(line) = self.lines.get_mut(model)
            && line.next() == Some(ticket)
        {
            line.turns.rotate_left(1);
        }
        self.leaves(model, ticket);
    }

    /// A request waits no longer; nothing if it has no place.
    pub fn leaves(&mut self, model: &str, ticket: Ticket) {
        let Some(line) = self.lines.get_mut(model) else {
            return;
        };
        if !line.remove(ticket) {
            return;
        }
        if line.turns.is_empty() {
            self.lines.remove(model);
        }
        self.taken -= 1;
        if let Some(places) = self.of.get_mut(&ticket.client) {
            *places -= 1;
            if *places == 0 {
                self.of.remove(&ticket.client);
            }
        }
    }

    fn places(&self, client: Client) -> usize {
        self.of.get(&client).copied().unwrap_or_default()
    }

    /// The place taken last by the client with the most, which keeps more than `mine`.
    fn most_recent_of_most(&self, mine: usize) -> Option<(Box<str>, Ticket)> {
        let most = self.of.iter().max_by_key(|(it, n)| (**n, it.hash()));
        let (client, _) = most.filter(|(_, places)| **places > mine + 1)?;
        let lines = self.lines.iter().filter_map(|(model, line)| {
            let last = line.queues.get(client)?.back()?;
            Some((model, *last))
        });
        let (model, ticket) = lines.max_by_key(|(_, ticket)| ticket.number)?;
        Some((model.clone(), ticket))
    }
}

impl Line {
    fn push(&mut self, ticket: Ticket) {
        let queue = self.queues.entry(ticket.client).or_default();
        if queue.is_empty() {
            self.turns.push_back(ticket.client);
        }
        queue.push_back(ticket);
    }

    fn next(&self) -> Option<Ticket> {
        self.queues.get(self.turns.front()?)?.front().copied()
    }

    fn has(&self, ticket: Ticket) -> bool {
        let queue = self.queues.get(&ticket.client);
        queue.is_some_and(|queue| queue.contains(&ticket))
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        let Some(queue) = self.queues.get_mut(&ticket.client) else {
            return false;
        };
        let before = queue.len();
        queue.retain(|it| *it != ticket);
        let removed = queue.len() < before;
        if queue.is_empty() {
            self.queues.remove(&ticket.client);
            self.turns.retain(|it| *it != ticket.client);
        }
        removed
    }
}

#[cfg(test)]
mod tests;
