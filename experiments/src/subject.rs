//! The measured guest. It has the page (para-virtual), and inside it run a chronyd and a timevisord
//! that follow the same server as the host, over the emulated network (what QuartzV calls fully
//! virtual).
//!
//! chronyd steers the guest's CLOCK_REALTIME. timevisord uses CLOCK_MONOTONIC_RAW, which nobody
//! steers, so the two do not disturb each other. QuartzV's core clock is CLOCK_MONOTONIC, which
//! uses the guest kernel's clocksource, whatever that is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_lab::chronyd::Chronyd;
use timevisor_lab::client::offset;
use timevisor_lab::guest::Guest;
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::lan::Lan;
use timevisor_lab::reader::{GuestReader, HostPage, PORT};
use timevisor_lab::scenario::Context;

use super::fleet::{Fleet, KERNEL};

/// The guest's number on the [`Lan`]; others start at 1.
const NUMBER: u8 = 0;
const NAME: &str = "measured";
/// Time limit for anything in the guest: everything takes several times as long there.
const PATIENCE: Duration = Duration::from_secs(120);
const MEMORY_MIB: u32 = 256;
/// Time from the first synchronization to the samples; after that, the rates are known on the host
/// and inside the guest.
const WARM_UP: Duration = Duration::from_secs(60);

/// The server, the host and the guest.
pub(super) struct Subject {
    // Dropped in this order: the guest before its network, and the network before the namespace.
    guest: Guest,
    clocks: GuestReader,
    pub(super) page: HostPage,
    offset: i64,
    pub(super) lan: Lan,
    pub(super) host: Host,
    pub(super) server: Chronyd,
}

impl Subject {
    /// Starts everything and waits until all clocks are synchronized. `append` goes to the guest
    /// kernel's command line.
    pub(super) fn start(ctx: &Context, append: &str, more: &[&str]) -> anyhow::Result<Self> {
        let server = ctx.chronyd("server")?;
        let lan = Lan::before(ctx, server.namespace())?;
        let address = server.address().ip().to_string();
        let host = Host::following(ctx, &address)?;
        host.wait_synchronized(500)?;
        let page = HostPage::open(host.directory())?;
        let tai_offset = page.read()?.tai_offset().context("the host knows no TAI - UTC")?;

        let socket = host.directory().join("measured.clocks");
        let mut guest = fleet(ctx, &address, tai_offset, more)?
            .with(|builder| builder.memory_mib(MEMORY_MIB).port(PORT, &socket).append(append))
            .launch(&host, NAME, &lan.arguments(NUMBER, false)?)?;
        host.wait_vm(NAME, "synchronized")?;
        guest.sh(&lan.guest_setup(NUMBER))?;
        guest.sh("mkdir -p /run/chrony /var/lib/chrony; chmod 750 /run/chrony; chronyd -u root -f /etc/chrony.conf")?;
        guest.sh("timevisord --config /etc/timevisord.toml >/run/timevisord.log 2>&1 &")?;
        wait_for(
            &mut guest,
            "chronyd in the guest",
            "chronyc -n tracking",
            "Leap status     : Normal",
        )?;
        wait_for(&mut guest, "timevisord in the guest", "timevisor status", "synchronized")?;
        guest.sh(&format!(
            "lab-clocks /dev/virtio-ports/{PORT} guest=/dev/vmclock0 inside=/run/timevisor/clock &"
        ))?;
        let offset = offset(&host, NAME)?;
        let clocks = GuestReader::connect(&socket)?;
        Ok(Self { guest, clocks, page, offset, lan, host, server })
    }

    /// [Starts](Self::start) everything and waits until the clocks have converged.
    pub(super) fn settled(ctx: &Context) -> anyhow::Result<Self> {
        let subject = Self::start(ctx, "", &[])?;
        println!("  every clock asks the server once a second; {} s of warm-up", WARM_UP.as_secs());
        timevisor_lab::interrupt::sleep(WARM_UP)?;
        Ok(subject)
    }

    /// Sends a request to lab-clocks.
    pub(super) fn ask(&mut self) -> anyhow::Result<Value> {
        self.clocks.ask("clocks")
    }

    /// The host's counter value that corresponds to one of the guest's.
    pub(super) fn host_counter(&self, guest: u64) -> u64 {
        guest.wrapping_sub(self.offset.cast_unsigned())
    }

    /// The guest.
    pub(super) fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

fn fleet(ctx: &Context, server: &str, tai_offset: i16, more: &[&str]) -> anyhow::Result<Fleet> {
    let (kernel, qemu) = (ctx.kernel(KERNEL)?, ctx.qemu_10()?);
    let mut image = ctx.image(&kernel)?.module("virtio_net");
    for program in ["lab-clocks"].iter().chain(more) {
        image = image.program(&ctx.program("timevisor-lab-guest", program)?);
    }
    for program in ["timevisord", "timevisor"] {
        image = image.program(&ctx.program(program, program)?);
    }
    for program in ["/usr/sbin/chronyd", "/usr/bin/chronyc"] {
        image = image.dynamic_program(Path::new(program))?;
    }
    // Both poll once a second, as the host's timevisord does. chronyd looks up its user.
    let files = [
        (
            "/etc/chrony.conf",
            format!("server {server} iburst minpoll 0 maxpoll 0\nmakestep 0.001 3\n"),
        ),
        (
            "/etc/timevisord.toml",
            format!(
                "run_directory = \"/run/timevisor\"\ncounter = \"monotonic-raw\"\n[clock]\ntai_offset = {tai_offset}\n[guests]\ndiscover = false\n{}",
                ntp_reference(server)
            ),
        ),
        ("/etc/passwd", "root:x:0:0:root:/:/bin/sh\n".to_owned()),
    ];
    for (to, text) in files {
        let from = ctx.path(&to.trim_start_matches('/').replace('/', "-"));
        std::fs::write(&from, text)?;
        image = image.file(from, to, 0o644);
    }
    Fleet::of(ctx, &qemu, &kernel, &image)
}

fn wait_for(guest: &mut Guest, what: &str, command: &str, sign: &str) -> anyhow::Result<()> {
    let mut last = String::new();
    let found = interrupt::poll_until(PATIENCE, || {
        last = guest.sh(&format!("{command} 2>&1 || true"))?;
        Ok(last.contains(sign).then_some(()))
    })?;
    ensure!(found.is_some(), "{what}: not synchronized within {PATIENCE:?}; it says: {last}");
    Ok(())
}
