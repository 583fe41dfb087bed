//! A guest's state is saved and loaded again, with both deliveries: the guest goes back, and its
//! clock must not.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::client::{self, Client, Way};
use crate::command;
use crate::comparison::{self, Worst};
use crate::host::Host;
use crate::interrupt;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::snapshots;
use crate::truth::Truth;

const KERNEL: &str = "trixie-backports";
/// Every kind of load is repeated: failures depend on the moment.
const LOADS: usize = 2;
/// Thousands of reads in one report; a read takes some 150 ns.
const THOUSANDS: u32 = 5_000;

/// The results of several loads.
#[derive(Debug, Default)]
struct Sum {
    loads: u64,
    reads: u64,
    unknown: u64,
    /// The largest gap between the last reading before the save and the first known one after a
    /// load, by the guest's page.
    gap_ms: f64,
}

/// A guest that reads without pause, and the snapshot taken of it meanwhile.
struct Saved {
    tag: String,
    /// Its counter at the snapshot.
    counter: u64,
    /// Guest counter minus host counter until the snapshot.
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
    fn boot(
        ctx: &Context,
        host: &'a Host,
        qemu: &Qemu,
        way: Way,
        name: &str,
    ) -> anyhow::Result<Self> {
        let mut client = client::boot(ctx, host, KERNEL, qemu, way, name, "tai")?;
        host.wait_vm(name, "synchronized")?;
        snapshots::attach(ctx, &mut client.guest, name)?;
        let page = HostPage::open(host.directory())?;
        Ok(Self { host, page, client, markers: Vec::new(), sum: Sum::default() })
    }

    /// Saves a snapshot while the guest performs its reads.
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

    /// Runs `act`, which returns the guest's report, and checks the report against the true time.
    fn judge(
        &mut self,
        saved: &Saved,
        act: impl FnOnce(&mut Self) -> anyhow::Result<Value>,
    ) -> anyhow::Result<()> {
        let counter = *self.page.counter();
        // Readings from before the save are judged by the same line, extended a little into the
        // past.
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
            if earlier {
                before = Some(reading);
            } else {
                after.get_or_insert(reading);
            }
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
        ensure!(
            self.host.vm(&self.client.name)?["migration"].is_null(),
            "a snapshot is no migration"
        );
        Ok(())
    }

    /// Loads the snapshot into the running guest, which then finishes its report.
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

/// Whether the reading's interval contains this UTC time.
pub(crate) fn holds(reading: &Value, utc: i64, slack: i64) -> anyhow::Result<()> {
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

pub(crate) fn snapshot(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let mut told = Vec::new();
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    {
        let mut bench = Bench::boot(ctx, &host, &new, Way::Vmclock, "device")?;
        bench.saved_and_loaded("served", false)?;
        bench.saved_and_loaded("live", true).context("saved while timevisord stood still")?;
        bench.loaded_alone()?;
        bench.loaded_while_paused("live")?;
        told.push(format!("device: {}", bench.sum.text()));
    }
    for (name, qemu) in [("nvdimm-old", &old), ("nvdimm-new", &new)] {
        let mut bench = Bench::boot(ctx, &host, qemu, Way::Nvdimm, name)?;
        bench.saved_and_loaded("served", false).context(name)?;
        bench.loaded_while_paused("served").context(name)?;
        let end = bench.without_capability().context(name)?;
        let (major, minor) = qemu.version;
        told.push(format!("nvdimm under QEMU {major}.{minor}: {}; {end}", bench.sum.text()));
    }
    Ok(told.join("; "))
}

impl Bench<'_> {
    fn saved_and_loaded(&mut self, tag: &str, alone: bool) -> anyhow::Result<()> {
        let saved = self.save(tag, alone)?;
        if alone {
            // Nobody withdrew the time from the page for the pause, so what this reader saw is not
            // our responsibility.
            self.client.reader.answer()?;
        } else {
            self.judge(&saved, |bench| bench.client.reader.answer()).context("saved")?;
        }
        for n in 0..LOADS {
            interrupt::check()?;
            self.load(&saved).with_context(|| format!("load {}", n + 1))?;
        }
        self.compare()
    }

    /// Does not compare /dev/ptp0: under TCG, a loaded snapshot's HPET and TSC disagree, so the
    /// guest's kernel abandons the TSC and the driver then refuses. The page is not affected.
    fn compare(&mut self) -> anyhow::Result<()> {
        let offset = client::offset(self.host, &self.client.name)?;
        let mut worst = Worst::default();
        for _ in 0..5 {
            worst.add(&comparison::compare(&self.page, &mut self.client.reader, offset)?)?;
        }
        Ok(())
    }

    /// Nobody writes the page during the load, so it must have been saved without a time.
    fn loaded_alone(&mut self) -> anyhow::Result<()> {
        let saved = self.save("withdrawn", false)?;
        self.client.reader.answer()?;
        signal(self.host, "-STOP")?;
        let report = snapshots::load(&mut self.client.guest, "withdrawn")
            .and_then(|()| self.client.reader.answer());
        signal(self.host, "-CONT")?;
        let report = report?;
        ensure!(report["unknown"].as_u64() > Some(1000), "{report}");
        for stretch in report["stretches"].as_array().into_iter().flatten() {
            ensure!(
                stretch["last"]["counter"].as_u64() <= Some(saved.counter),
                "the snapshot saved at {} holds a page that tells the time: {report}",
                saved.counter
            );
        }
        self.host.wait_vm(&self.client.name, "synchronized")?;
        self.compare()
    }

    /// The documented procedure where not even a millisecond may be wrong: stop, load, check, cont.
    fn loaded_while_paused(&mut self, tag: &str) -> anyhow::Result<()> {
        let name = self.client.name.clone();
        let before = self.host.vm(&name)?["disruption_marker"].clone();
        self.client.guest.stop()?;
        self.host.wait_vm(&name, "unknown")?;
        snapshots::load(&mut self.client.guest, tag)?;
        self.host.wait_vm(&name, "unknown")?;
        self.client.guest.cont()?;
        // The report that the snapshot's reader was in the middle of.
        let report = self.client.reader.answer()?;
        for never in ["backward", "outside", "errors"] {
            ensure!(report[never] == 0, "{never} reads: {report}");
        }
        self.host.wait_vm(&name, "synchronized")?;
        ensure!(self.host.vm(&name)?["disruption_marker"] != before, "no disruption");
        self.compare()
    }

    /// What timevisord prevents by setting the capability: QEMU writing to memory that it has
    /// mapped read-only.
    fn without_capability(&mut self) -> anyhow::Result<String> {
        let without = json!({"capabilities": [{"capability": "x-ignore-shared", "state": false}]});
        let guest = &mut self.client.guest;
        guest.qmp().execute("migrate-set-capabilities", &without)?;
        let refused = match snapshots::load(guest, "served") {
            Err(error) if guest.qmp().run("query-status").is_ok() => format!("refused: {error:#}"),
            Err(_) => "ends QEMU".to_owned(),
            Ok(()) => "works".to_owned(),
        };
        let mut end = format!("loading without the capability what was saved with it: {refused}");
        if guest.qmp().run("query-status").is_ok() {
            snapshots::save(guest, "without")?;
            ensure!(
                snapshots::load(guest, "without").is_err(),
                "a snapshot that was saved without the capability is loaded: the documentation says otherwise"
            );
            let ended =
                if guest.qmp().run("query-status").is_ok() { "refused" } else { "ends QEMU" };
            end += &format!("; saved and loaded without it: {ended}");
        }
        let name = self.client.name.clone();
        guest.kill();
        self.host.wait_until("the row to go", |host| Ok(host.vm(&name).is_err()))?;
        Ok(end)
    }
}

impl Sum {
    fn text(&self) -> String {
        format!(
            "{} saves and loads, {} reads, none wrong or back, {} said unknown, up to {:.0} ms from the last reading before to \
             the first one after",
            self.loads, self.reads, self.unknown, self.gap_ms
        )
    }
}
