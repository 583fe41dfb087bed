//! `make soak`: compares four guests with the host for minutes. It produces the table behind "host
//! and guest read one clock".

use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::json;

use crate::client::{launch_four, offset};
use crate::comparison::{Worst, compare};
use crate::host::Host;
use crate::interrupt;
use crate::programs;
use crate::reader::HostPage;
use crate::scenario::Context;

/// Compares every guest with the host once a second for `minutes`, prints a table and writes
/// target/results/soak.json.
///
/// # Errors
/// When anything fails, or guest and host disagree even once.
pub fn run(ctx: &Context, minutes: u32) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let mut clients = launch_four(ctx, &host)?;
    let page = HostPage::open(host.directory())?;
    let offsets =
        clients.iter().map(|c| offset(&host, &c.name)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut worst = vec![Worst::default(); clients.len()];
    println!("four guests, one comparison a second each, for {minutes} minutes");
    let start = Instant::now();
    for second in 1..=u64::from(minutes) * 60 {
        for ((client, offset), worst) in clients.iter_mut().zip(&offsets).zip(&mut worst) {
            let comparison = compare(&page, &mut client.reader, *offset)?;
            worst
                .add(&comparison)
                .with_context(|| format!("guest {} in second {second}", client.name))?;
        }
        if second % 60 == 0 {
            let widest = worst.iter().map(|w| w.difference).max().unwrap_or(0);
            println!("{:>3} min: |guest - host| <= {widest} ns so far", second / 60);
        }
        while start.elapsed() < Duration::from_secs(second) {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    report(&host, &clients.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), &worst)
}

fn report(host: &Host, names: &[&str], worst: &[Worst]) -> anyhow::Result<()> {
    println!(
        "\nguest  delivery  readings  |guest-host|  outside  ptp0 beyond bracket  widest bound"
    );
    let mut rows = Vec::new();
    for (name, w) in names.iter().zip(worst) {
        let delivery = host.vm(name)?["delivery"].as_str().unwrap_or_default().to_owned();
        let width = w.half_width as f64 / 1000.0;
        println!(
            "{name:<6} {delivery:<9} {:>8}  {:>9} ns  {:>4} ns  {:>16} ns  +-{width:>8.1} us",
            w.count, w.difference, w.outside, w.ptp
        );
        rows.push(json!({
            "guest": name, "delivery": delivery, "readings": w.count, "max_difference_ns": w.difference,
            "max_outside_ns": w.outside, "max_ptp_beyond_bracket_ns": w.ptp, "max_half_width_ns": w.half_width,
        }));
    }
    programs::write_result("soak", &rows)
}
