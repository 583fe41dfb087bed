//! Figure 2: clocks side by side on one host, each compared with the truth and with the others at
//! the same values of one counter.
//!
//! The paper runs RADclock and ntpd on Dom0 with the same stream of NTP packets. Here, two
//! timevisord and a chronyd follow one server, each with its own exchanges, and a third timevisord
//! follows another server. No daemon knows of the others.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use timevisor_lab::chronyd::Chronyd;
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::plot::{self, Series};
use timevisor_lab::progress;
use timevisor_lab::reader::HostPage;
use timevisor_lab::scenario::Context;

use super::beside::Beside;
use super::look::{self, Look, Moment};
use super::paper;
use crate::report;

const NAME: &str = "vebt-side";
const INTERVAL: Duration = Duration::from_millis(500);
const WARM_UP: Duration = Duration::from_secs(60);
/// The daemons, and which server each follows.
const DAEMONS: [(&str, usize); 3] =
    [("timevisord a", 0), ("timevisord b, same server", 0), ("timevisord c, another server", 1)];

/// All clocks at one value of the counter.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at_s: f64,
    pages: [Look; 3],
    chronyd_us: f64,
}

impl Sample {
    /// How far another daemon's clock is from the first one's.
    fn apart_us(&self, other: usize) -> f64 {
        self.pages[other].error_us - self.pages[0].error_us
    }
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let servers = [ctx.chronyd("server-0")?, ctx.chronyd("server-1")?];
    let mut hosts = Vec::new();
    for (number, (name, server)) in DAEMONS.iter().enumerate() {
        hosts.push(progress::step(name, || host(ctx, number, &servers[*server]))?);
    }
    let chronyd = progress::step("chronyd", || {
        Beside::following(servers[0].address().ip(), &ctx.path("beside.log"))
    })?;
    println!(
        "  every daemon asks its server once a second; a look every {} ms",
        INTERVAL.as_millis()
    );
    progress::step("all clocks settle", || interrupt::sleep(WARM_UP))?;
    let pages =
        hosts.iter().map(|h| HostPage::open(h.directory())).collect::<anyhow::Result<Vec<_>>>()?;
    let mut samples = Vec::new();
    progress::step("looking at all clocks", || {
        let began = Instant::now();
        while began.elapsed() < span {
            hosts.iter_mut().try_for_each(Host::check_alive)?;
            let chronyd_us = chronyd.error_us()?;
            let moment = Moment::now()?;
            let look = |n: usize| Look::at(&pages[n], moment.tsc, &moment);
            let pages = [look(0)?, look(1)?, look(2)?];
            samples.push(Sample { at_s: began.elapsed().as_secs_f64(), pages, chronyd_us });
            interrupt::sleep(INTERVAL)?;
        }
        Ok(())
    })?;
    std::fs::write(ctx.path("samples.csv"), csv(&samples))?;
    let rows = table(&samples);
    for (name, svg) in pictures(&samples) {
        plot::write(&name, &svg)?;
    }
    report::write(NAME, rows)
}

fn host(ctx: &Context, number: usize, server: &Chronyd) -> anyhow::Result<Host> {
    let mut host = Host::further(ctx, &format!("daemon-{number}"))?;
    let reference = ntp_reference(&server.address().ip().to_string());
    host.start(&format!("[guests]\ndiscover = false\n{reference}"))?;
    host.wait_synchronized(500)?;
    Ok(host)
}

fn table(samples: &[Sample]) -> Vec<Value> {
    let all = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).collect::<Vec<_>>();
    look::head("error against the truth");
    let mut rows = Vec::new();
    for (n, (name, _)) in DAEMONS.iter().enumerate() {
        rows.push(look::row(name, &all(&|s| s.pages[n].error_us)));
    }
    rows.push(look::row("chronyd, the server of a", &all(&|s| s.chronyd_us)));
    look::head("difference of two clocks");
    for (n, (name, _)) in DAEMONS.iter().enumerate().skip(1) {
        rows.push(look::row(&format!("{name}, less a"), &all(&|s| s.apart_us(n))));
    }
    rows.push(look::row("chronyd, less a", &all(&|s| s.chronyd_us - s.pages[0].error_us)));
    for (n, (name, _)) in DAEMONS.iter().enumerate() {
        let held = samples.iter().filter(|s| s.pages[n].holds()).count();
        let met = samples.iter().filter(|s| s.pages[n].meets(&s.pages[0])).count();
        let widest = samples.iter().map(|s| s.pages[n].half_width_us()).fold(0.0, f64::max);
        println!(
            "{name}: bounds held the truth {held} of {}, and met those of a {met} times; half-width at most {widest:.1} us",
            samples.len()
        );
        rows.push(json!({"row": format!("bounds of {name}"), "count": samples.len(), "held": held, "met_those_of_a": met,
                         "half_width_max_us": widest}));
    }
    println!("paper: {}", paper::SIDE);
    rows
}

fn pictures(samples: &[Sample]) -> [(String, String); 2] {
    let series = |name: &str, of: &dyn Fn(&Sample) -> f64| Series {
        name: name.to_owned(),
        points: samples.iter().map(|s| (s.at_s, of(s))).collect(),
    };
    let mut errors: Vec<Series> = DAEMONS
        .iter()
        .enumerate()
        .map(|(n, (name, _))| series(name, &|s| s.pages[n].error_us))
        .collect();
    errors.push(series("chronyd", &|s| s.chronyd_us));
    let apart = DAEMONS.iter().enumerate().skip(1);
    let apart = apart.map(|(n, (name, _))| series(name, &|s| s.apart_us(n))).collect();
    let draw = |what: &str, series| plot::lines(NAME, ["time, s", what], series, false);
    [
        (NAME.to_owned(), draw("offset from truth, us", errors)),
        (format!("{NAME}-difference"), draw("offset from timevisord a, us", apart)),
    ]
}

fn csv(samples: &[Sample]) -> String {
    let mut text = "at_s,a_us,b_us,c_us,chronyd_us\n".to_owned();
    for s in samples {
        let [a, b, c] = s.pages.map(|page| page.error_us);
        text += &format!("{:.3},{a:.3},{b:.3},{c:.3},{:.3}\n", s.at_s, s.chronyd_us);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_drawn_beside_the_truth_and_beside_the_first() {
        let look =
            |us| Look { error_us: us, earliest_us: us - 8.0, latest_us: us + 8.0, within_us: 0.1 };
        let samples = [1.0, 2.0, 3.0].map(|at_s| Sample {
            at_s,
            pages: [-4.0, -5.0, -3.5].map(look),
            chronyd_us: -1.0,
        });
        assert_eq!((samples[0].apart_us(1), samples[0].apart_us(2)), (-1.0, 0.5));
        let [errors, apart] = pictures(&samples);
        assert!(errors.1.contains(DAEMONS[0].0) && errors.1.contains("chronyd"), "{}", errors.1);
        assert!(apart.1.contains(DAEMONS[1].0) && !apart.1.contains("chronyd"), "{}", apart.1);
        assert_eq!(csv(&samples).lines().count(), 4);
    }
}
