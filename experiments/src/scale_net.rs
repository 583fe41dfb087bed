//! Figures 11b to 14: error and bounds beside guests that receive or send as fast as they can, and
//! then with a rate limit.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use timevisor_lab::command::Tethered;
use timevisor_lab::guest::Guest;
use timevisor_lab::scenario::Context;

use super::fleet::Fleet;
use super::steps::{self, Step};
use super::subject::{Options, Subject};
use super::watch::watch;

/// As in the paper, up to 5 beside the measured one.
const GUESTS: [usize; 5] = [1, 2, 3, 4, 5];
/// The paper's limit for each guest, 2 MB/s.
const LIMIT_MBIT_S: u32 = 16;
const PORT: u16 = 5001;
const SETTLE: Duration = Duration::from_secs(4);

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let mut subject = Subject::settled(ctx, Options::default())?;
    let _peer = serve(ctx, &subject)?;
    let mut guests = boot(ctx, &subject)?;
    let target = format!("{}:{PORT}", subject.server.address().ip());
    let loads = [("receive", false), ("send", false), ("receive", true), ("send", true)];
    let each = span / u32::try_from(loads.len() * GUESTS.len() + 1)?;
    let epoch = Instant::now();
    timevisor_lab::interrupt::sleep(SETTLE)?;
    let mut done = vec![Step {
        label: "idle guests".into(),
        facts: json!({"guests": 0, "direction": null, "limit_mbit_s": null}),
        samples: watch(&mut subject, epoch, each)?,
    }];
    let mut limited = false;
    for (direction, limit) in loads {
        if limit && !limited {
            for number in 1..=guests.len() {
                subject.lan.limit(u8::try_from(number)?, LIMIT_MBIT_S)?;
            }
            limited = true;
        }
        for count in GUESTS {
            for guest in &mut guests[..count] {
                guest.sh(&format!("lab-load {direction} {target} >/run/load 2>&1 &"))?;
            }
            timevisor_lab::interrupt::sleep(SETTLE)?;
            let (from, began) = (bytes(&subject, count)?, Instant::now());
            let samples = watch(&mut subject, epoch, each)?;
            let moved = bytes(&subject, count)?.wrapping_sub(from) as f64;
            let rate = moved / 1e6 / began.elapsed().as_secs_f64();
            for guest in &mut guests[..count] {
                guest.sh("killall lab-load; true")?;
            }
            let within = if limit { " limited" } else { "" };
            let label = format!("{count} {direction}{within}, {rate:.0} MB/s");
            println!("  {label}: {} samples", samples.len() / 4);
            done.push(Step {
                label,
                facts: json!({"guests": count, "direction": direction, "mbyte_s": rate,
                              "limit_mbit_s": limit.then_some(LIMIT_MBIT_S)}),
                samples,
            });
        }
    }
    steps::report(ctx, "quartzv-scale-net", &done)
}

/// The peer of the load, in the NTP server's namespace.
fn serve(ctx: &Context, subject: &Subject) -> anyhow::Result<Tethered> {
    let program = ctx.program("timevisor-lab-guest", "lab-load")?;
    let mut command = subject.server.namespace().command(Path::new(&program));
    command.args(["serve", &format!("0.0.0.0:{PORT}")]);
    Tethered::spawn(&mut command, "lab-load", &ctx.path("load.log"))
}

fn boot(ctx: &Context, subject: &Subject) -> anyhow::Result<Vec<Guest>> {
    let fleet = Fleet::new(ctx, &["lab-load"])?;
    let most = GUESTS.into_iter().max().unwrap_or(0);
    let mut guests = Vec::new();
    for number in 1..=u8::try_from(most)? {
        let arguments = subject.lan.arguments(number, true)?;
        let mut guest = fleet.launch(&subject.host, &format!("load-{number}"), &arguments)?;
        guest.sh(&subject.lan.guest_setup(number))?;
        guests.push(guest);
    }
    Ok(guests)
}

/// Bytes transferred by the first `count` guests so far, in both directions.
fn bytes(subject: &Subject, count: usize) -> anyhow::Result<u64> {
    let each = (1..=u8::try_from(count)?).map(|number| subject.lan.bytes(number));
    each.map(|pair| pair.map(|(received, sent)| received + sent)).sum()
}
