//! "In five minutes, on one machine" of docs/how-to/cluster.md, by copy and paste: the blocks marked `run=cluster`, in
//! a shell whose network, processes, /tmp and /run are its own.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command;
use crate::docs::blocks;
use crate::programs;
use crate::scenario::Context;

const PAGE: &str = "docs/how-to/cluster.md";
/// Between the output of one block and that of the next.
const MARK: &str = "--- the next block ---";
/// Before the first block: nothing of this machine is in reach.
const ALONE: &str = "mount -t tmpfs tmp /tmp && mount -t tmpfs run /run && ip link set lo up";
/// After the last block: what it left. The kernel removes a namespace's interfaces a moment after its last process.
const LEFT: &str = "for n in $(seq 50); do [ $(ip -br link | wc -l) = 1 ] && break; sleep 0.1; done; ip -br link; ip netns list; pgrep -a timevisord || true";

pub(crate) fn how_to(ctx: &Context) -> anyhow::Result<String> {
    let root = programs::workspace()?;
    let page = fs::read_to_string(root.join(PAGE))?;
    let blocks: Vec<String> = blocks(&page)
        .into_iter()
        .filter(|block| block.attribute("run") == Some("cluster"))
        .map(|block| block.text)
        .collect();
    ensure!(blocks.len() == 4, "{PAGE} has {} blocks to run", blocks.len());
    let script = ctx.path("how-to.sh");
    let lines = [&[ALONE.to_owned()][..], &blocks, &[LEFT.to_owned()]].concat();
    fs::write(&script, lines.join(&format!("\necho '{MARK}'\n")))?;

    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-euo", "pipefail"])
        .arg(&script)
        .current_dir(&root);
    let said = command::output(&mut shell)?;
    fs::write(ctx.path("said.txt"), &said)?;
    let parts: Vec<&str> = said.split(MARK).collect();
    let [_, status, heard, now, removed, left] = parts[..] else {
        anyhow::bail!("a block said the mark itself, or nothing: {said}");
    };
    ensure!(status.contains("cluster lab"), "`status` does not name the reference:\n{status}");
    ensure!(status.contains("synchronized"), "the third host is not synchronized:\n{status}");
    ensure!(heard.contains("10.77.0."), "`cluster status` names nobody:\n{heard}");
    ensure!(now.contains("synchronized"), "the third host does not go on:\n{now}");
    let bound = now.lines().find(|line| line.contains("us") || line.contains("ms"));
    let bound = bound.with_context(|| format!("no bound: {now}"))?.trim().to_owned();
    ensure!(removed.trim().is_empty(), "removing says {removed}");
    let links: Vec<&str> = left.trim().lines().collect();
    ensure!(links.len() == 1 && links[0].starts_with("lo"), "something is left:\n{left}");
    Ok(format!("{} blocks ran, and left nothing; after the root's end: {bound}", blocks.len()))
}
