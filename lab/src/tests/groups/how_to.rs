//! "On one host" of docs/how-to/act-together.md, by copy and paste: the blocks marked `run=group`, in a shell whose
//! processes, /tmp and /run are its own.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command;
use crate::docs::blocks;
use crate::programs;
use crate::scenario::Context;

const PAGE: &str = "docs/how-to/act-together.md";
/// Between the output of one block and that of the next.
const MARK: &str = "--- the next block ---";
/// Before the first block: nothing of this machine is in reach.
const ALONE: &str =
    "mount -t tmpfs tmp /tmp && mount -t tmpfs run /run && unset XDG_RUNTIME_DIR TIMEVISOR_BUS";

pub(crate) fn how_to(ctx: &Context) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    let page = fs::read_to_string(root.join(PAGE))?;
    let blocks: Vec<String> = blocks(&page)
        .into_iter()
        .filter(|block| block.attribute("run") == Some("group"))
        .map(|block| block.text)
        .collect();
    ensure!(blocks.len() == 3, "{PAGE} has {} blocks to run", blocks.len());
    let script = ctx.path("how-to.sh");
    let lines = [&[ALONE.to_owned()][..], &blocks].concat();
    fs::write(&script, lines.join(&format!("\necho '{MARK}'\n")))?;

    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-euo", "pipefail"])
        .arg(&script)
        .current_dir(&root);
    let said = command::output(&mut shell)?;
    fs::write(ctx.path("said.txt"), &said)?;
    let parts: Vec<&str> = said.split(MARK).collect();
    let [_, _, proposed, members] = parts[..] else {
        anyhow::bail!("a block said the mark itself, or nothing: {said}");
    };
    let decided = proposed.lines().find(|line| line.starts_with("decided after"));
    let decided = decided.with_context(|| format!("not decided:\n{proposed}"))?;
    ensure!(proposed.contains("fired: left, right, "), "not all fired:\n{proposed}");
    ensure!(proposed.contains("did not: nobody; not known: nobody"), "not all fired:\n{proposed}");
    let fires = members.lines().filter(|line| line.contains("fire: grip the part")).count();
    ensure!(fires == 2, "{fires} members say that they fired:\n{members}");
    ensure!(members.contains("left  ") && members.contains("right  "), "who is there?\n{members}");
    Ok(format!("{} blocks ran; all three fired, {decided}", blocks.len()))
}
