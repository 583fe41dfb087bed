//! One guest's journey with what happens to journeys: three hosts in a ring, back at once, a source
//! whose timevisord is dead, a destination that comes too late, a move that is cancelled. Its age goes on
//! throughout.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_linux::counter::Tsc;

use crate::chronyd::Chronyd;
use crate::client::{self, Client, Launch, Way};
use crate::host::{Host, mentions};
use crate::interrupt;
use crate::migration::journey::{Move, one_move, report, right, text};
use crate::migration::pair::{check, lines};
use crate::qemu::Qemu;
use crate::scenario::Context;
use crate::tests::elapsed::truth::{Age, age, went_by};
use crate::truth::Truth;

pub(crate) fn turns(ctx: &Context) -> anyhow::Result<String> {
    let (mut hosts, mut servers) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let server: Chronyd = ctx.chronyd(&format!("server-{name}"))?;
        let mut host = Host::further(ctx, name)?;
        host.start(&lines(&server.address().ip().to_string()))?;
        host.wait_synchronized(500)?;
        hosts.push(host);
        servers.push(server);
    }
    let qemu = ctx.qemu_10()?;
    let mut journey = Journey::begin(ctx, &hosts[0], &qemu)?;
    // Around twice, and back at once.
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 1), (1, 2), (2, 0), (0, 1), (1, 0)] {
        interrupt::check()?;
        journey.go(&hosts[from], &hosts[to])?;
    }
    journey.is_as_old(&hosts[0], "the ring")?;
    journey.too_early(&hosts[0], &hosts[1])?;
    journey.is_as_old(&hosts[1], "a destination that came late")?;
    journey.cancelled(&hosts[1], &hosts[2])?;
    journey.is_as_old(&hosts[2], "a move that was cancelled")?;
    let reads = journey.leave_dead(&mut hosts, 2, 0)?;
    journey.is_as_old(&hosts[0], "a source without a timevisord")?;
    journey.go(&hosts[0], &hosts[2])?;
    journey.is_as_old(&hosts[2], "all of it")?;
    Ok(format!("{}; from a host whose timevisord is dead: {reads} reads", text(&journey.moves)))
}

struct Journey<'a> {
    ctx: &'a Context,
    qemu: &'a Qemu,
    here: Client,
    stays: usize,
    moves: Vec<Move>,
    ages: Vec<Age>,
}

impl<'a> Journey<'a> {
    fn begin(ctx: &'a Context, host: &Host, qemu: &'a Qemu) -> anyhow::Result<Self> {
        let programs = [ctx.program("timevisor", "timevisor")?];
        let launch = Launch::new(ctx, host, qemu, Way::Vmclock, "stay-0").programs(&programs);
        let mut here = launch.start()?;
        here.guest.wait_ready()?;
        here.reader.ask("read")?;
        host.wait_vm("stay-0", "synchronized")?;
        let mut journey = Self { ctx, qemu, here, stays: 0, moves: Vec::new(), ages: Vec::new() };
        journey.is_as_old(host, "its boot")?;
        Ok(journey)
    }

    /// The next QEMU, which waits on this host; and where.
    fn awaited(&mut self, host: &Host) -> anyhow::Result<(Client, String)> {
        self.stays += 1;
        let name = format!("stay-{}", self.stays);
        let uri = format!("unix:{}", host.directory().join(format!("{name}.migration")).display());
        let programs = [self.ctx.program("timevisor", "timevisor")?];
        let launch = Launch::new(self.ctx, host, self.qemu, Way::Vmclock, &name);
        let there = launch.programs(&programs).incoming(&uri).start()?;
        host.wait_until("the destination to await it", |h| {
            Ok(h.vm(&name)?["migration"] == "incoming")
        })?;
        Ok((there, uri))
    }

    fn go(&mut self, from: &Host, to: &Host) -> anyhow::Result<()> {
        let (there, uri) = self.awaited(to)?;
        self.go_to(from, to, there, &uri)
    }

    fn go_to(
        &mut self,
        from: &Host,
        to: &Host,
        mut there: Client,
        uri: &str,
    ) -> anyhow::Result<()> {
        let moved = one_move(from, to, &mut self.here, &mut there, uri);
        self.moves.push(moved.with_context(|| format!("stay {}", self.stays))?);
        self.here.guest.kill();
        self.here = there;
        Ok(())
    }

    /// It is to leave before anybody awaits it.
    fn too_early(&mut self, from: &Host, to: &Host) -> anyhow::Result<()> {
        let uri = format!("unix:{}", to.directory().join("nobody-yet").display());
        let refused = from.cli(&["vm", "migrate", &self.here.name, "--to", &uri]);
        let refused = format!("{:#}", refused.err().context("it went nowhere, and left")?);
        mentions(&refused, &["stays here"])?;
        right(from, &mut self.here)?;
        self.go(from, to)
    }

    /// It is cancelled on the way, twice, and then goes.
    fn cancelled(&mut self, from: &Host, to: &Host) -> anyhow::Result<()> {
        let bandwidth = |client: &mut Client, bytes: u64| {
            let limit = json!({"max-bandwidth": bytes});
            client.guest.qmp().execute("migrate-set-parameters", &limit).map(drop)
        };
        for _ in 0..2 {
            let (lost, uri) = self.awaited(to)?;
            bandwidth(&mut self.here, 100_000)?;
            let name = self.here.name.clone();
            let refused = from.cli(&["vm", "migrate", &name, "--to", &uri, "--timeout", "1"]);
            let refused = format!("{:#}", refused.err().context("it was not cancelled")?);
            mentions(&refused, &["stays here"])?;
            ensure!(
                from.vm(&name)?["migration"].as_str().is_some_and(|m| m.starts_with("failed")),
                "{}",
                from.vm(&name)?
            );
            drop(lost);
            from.wait_vm(&name, "synchronized")?;
            right(from, &mut self.here)?;
        }
        bandwidth(&mut self.here, 1 << 40)?;
        self.go(from, to)
    }

    /// Nobody withdraws the page that travels.
    fn leave_dead(&mut self, hosts: &mut [Host], from: usize, to: usize) -> anyhow::Result<u64> {
        let (mut there, uri) = self.awaited(&hosts[to])?;
        let old_offset = client::offset(&hosts[from], &self.here.name)?;
        hosts[from].kill();
        let here = &mut self.here;
        let (said, truth) = Truth::around(&Tsc::unchecked(), || {
            here.reader.ask("journey 1500")?;
            std::thread::sleep(Duration::from_millis(200));
            here.guest.qmp().execute("migrate", &json!({"uri": uri}))?;
            report(&mut there)
        })?;
        for never in ["backward", "outside", "errors"] {
            ensure!(said[never] == 0, "{never} reads on the way: {said}");
        }
        check(&hosts[from], &truth, old_offset, &said["gap"]["before"])?;
        hosts[to].wait_vm(&there.name, "synchronized")?;
        let new_offset = client::offset(&hosts[to], &there.name)?;
        check(&hosts[to], &truth, new_offset, &said["gap"]["after"])?;
        right(&hosts[to], &mut there)?;
        hosts[from].restart()?;
        hosts[from].wait_synchronized(500)?;
        self.here.guest.kill();
        self.here = there;
        said["reads"].as_u64().context("no reads")
    }

    fn is_as_old(&mut self, host: &Host, after: &str) -> anyhow::Result<()> {
        // The next publication carries the guest's age.
        interrupt::sleep(Duration::from_secs(2))?;
        let offset = client::offset(host, &self.here.name)?;
        let guest = &mut self.here.guest;
        let command = || guest.sh("timevisor elapsed --json || [ $? = 1 ]");
        let (said, truth) = Truth::around(&Tsc::unchecked(), command)?;
        let now = age(said.trim(), &truth, offset).with_context(|| format!("after {after}"))?;
        if let Some(before) = self.ages.last() {
            went_by(before, &now).with_context(|| format!("after {after}"))?;
        }
        self.ages.push(now);
        Ok(())
    }
}
