//! The kernel drops the TSC while the daemon uses it: the two files in sysfs as they then look, in
//! the daemon's own mount namespace.

use std::fs;
use std::time::Duration;

use anyhow::ensure;

use crate::command;
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference, start_through};

const SYSFS: &str = "/sys/devices/system/clocksource/clocksource0";
const FILES: [(&str, &str); 2] =
    [("current_clocksource", "hpet\n"), ("available_clocksource", "hpet acpi_pm\n")];

/// Between two looks at sysfs, with some time for a busy machine.
const SOON: Duration = Duration::from_secs(4);

pub(crate) fn dropped(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let host = Host::new(ctx)?;
    let private = ["unshare", "--mount", "--propagation", "private"];
    let daemon = start_through(ctx, &host, &private, &reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let counter = host.json(&["status"])?["counter"].clone();
    ensure!(counter["name"] == "tsc" && counter["problem"].is_null(), "{counter}");
    let page = HostPage::open(host.directory())?;
    honest_reading(&page)?;

    for (name, text) in FILES {
        let file = ctx.path(name);
        fs::write(&file, text)?;
        let (target, pid) = (format!("{SYSFS}/{name}"), daemon.pid().to_string());
        let file = file.display().to_string();
        command::run("nsenter", &["-t", &pid, "-m", "mount", "--bind", &file, &target])?;
    }
    interrupt::sleep(SOON)?;
    let reading = page.read()?;
    ensure!(reading.status().name() == "unreliable", "the page says {}", reading.status().name());
    let status = host.json(&["status"])?;
    let parts = ["no longer trusts the TSC and runs on hpet", "restart timevisord"];
    mentions(&status["clock"]["reason"].to_string(), &parts)?;
    mentions(&status["counter"]["problem"].to_string(), &parts)?;
    mentions(&host.cli(&["status"])?, &["clock        unreliable", "not trusted: the kernel"])?;
    interrupt::sleep(SOON)?;
    let log = fs::read_to_string(ctx.path("wrapped.log"))?;
    let told = log.lines().filter(|line| line.contains("ERROR")).count();
    ensure!(told == 1, "told {told} times: {log}");
    ensure!(!host.directory().join("recovery.json").exists(), "a restart would continue from this");
    drop(daemon);

    // The advice works: a daemon that is started now says why it counts with something else.
    let mounts: String = FILES
        .iter()
        .map(|(name, _)| format!("mount --bind {} {SYSFS}/{name} && ", ctx.path(name).display()))
        .collect();
    let script = format!("{mounts} exec \"$0\" \"$@\"");
    let wrapper = [&private[..], &["sh", "-c", &script]].concat();
    let _daemon = start_through(ctx, &host, &wrapper, &reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let counter = host.json(&["status"])?["counter"].clone();
    ensure!(counter["name"] == "monotonic-raw", "{counter}");
    mentions(&counter["reason"].to_string(), &["does not offer tsc", "dmesg"])?;
    honest_reading(&HostPage::open(host.directory())?)?;
    Ok("a TSC that the kernel drops: unreliable at once, told once, another counter after a restart".to_owned())
}
