//! `discipline = true` where the kernel forbids it, as in a container without CAP_SYS_TIME.

use std::fs;
use std::time::Duration;

use anyhow::ensure;

use crate::host::{Host, mentions};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::faults::common::{reference, start_through};

pub(crate) fn discipline(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let host = Host::new(ctx)?;
    let lines = format!("[clock]\ndiscipline = true\n{}", reference(&server.address()));
    let without = ["setpriv", "--bounding-set", "-sys_time", "--inh-caps", "-sys_time", "--"];
    let _daemon = start_through(ctx, &host, &without, &lines)?;
    host.wait_synchronized(10_000)?;
    host.wait_until("the refusal is told", |h| {
        let detail = h.json(&["status"])?["discipline"]["detail"].to_string();
        Ok(detail.contains("CAP_SYS_TIME"))
    })?;
    interrupt::sleep(Duration::from_secs(2))?;
    let log = fs::read_to_string(ctx.path("wrapped.log"))?;
    mentions(&log, &["CLOCK_REALTIME is not steered"])?;
    let told = log.lines().filter(|line| line.contains("CLOCK_REALTIME")).count();
    ensure!(told == 1, "told {told} times: {log}");
    ensure!(!log.contains("cannot be restored"), "nothing was changed: {log}");
    ensure!(!host.directory().join("discipline.json").exists(), "there is nothing to restore");
    Ok("told once, with the capability; nothing to restore".to_owned())
}
