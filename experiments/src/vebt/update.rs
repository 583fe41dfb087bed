//! Figure 10: how long an update takes from the host to a guest. There the host writes the clock's
//! parameters into the XenStore, and a guest that waits for them reads them; here the host writes a
//! page, and a guest that looks all the time sees it change.
//!
//! Every publication says at which counter value it was made. The guest subtracts that from its own
//! counter when it first sees it, so nothing is asked of two clocks.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::client::{Client, Launch, Way};
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::plot;
use timevisor_lab::progress;
use timevisor_lab::scenario::Context;

use super::busy::Busy;
use super::paper;
use crate::pictures;
use crate::report;
use crate::spread::Spread;

const NAME: &str = "vebt-update";
/// Busy programs on the host.
const BUSY: [usize; 4] = [0, 1, 2, 4];
/// A question to the guest takes so long at most, s.
const AT_ONCE: u64 = 20;

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    // No disk that others keep busy may delay the publications.
    let mut host = Host::in_memory(ctx)?;
    let reference = ntp_reference(&server.address().ip().to_string());
    // Ten updates a second instead of one.
    host.start(&format!("[clock]\npublish_interval = \"100ms\"\n{reference}"))?;
    progress::step("the host's clock", || host.wait_synchronized(500))?;
    let qemu = ctx.qemu_10()?;
    let mut guest = Launch::new(ctx, &host, &qemu, Way::Vmclock, "guest").start()?;
    progress::step("the guest boots", || {
        guest.guest.wait_ready()?;
        host.wait_vm("guest", "synchronized")
    })?;
    let each = span.as_secs() / BUSY.len() as u64;
    let (mut busy, mut found) = (Vec::<Busy>::new(), Vec::new());
    for count in BUSY {
        interrupt::check()?;
        while busy.len() < count {
            busy.push(Busy::start(ctx)?);
        }
        let name = format!("{count} busy programs on the host");
        let all = progress::step(&name, || updates(&mut guest, each))?;
        found.push((name, all));
    }
    println!("\nfrom the host's write to the guest's read, us\n{:<45} {}", "load", Spread::HEAD);
    let mut rows = Vec::new();
    for (name, all) in &found {
        let spread = Spread::of(all);
        println!("{name:<45} {}", spread.line());
        rows.push(json!({"load": name, "us": spread.json()}));
    }
    println!("paper: {}", paper::UPDATE);
    let sets: Vec<_> = found.iter().map(|(name, all)| (name.clone(), &all[..])).collect();
    plot::write(NAME, &pictures::shares(NAME, "us from write to read", &sets))?;
    report::write(NAME, rows)
}

/// The age of each update when the guest first saw it, us.
fn updates(guest: &mut Client, seconds: u64) -> anyhow::Result<Vec<f64>> {
    let (mut left, mut all) = (seconds.max(1), Vec::new());
    while left > 0 {
        let now = left.min(AT_ONCE);
        let said = guest.reader.ask(&format!("updates {now}"))?;
        let ages = said["us"].as_array().with_context(|| format!("no ages: {said}"))?;
        all.extend(ages.iter().filter_map(Value::as_f64));
        left -= now;
    }
    Ok(all)
}
