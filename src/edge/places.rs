//! How many connections there may be at once: in all, and from one address.
//!
//! Every connection takes a file descriptor and some memory before it has said a word, so whoever can
//! connect could take all of them. The limit in all leaves descriptors for what a connection brings
//! about, and for orders; the one per address leaves places for the others. An address is what
//! `client` takes for one client: a /64 of IPv6. Promise: the table has no more entries than there are
//! connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::client;
use crate::observe::words::TurnedAway;

/// The places of a process.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

/// One of them, free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    of: Places,
    address: String,
}

#[derive(Debug)]
struct Shared {
    most: usize,
    most_per_address: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<String, usize>,
}

impl Places {
    /// So many in all, and so many for one address; 0 is as many as there are.
    pub fn new(most: usize, most_per_address: usize) -> Places {
        Places(Arc::new(Shared {
            most,
            most_per_address,
            taken: Mutex::default(),
        }))
    }

    /// A place for a connection from `address`.
    ///
    /// # Errors
    ///
    /// The limit that is reached.
    pub fn take(&self, address: IpAddr) -> Result<Place, TurnedAway> {
        let address = client::host(address);
        let mut taken = self.taken();
        if taken.all >= self.0.most {
            return Err(TurnedAway::Connections);
        }
        let from_it = taken.by_address.get(&address).copied().unwrap_or_default();
        if self.0.most_per_address > 0 && from_it >= self.0.most_per_address {
            return Err(TurnedAway::ConnectionsPerAddress);
        }
        taken.all += 1;
        taken.by_address.insert(address.clone(), from_it + 1);
        drop(taken);
        let of = self.clone();
        Ok(Place { of, address })
    }

    /// How many are taken.
    pub fn open(&self) -> usize {
        self.taken().all
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.of.taken();
        taken.all = taken.all.saturating_sub(1);
        match taken.by_address.get_mut(&self.address) {
            Some(count @ 2..) => *count -= 1,
            _ => drop(taken.by_address.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(places: &Places, address: &str) -> Result<Place, TurnedAway> {
        places.take(address.parse().unwrap())
    }

    #[test]
    fn no_address_takes_more_than_its_own_and_all_no_more_than_there_are() {
        let places = Places::new(5, 2);
        let first = from(&places, "192.0.2.1").unwrap();
        let _second = from(&places, "::ffff:192.0.2.1").unwrap();
        let third = from(&places, "192.0.2.1");
        assert_eq!(third.unwrap_err(), TurnedAway::ConnectionsPerAddress);
        let _neighbours = [
            from(&places, "2001:db8:1:2::1").unwrap(),
            from(&places, "2001:db8:1:2::2").unwrap(),
        ];
        let same_host = from(&places, "2001:db8:1:2:3::1");
        assert_eq!(same_host.unwrap_err(), TurnedAway::ConnectionsPerAddress);
        let _last = from(&places, "192.0.2.3").unwrap();
        let beyond = from(&places, "192.0.2.4");
        assert_eq!(beyond.unwrap_err(), TurnedAway::Connections);
        drop(first);
        from(&places, "192.0.2.4").unwrap();
        from(&places, "192.0.2.1").unwrap();
    }

    #[test]
    fn nothing_is_kept_of_who_has_left() {
        let places = Places::new(1_000, 0);
        for _ in 0..2 {
            let taken: Vec<Place> = (0..100)
                .map(|host| from(&places, &format!("192.0.2.{}", host % 50)).unwrap())
                .collect();
            assert_eq!((places.open(), places.taken().by_address.len()), (100, 50));
            drop(taken);
            assert_eq!((places.open(), places.taken().by_address.len()), (0, 0));
        }
    }
}
