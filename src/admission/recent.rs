//! A table of what was used lately, bounded.
//!
//! Sessions and models are named by clients, so whatever is remembered about them needs a bound that
//! no client can push. Two halves: whoever is used goes into the young one; when that is full it
//! becomes the old one, and what the old one held is forgotten. So an entry lives at least until half
//! of the capacity in *other* entries was used after it, and every step costs the same. An exact list
//! of least recent use was refused: it needs links between entries, and nothing here depends on the
//! exact order in which strangers are forgotten.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// At most so many entries, the least recently used ones forgotten first.
#[derive(Debug)]
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// A table of at most `capacity` entries.
    pub fn new(capacity: usize) -> Recent<K, V> {
        Recent {
            young: HashMap::new(),
            old: HashMap::new(),
            half: (capacity / 2).max(1),
        }
    }

    /// The entry of `key`, as it is; it does not count as used.
    pub fn peek<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// The entry of `key`, if there is one.
    pub fn get<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if !self.young.contains_key(key) {
            let (key, value) = self.old.remove_entry(key)?;
            self.make_room();
            self.young.insert(key, value);
        }
        self.young.get_mut(key)
    }

    /// The entry of `key`, made by `new` where there is none.
    pub fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        if !self.young.contains_key(&key) {
            let known = self.old.remove(&key);
            self.make_room();
            return self
                .young
                .entry(key)
                .or_insert_with(|| known.unwrap_or_else(new));
        }
        self.young.entry(key).or_insert_with(new)
    }

    /// Forgets `key`.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }

    /// Every entry, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }

    /// Entries now.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn make_room(&mut self) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_strangers_stay_within_the_bound_and_a_regular_is_kept() {
        let mut table = Recent::new(1_000);
        table.entry(0, || "regular");
        for stranger in 1..1_000_000_u64 {
            table.entry(stranger, || "stranger");
            if stranger % 100 == 0 {
                assert_eq!(table.get(&0), Some(&mut "regular"));
            }
            assert!(table.len() <= 1_000);
        }
        assert_eq!(table.peek(&1), None);
    }

    #[test]
    fn a_known_entry_is_found_in_either_half() {
        let mut table = Recent::new(4);
        for key in 0..3 {
            *table.entry(key, || 0) += 10;
        }
        *table.entry(0, || 0) += 1;
        assert_eq!((table.peek(&0), table.peek(&2)), (Some(&11), Some(&10)));
        assert_eq!(table.remove(&0), Some(11));
        assert!(!table.is_empty() && table.peek(&0).is_none());
    }
}
