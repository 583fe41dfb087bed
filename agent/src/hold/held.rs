//! What this program has frozen: a file with one path a line. If the program is killed, the next
//! one finds there what it may thaw. What somebody else froze is not in the file, and stays frozen.

use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use timevisor_linux::freezer::Group;
use timevisor_linux::state_file::{self, Readers};

/// The directory of the agent's socket; it is empty after a reboot, as is everything frozen.
const PATH: &str = "/run/timevisor/hold";
/// The longest file.
const MOST_BYTES: u64 = 1 << 20;

/// Reads the paths; none if there is no such file.
pub fn read() -> Vec<PathBuf> {
    read_at(Path::new(PATH))
}

/// Replaces them.
pub fn write(paths: &[PathBuf]) -> io::Result<()> {
    write_at(Path::new(PATH), paths)
}

/// Thaws what an earlier timevisor-guest left frozen, except the groups that this one holds.
pub fn clean_up(keep: &[PathBuf]) {
    let left = read();
    for path in left.iter().filter(|path| !keep.contains(path)) {
        let Some(group) = Group::at(path) else { continue };
        match group.thaw() {
            Ok(()) => tracing::warn!("{} was left frozen and goes on", path.display()),
            Err(error) => tracing::error!("{} was left frozen: {error}", path.display()),
        }
    }
    let kept: Vec<_> = left.into_iter().filter(|path| keep.contains(path)).collect();
    if let Err(error) = write(&kept) {
        tracing::debug!("{PATH}: {error}");
    }
}

fn read_at(path: &Path) -> Vec<PathBuf> {
    let bytes = state_file::read(path, MOST_BYTES).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"/"));
    lines.map(|line| PathBuf::from(std::ffi::OsString::from_vec(line.to_vec()))).collect()
}

fn write_at(path: &Path, paths: &[PathBuf]) -> io::Result<()> {
    if paths.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let mut bytes = Vec::new();
    for path in paths {
        bytes.extend(path.as_os_str().as_bytes());
        bytes.push(b'\n');
    }
    state_file::write(path, &bytes, Readers::Owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hold");
        assert!(read_at(&file).is_empty());
        let paths = [PathBuf::from("/sys/fs/cgroup/a b"), PathBuf::from("/sys/fs/cgroup/c")];
        write_at(&file, &paths).unwrap();
        assert_eq!(read_at(&file), paths);
        write_at(&file, &[]).unwrap();
        write_at(&file, &[]).unwrap();
        assert!(!file.exists());
        fs::write(&file, "relative\n\n/x\n").unwrap();
        assert_eq!(read_at(&file), [PathBuf::from("/x")]);
    }
}
