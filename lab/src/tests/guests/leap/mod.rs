//! A leap second occurs while guests read their pages: inserted and deleted, on UTC and on TAI,
//! with a daemon that is alive and with one that died before.
//!
//! Every reading with a usable status must contain the truth, which the test knows from this
//! machine's clock at the same counter value.

mod calendar;
mod judge;
mod samples;
mod track;

use std::fs;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use anyhow::anyhow;

use crate::client::{self, Client, Way};
use crate::host::Host;
use crate::interrupt::in_time;
use crate::ntp_impostor::Impostor;
use crate::qemu::Qemu;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

use self::calendar::{Calendar, Change};
use self::judge::{Scale, Seen};
use self::samples::{Recording, record};
use self::track::Track;

/// The time from the daemon's start to the leap second: two guests boot meanwhile.
const AHEAD: Duration = Duration::from_secs(60);
/// The pages are watched from at least this long before the leap second, s.
const WATCHED: f64 = 12.0;
/// The pages are watched until this many seconds after it.
const TAIL: f64 = 12.0;
/// A daemon that died before the leap second is restarted this many seconds after it.
const RESTART: f64 = 8.0;

/// The default of clock.validity, s.
const VALIDITY: f64 = 10.0;

/// A host with its own calendar, and its guests.
struct World {
    calendar: Calendar,
    // Kept because its thread serves the time.
    _server: Impostor,
    host: Host,
    guests: Vec<(Scale, Client)>,
}

impl World {
    /// Starts a daemon on this calendar; the leap second is `AHEAD` from now.
    fn start(ctx: &Context, change: Change) -> anyhow::Result<Self> {
        let calendar = Calendar::new(change, AHEAD);
        let table = ctx.path("leap-seconds.list");
        fs::write(&table, calendar.table())?;
        let server = calendar.server()?;
        let mut host = Host::new(ctx)?;
        let clock = format!("[clock]\nleap_table = \"{}\"\n", table.display());
        host.start(&format!("{clock}{}", reference(&server.address())))?;
        host.wait_synchronized(10_000)?;
        Ok(Self { calendar, _server: server, host, guests: Vec::new() })
    }

    /// Each timescale with a suitable kernel: the driver of Linux 7 exposes a TAI page as TAI,
    /// older drivers expose a UTC page as UTC.
    fn launch(&mut self, ctx: &Context, qemu: &Qemu, way: Way, scale: Scale) -> anyhow::Result<()> {
        let kernel = match scale {
            Scale::Utc => "trixie-backports:6.17",
            Scale::Tai => "trixie-backports",
        };
        let name = scale.name();
        let client = client::launch(ctx, &self.host, kernel, qemu, way, name, name)?;
        self.guests.push((scale, client));
        Ok(())
    }

    /// Waits until every guest has booted and its page is synchronized.
    fn wait_ready(&mut self) -> anyhow::Result<()> {
        for (_, client) in &mut self.guests {
            client.guest.wait_ready()?;
            client.reader.ask("read")?;
            self.host.wait_vm(&client.name, "synchronized")?;
        }
        let left = -self.calendar.since_begin();
        in_time(left > WATCHED, || format!("only {left:.1} s are left after the boot"))
    }

    /// Lets all guests read until `tail` s after the leap second while `meanwhile` runs, and judges
    /// their readings.
    fn watch(
        &mut self,
        ctx: &Context,
        tail: f64,
        meanwhile: impl FnOnce(&mut Host, &mut Track, &HostPage) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Seen>> {
        let seconds = tail - self.calendar.since_begin();
        let page = HostPage::open(self.host.directory())?;
        let mut track = Track::default();
        track.look(page.counter());
        let offsets: Vec<i64> = self
            .guests
            .iter()
            .map(|(_, client)| client::offset(&self.host, &client.name))
            .collect::<anyhow::Result<_>>()?;
        let (host, guests) = (&mut self.host, &mut self.guests);
        let recordings = std::thread::scope(|scope| {
            let readers: Vec<_> = guests
                .iter_mut()
                .zip(offsets)
                .map(|((_, client), offset)| {
                    scope.spawn(move || record(&mut client.reader, seconds, offset))
                })
                .collect();
            meanwhile(host, &mut track, &page)?;
            track.until(page.counter(), || readers.iter().all(ScopedJoinHandle::is_finished))?;
            readers
                .into_iter()
                .map(|reader| reader.join().map_err(|_| anyhow!("a reader panicked"))?)
                .collect::<anyhow::Result<Vec<Recording>>>()
        })?;
        let mut judged = Vec::new();
        for ((scale, _), recording) in self.guests.iter().zip(recordings) {
            let seen = Seen::of(recording, self.calendar, *scale, &track)?;
            fs::write(ctx.path(&format!("{}.history", scale.name())), seen.history())?;
            seen.check_truth()?;
            judged.push(seen);
        }
        Ok(judged)
    }
}

pub(crate) fn inserted(ctx: &Context) -> anyhow::Result<String> {
    live(ctx, Change::Inserted)
}

pub(crate) fn deleted(ctx: &Context) -> anyhow::Result<String> {
    live(ctx, Change::Deleted)
}

/// A UTC guest with QEMU's device and a TAI guest with an nvdimm; the daemon is alive.
fn live(ctx: &Context, change: Change) -> anyhow::Result<String> {
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    let mut world = World::start(ctx, change)?;
    world.launch(ctx, &new, Way::Vmclock, Scale::Utc)?;
    world.launch(ctx, &old, Way::Nvdimm, Scale::Tai)?;
    world.wait_ready()?;
    let judged = world.watch(ctx, TAIL, |_, _, _| Ok(()))?;
    let [utc, tai] = &judged[..] else { return Err(anyhow!("two guests")) };
    let shown = utc.check_indicators()?;
    let (last, first) = utc.check_withdrawn()?;
    utc.check_stock_driver()?;
    let also = tai.check_indicators()?;
    tai.check_undisturbed()?;
    tai.check_stock_driver()?;
    let publications = tai.publications_until(first)?;
    Ok(format!(
        "UTC: {} reads, none wrong, withdrawn {:.2} s before to {first:.2} s ({publications} \
         publications) after, indicator {shown:?}; TAI: {} reads, synchronized all along, \
         indicator {also:?}",
        utc.reads, -last, tai.reads
    ))
}

/// The daemon is killed so early that the page's validity of 10 s ends before the leap second.
pub(crate) fn inserted_dead(ctx: &Context) -> anyhow::Result<String> {
    dead(ctx, Change::Inserted, 20.0)
}

/// The daemon is killed so late that the validity would end after the leap second.
pub(crate) fn deleted_dead(ctx: &Context) -> anyhow::Result<String> {
    dead(ctx, Change::Deleted, 7.0)
}

/// The daemon is killed `before` seconds before the leap second and restarted after it.
fn dead(ctx: &Context, change: Change, before: f64) -> anyhow::Result<String> {
    let (old, new) = (ctx.qemu()?, ctx.qemu_10()?);
    let mut world = World::start(ctx, change)?;
    world.launch(ctx, &old, Way::Nvdimm, Scale::Utc)?;
    world.launch(ctx, &new, Way::Vmclock, Scale::Tai)?;
    world.wait_ready()?;
    let in_time_for_it = -world.calendar.since_begin() > before + 1.0;
    in_time(in_time_for_it, || "the boot took too long".to_owned())?;
    let calendar = world.calendar;
    let judged = world.watch(ctx, RESTART + TAIL, |host, track, page| {
        track.until(page.counter(), || calendar.since_begin() >= -before)?;
        host.kill();
        track.until(page.counter(), || calendar.since_begin() >= RESTART)?;
        host.restart()
    })?;
    let [utc, tai] = &judged[..] else { return Err(anyhow!("two guests")) };
    let (half, expired) = utc.check_abandoned(-before + 0.5, RESTART)?;
    tai.check_abandoned(-before + 0.5, RESTART)?;
    // A TAI page that would expire after the leap second is not offered to stock drivers. One that
    // expires before it is offered, but vmclock_abi cannot express when it expires.
    if before < VALIDITY {
        tai.check_stock_offset()?;
    }
    let back = utc.check_return(RESTART)?;
    Ok(format!(
        "killed {before} s before, {} reads, none wrong; UTC: expired {expired:.2} s before, +-{half} ms \
         {RESTART} s after, back {back:.1} s after the restart",
        utc.reads + tai.reads
    ))
}
