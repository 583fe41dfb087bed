//! The keys that seal cookies: kept over a restart of the daemon, replaced once a day, and shared
//! with the threads that make cookies and that serve NTP, which have no files.
//!
//! They are kept in the run directory, which a reboot empties: clients then establish new keys by
//! themselves. Nobody but root can read the file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use timevisor_linux::clock::boot_id;
use timevisor_linux::state_file::{self, Readers};
use timevisor_protocols::nts::aead::KEY_LEN;
use timevisor_protocols::nts::server::{
    COOKIE_LEN, CookieCiphers, CookieKey, CookieKeys, Rotation, SessionKeys,
};
use timevisor_time::Duration;
use zeroize::{Zeroize as _, Zeroizing};

use crate::clock::hex;

const FILE: &str = "nts-keys.json";

/// A week's keys are 1 kB.
const MOST_BYTES: u64 = 1 << 16;

/// Number of cookies that a client gets with its keys (RFC 8915 section 4.1.6).
const COOKIES: usize = timevisor_protocols::nts::config::COOKIES;

/// The keys as the other threads see them. They never wait for them.
pub struct SharedKeys {
    version: AtomicU64,
    keys: Mutex<CookieKeys>,
}

impl SharedKeys {
    fn new(keys: CookieKeys) -> Self {
        Self { version: AtomicU64::new(1), keys: Mutex::new(keys) }
    }

    /// Returns the keys, if they are newer than version `seen`.
    pub fn newer_than(&self, seen: &mut u64) -> Option<CookieKeys> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen {
            return None;
        }
        // Locked only while a key is being added; the older ones do until the next batch.
        let keys = self.keys.try_lock().ok()?.clone();
        *seen = version;
        Some(keys)
    }

    fn replace(&self, keys: &CookieKeys) {
        if let Ok(mut shared) = self.keys.lock() {
            shared.clone_from(keys);
        }
        self.version.fetch_add(1, Ordering::Release);
    }
}

/// The keys on disk, and in use.
pub(super) struct KeyStore {
    path: PathBuf,
    boot: String,
    keys: CookieKeys,
    shared: Arc<SharedKeys>,
}

impl KeyStore {
    /// Continues with the keys of an earlier daemon, or starts with a new one.
    pub(super) fn open(directory: &Path, now: Duration) -> Result<Self> {
        let boot = boot_id().map(|id| hex(&id)).context("cannot read the boot id")?;
        let path = directory.join(FILE);
        let saved = Saved::read(&path).unwrap_or_else(|error| {
            tracing::warn!("NTS clients have to establish new keys: {error:#}; it is replaced");
            Saved::default()
        });
        let kept = saved.keys_of(&boot);
        let restored = CookieKeys::restored(Rotation::default(), now, kept);
        let keys = match restored {
            Some(keys) => keys,
            None => {
                let mut id = [0; 2];
                fill(&mut id)?;
                CookieKeys::new(Rotation::default(), whole(now), u16::from_ne_bytes(id), new_key()?)
            }
        };
        let shared = Arc::new(SharedKeys::new(keys.clone()));
        let mut store = Self { path, boot, keys, shared };
        store.rotate_if_due(now)?;
        store.save();
        Ok(store)
    }

    pub(super) fn shared(&self) -> Arc<SharedKeys> {
        Arc::clone(&self.shared)
    }

    /// Adds a key if the newest is a day old. It is shared before the first cookie is made with it.
    pub(super) fn rotate_if_due(&mut self, now: Duration) -> Result<()> {
        if now < self.keys.rotate_at() {
            return Ok(());
        }
        self.keys.rotate(whole(now), new_key()?);
        self.shared.replace(&self.keys);
        self.save();
        Ok(())
    }

    fn save(&self) {
        if let Err(error) = Saved::new(&self.boot, &self.keys).write(&self.path) {
            tracing::warn!(
                "NTS clients will have to establish new keys after a restart: {error:#}"
            );
        }
    }
}

/// Makes cookies with the newest of the shared keys.
pub(super) struct CookieMaker {
    shared: Arc<SharedKeys>,
    seen: u64,
    ciphers: CookieCiphers,
}

impl CookieMaker {
    pub(super) fn new(shared: Arc<SharedKeys>) -> Result<Self> {
        let mut seen = 0;
        let keys = shared.newer_than(&mut seen).context("the keys of NTS cookies are not there")?;
        Ok(Self { shared, seen, ciphers: CookieCiphers::new(&keys) })
    }

    /// Makes a client's first cookies.
    pub(super) fn make(&mut self, session: &SessionKeys) -> Result<Vec<[u8; COOKIE_LEN]>> {
        if let Some(keys) = self.shared.newer_than(&mut self.seen) {
            self.ciphers = CookieCiphers::new(&keys);
        }
        let mut nonces = [[0; 16]; COOKIES];
        fill(nonces.as_flattened_mut())?;
        let cookies = nonces.iter().map(|nonce| self.ciphers.make(session, nonce));
        cookies.collect::<Option<_>>().context("there is no key for cookies")
    }
}

/// The file's content. Keys of another boot are not used: their times count from another origin.
#[derive(Default, Serialize, Deserialize)]
struct Saved {
    boot: String,
    /// Newest first.
    keys: Vec<SavedKey>,
}

#[derive(Serialize, Deserialize)]
struct SavedKey {
    id: u16,
    /// CLOCK_MONOTONIC.
    made_s: i64,
    /// Hexadecimal.
    key: String,
}

impl Drop for SavedKey {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl Saved {
    fn new(boot: &str, keys: &CookieKeys) -> Self {
        let saved = |key: &CookieKey| SavedKey {
            id: key.id,
            made_s: seconds(key.made),
            key: hex(&key.key[..]),
        };
        Self { boot: boot.to_owned(), keys: keys.iter().map(saved).collect() }
    }

    /// What an earlier daemon wrote; nothing if there is no file.
    fn read(path: &Path) -> Result<Self> {
        let bytes = match state_file::read(path, MOST_BYTES) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        serde_json::from_slice(&bytes)
            .with_context(|| format!("{} does not hold keys", path.display()))
    }

    /// Replaces the file: after a crash it holds the old keys or the new ones.
    fn write(&self, path: &Path) -> Result<()> {
        let bytes = Zeroizing::new(serde_json::to_vec_pretty(self)?);
        state_file::write_durably(path, &bytes, Readers::Owner)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn keys_of(&self, boot: &str) -> Vec<CookieKey> {
        if self.boot != boot {
            return Vec::new();
        }
        self.keys.iter().filter_map(SavedKey::key).collect()
    }
}

impl SavedKey {
    fn key(&self) -> Option<CookieKey> {
        let mut key = Zeroizing::new([0; KEY_LEN]);
        if self.key.len() != 2 * KEY_LEN {
            return None;
        }
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(self.key.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(CookieKey { id: self.id, made: Duration::from_secs(self.made_s), key })
    }
}

fn new_key() -> Result<Zeroizing<[u8; KEY_LEN]>> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    fill(&mut key[..])?;
    Ok(key)
}

fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|e| anyhow!("the kernel returns no random numbers: {e}"))
}

fn seconds(span: Duration) -> i64 {
    span.floor_nanos() / 1_000_000_000
}

/// Whole seconds, as they are kept.
fn whole(span: Duration) -> Duration {
    Duration::from_secs(seconds(span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const DAY: i64 = 86_400;

    fn at(days: i64) -> Duration {
        Duration::from_secs(days * DAY) + Duration::from_millis(300)
    }

    fn session() -> SessionKeys {
        SessionKeys::new(&[1; KEY_LEN], &[2; KEY_LEN])
    }

    fn maker(store: &KeyStore) -> CookieMaker {
        CookieMaker::new(store.shared()).unwrap()
    }

    #[test]
    fn cookies_survive_a_restart_and_a_week() {
        let folder = tempfile::tempdir().unwrap();
        let cookies =
            maker(&KeyStore::open(folder.path(), at(1)).unwrap()).make(&session()).unwrap();
        assert_eq!(cookies.len(), COOKIES);
        let mode = folder.path().join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for day in 1..=8 {
            let mut again = maker(&KeyStore::open(folder.path(), at(day)).unwrap());
            assert_eq!(again.ciphers.open(&cookies[0]), Some(session()), "day {day}");
        }
        let mut later = maker(&KeyStore::open(folder.path(), at(10)).unwrap());
        assert_eq!(later.ciphers.open(&cookies[0]), None);
    }

    #[test]
    fn a_damaged_file_and_one_of_another_boot_give_new_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let newest = |store: &KeyStore| store.keys.iter().next().cloned().unwrap();
        let first = newest(&KeyStore::open(folder.path(), at(1)).unwrap());
        assert_eq!(newest(&KeyStore::open(folder.path(), at(1)).unwrap()).key, first.key);
        let text = std::fs::read_to_string(&path).unwrap();
        let boot = hex(&boot_id().unwrap());
        let short = hex(&first.key[..]);
        for damaged in [text.replace(&boot, "x"), "{".to_owned(), text.replace(&short, "ab")] {
            std::fs::write(&path, damaged).unwrap();
            assert_ne!(newest(&KeyStore::open(folder.path(), at(1)).unwrap()).key, first.key);
        }
    }

    /// What is in the file's place is neither followed, waited for nor believed, and is replaced.
    #[test]
    fn a_link_a_fifo_and_a_file_of_everybodys_are_replaced() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let newest = |store: &KeyStore| store.keys.iter().next().cloned().unwrap().key;
        let open = || newest(&KeyStore::open(folder.path(), at(1)).unwrap());
        let first = open();
        // The same keys, reached by a link.
        std::fs::rename(path(FILE), path("elsewhere")).unwrap();
        let text = std::fs::read_to_string(path("elsewhere")).unwrap();
        symlink(path("elsewhere"), path(FILE)).unwrap();
        assert_ne!(open(), first);
        assert_eq!(std::fs::read_to_string(path("elsewhere")).unwrap(), text);
        // The same keys, where others could have written them.
        std::fs::write(path(FILE), &text).unwrap();
        std::fs::set_permissions(path(FILE), PermissionsExt::from_mode(0o666)).unwrap();
        assert_ne!(open(), first);
        std::fs::remove_file(path(FILE)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path(FILE)).status();
        if made.is_ok_and(|status| status.success()) {
            assert_ne!(open(), first);
        }
        // What was put in its place is a file of ours, which is believed.
        let last = open();
        assert_eq!(open(), last);
        let found = path(FILE).symlink_metadata().unwrap();
        assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600);
    }

    #[test]
    fn the_other_thread_gets_each_key_once_and_before_it_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = KeyStore::open(folder.path(), at(1)).unwrap();
        let (shared, mut maker) = (store.shared(), maker(&store));
        let mut seen = 0;
        assert!(shared.newer_than(&mut seen).is_some());
        assert!(shared.newer_than(&mut seen).is_none());
        store.rotate_if_due(at(1)).unwrap();
        assert!(shared.newer_than(&mut seen).is_none(), "not due");
        store.rotate_if_due(at(2)).unwrap();
        let cookies = maker.make(&session()).unwrap();
        let keys = shared.newer_than(&mut seen).unwrap();
        assert_eq!(CookieCiphers::new(&keys).open(&cookies[7]), Some(session()));
        assert_eq!(keys.iter().next().map(|key| key.made), Some(whole(at(2))), "with the new key");
        // It never waits.
        store.rotate_if_due(at(3)).unwrap();
        let held = shared.keys.lock().unwrap();
        assert!(shared.newer_than(&mut seen).is_none());
        drop(held);
        assert!(shared.newer_than(&mut seen).is_some());
    }
}
