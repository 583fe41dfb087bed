//! `detach && migrate` of a guest under KVM, very often: at the destination nobody would handle a trap
//! point, so not a byte of one may go along.
//!
//! The destination is held: under two layers of emulation a guest that runs there hangs now and then
//! ([`crate::nested`]). After each move the source runs again.

use anyhow::{Context as _, bail, ensure};

use crate::interrupt;
use crate::introspection::nested::{PREFIX, VM, attach, detach, host_with_guest, in_place, switch};
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::cycles;
use crate::tests::introspection::kvm::{PATIENCE, calls};

/// The default for the environment variable CYCLES.
const CYCLES: u32 = 100;
/// The destination, which no timevisord resumes.
const COPY: &str = "copy";
const SOCKET: &str = "unix:/run/copy.migration";

pub(crate) fn kvm_moves(ctx: &Context) -> anyhow::Result<String> {
    let wanted = cycles(CYCLES)?;
    let mut host = host_with_guest(ctx, "trixie-backports", Ok)?;
    let text = text_of(&mut host)?;
    attach(&mut host, PREFIX)?;
    // Linux changes its own text when something happens for the first time.
    let events = calls(&mut host)?;
    detach(&mut host)?;
    save(&mut host, VM, "/run/before", text)?;
    attach(&mut host, PREFIX)?;
    save(&mut host, VM, "/run/trapped", text)?;
    let trapped = differing(&mut host, "/run/trapped")?;
    ensure!(trapped > 0, "trap points are no bytes of the kernel's text: nothing is compared");

    for cycle in 1..=wanted {
        interrupt::check()?;
        if cycle > 1 {
            attach(&mut host, PREFIX)?;
        }
        let bytes = move_once(&mut host, text).with_context(|| format!("move {cycle}"))?;
        if bytes > 0 {
            let which = host.sh("cmp -l /run/before /run/after | head -n 20")?;
            bail!("move {cycle}: {bytes} bytes of the kernel's text differ:\n{which}");
        }
    }
    attach(&mut host, PREFIX)?;
    let after = calls(&mut host)?;
    ensure!(events == after, "{events} events at first, then {after}");
    detach(&mut host)?;
    ensure!(!switch(&mut host)? && in_place(&mut host)? == 0, "something is left in place");
    Ok(format!(
        "{wanted} times: the destination's {} bytes of kernel text are those of before the attachment, \
         of which {trapped} differ while it is attached; {events} events exact before and after",
        text.1
    ))
}

/// Where the guest's memory has its kernel's text, and how long it is. QEMU now and then cannot look a
/// virtual address up in a guest that runs under two layers of emulation ("Invalid addr"), so the text is
/// read by its physical one.
fn text_of(host: &mut NestedHost) -> anyhow::Result<(u64, u64)> {
    let said = host.inner_sh(VM, "grep \"Kernel code\" /proc/iomem", PATIENCE)?;
    let (from, to) = said.split_once(':').unwrap_or_default().0.trim().split_once('-').unzip();
    let address = |text: Option<&str>| u64::from_str_radix(text.unwrap_or_default(), 16).ok();
    let (from, to) = address(from).zip(address(to)).with_context(|| said.clone())?;
    ensure!(from > 0 && to > from, "no addresses: {said}");
    Ok((from, to - from + 1))
}

/// Saves the text of a guest's kernel into a file.
fn save(
    host: &mut NestedHost,
    name: &str,
    file: &str,
    (val, size): (u64, u64),
) -> anyhow::Result<()> {
    let what = serde_json::json!({"val": val, "size": size, "filename": file});
    host.execute(name, "pmemsave", &what).map(drop)
}

/// How many bytes of it differ from before.
fn differing(host: &mut NestedHost, file: &str) -> anyhow::Result<u64> {
    let said = host.sh(&format!("cmp -l /run/before {file} | wc -l"))?;
    said.trim().parse().with_context(|| said.clone())
}

fn move_once(host: &mut NestedHost, text: (u64, u64)) -> anyhow::Result<u64> {
    host.launch_on("/run/timevisor", COPY, "vmclock", 2, &format!("-S -incoming {SOCKET}"))?;
    host.wait("the destination's QEMU", |host| {
        Ok(host.qmp(COPY, "query-status")?["status"] == "inmigrate")
    })?;
    host.sh(&format!(
        "(timevisor introspect detach {VM} && timevisor vm migrate {VM} --to {SOCKET}) >/run/left.log 2>&1 &"
    ))?;
    host.wait("it to have arrived", |host| {
        Ok(host.qmp(COPY, "query-status")?["status"] != "inmigrate"
            && host.qmp(VM, "query-migrate")?["status"] == "completed")
    })?;
    save(host, COPY, "/run/after", text)?;
    let bytes = differing(host, "/run/after")?;
    host.sh(&format!("lab-compare qmp /run/{COPY}.qmp quit; true"))?;
    host.wait("the destination's end", |host| Ok(host.vm(COPY).is_err()))?;
    host.qmp(VM, "cont")?;
    host.wait("the source to be right again", |host| Ok(host.vm(VM)?["status"] == "synchronized"))?;
    Ok(bytes)
}
