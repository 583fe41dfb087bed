//! A VM belongs to somebody: another user's processes that claim its name, or its page, are not
//! served, and change nothing for it. Real QEMUs whose guests run nothing but their firmware.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context as _, ensure};

use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::tests::faults::common::{complaint, reference};
use crate::tests::faults::qemu::Bare;

const MALLORY: u32 = 4001;

pub(crate) fn owners(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    fs::set_permissions(host.directory(), Permissions::from_mode(0o755))?;
    let lines = reference(&server.address());
    let config = format!("{lines}[guests]\ndiscover = \"prepared\"\n");
    host.start(&config)?;
    host.wait_synchronized(10_000)?;
    let qemu = ctx.qemu()?;
    let web = prepared(&host, &["--name", "web"])?;

    // She comes first, while the VM that was prepared has not started.
    let early = mallory(ctx, &qemu, "early", &web.page)?;
    host.wait_until("the early impostor is refused", |h| Ok(told(h, &early) == 1))?;
    mentions(
        &about(&host, &early),
        &["no VM was prepared for user 4001", "timevisor vm args --name NAME --user 4001"],
    )?;
    ensure!(host.vm("web").is_err(), "an impostor is served as web");
    let real = Bare::start(ctx, &qemu, "web", &words(&web.all))?;
    served(&host, "web", &real)?;
    let marker = host.vm("web")?["disruption_marker"].clone();

    // A VM of her own is served. The early impostor is judged again, by its name.
    let own = prepared(&host, &["--name", "own", "--user", "4001"])?;
    let hers = Bare::start_as(ctx, MALLORY, &qemu, "own", &words(&own.all))?;
    served(&host, "own", &hers)?;
    host.wait_until("the early impostor is told why", |h| Ok(told(h, &early) == 2))?;

    // She comes after it has started: with its page, and with its name only.
    let late = mallory(ctx, &qemu, "late", &web.page)?;
    let named = mallory(ctx, &qemu, "web", &[])?;
    for impostor in [&late, &named] {
        host.wait_until("a late impostor is refused", |h| Ok(told(h, impostor) == 1))?;
        mentions(
            &about(&host, impostor),
            &["the name belongs to user 0, the process to user 4001", "--name web --user 4001"],
        )?;
        mentions(&host.cli(&["vm", "list"])?, &["not served:", &impostor.pid()])?;
    }
    // Nor by a mistake of root's.
    for more in [&[][..], &["--name", "other"]] {
        let mut text = String::new();
        host.wait_until("root's request is judged", |host| {
            text = complaint(host, &[&["vm", "add", "--pid", &late.pid()], more].concat())?;
            Ok(!text.contains("could not be looked at in time"))
        })?;
        mentions(&text, &["cannot be VM web", "belongs to user 0"])?;
    }
    served(&host, "web", &real)?;
    // On a busy machine, the guard may take the server's delays for a fault; that disrupts every VM.
    let undisturbed = host.vm("web")?["disruption_marker"] == marker;
    ensure!(undisturbed || host.log_text().contains("contradicted"), "the real VM was disturbed");

    // When it ends, its name goes to the next one of its owner, which has waited.
    let second = Bare::start(ctx, &qemu, "web", &words(&web.page))?;
    let advice = format!(
        "there is a VM web already; serve the second one with `timevisor vm add --pid {}",
        second.pid()
    );
    host.wait_until("the second is told to wait", |h| Ok(h.log_text().contains(&advice)))?;
    drop(real);
    served(&host, "web", &second)?;
    drop(second);
    host.wait_until("web has ended", |h| Ok(h.vm("web").is_err()))?;
    let third = Bare::start(ctx, &qemu, "web", &words(&web.page))?;
    served(&host, "web", &third)?;
    for (impostor, times) in [(&early, 2), (&late, 1), (&named, 1)] {
        ensure!(told(&host, impostor) == times, "said again: {}", about(&host, impostor));
    }

    // A reload that gives a name to somebody else ends the service of the VM that has it.
    host.rewrite(&format!("{config}[guests.vm.own]\nuser = 0\n"))?;
    host.cli(&["reload"])?;
    host.wait_until("own is not served", |h| Ok(h.vm("own").is_err()))?;
    mentions(&host.log_text(), &["VM own is no longer served", "belongs to user 0"])?;
    host.rewrite(&config)?;
    host.cli(&["reload"])?;
    served(&host, "own", &hers)?;
    served(&host, "web", &third)?;

    // Another daemon finds the owners, and judges the same.
    host.terminate()?;
    host.restart()?;
    served(&host, "web", &third)?;
    served(&host, "own", &hers)?;
    Ok("web is root's before, beside and after three impostors of uid 4001; her own VM is served"
        .to_owned())
}

/// What `vm args` printed: everything, and without the sockets, which are for the owner only.
pub(super) struct Printed {
    pub(super) all: Vec<String>,
    page: Vec<String>,
}

pub(super) fn prepared(host: &Host, more: &[&str]) -> anyhow::Result<Printed> {
    let printed = host.json(&[&["vm", "args", "--memory", "128"], more].concat())?;
    let words = printed["arguments"].as_array().context("no arguments")?;
    let all: Vec<String> =
        words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
    let is_socket = |value: &str| ["unix:", "virt", "socket"].iter().any(|s| value.starts_with(s));
    let page = all.chunks(2).filter(|pair| !is_socket(&pair[1])).flatten().cloned().collect();
    Ok(Printed { all, page })
}

pub(super) fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A QEMU of uid 4001 with these arguments.
fn mallory(ctx: &Context, qemu: &Qemu, name: &str, arguments: &[String]) -> anyhow::Result<Bare> {
    Bare::start_as(ctx, MALLORY, qemu, name, &words(arguments))
}

/// What the log says about a process that is not served.
fn about(host: &Host, process: &Bare) -> String {
    let its = format!("process {} is not served", process.pid());
    let log = host.log_text();
    log.lines().filter(|line| line.contains(&its)).collect::<Vec<_>>().join("\n")
}

fn told(host: &Host, process: &Bare) -> usize {
    about(host, process).lines().count()
}

/// Waits until this process is served under this name, and its page is written.
pub(super) fn served(host: &Host, name: &str, process: &Bare) -> anyhow::Result<()> {
    let pid: u32 = process.pid().parse()?;
    let row = |h: &Host| h.vm(name).ok().filter(|row| row["pid"] == pid);
    host.wait_until(&format!("{name} is served"), |h| {
        Ok(row(h).is_some_and(|row| row["status"] == "synchronized"))
    })?;
    let published = |h: &Host| row(h).and_then(|row| row["pages_published"].as_u64());
    let before = published(host).context("it is gone")?;
    host.wait_until(&format!("{name}'s page goes on"), |h| {
        Ok(published(h).context("it is gone")? > before + 1)
    })
}
