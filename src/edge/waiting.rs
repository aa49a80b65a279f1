//! The waiting room, shared by all requests: the rules are `admission::room`'s, here are the bells.
//!
//! Whoever waits has a bell, rung when its turn comes or its place is given up. A place is left by
//! being dropped, so a client that goes away frees it however its request ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::admission::room::{Entry, Room, Standing, Ticket};
use crate::admission::share::Client;

/// The waiting room.
pub struct WaitingRoom(Mutex<Inner>);

struct Inner {
    room: Room,
    bells: HashMap<Ticket, Arc<Notify>>,
}

/// The place of one request among those that wait.
pub struct Place<'a> {
    room: &'a WaitingRoom,
    model: &'a str,
    ticket: Ticket,
    bell: Arc<Notify>,
}

impl WaitingRoom {
    /// A room of so many places.
    pub fn new(places: usize) -> WaitingRoom {
        WaitingRoom(Mutex::new(Inner {
            room: Room::new(places),
            bells: HashMap::new(),
        }))
    }

    /// A place in the line for `model`, if there is one for `client`.
    pub fn enter<'a>(&'a self, model: &'a str, client: Client, now: Instant) -> Option<Place<'a>> {
        let mut inner = self.lock();
        let Entry::In(ticket, given_up) = inner.room.enter(model, client, now) else {
            return None;
        };
        if let Some(bell) = given_up.and_then(|it| inner.bells.remove(&it)) {
            bell.notify_one();
        }
        let bell = Arc::new(Notify::new());
        inner.bells.insert(ticket, Arc::clone(&bell));
        Some(Place {
            room: self,
            model,
            ticket,
            bell,
        })
    }

    /// How many wait for `model`.
    pub fn waiting(&self, model: &str) -> usize {
        self.lock().room.waiting(model)
    }

    /// How many wait, for a model or for a place.
    pub fn all(&self) -> usize {
        self.lock().room.taken()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.room.lock().room.standing(self.model, self.ticket)
    }

    /// Resolves when that may have changed.
    pub async fn rung(&self) {
        self.bell.notified().await;
    }

    /// The request starts.
    pub fn starts(self) {
        self.room.lock().room.starts(self.model, self.ticket);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut inner = self.room.lock();
        inner.room.leaves(self.model, self.ticket);
        inner.bells.remove(&self.ticket);
        let next = inner.room.next(self.model);
        if let Some(bell) = next.and_then(|next| inner.bells.get(&next)) {
            bell.notify_one();
        }
    }
}
