//! Programs in containers read the host's time from a page that they cannot write.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::command::tail;
use crate::container::{Container, PAGE, Users};
use crate::host::{Host, mentions};
use crate::reader::HostPage;
use crate::scenario::Context;

const EACCES: i64 = 13;
const EROFS: i64 = 30;
/// `nobody` on every distribution.
const NOBODY: u32 = 65534;
/// Not `nobody`, because files of unmapped owners also show that uid.
const ORDINARY: u32 = 1000;

pub(crate) fn container(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let forge = ctx.program("timevisor-lab-guest", "lab-forge")?;
    let programs = [host.cli_program().to_owned(), forge, ctx.busybox()?];
    let programs = programs.each_ref().map(PathBuf::as_path);
    let file = host.directory().join("clock");
    let mut widest = 0;
    // All but the host's root lack the permission; that root has it, and the read-only mount stops
    // it.
    for (users, user, refusal) in [
        (Users::Host, NOBODY, EACCES),
        (Users::Host, 0, EROFS),
        (Users::Namespace, ORDINARY, EACCES),
        (Users::Namespace, 0, EACCES),
    ] {
        let container = Container::new(&programs, &file, users, user)?;
        let half_width = check(&host, &container, user, refusal)
            .with_context(|| format!("user {user} of {users:?}"))?;
        widest = widest.max(half_width);
    }
    // If the mount is writable, somebody inside could have created a file with an unmapped owner.
    let writable = Container::new(&programs, &file, Users::Namespace, ORDINARY)?.writable()?;
    let refused = writable.run(&["/bin/timevisor", "now"])?;
    ensure!(!refused.status.success(), "a page of an unknown owner on a writable mount was read");
    mentions(&String::from_utf8_lossy(&refused.stderr), &["belongs to user 65534"])?;
    let directory = Container::new(&programs, host.directory(), Users::Host, NOBODY)?;
    widest = widest.max(check(&host, &directory, NOBODY, EACCES).context("the run directory")?);
    let control = directory.run(&["/bin/timevisor", "status"])?;
    ensure!(!control.status.success(), "the container could command the daemon");
    mentions(&String::from_utf8_lossy(&control.stderr), &["is for root and the group timevisor"])?;
    // A running container has mounted the inode, not the name, so the file must outlive the daemon.
    let inode = || anyhow::Ok(std::fs::metadata(&file)?.ino());
    let before = inode()?;
    host.terminate()?;
    host.restart()?;
    ensure!(inode()? == before, "the daemon's restart has replaced the page file");
    Ok(format!(
        "the page for 4 kinds of users and the run directory for nobody: each 11 readings between the host's before and \
         after; bounds <= +-{:.1} us hold the host's estimate at the same counter; writing refused with EACCES or EROFS, \
         mapping with EACCES",
        widest as f64 / 1000.0
    ))
}

/// Reads, tries to write, and reads again; returns the largest half-width in ns.
fn check(host: &Host, container: &Container, user: u32, refusal: i64) -> anyhow::Result<i64> {
    let status = said(&container.run(&["/bin/busybox", "cat", "/proc/self/status"])?)?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let is_user = |id: &str| id == user.to_string();
    ensure!(
        line("CapBnd:").is_some_and(|set| set.trim() == "0000000000000000")
            && line("Uid:").is_some_and(|ids| ids.split_whitespace().all(is_user)),
        "not an unprivileged process: {status}"
    );

    let page = HostPage::open(host.directory())?;
    let mut widest = 0;
    for _ in 0..10 {
        widest = widest.max(read_once(&page, container)?);
    }
    let before = identity(host.directory())?;
    cannot_write(container, refusal)?;
    ensure!(identity(host.directory())? == before, "the page has changed");
    Ok(widest.max(read_once(&page, container)?))
}

fn cannot_write(container: &Container, refusal: i64) -> anyhow::Result<()> {
    let said = said(&container.run(&["/bin/lab-forge", PAGE])?)?;
    let attempts: Value = serde_json::from_str(&said)?;
    ensure!(
        attempts["open"] == refusal && attempts["map"] == EACCES && attempts["forged"].is_null(),
        "expected errors {refusal} and {EACCES}: {attempts}"
    );
    for what in ["rename", "create"] {
        ensure!(attempts[what].is_i64(), "{what} was possible: {attempts}");
    }
    let remount = ["/bin/busybox", "mount", "-o", "remount,bind,rw", PAGE];
    let remount = container.run(&remount)?;
    ensure!(!remount.status.success(), "the page was mounted anew for writing");
    mentions(&String::from_utf8_lossy(&remount.stderr), &["mount:"])
}

/// Reads in new containers until no publication came between a reading and the host's look at the
/// same counter; returns the half-width in ns. A publication may put the estimate ahead.
fn read_once(page: &HostPage, container: &Container) -> anyhow::Result<i64> {
    for _ in 0..50 {
        if let Some(half_width) = read_between_publications(page, container)? {
            return Ok(half_width);
        }
    }
    bail!("the host publishes all the time")
}

/// Runs `timevisor now` in a new container between two readings on the host; `None` if the lines
/// have changed since.
fn read_between_publications(
    page: &HostPage,
    container: &Container,
) -> anyhow::Result<Option<i64>> {
    let before = page.read()?;
    let answer = said(&container.run(&["/bin/timevisor", "now", "--json"])?)?;
    let after = page.read()?;
    let answer: Value = serde_json::from_str(&answer)?;
    let ns = |name: &str| answer[name].as_i64().with_context(|| format!("no {name} in {answer}"));
    let (earliest, estimate, latest) = (ns("earliest_ns")?, ns("estimate_ns")?, ns("latest_ns")?);
    ensure!(answer["status"] == "synchronized", "{answer}");
    ensure!(
        before.estimate.floor_nanos() <= estimate && estimate <= after.estimate.floor_nanos(),
        "{answer} is not between the host's {before:?} and {after:?}"
    );
    let counter = answer["counter"].as_u64().context("no counter")?;
    let same = page.convert(counter)?.estimate.floor_nanos();
    let unchanged = page.convert(before.counter)?.estimate == before.estimate;
    ensure!(
        earliest <= same && same <= latest && (!unchanged || (same - estimate).abs() < 1000),
        "at the same counter the host says {same}: {answer}"
    );
    Ok(unchanged.then(|| (latest - estimate).max(estimate - earliest)))
}

/// The page's identity, magic to epoch, which changes only when a writer takes the page over.
fn identity(directory: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(directory.join("clock"))?;
    Ok(bytes.get(0x100..0x140).context("the page is short")?.to_vec())
}

fn said(output: &Output) -> anyhow::Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "in the container: {}", tail(&error, 8));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
