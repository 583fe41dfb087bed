//! The ends of a failed test's logs. CI keeps only what is printed: without them, a defect that
//! shows itself once in a hundred runs leaves a sentence and no cause.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command;

/// Lines of each log, and of a guest's console: enough for a panic.
const LINES: usize = 14;
const CONSOLE_LINES: usize = 6;
/// Bytes of each line.
const WIDTH: usize = 400;
/// Logs of one test.
const LOGS: usize = 10;

/// Lines of a log with this name that say something about a failure; a packet capture has none.
fn lines(name: &str) -> Option<usize> {
    let is_daemon = name.starts_with("timevisord") && name.ends_with(".log");
    let tells = is_daemon || name.ends_with(".history") || name.ends_with(".qemu.log");
    let console = name.ends_with(".serial.log").then_some(CONSOLE_LINES);
    if tells { Some(LINES) } else { console }
}

/// The logs in `folder` and its folders, one level down.
fn logs(folder: &Path) -> Vec<(PathBuf, usize)> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let mut found: Vec<(PathBuf, usize)> = entries(folder)
        .into_iter()
        .flat_map(|path| if path.is_dir() { entries(&path) } else { vec![path] })
        .filter_map(|path| {
            let lines = lines(path.file_name()?.to_str()?)?;
            Some((path, lines))
        })
        .collect();
    // What is short and rare first: CI keeps the beginning only.
    let is_daemons = |path: &Path| !path.to_string_lossy().ends_with(".qemu.log");
    found.sort_by_key(|(path, lines)| (*lines == LINES && is_daemons(path), path.clone()));
    found.truncate(LOGS);
    found
}

/// The last lines of what the programs of the test in `folder` have said; empty if nothing.
pub(super) fn of(folder: &Path) -> String {
    let mut text = String::new();
    for (path, lines) in logs(folder) {
        let Ok(bytes) = fs::read(&path) else { continue };
        let said = String::from_utf8_lossy(&bytes);
        if said.trim().is_empty() {
            continue;
        }
        let name = path.strip_prefix(folder).unwrap_or(&path);
        text.push_str(&format!("\n{}:", name.display()));
        for line in command::tail(&said, lines).lines() {
            let end = line.floor_char_boundary(WIDTH);
            text.push_str(&format!("\n  {}", &line[..end]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_logs_are_shown_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        write("a/timevisord-1.log", lines.join("\n"));
        write("b.serial.log", format!("Linux version\n{}\nKernel panic", "\n".repeat(20)));
        write("tai.history", "é".repeat(1000));
        write("old.qemu.log", "\n".to_owned());
        let text = of(folder.path());
        assert!(text.starts_with("\nb.serial.log:") && text.contains("Kernel panic"));
        assert!(text.contains("\na/timevisord-1.log:\n  line 86\n") && text.contains("line 99"));
        assert!(!text.contains("line 85\n") && !text.contains("Linux version"));
        assert!(!text.contains("old.qemu.log") && text.len() < 1000);
        assert_eq!(of(&folder.path().join("none")), "");
    }
}
