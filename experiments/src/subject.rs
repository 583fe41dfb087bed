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

/// Its number on the [`Lan`], where other guests start at 1, and its name.
const FIRST: (u8, &str) = (0, "measured");
/// Time limit for anything in the guest: everything takes several times as long there.
const PATIENCE: Duration = Duration::from_secs(120);
const MEMORY_MIB: u32 = 256;
/// Time from the first synchronization to the samples; after that, the rates are known on the host
/// and inside the guest.
const WARM_UP: Duration = Duration::from_secs(60);

/// What can differ between measured guests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Options<'a> {
    /// Goes to the guest kernel's command line.
    pub(super) append: &'a str,
    /// What follows `server ADDRESS` in chrony.conf(5). By default chronyd polls once a second, as
    /// the host's timevisord does.
    pub(super) chronyd: &'a str,
    /// Further programs of the lab's guest package.
    pub(super) programs: &'a [&'a str],
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { append: "", chronyd: "iburst minpoll 0 maxpoll 0", programs: &[] }
    }
}

/// The server, the host and the guest.
pub(super) struct Subject {
    // Dropped in this order: the guest before its network, and the network before the namespace.
    pub(super) measured: Measured,
    pub(super) page: HostPage,
    pub(super) lan: Lan,
    pub(super) host: Host,
    pub(super) server: Chronyd,
}

/// The guest, whose clocks all run.
pub(super) struct Measured {
    guest: Guest,
    clocks: GuestReader,
    offset: i64,
}

impl Subject {
    /// Starts everything and waits until all clocks are synchronized.
    pub(super) fn start(ctx: &Context, options: Options<'_>) -> anyhow::Result<Self> {
        let server = ctx.chronyd("server")?;
        let lan = Lan::before(ctx, server.namespace())?;
        let host = Host::following(ctx, &server.address().ip().to_string())?;
        host.wait_synchronized(500)?;
        let page = HostPage::open(host.directory())?;
        let measured = Measured::start(ctx, FIRST, (&server, &host, &lan), options)?;
        Ok(Self { measured, page, lan, host, server })
    }

    /// [Starts](Self::start) everything and waits until the clocks have converged.
    pub(super) fn settled(ctx: &Context, options: Options<'_>) -> anyhow::Result<Self> {
        let subject = Self::start(ctx, options)?;
        settle()?;
        Ok(subject)
    }

    /// Starts another measured guest on the same host.
    pub(super) fn another(
        &self,
        ctx: &Context,
        id: (u8, &str),
        options: Options<'_>,
    ) -> anyhow::Result<Measured> {
        Measured::start(ctx, id, (&self.server, &self.host, &self.lan), options)
    }

    /// The guest.
    pub(super) fn guest(&mut self) -> &mut Guest {
        &mut self.measured.guest
    }
}

/// Waits until the clocks have converged.
pub(super) fn settle() -> anyhow::Result<()> {
    println!(
        "  every timevisord asks the server once a second; {} s of warm-up",
        WARM_UP.as_secs()
    );
    timevisor_lab::progress::step("all clocks settle", || interrupt::sleep(WARM_UP))
}

impl Measured {
    fn start(
        ctx: &Context,
        (number, name): (u8, &str),
        (server, host, lan): (&Chronyd, &Host, &Lan),
        options: Options<'_>,
    ) -> anyhow::Result<Self> {
        let page = HostPage::open(host.directory())?;
        let tai_offset = page.read()?.tai_offset().context("the host knows no TAI - UTC")?;
        let address = server.address().ip().to_string();
        let socket = host.directory().join(format!("{name}.clocks"));
        let append = options.append;
        let mut guest = fleet(ctx, &address, tai_offset, options)?
            .with(|builder| builder.memory_mib(MEMORY_MIB).port(PORT, &socket).append(append))
            .launch(host, name, &lan.arguments(number, false)?)?;
        host.wait_vm(name, "synchronized")?;
        guest.sh(&lan.guest_setup(number))?;
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
        let offset = offset(host, name)?;
        let clocks = GuestReader::connect(&socket)?;
        Ok(Self { guest, clocks, offset })
    }

    /// Sends a request to lab-clocks.
    pub(super) fn ask(&mut self) -> anyhow::Result<Value> {
        self.clocks.ask("clocks")
    }

    /// The host's counter value that corresponds to one of the guest's.
    pub(super) fn host_counter(&self, guest: u64) -> u64 {
        guest.wrapping_sub(self.offset.cast_unsigned())
    }

    /// The VM.
    pub(super) fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

fn fleet(
    ctx: &Context,
    server: &str,
    tai_offset: i16,
    options: Options<'_>,
) -> anyhow::Result<Fleet> {
    let (kernel, qemu) = (ctx.kernel(KERNEL)?, ctx.qemu_10()?);
    let mut image = ctx.image(&kernel)?.module("virtio_net");
    for program in ["lab-clocks"].iter().chain(options.programs) {
        image = image.program(&ctx.program("timevisor-lab-guest", program)?);
    }
    for program in ["timevisord", "timevisor"] {
        image = image.program(&ctx.program(program, program)?);
    }
    for program in ["/usr/sbin/chronyd", "/usr/bin/chronyc"] {
        image = image.dynamic_program(Path::new(program))?;
    }
    // chronyd looks up its user.
    let files = [
        ("/etc/chrony.conf", format!("server {server} {}\nmakestep 0.001 3\n", options.chronyd)),
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
