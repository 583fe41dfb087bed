//! Members of one group in 1, 2, 4 and 8 guests and on the host: how long a proposal takes to be decided, and how
//! exactly all fire.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::bus::Bus;
use timevisor_lab::guest::Guest;
use timevisor_lab::host::Host;
use timevisor_lab::lan::Lan;
use timevisor_lab::members::{self, Pace, Proposer};
use timevisor_lab::scenario::Context;
use timevisor_lab::{interrupt, programs};

use super::fleet::{Fleet, KERNEL};

/// Guests with a member each.
const GUESTS: [usize; 4] = [1, 2, 4, 8];
const PORT: u16 = 47_120;
/// From the last join to the first proposal.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(1_000)?;
    let key = host.make_key("cell7.key")?;
    let bus = Bus::start(ctx, &lan, PORT, (members::GROUP, &key), &[])?;
    let fleet = fleet(ctx, &bus)?;
    let span = span / u32::try_from(GUESTS.len())?;
    let (mut guests, mut rows): (Vec<Guest>, Vec<Value>) = (Vec::new(), Vec::new());
    println!(
        "guests  proposals  fired everywhere  decided, median  fires  outside  late: median, p99   widest"
    );
    for count in GUESTS {
        interrupt::check()?;
        while guests.len() < count {
            guests.push(boot(&fleet, &host, &lan, u8::try_from(guests.len())?)?);
        }
        let proposer = Proposer::join(&host, &bus)?;
        for (number, guest) in guests.iter_mut().enumerate() {
            members::start(guest, "/bin/member-c", &name(number), &bus)?;
        }
        proposer.wait_for(count + 1)?;
        interrupt::sleep(SETTLE)?;
        let pace = pace(count);
        let each = usize::try_from(span.as_millis() / pace.apart.as_millis())?.max(1);
        let run = proposer.propose_at(each, &pace)?;
        proposer.leave();
        let mut told = vec![run.fires.clone()];
        for (number, guest) in guests.iter_mut().enumerate() {
            let log = ctx.path(&format!("{count}-{}.txt", name(number)));
            told.push(members::fires(guest, &name(number), &log)?);
        }
        let judged = members::judge(&told, &run).with_context(|| format!("{count} guests"))?;
        let [median, p99] = judged.late_us;
        println!(
            "{count:>6}  {:>9}  {:>16}  {:>12.1} ms  {:>5}  {:>7}  {:>7.1}, {:.1} ms  +-{} us",
            run.proposals,
            run.everywhere,
            run.decided_ms,
            judged.fires,
            judged.outside,
            median as f64 / 1e3,
            p99 as f64 / 1e3,
            judged.widest_us
        );
        rows.push(json!({
            "guests": count, "proposals": run.proposals, "everywhere": run.everywhere, "decided_median_ms": run.decided_ms,
            "fires": judged.fires, "outside": judged.outside, "late_median_us": median, "late_p99_us": p99, "widest_us": judged.widest_us,
        }));
    }
    programs::write_result("quartzv-groups", &rows)
}

/// Two guests keep two processors busy by eight proposals a second. More of them share these processors:
/// each has as much less time for a vote, and twice as many have four times as much to do together.
fn pace(guests: usize) -> Pace {
    let more = u32::try_from(guests.div_ceil(2)).unwrap_or(1);
    Pace {
        at_once: (members::TWO_GUESTS.at_once / guests.div_ceil(2).pow(2)).max(1),
        lead: members::TWO_GUESTS.lead * more,
        apart: members::TWO_GUESTS.apart * more * more,
    }
}

fn name(number: usize) -> String {
    format!("member-{number}")
}

fn fleet(ctx: &Context, bus: &Bus) -> anyhow::Result<Fleet> {
    let (kernel, qemu) = (ctx.kernel(KERNEL)?, ctx.qemu_10()?);
    let image = ctx.image(&kernel)?.module("virtio_net");
    let image = image.program(&members::build(ctx.log_dir())?).program(&bus.authority);
    Fleet::of(ctx, &qemu, &kernel, &image)
}

fn boot(fleet: &Fleet, host: &Host, lan: &Lan, number: u8) -> anyhow::Result<Guest> {
    let name = name(usize::from(number));
    let mut guest = fleet.launch(host, &name, &lan.arguments(number, false)?)?;
    host.wait_vm(&name, "synchronized")?;
    guest.sh(&lan.guest_setup(number))?;
    Ok(guest)
}
