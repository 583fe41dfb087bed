//! Emulated guests with our QEMU plugin, for timevisord to introspect.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use crate::client::{Client, Launch, Way};
use crate::host::Host;
use crate::image::Image;
use crate::scenario::Context;

/// An emulated guest "web" with our plugin, these programs and these further arguments; returns
/// once its page is there.
///
/// # Errors
/// When it does not boot.
pub fn emulated(
    ctx: &Context,
    host: &Host,
    programs: &[PathBuf],
    more: &[String],
) -> anyhow::Result<Client> {
    emulated_on(ctx, host, "trixie-backports", programs, more)
}

/// Like [`emulated`], with the kernel of this suite.
///
/// # Errors
/// When it does not boot.
pub fn emulated_on(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    programs: &[PathBuf],
    more: &[String],
) -> anyhow::Result<Client> {
    let programs = programs.to_vec();
    let image = move |image: Image| Ok(programs.iter().fold(image, |image, p| image.program(p)));
    let guest = booted(ctx, host, kernel, image, more)?;
    host.wait_vm("web", "synchronized")?;
    Ok(guest)
}

/// Like [`emulated`], with any changes to its image; its page may not be valid yet.
///
/// # Errors
/// When it does not boot.
pub fn booted(
    ctx: &Context,
    host: &Host,
    kernel: &str,
    image: impl Fn(Image) -> anyhow::Result<Image> + 'static,
    more: &[String],
) -> anyhow::Result<Client> {
    let (qemu, plugin) = (ctx.qemu_10()?, ctx.introspection_plugin()?);
    let socket = host.directory().join("web.introspect");
    let plugin = format!("{},socket={}", plugin.display(), socket.display());
    let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, "web").kernel(kernel).image(image);
    let more = more.to_vec();
    let launch = launch.builder(move |builder| {
        let named = "web,debug-threads=on".to_owned();
        let builder = builder.args(["-plugin".into(), plugin.clone(), "-name".into(), named]);
        builder.args(more.clone())
    });
    let mut guest = launch.start()?;
    guest.guest.wait_ready()?;
    Ok(guest)
}

/// What timevisord reports about the only guest.
///
/// # Errors
/// When there is none.
pub fn row(host: &Host) -> anyhow::Result<Value> {
    host.json(&["introspect", "list"])?.get(0).cloned().context("nothing is introspected")
}
