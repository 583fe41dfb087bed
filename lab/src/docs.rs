//! Runs the documentation's inexpensive commands for real: the shell blocks marked `run=start`.
//!
//! Each page's blocks run in the page's order, in a folder for that page, against a daemon in a
//! scratch directory. Blocks marked `not-run` state the reason; `docs/check.py` checks that every
//! block has one of the two marks.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command;
use crate::host::Host;
use crate::programs;
use crate::scenario::Context;

/// Pages that would be useless without a command that runs.
const STARTS: [&str; 2] = ["first-host.md", "first-reservation.md"];

/// The smallest budget that the task file of [`STARTS`] needs: 80/3 ms of 50
/// (docs/explanation/real-time.md).
const LEAST_BUDGET_NS: i64 = 26_666_667;

/// One fenced block: its info string and its text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    info: String,
    pub(crate) text: String,
}

impl Block {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.info.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The fenced blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut all = Vec::new();
    let mut open: Option<(&str, Block)> = None;
    for line in page.lines() {
        let fence = &line[..line.len() - line.trim_start_matches('`').len()];
        match &mut open {
            None if fence.len() >= 3 => {
                let info = line[fence.len()..].to_owned();
                open = Some((fence, Block { info, text: String::new() }));
            }
            None => {}
            Some((opened, _)) if line == *opened => all.extend(open.take().map(|(_, b)| b)),
            Some((_, block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
        }
    }
    all
}

/// Folders of the repository that the commands refer to.
const NAMED: [&str; 2] = ["packaging", "scenarios"];

/// Every page below docs/, the README, and the README of the scenarios.
fn pages(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = vec![root.join("README.md"), root.join("scenarios/README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// A folder with programs under the names that the pages use; `timevisor` talks to this host's
/// daemon.
fn path_folder(ctx: &Context, host: &Host) -> anyhow::Result<PathBuf> {
    let folder = ctx.path("bin");
    fs::create_dir_all(&folder)?;
    let cli = folder.join("timevisor");
    let (program, directory) = (host.cli_program().display(), host.directory().display());
    fs::write(&cli, format!("#!/bin/sh\nexec '{program}' \"$@\" --run-directory '{directory}'\n"))?;
    fs::set_permissions(&cli, fs::Permissions::from_mode(0o755))?;
    let daemon = folder.join("timevisord");
    let _ = fs::remove_file(&daemon);
    symlink(host.daemon_program(), daemon)?;
    Ok(folder)
}

/// Runs the blocks of every page.
///
/// # Errors
/// When a command fails or prints nothing, or a start page has no command.
pub fn commands(ctx: &Context) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(1000)?;
    let path = format!("{}:{}", path_folder(ctx, &host)?.display(), std::env::var("PATH")?);

    let mut said = String::new();
    let mut ran = Vec::new();
    for page in pages(&root)? {
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder =
            ctx.path(&format!("{}.d", page.strip_prefix(&root)?.display()).replace('/', "-"));
        fs::create_dir_all(&folder)?;
        for named in NAMED {
            let link = folder.join(named);
            if !link.exists() {
                symlink(root.join(named), link)?;
            }
        }
        for block in blocks(&fs::read_to_string(&page)?) {
            if let Some(file) = block.attribute("file").filter(|file| !root.join(file).exists()) {
                fs::write(folder.join(file), &block.text)?;
            }
            if block.attribute("run") != Some("start") {
                continue;
            }
            for line in block.text.lines().filter(|line| !line.trim().is_empty()) {
                let mut shell = Command::new("bash");
                shell
                    .args(["-euo", "pipefail", "-c", line])
                    .current_dir(&folder)
                    .env("PATH", &path);
                let out = command::output(&mut shell)
                    .with_context(|| format!("{}: {line}", page.display()))?;
                ensure!(!out.trim().is_empty(), "{}: `{line}` says nothing", page.display());
                write!(said, "{name}: {line}\n{out}")?;
                ran.push(name.clone());
            }
        }
    }
    fs::write(ctx.path("commands.txt"), said)?;
    for start in STARTS {
        ensure!(ran.iter().any(|page| page == start), "{start} has no command that runs");
    }
    least_budget(ctx, &host)?;
    let mut pages = ran.clone();
    pages.dedup();
    Ok(format!("{} commands of {} pages", ran.len(), pages.len()))
}

/// Checks that the plan gives the budget that docs/start/first-reservation.md states.
fn least_budget(ctx: &Context, host: &Host) -> anyhow::Result<()> {
    let tasks = ctx.path("docs-start-first-reservation.md.d").join("tasks.toml");
    let tasks = tasks.to_str().context("a path that is not UTF-8")?;
    let plan = host.json(&["reserve", "plan", tasks, "--period", "50ms", "--alone"])?;
    let budget = plan["minimum_budget_ns"].as_i64();
    ensure!(budget == Some(LEAST_BUDGET_NS), "the plan says {budget:?}, docs {LEAST_BUDGET_NS}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_attributes_and_their_text() {
        let page = "a\n```sh run=start\ntimevisor now\n```\n````\n```sh\n````\n```toml file=a.toml\nb = 1\n```\n";
        let found = blocks(page);
        assert_eq!(found.len(), 3);
        assert_eq!(
            (found[0].attribute("run"), found[0].text.as_str()),
            (Some("start"), "timevisor now\n")
        );
        assert_eq!((found[1].attribute("run"), found[1].text.as_str()), (None, "```sh\n"));
        assert_eq!(found[2].attribute("file"), Some("a.toml"));
    }
}
