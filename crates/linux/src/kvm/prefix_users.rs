//! Which guests need KVM's forced emulation prefix ([`super::prefix`]): one switch for the whole host,
//! and several timevisords may have put traps into guests that crash without it.
//!
//! A folder of root's has a file for each such guest's QEMU. It is made before the first trap is put,
//! and removed after the last one is out; whoever finds no other turns the switch off, if one of us had
//! turned it on.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::prefix::{self, PrefixError};
use crate::lock_file::{self, LockError};
use crate::process::Process;

/// The folder, for all timevisords of a host.
const FOLDER: &str = "/run/timevisor/kvm-prefix";
/// One of us has turned the switch on.
const SWITCHED: &str = "switched-on";
const LOCK: &str = "lock";
/// How long the lock may be held.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// The guests that need the switch.
#[derive(Debug)]
pub struct PrefixUsers {
    folder: PathBuf,
    parameter: PathBuf,
}

impl PrefixUsers {
    /// Those of this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self { folder: FOLDER.into(), parameter: prefix::PARAMETER.into() }
    }

    /// Notes that the guest of this QEMU needs the switch, and turns it on. Returns whether it was off.
    ///
    /// # Errors
    /// When it cannot be noted or turned on; nothing is noted then.
    pub fn join(&self, pid: u32, start_time: u64) -> Result<bool, PrefixError> {
        let _lock = self.lock()?;
        let file = self.file(pid, start_time);
        let on = || {
            fs::write(&file, "").map_err(PrefixError::Note)?;
            if prefix::read(&self.parameter)? {
                return Ok(false);
            }
            let switched = self.folder.join(SWITCHED);
            fs::write(&switched, "").map_err(PrefixError::Note)?;
            prefix::write(&self.parameter, true).map(|()| true).inspect_err(|_| {
                let _ = fs::remove_file(&switched);
            })
        };
        on().inspect_err(|_| {
            let _ = fs::remove_file(&file);
        })
    }

    /// Notes that it does not need the switch any more, and turns that off if nobody needs it. Returns
    /// whether it was turned off.
    ///
    /// # Errors
    /// When that fails; it is tried again with the next guest that leaves.
    pub fn leave(&self, pid: u32, start_time: u64) -> Result<bool, PrefixError> {
        if !self.folder.exists() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        match fs::remove_file(self.file(pid, start_time)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(PrefixError::Note(error));
            }
            _ => {}
        }
        let switched = self.folder.join(SWITCHED);
        if !switched.exists() || self.is_needed().map_err(PrefixError::Note)? {
            return Ok(false);
        }
        prefix::write(&self.parameter, false)?;
        fs::remove_file(switched).map_err(PrefixError::Note)?;
        Ok(true)
    }

    /// Notes that one of us has turned the switch on, as an earlier version noted elsewhere.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn was_switched_on(&self) -> Result<(), PrefixError> {
        let _lock = self.lock()?;
        fs::write(self.folder.join(SWITCHED), "").map_err(PrefixError::Note)
    }

    /// Whether any QEMU that has not ended is noted. One that cannot be looked at counts.
    fn is_needed(&self) -> io::Result<bool> {
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            let Some((pid, start)) = name.split_once('-') else { continue };
            let (Ok(pid), Ok(start)) = (pid.parse(), start.parse()) else { continue };
            if Process::of(pid, start).has_ended() {
                let _ = fs::remove_file(self.folder.join(name));
            } else {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn file(&self, pid: u32, start_time: u64) -> PathBuf {
        self.folder.join(format!("{pid}-{start_time}"))
    }

    /// Held until it is closed. The folder is root's alone, so nobody else can hold it, and whoever
    /// does is done at once.
    fn lock(&self) -> Result<File, PrefixError> {
        let make = || {
            let parent = self.folder.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(parent)?;
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
        };
        make().map_err(PrefixError::Note)?;
        let late = Instant::now() + PATIENCE;
        loop {
            match lock_file::take(&self.folder.join(LOCK)) {
                Err(LockError::Held { .. }) if Instant::now() < late => std::thread::sleep(PAUSE),
                taken => return taken.map_err(|error| PrefixError::Note(io::Error::other(error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> (tempfile::TempDir, PrefixUsers) {
        let folder = tempfile::tempdir().unwrap();
        let parameter = folder.path().join("parameter");
        fs::write(&parameter, "N\n").unwrap();
        let users = PrefixUsers { folder: folder.path().join("of/us"), parameter };
        (folder, users)
    }

    fn is_on(users: &PrefixUsers) -> bool {
        prefix::read(&users.parameter).unwrap()
    }

    /// Two timevisords share the switch; the one that turned it on ends first. Then it was turned off
    /// under the other one's traps.
    #[test]
    fn the_last_one_turns_it_off() {
        let (_folder, one) = users();
        let other = PrefixUsers { folder: one.folder.clone(), parameter: one.parameter.clone() };
        let here = Process::open(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let there = Process::open(child.id()).unwrap();
        let of = |process: Process| (process.pid(), process.started().unwrap());
        assert!(one.join(of(here).0, of(here).1).unwrap(), "it was off");
        assert!(!other.join(of(there).0, of(there).1).unwrap());
        assert!(!one.leave(of(here).0, of(here).1).unwrap() && is_on(&one));
        assert!(other.leave(of(there).0, of(there).1).unwrap() && !is_on(&one));

        // A QEMU that has ended needs nothing, whatever became of the daemon that had noted it.
        one.join(of(there).0, of(there).1).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        one.join(of(here).0, of(here).1).unwrap();
        assert!(one.leave(of(here).0, of(here).1).unwrap() && !is_on(&one));
        // Neither does another process that has its number.
        one.join(of(here).0, of(here).1 + 1).unwrap();
        one.join(of(here).0, of(here).1).unwrap();
        assert!(one.leave(of(here).0, of(here).1).unwrap() && !is_on(&one));
    }

    #[test]
    fn what_somebody_else_turned_on_stays_on() {
        let (_folder, users) = users();
        let started = Process::open(std::process::id()).unwrap().started().unwrap();
        fs::write(&users.parameter, "Y\n").unwrap();
        assert!(!users.join(std::process::id(), started).unwrap());
        assert!(!users.leave(std::process::id(), started).unwrap() && is_on(&users));
        // As an earlier version noted it.
        users.was_switched_on().unwrap();
        assert!(users.leave(1, 2).unwrap() && !is_on(&users));
    }

    #[test]
    fn a_switch_that_cannot_be_turned_on_has_no_users() {
        let (_folder, users) = users();
        fs::remove_file(&users.parameter).unwrap();
        assert!(matches!(users.join(1, 2), Err(PrefixError::Absent)));
        assert!(!users.folder.join("1-2").exists());
        assert!(!users.leave(1, 2).unwrap());
    }
}
