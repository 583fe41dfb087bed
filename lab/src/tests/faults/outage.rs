//! A network outage of minutes: what was known stays true and ages.

use std::time::Duration;

use anyhow::ensure;

use crate::chronyd::Chronyd;
use crate::command;
use crate::host::Host;
use crate::interrupt;
use crate::netns::Namespace;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::{honest_reading, reference_row};
use crate::tests::faults::references::Names;

const OUTAGE: Duration = Duration::from_secs(300);
/// Members of the pool, and addresses of its name.
const MEMBERS: usize = 4;
const ADDRESSES: u8 = 8;

/// The addresses of all members, in their order.
fn members(host: &Host) -> anyhow::Result<Vec<String>> {
    let member = |n: usize| -> anyhow::Result<String> {
        let row = reference_row(host, &format!("pool.test#{n}"))?;
        let detail = row["detail"].as_str().unwrap_or_default();
        Ok(detail.split(": ").next().unwrap_or_default().to_owned())
    };
    (1..=MEMBERS).map(member).collect()
}

fn accepted(host: &Host) -> anyhow::Result<u64> {
    let mut sum = 0;
    for n in 1..=MEMBERS {
        sum += reference_row(host, &format!("pool.test#{n}"))?["accepted"].as_u64().unwrap_or(0);
    }
    Ok(sum)
}

pub(crate) fn five_minutes(ctx: &Context) -> anyhow::Result<String> {
    let host = Host::further(ctx, "outage")?;
    let server =
        Chronyd::start_in(Namespace::create()?, 123, "pool", ctx.log_dir(), "local stratum 1\n")?;
    let namespace = server.namespace();
    let mut lines = String::new();
    for n in 0..ADDRESSES {
        let address = format!("10.215.0.{}", n + 1);
        namespace.run("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"])?;
        let via = namespace.address().to_string();
        command::run("ip", &["route", "replace", &address, "via", &via])?;
        lines += &format!("{address} pool.test\n");
    }
    let names = Names::new(ctx, &lines)?;
    let config = format!(
        "[clock]\nstale_after = \"10s\"\n[guests]\ndiscover = false\n[[reference]]\ntype = \"ntp\"\n\
         pool = \"pool.test\"\nservers = {MEMBERS}\npoll = \"2s\"\n"
    );
    let mut daemon = names.start(ctx, &host, &config)?;
    host.wait_synchronized(50_000)?;
    host.wait_until("all members answer", |h| Ok(accepted(h)? >= 16))?;
    let page = HostPage::open(host.directory())?;
    let (before, used) = (honest_reading(&page)?, members(&host)?);

    // Nothing comes back, and no route of ours is lost: answers are what is missing.
    let nowhere = format!("{}/32", namespace.host());
    namespace.run("ip", &["route", "add", "blackhole", &nowhere])?;
    let began = std::time::Instant::now();
    let mut free_running = 0;
    while began.elapsed() < OUTAGE {
        interrupt::sleep(Duration::from_secs(2))?;
        let reading = honest_reading(&page)?;
        ensure!(reading.disruption == before.disruption, "an outage is no disruption");
        free_running += u32::from(reading.status().name() == "freerunning");
    }
    let in_the_end = honest_reading(&page)?;
    ensure!(in_the_end.status().name() == "freerunning", "{}", in_the_end.status().name());
    ensure!(in_the_end.half_width() > before.half_width(), "the bounds did not grow");
    ensure!(members(&host)? == used, "members were replaced: {used:?}, {:?}", members(&host)?);
    let silent = accepted(&host)?;

    namespace.run("ip", &["route", "delete", "blackhole", &nowhere])?;
    let back = std::time::Instant::now();
    host.wait_until("synchronized again", |h| {
        Ok(h.json(&["status"])?["clock"]["status"] == "synchronized" && accepted(h)? > silent)
    })?;
    let took = back.elapsed();
    let after = honest_reading(&page)?;
    ensure!(after.disruption == before.disruption, "the network's return is no disruption");
    ensure!(members(&host)? == used, "members were replaced in the end");
    daemon.check_alive()?;
    Ok(format!(
        "free running at {free_running} of {} looks, +-{} in the end, back after {:.1} s with the same {MEMBERS} members",
        OUTAGE.as_secs() / 2,
        in_the_end.half_width(),
        took.as_secs_f64()
    ))
}
