//! Figures 6 and 9: what the host adds to an exchange with a server ("system noise", RTThost),
//! depending on the guests beside it.
//!
//! The paper defines it as the difference between the round trip seen by the host and the one seen
//! by a DAG card in front of its network card. Here the server is a chronyd in a network namespace
//! of the same machine, and there is no network: the round trip minus the server's residence time
//! is due entirely to the host (and to the other end of the exchange). Timestamps are taken by a
//! program, as in most programs; timevisord itself uses kernel timestamps. A virtual machine does
//! not have the deeper C-states by which figure 6 is ordered.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use timevisor_lab::guest::Guest;
use timevisor_lab::host::Host;
use timevisor_lab::interrupt;
use timevisor_lab::lan::Lan;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::scenario::Context;

use super::paper;
use crate::fleet::Fleet;
use crate::job;
use crate::report;
use crate::spread::Spread;

const NAME: &str = "vebt-noise";
const PROGRAM: &str = "lab-exchange";
/// Number of guests, and afterwards the number of busy guests among them.
const GUESTS: [usize; 3] = [1, 2, 4];
/// Time between two exchanges, ms.
const INTERVAL: &str = "50";
const SETTLE: Duration = Duration::from_secs(5);
/// Native without and with the bridge, then with idle and with busy guests.
const STEPS: u32 = 2 + 2 * 3;

/// The noise of the host and of all guests under one load, us.
struct Step {
    label: String,
    host: Spread,
    guests: Vec<Spread>,
}

struct Bench {
    program: PathBuf,
    server: String,
    each: Duration,
}

impl Bench {
    fn arguments(&self) -> [String; 3] {
        [self.server.clone(), self.each.as_secs_f64().to_string(), INTERVAL.into()]
    }

    /// Measures the host and all guests simultaneously.
    fn step(&self, label: &str, guests: &mut [Guest]) -> anyhow::Result<Step> {
        let arguments = self.arguments();
        for guest in &mut *guests {
            job::begin(guest, &format!("{PROGRAM} {}", arguments.join(" ")))?;
        }
        let host = spread(&job::native(&self.program, &arguments.each_ref().map(String::as_str))?)?;
        let guests =
            guests.iter_mut().map(|g| spread(&job::end(g)?)).collect::<anyhow::Result<Vec<_>>>()?;
        println!("{label:<28} host              {}", host.line());
        for (n, guest) in guests.iter().enumerate() {
            println!("{:<28} guest {n}           {}", "", guest.line());
        }
        Ok(Step { label: label.to_owned(), host, guests })
    }
}

fn spread(found: &Value) -> anyhow::Result<Spread> {
    let values = found["host_us"].as_array().context("no host_us")?;
    Ok(Spread::of(&values.iter().filter_map(Value::as_f64).collect::<Vec<_>>()))
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let server = ctx.chronyd("server")?;
    let bench = Bench {
        program: ctx.program("timevisor-lab-guest", PROGRAM)?,
        server: server.address().to_string(),
        each: span / STEPS,
    };
    println!(
        "  an exchange every {INTERVAL} ms, {:.0} s a row\n\nround trip less what the server held, us\n{:<45} {}",
        bench.each.as_secs_f64(),
        "load",
        Spread::HEAD
    );
    let mut steps = vec![bench.step("native, no bridge", &mut [])?];
    let lan = Lan::before(ctx, server.namespace())?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    steps.push(bench.step("bridge, no guest", &mut [])?);
    let fleet = Fleet::new(ctx, &[PROGRAM, "lab-load"])?;
    let mut guests: Vec<Guest> = Vec::new();
    for count in GUESTS {
        while guests.len() < count {
            let number = u8::try_from(guests.len())?;
            let name = format!("guest-{number}");
            let mut guest = fleet.launch(&host, &name, &lan.arguments(number, false)?)?;
            host.wait_vm(&name, "synchronized")?;
            guest.sh(&lan.guest_setup(number))?;
            guests.push(guest);
        }
        interrupt::sleep(SETTLE)?;
        steps.push(bench.step(&format!("{count} idle guests"), &mut guests)?);
    }
    let (all, mut busy) = (guests.len(), 0);
    for count in GUESTS {
        while busy < count {
            guests[busy].sh("lab-load spin /dev/vmclock0 &")?;
            busy += 1;
        }
        interrupt::sleep(SETTLE)?;
        steps.push(bench.step(&format!("{all} guests, {count} busy"), &mut guests)?);
    }
    println!("paper: {}", paper::NOISE);
    plot::write(NAME, &picture(&steps))?;
    report::write(NAME, steps.iter().map(Step::json).collect())
}

impl Step {
    fn json(&self) -> Value {
        let guests: Vec<Value> = self.guests.iter().map(Spread::json).collect();
        json!({"load": self.label, "host_us": self.host.json(), "guests_us": guests})
    }
}

/// The lines of a box plot for each step, with the worst guest's median.
fn picture(steps: &[Step]) -> String {
    let of = |name: &str, value: fn(&Step) -> Option<f64>| Series {
        name: name.to_owned(),
        points: steps.iter().enumerate().filter_map(|(n, s)| Some((n as f64, value(s)?))).collect(),
    };
    let worst = |step: &Step| step.guests.iter().map(|g| g.median).reduce(f64::max);
    let series = vec![
        of("host, first quartile", |s| Some(s.host.p25)),
        of("host, median", |s| Some(s.host.median)),
        of("host, third quartile", |s| Some(s.host.p75)),
        of("host, 99th percentile", |s| Some(s.host.p99)),
        of("guests, largest median", worst),
    ];
    let axis = steps.iter().enumerate().map(|(n, s)| format!("{n} {}", s.label));
    let axis = axis.collect::<Vec<_>>().join("; ");
    plot::lines(NAME, [axis.as_str(), "us"], series, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_guests_are_in_the_picture() {
        let found = json!({"asked": 3, "host_us": [50.0, 60.0, 40.0]});
        let host = spread(&found).unwrap();
        assert_eq!((host.count, host.median), (3, 50.0));
        let alone = Step { label: "native".into(), host, guests: Vec::new() };
        let beside = Step { label: "1 idle".into(), host, guests: vec![host, host] };
        let svg = picture(&[alone, beside]);
        assert!(
            svg.contains("guests, largest median") && svg.contains("0 native; 1 1 idle"),
            "{svg}"
        );
        assert!(spread(&json!({})).is_err());
    }
}
