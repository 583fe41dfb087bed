//! Checks the lab's own network helpers, on which the daemon's tests rely.

use std::time::Instant;

use anyhow::ensure;

use crate::command;
use crate::scenario::Context;

pub(crate) fn chronyd(ctx: &Context) -> anyhow::Result<String> {
    let started = Instant::now();
    let servers = [ctx.chronyd("a")?, ctx.chronyd("b")?];
    let took = started.elapsed();
    let [a, b] = servers.each_ref().map(crate::chronyd::Chronyd::address);
    ensure!(a != b, "both servers are at {a}");
    drop(servers);
    let left = command::run("ip", &["netns", "list"])?;
    let own = format!("tvlab-{}-", std::process::id());
    ensure!(!left.contains(&own), "namespaces stayed behind: {left}");
    Ok(format!("two servers answered after {:.2} s", took.as_secs_f64()))
}
