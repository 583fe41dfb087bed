//! A leap second comes while guests read their pages: inserted and deleted, on UTC and on TAI, with
//! a daemon that lives and with one that died before.
//!
//! Every reading of a usable status must hold the truth, which the test knows from this machine's
//! clock at the same counter value.

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

/// The leap second begins so long after the daemon's start: two guests boot meanwhile.
const AHEAD: Duration = Duration::from_secs(60);
/// The pages are watched from here on at the latest, s before the leap second.
const WATCHED: f64 = 12.0;
/// The pages are watched until so many seconds after it.
const TAIL: f64 = 12.0;
/// A daemon that died before the leap second is started again this many seconds after it.
const RESTART: f64 = 8.0;

/// clock.validity as it is by default, s.
const VALIDITY: f64 = 10.0;

/// A host on a calendar of its own, and its guests.
struct World {
    calendar: Calendar,
    // Its thread serves.
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

    /// Each timescale with a kernel that it is for: the driver of Linux 7 passes a TAI page on as
    /// TAI, older ones pass a UTC page on as UTC.
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

    /// Has all guests read until `tail` s after the leap second while `meanwhile` runs, and judges
    /// what they read.
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

/// A UTC guest behind QEMU's device and a TAI guest behind an nvdimm; the daemon lives.
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

/// The daemon is killed when the page's validity of 10 s ends before the leap second anyway.
pub(crate) fn inserted_dead(ctx: &Context) -> anyhow::Result<String> {
    dead(ctx, Change::Inserted, 20.0)
}

/// The daemon is killed when the validity would end after the leap second.
pub(crate) fn deleted_dead(ctx: &Context) -> anyhow::Result<String> {
    dead(ctx, Change::Deleted, 7.0)
}

/// The daemon is killed `before` seconds ahead of the leap second, and started again after it.
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
    // A TAI page that would expire after the leap second is not for stock drivers. One that expires
    // before it is, but vmclock_abi cannot say when it does.
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
