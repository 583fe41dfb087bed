//! Figures 11a and 12a: error and bounds beside guests that keep their processors busy by reading
//! their pages.

use std::time::{Duration, Instant};

use serde_json::json;
use timevisor_lab::guest::Guest;
use timevisor_lab::interrupt;
use timevisor_lab::scenario::Context;

use super::fleet::Fleet;
use super::steps::{self, Step};
use super::subject::{Options, Subject};
use super::watch::watch;

/// The paper uses 1 to 8 on 8 virtual cores. Here two guests already fill 2 cores, and more guests
/// overcommit them.
const GUESTS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
/// Time from a new load to the samples.
const SETTLE: Duration = Duration::from_secs(5);

pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let mut subject = Subject::settled(ctx, Options::default())?;
    let fleet = Fleet::new(ctx, &["lab-load"])?;
    let each = span / u32::try_from(GUESTS.len())?;
    let epoch = Instant::now();
    let (mut guests, mut done) = (Vec::new(), Vec::new());
    for count in GUESTS {
        if let Err(error) = busy(&fleet, &subject, &mut guests, count) {
            interrupt::check()?;
            // An overloaded machine may not manage to boot one more guest; the results so far are
            // still valuable.
            println!("  no {count} guests: {error:#}");
            break;
        }
        timevisor_lab::interrupt::sleep(SETTLE)?;
        let samples = watch(&mut subject, epoch, each)?;
        println!("  {count} busy guests: {} samples", samples.len() / 4);
        done.push(Step {
            label: format!("{count} busy guests"),
            facts: json!({"busy_guests": count}),
            samples,
        });
    }
    steps::report(ctx, "quartzv-scale-cpu", &done)
}

/// Boots more guests until `count` are busy.
fn busy(
    fleet: &Fleet,
    subject: &Subject,
    guests: &mut Vec<Guest>,
    count: usize,
) -> anyhow::Result<()> {
    while guests.len() < count {
        let mut guest = fleet.launch(&subject.host, &format!("load-{}", guests.len()), &[])?;
        // As in the paper: the reader with real-time priority, and another busy program for what is left.
        guest.sh("(while :; do :; done) & chrt -f 50 lab-load spin /dev/vmclock0 &")?;
        guests.push(guest);
    }
    Ok(())
}
