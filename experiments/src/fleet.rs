//! Guests with a page each, started as the documentation tells users to.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use timevisor_lab::builder::GuestBuilder;
use timevisor_lab::guest::Guest;
use timevisor_lab::host::Host;
use timevisor_lab::image::Image;
use timevisor_lab::kernel::Kernel;
use timevisor_lab::qemu::{Delivery, Qemu};
use timevisor_lab::scenario::Context;
use timevisor_linux::counter::{Choice, calibrate, select};

/// The suite of the kernel that runs in every guest: stock, with the vmclock driver.
pub(super) const KERNEL: &str = "trixie-backports";
/// Enough for the kernel and one small program.
const MEMORY_MIB: u32 = 128;
/// A kernel that starts while others use all processors would find that its timer is late, and
/// panic.
const ANY_TIMER: &str = "no_timer_check";
/// Boot timeout, long enough for the eighth emulated guest on two processors.
const BOOT: Duration = Duration::from_secs(400);

/// What guests are built from.
pub(super) struct Fleet {
    builder: GuestBuilder,
}

impl Fleet {
    /// Guests with these programs from the lab's guest package.
    pub(super) fn new(ctx: &Context, programs: &[&str]) -> anyhow::Result<Self> {
        let (kernel, qemu) = (ctx.kernel(KERNEL)?, ctx.qemu_10()?);
        let mut image = ctx.image(&kernel)?.module("virtio_net");
        // For programs with real-time priority.
        image = image.dynamic_program(Path::new("/usr/bin/chrt"))?;
        for program in programs {
            image = image.program(&ctx.program("timevisor-lab-guest", program)?);
        }
        Self::of(ctx, &qemu, &kernel, &image)
    }

    /// Guests with any image.
    pub(super) fn of(
        ctx: &Context,
        qemu: &Qemu,
        kernel: &Kernel,
        image: &Image,
    ) -> anyhow::Result<Self> {
        let builder = ctx.guest(qemu, kernel, image)?.delivery(Delivery::VmclockDevice).paused();
        let builder = builder.memory_mib(MEMORY_MIB).append(ANY_TIMER).append(&known_rate()?);
        Ok(Self { builder })
    }

    /// Applies changes to QEMU's options.
    pub(super) fn with(self, change: impl FnOnce(GuestBuilder) -> GuestBuilder) -> Self {
        Self { builder: change(self.builder) }
    }

    /// Starts a guest, registers it with timevisord, and waits until it has booted.
    pub(super) fn launch(
        &self,
        host: &Host,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<Guest> {
        let mut guest = self.begin(host, name, arguments)?;
        guest.wait_for_line("LAB-READY", BOOT)?;
        Ok(guest)
    }

    /// Starts a guest and registers it with timevisord; it then boots.
    pub(super) fn begin(
        &self,
        host: &Host,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<Guest> {
        let qmp = host.directory().join(format!("{name}.qmp"));
        let socket = format!("unix:{},server=on,wait=off", qmp.display());
        let guest = self
            .builder
            .clone()
            .name(name)
            .args(["-qmp".to_owned(), socket])
            .args(arguments.iter().cloned())
            .start()?;
        let qmp = qmp.display().to_string();
        host.cli(&["vm", "add", "--qmp", &qmp, "--name", name, "--resume"])
            .with_context(|| format!("guest {name} is not served"))?;
        Ok(guest)
    }
}

/// What KVM tells its guests' kernels: the TSC's rate (an emulated TSC has the host's), and that it
/// is constant. A kernel that had to measure the rate while others used all processors was once
/// wrong by a factor of 5.
fn known_rate() -> anyhow::Result<String> {
    let (counter, _) = select(Choice::Tsc).context("guests need a usable TSC on the host")?;
    let khz = calibrate(&counter)?.period.ticks_in(timevisor_time::Duration::from_millis(1));
    Ok(format!("tsc_early_khz={khz} tsc=reliable"))
}
