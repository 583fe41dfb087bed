//! What the kernel writes in /proc, as values. Pure: whoever runs a process chooses parts of it (its
//! name, the names of its files), so this is fuzzed.

use super::MapLine;
use super::owner::Users;

/// What matters of /proc/PID/stat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// One letter: `R`, `S`, `D`, `Z` and so on.
    pub state: char,
    /// When it started, in clock ticks after boot.
    pub started: u64,
}

impl Stat {
    /// A zombie counts as ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// /proc/PID/stat (proc_pid_stat(5)): `PID (NAME) STATE ...`, with the start time as field 22.
#[must_use]
pub fn stat(text: &str) -> Option<Stat> {
    // The name in parentheses may contain anything, so count from its end.
    let (_, rest) = text.split_once('(')?;
    let (_, rest) = rest.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let started = fields.nth(18)?.parse().ok()?;
    Some(Stat { state, started })
}

/// `Uid:` of /proc/PID/status: real, effective, saved, file system (proc_pid_status(5)).
#[must_use]
pub fn users(status: &str) -> Option<Users> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let uids: Result<Vec<u32>, _> = line.split_whitespace().map(str::parse).collect();
    let [real, effective, saved, file_system] = uids.ok()?[..] else { return None };
    Some(Users { real, effective, saved, file_system })
}

/// `CapEff:` of /proc/PID/status (proc_pid_status(5)), in the process's own user namespace.
#[must_use]
pub fn capabilities(status: &str) -> Option<u64> {
    let word = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(word.trim(), 16).ok()
}

/// A line of /proc/PID/maps: `55d0-55e0 r-xp 00001000 fd:01 1234    /usr/bin/name with spaces`
/// (proc_pid_maps(5)).
#[must_use]
pub fn map(line: &str) -> Option<MapLine> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut words = rest.splitn(4, ' ');
    let permissions = words.next()?.to_owned();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let device = words.next()?.to_owned();
    let (inode, path) = words.next()?.split_once(' ').unwrap_or((rest.rsplit(' ').next()?, ""));
    Some(MapLine {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        permissions,
        offset,
        device,
        inode: inode.parse().ok()?,
        path: path.trim_start().to_owned(),
    })
}

/// The pid in /proc/locks that holds a flock on the file `DEVICE:INODE` (`08:01:1234`):
/// `1: FLOCK ADVISORY WRITE 708 08:01:1234 0 EOF`.
#[must_use]
pub fn flock_holder(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let held = words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file);
        if held { words.get(4)?.parse().ok() } else { None }
    })
}
