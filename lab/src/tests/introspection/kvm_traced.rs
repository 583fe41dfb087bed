//! A guest under KVM that traces itself after trap points are in it. ftrace, kprobes at a function's
//! beginning and live patches use the same NOPs. Linux compares what is there before it writes: it
//! leaves what it does not know, complains once, and switches ftrace off until it boots again.

use anyhow::ensure;

use crate::introspection::nested::{PREFIX, VM, attach, detach, host_with_guest, row};
use crate::nested::NestedHost;
use crate::scenario::Context;
use crate::tests::introspection::kvm::{PATIENCE, calls};

const TRACING: &str = "/sys/kernel/tracing";
/// Not trapped.
const OTHER: &str = "vfs_read";
/// Trapped.
const OURS: &str = "do_exit";

pub(crate) fn kvm_traced(ctx: &Context) -> anyhow::Result<String> {
    let mut host = host_with_guest(ctx, "trixie-backports", Ok)?;
    host.inner_sh(VM, &format!("mount -t tracefs none {TRACING} 2>/dev/null || true"), PATIENCE)?;
    attach(&mut host, PREFIX)?;
    let events = calls(&mut host)?;

    let said = trace(&mut host, OTHER)?;
    let is_traced = said.contains("tracer function") && said.contains("lines 1");
    ensure!(is_traced, "a function that is not trapped: {said}");
    ensure!(!said.contains("ftrace failed"), "a function that is not trapped: {said}");
    still(&mut host, events)?;

    let said = trace(&mut host, OURS)?;
    ensure!(said.contains("ftrace failed to modify"), "a function that is trapped: {said}");
    still(&mut host, events)?;
    // It is off from now on, which is the limit that the documentation names.
    let after = trace(&mut host, OTHER)?;
    ensure!(!after.contains("lines 1"), "it traces again: {after}");
    still(&mut host, events)?;

    detach(&mut host)?;
    host.inner_sh(VM, "sleep 0.1", PATIENCE)?;
    Ok(format!(
        "{events} events exact while the guest traces another function; when it traces ours, its ftrace \
         says \"failed to modify\" and is off until it boots again, the guest goes on, and the {events} \
         events are exact"
    ))
}

/// Has the guest trace one function. Returns what came of it, and what the kernel said.
fn trace(host: &mut NestedHost, function: &str) -> anyhow::Result<String> {
    let line = format!(
        "dmesg -c >/dev/null; cd {TRACING}; echo {function} >set_ftrace_filter; echo function >current_tracer; \
         cat /etc/passwd /proc/uptime >/dev/null 2>&1; echo tracer $(cat current_tracer); \
         grep -q {function} trace && echo lines 1; echo nop >current_tracer; dmesg | grep -i ftrace || true"
    );
    host.inner_sh(VM, &line, PATIENCE)
}

/// Nothing has changed for the introspection.
fn still(host: &mut NestedHost, events: usize) -> anyhow::Result<()> {
    let by = row(host)?;
    ensure!(by["state"] == "attached", "{by}");
    let found = calls(host)?;
    ensure!(found == events, "{events} events, then {found}");
    Ok(())
}
