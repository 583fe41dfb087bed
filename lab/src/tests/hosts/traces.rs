//! What references answer, recorded from a running timevisord and replayed.

use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::chronyd::Chronyd;
use crate::host::{Host, mentions, ntp_reference};
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::complaint;

pub(crate) fn record_and_replay(ctx: &Context) -> anyhow::Result<String> {
    let scratch = scratch::directory()?;
    let servers = [Chronyd::start("one", ctx.log_dir())?, Chronyd::start("two", ctx.log_dir())?];
    let addresses = servers.each_ref().map(|server| server.address().to_string());
    let mut host = Host::new(ctx)?;
    host.start(&addresses.each_ref().map(|address| ntp_reference(address)).concat())?;
    host.wait_synchronized(50_000)?;
    let file = scratch.path().join("trace.csv");
    let path = file.to_str().context("a path of UTF-8")?;
    let began = Instant::now();
    let said = host.cli(&["sources", "record", "--for", "12s", path])?;
    ensure!(began.elapsed().as_secs() < 20, "it took {:?}", began.elapsed());
    mentions(&said, &[&addresses[0], &addresses[1], "exchanges in"])?;
    // A name of a file is not that of an address.
    let of = |address: &str| path.replace(".csv", &format!("-{}.csv", address.replace(':', "_")));
    let mut used = Vec::new();
    for address in &addresses {
        let (trace, picture) = (of(address), format!("{path}.svg"));
        let replayed = host.json(&["replay", &trace, "--skip", "0", "--plot", &picture])?;
        let rows = std::fs::read_to_string(&trace)?.lines().count() - 1;
        // One a second, with a burst at first; on a busy machine some come late.
        ensure!((8..=30).contains(&rows), "{rows} exchanges of {address}");
        ensure!(replayed["contradictions"] == 0, "{replayed}");
        let width = replayed["halfwidth_median_us"].as_f64().unwrap_or(f64::MAX);
        ensure!(width < 5000.0, "{replayed}");
        let svg = std::fs::read_to_string(&picture)?;
        mentions(&svg, &["<svg", "offset from the estimate", "exchanges", "latest"])?;
        used.push(format!("{rows} exchanges, +-{width:.1} us"));
    }
    let again = complaint(
        &host,
        &["sources", "record", "--for", "1s", "--source", &addresses[0], &of(&addresses[0])],
    )?;
    mentions(&again, &["does not exist yet"])?;
    let unknown = complaint(&host, &["sources", "record", "--source", "nobody", path])?;
    mentions(&unknown, &["no reference is called nobody", &addresses[0]])?;
    Ok(used.join("; "))
}
