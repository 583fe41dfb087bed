//! The lab: boots stock kernels under stock QEMU with a page, and runs Timevisor's end-to-end
//! tests.
//!
//! The demo and the tests use it; it is never shipped. A test looks like this:
//!
//! ```no_run
//! # fn test(ctx: &timevisor_lab::scenario::Context) -> anyhow::Result<String> {
//! let kernel = ctx.kernel("trixie-backports")?;
//! let image = ctx.image(&kernel)?.program(&ctx.program("timevisor-guest", "timevisor-guest")?);
//! let mut guest = ctx.guest(&ctx.qemu()?, &kernel, &image)?.start()?;
//! guest.wait_ready()?;
//! let version = guest.sh("uname -r")?;
//! # Ok(version) }
//! ```

#![forbid(unsafe_code)]

pub mod apt;
pub mod arm;
pub mod authority;
pub mod brickos;
pub mod builder;
pub mod bus;
pub(crate) mod chrony_client;
pub mod chronyd;
pub mod client;
pub(crate) mod clockbound;
pub mod command;
pub mod comparison;
pub mod container;
pub mod cpio;
mod debian;
pub(crate) mod debs;
pub mod demo;
pub(crate) mod disk;
pub mod docs;
pub mod fetch;
pub mod freertos;
pub mod guest;
pub(crate) mod guest_daemon;
pub mod host;
pub mod image;
pub mod interrupt;
pub mod introspection;
pub mod kernel;
pub mod lan;
pub mod leap;
pub mod libvirt;
pub mod members;
pub mod migration;
pub mod nested;
pub mod netns;
pub mod ntp_impostor;
pub mod ntp_relay;
pub mod ntpd_rs;
pub mod oscillator;
pub mod packages;
pub mod plot;
pub mod programs;
pub mod progress;
pub mod ptp4l;
pub mod python;
pub mod qemu;
pub mod qmp;
pub mod reader;
pub mod real_time;
mod resolve;
pub mod runner;
pub mod scenario;
pub mod scratch;
mod shell;
pub mod snapshots;
pub mod soak;
pub mod ssdt;
pub mod sync;
pub mod tests;
pub mod truth;
pub mod venv;
