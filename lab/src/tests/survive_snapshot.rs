//! A guest's state saved and loaded again, by both deliveries: the guest goes back, its clock must not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::clock;
use crate::client::{self, Client, Way};
use crate::command;
use crate::experiments::truth::Truth;
use crate::host::Host;
use crate::interrupt;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::snapshots;

const KERNEL: &str = "trixie-backports";
/// Every kind of load is repeated: what goes wrong here depends on the moment.
const LOADS: usize = 4;
/// Reads in one report, of some 150 ns each.
const THOUSANDS: u32 = 8_000;

/// What came of some loads.
#[derive(Debug, Default)]
struct Sum {
    loads: u64,
    reads: u64,
    unknown: u64,
    /// Between the last reading before the save and the first one known after a load, at most, by the guest's page.
    gap_ms: f64,
}

/// A guest that reads without pause, and the snapshot that was taken of it meanwhile.
struct Saved {
    tag: String,
    /// Where its counter stood.
    counter: u64,
    /// Guest counter minus host counter until then.
    offset: i64,
}

struct Bench<'a> {
    host: &'a Host,
    page: HostPage,
    client: Client,
    markers: Vec<Value>,
    sum: Sum,
}

impl<'a> Bench<'a> {
    fn boot(ctx: &Context, host: &'a Host, qemu: &Qemu, way: Way, name: &str) -> anyhow::Result<Self> {
        let mut client = client::boot(ctx, host, KERNEL, qemu, way, name, "tai")?;
        host.wait_vm(name, "synchronized")?;
        snapshots::attach(ctx, &mut client.guest, name)?;
        let page = HostPage::open(host.directory())?;
        Ok(Self { host, page, client, markers: Vec::new(), sum: Sum::default() })
    }

    /// Saves while the guest reads so many thousand times.
    fn save(&mut self, tag: &str, alone: bool) -> anyhow::Result<Saved> {
        let offset = client::offset(self.host, &self.client.name)?;
        let begun = self.client.reader.ask(&format!("watch {THOUSANDS}"))?;
        ensure!(begun["begun"] == true, "{begun}");
        std::thread::sleep(Duration::from_millis(200));
        if alone {
            signal(self.host, "-STOP")?;
        }
        let counter = snapshots::frozen(&mut self.client.guest, |g| snapshots::save(g, tag))?;
        if alone {
            signal(self.host, "-CONT")?;
        }
        Ok(Saved { tag: tag.to_owned(), counter, offset })
    }

    /// Does `act`, which ends in the guest's report, and judges that by what was true.
    fn judge(
        &mut self,
        saved: &Saved,
        act: impl FnOnce(&mut Self) -> anyhow::Result<Value>,
    ) -> anyhow::Result<()> {
        let counter = *self.page.counter();
        // Readings from before the save are judged by the same line, a little further back.
        let (report, truth) = Truth::around(&counter, || act(self))?;
        self.host.wait_vm(&self.client.name, "synchronized")?;
        let offset = client::offset(self.host, &self.client.name)?;
        for never in ["backward", "outside", "errors"] {
            ensure!(report[never] == 0, "{never} reads: {report}");
        }
        let stretches = report["stretches"].as_array().context("no stretches")?;
        let (mut before, mut after) = (None, None);
        for reading in stretches.iter().flat_map(|s| [&s["first"], &s["last"]]) {
            let at = reading["counter"].as_u64().context("no counter")?;
            let earlier = at <= saved.counter;
            let host = at.wrapping_add_signed(-if earlier { saved.offset } else { offset });
            holds(reading, truth.at(host), truth.uncertainty_ns())
                .with_context(|| format!("saved at {}: {report}", saved.counter))?;
            let end = if earlier { &mut before } else { after.get_or_insert(reading); continue };
            *end = Some(reading);
        }
        let (before, after) = before.zip(after).with_context(|| format!("no reading: {report}"))?;
        let marker = after["disruption"].clone();
        ensure!(!self.markers.contains(&marker), "the marker {marker} was seen before: {report}");
        ensure!(before["disruption"] != marker, "the marker did not change: {report}");
        self.markers.extend(stretches.iter().map(|s| s["first"]["disruption"].clone()));
        let gap = ns(after, "estimate_ns")? - ns(before, "estimate_ns")?;
        self.sum.loads += 1;
        self.sum.reads += report["reads"].as_u64().unwrap_or(0);
        self.sum.unknown += report["unknown"].as_u64().unwrap_or(0);
        self.sum.gap_ms = self.sum.gap_ms.max(gap as f64 / 1e6);
        ensure!(self.host.vm(&self.client.name)?["migration"].is_null(), "a snapshot is no migration");
        Ok(())
    }

    /// Loads it into the running guest, which then ends its report.
    fn load(&mut self, saved: &Saved) -> anyhow::Result<()> {
        self.judge(saved, |bench| {
            snapshots::load(&mut bench.client.guest, &saved.tag)?;
            bench.client.reader.answer()
        })
    }
}

fn ns(reading: &Value, name: &str) -> anyhow::Result<i64> {
    reading[name].as_i64().with_context(|| format!("no {name}: {reading}"))
}

/// Whether the reading's interval holds this time of UTC.
fn holds(reading: &Value, utc: i64, slack: i64) -> anyhow::Result<()> {
    let truth = utc + ns(reading, "tai_offset")? * 1_000_000_000;
    let (earliest, latest) = (ns(reading, "earliest_ns")?, ns(reading, "latest_ns")?);
    ensure!(
        earliest <= truth + slack && truth - slack <= latest,
        "{} reading at {}: [{}, {}] ns from the truth",
        reading["status"],
        reading["counter"],
        earliest - truth,
        latest - truth
    );
    Ok(())
}

fn signal(host: &Host, name: &str) -> anyhow::Result<()> {
    command::run("kill", &[name, &host.pid()?.to_string()]).map(drop)
}

pub(super) fn snapshot(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut bench = Bench::boot(ctx, &host, &ctx.qemu_10()?, Way::Vmclock, "device")?;
    // live
    let saved = bench.save("live", true)?;
    bench.client.reader.answer()?;
    for n in 0..20 {
        let r = bench.judge(&saved, |b| { snapshots::load(&mut b.client.guest, "live")?; b.client.reader.answer() });
        println!("{n} {r:?}");
        let _ = interrupt::check();
    }
    let _ = (json!({}), LOADS, clock::compare_many(&host, &mut bench.client, 1));
    println!("{}", host.log_text());
    Ok(format!("{:?}", bench.sum))
}
