//! The keys that seal cookies (RFC 8915 section 6), and when they are replaced.
//!
//! A new key every day limits what a stolen one can open. Older ones are still accepted, so that a
//! client that asks rarely keeps its cookies: one that is younger than a week is always accepted. A
//! key is then forgotten, and with it everything that was sealed with it.
//!
//! What it does not do: generate or store keys. The caller passes random bytes, and may keep
//! [`CookieKeys::iter`] in a file that nobody else can read.

use timevisor_time::Duration;
use zeroize::Zeroizing;

use crate::nts::aead::KEY_LEN;

/// How long keys are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// Interval between new keys. Default: one day, as RFC 8915 section 6 suggests.
    pub every: Duration,
    /// Number of keys that are accepted, with the newest. Default 8: a cookie lives for seven to
    /// eight days, longer than the rarest usual poll (36 hours) takes to replace all eight.
    pub kept: usize,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { every: Duration::from_secs(86_400), kept: 8 }
    }
}

impl Rotation {
    /// How long a key is accepted.
    fn lifetime(&self) -> Duration {
        std::iter::repeat_n(self.every, self.kept).sum()
    }
}

/// One key.
#[derive(Clone, PartialEq, Eq)]
pub struct CookieKey {
    /// Its name in cookies. Names count up and wrap around.
    pub id: u16,
    /// When it was made.
    pub made: Duration,
    /// The key. It is overwritten when dropped and never shown.
    pub key: Zeroizing<[u8; KEY_LEN]>,
}

/// Shows nothing of the key.
impl std::fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CookieKey({}, {})", self.id, self.made)
    }
}

/// The keys that are accepted. Every `now` is monotonic time since an origin that the caller
/// chooses, the same for as long as the keys live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CookieKeys {
    rotation: Rotation,
    /// Newest first; never empty.
    keys: Vec<CookieKey>,
}

impl CookieKeys {
    /// Starts with one key. `id` should be random: names of keys that are lost in a restart are
    /// then not used again.
    #[must_use]
    pub fn new(rotation: Rotation, now: Duration, id: u16, key: Zeroizing<[u8; KEY_LEN]>) -> Self {
        Self { rotation, keys: vec![CookieKey { id, made: now, key }] }
    }

    /// Continues with keys that were kept, newest first. `None` if no key is left that may be used,
    /// or if they were made later than `now`.
    #[must_use]
    pub fn restored(rotation: Rotation, now: Duration, keys: Vec<CookieKey>) -> Option<Self> {
        let is_ordered = keys.is_sorted_by(|newer, older| newer.made >= older.made);
        if !is_ordered || keys.first()?.made > now {
            return None;
        }
        let mut restored = Self { rotation, keys };
        restored.forget(now);
        (!restored.keys.is_empty()).then_some(restored)
    }

    /// Returns when the next key is due.
    #[must_use]
    pub fn rotate_at(&self) -> Duration {
        self.newest().map_or(Duration::ZERO, |key| key.made + self.rotation.every)
    }

    /// Adds a key, which seals from now on, and forgets those that are too old.
    pub fn rotate(&mut self, now: Duration, key: Zeroizing<[u8; KEY_LEN]>) {
        let id = self.newest().map_or(0, |newest| newest.id.wrapping_add(1));
        self.keys.insert(0, CookieKey { id, made: now, key });
        self.forget(now);
    }

    /// The keys, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &CookieKey> {
        self.keys.iter()
    }

    fn newest(&self) -> Option<&CookieKey> {
        self.keys.first()
    }

    fn forget(&mut self, now: Duration) {
        let lifetime = self.rotation.lifetime();
        self.keys.retain(|key| now - key.made < lifetime);
        self.keys.truncate(self.rotation.kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(days: i64) -> Duration {
        Duration::from_secs(days * DAY)
    }

    fn key(byte: u8) -> Zeroizing<[u8; KEY_LEN]> {
        Zeroizing::new([byte; KEY_LEN])
    }

    fn ids(keys: &CookieKeys) -> Vec<u16> {
        keys.iter().map(|key| key.id).collect()
    }

    #[test]
    fn one_key_a_day_and_the_last_eight_are_accepted() {
        let mut keys = CookieKeys::new(Rotation::default(), at(0), u16::MAX, key(0));
        for day in 1..=10 {
            assert_eq!(keys.rotate_at(), at(day));
            keys.rotate(at(day), key(1));
        }
        assert_eq!(ids(&keys), [9, 8, 7, 6, 5, 4, 3, 2], "names wrap around");
        assert!(keys.iter().all(|key| at(10) - key.made < at(8)));
    }

    #[test]
    fn a_pause_counts_for_the_age_of_a_key() {
        let mut keys = CookieKeys::new(Rotation::default(), at(0), 5, key(0));
        keys.rotate(at(6), key(1));
        assert_eq!(ids(&keys), [6, 5]);
        keys.rotate(at(8), key(2));
        assert_eq!(ids(&keys), [7, 6], "the first is eight days old");
        keys.rotate(at(100), key(3));
        assert_eq!(ids(&keys), [8]);
    }

    #[test]
    fn kept_keys_go_on_unless_they_are_too_old_or_of_the_future() {
        let mut keys = CookieKeys::new(Rotation::default(), at(0), 5, key(0));
        keys.rotate(at(1), key(1));
        let kept: Vec<_> = keys.iter().cloned().collect();
        let restored =
            |now, kept: &[CookieKey]| CookieKeys::restored(Rotation::default(), now, kept.to_vec());
        assert_eq!(restored(at(2), &kept), Some(keys));
        assert_eq!(restored(at(8), &kept).map(|keys| ids(&keys)), Some(vec![6]));
        assert_eq!(restored(at(9), &kept), None);
        assert_eq!(restored(at(0), &kept), None, "the origin of time is another one");
        assert_eq!(restored(at(2), &[]), None);
        let reversed: Vec<_> = kept.iter().rev().cloned().collect();
        assert_eq!(restored(at(2), &reversed), None);
    }

    #[test]
    fn keys_are_not_shown() {
        let keys = CookieKeys::new(Rotation::default(), at(0), 5, key(90));
        assert!(!format!("{keys:?}").contains("90"), "{keys:?}");
    }
}
