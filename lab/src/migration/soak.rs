//! Many moves between hosts with different oscillators. It compares the page with a chronyd inside
//! the guest.
//!
//! The chronyd steers the guest's CLOCK_REALTIME and polls one of the two servers every second,
//! over a network that moves with the guest. This is the usual way to keep time in a guest
//! (Broomhead and others, "Virtualize everything but time", figure 11).

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use timevisor_linux::counter::Tsc;

use super::journey::{Course, Move, preparing, text};
use super::pair::Hosts;
use crate::chronyd::bound_ns;
use crate::client::{self, Client, Launch, Way, connect_port};
use crate::host::Host;
use crate::image::Image;
use crate::interrupt;
use crate::lan::Lan;
use crate::plot::{self, Series};
use crate::programs;
use crate::scenario::Context;
use crate::truth::Truth;

const NAME: &str = "soak-migrate";
const PORT: &str = "org.timevisor.clocks";
/// The guest's number on the LAN.
const NUMBER: u8 = 0;
/// The first stays are all watched and drawn; of the others, every fifth is watched.
const DRAWN: usize = 10;
/// How long all clocks are read after such a move, and at which interval.
const WATCHED: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_millis(500);

/// How often a guest moves, which stays are watched, and how its chronyd is configured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Number of moves.
    pub moves: usize,
    /// Selects the watched stays; 0 is the one before the first move.
    pub is_watched: fn(usize) -> bool,
    /// How long all clocks are read during such a stay.
    pub watched: Duration,
    /// Time for chronyd to settle before the first stay.
    pub settle: Duration,
    /// What follows `server ADDRESS` in chrony.conf(5).
    pub server: &'static str,
    /// Further lines of chrony.conf.
    pub lines: &'static str,
}

/// Chronyd with its fastest settings.
const SOAK: Plan = Plan {
    moves: 0,
    is_watched: |stay| stay <= DRAWN || stay.is_multiple_of(5),
    watched: WATCHED,
    settle: Duration::from_secs(60),
    server: "iburst minpoll 0 maxpoll 0",
    lines: "makestep 0.001 3\n",
};

/// The errors of both clocks at one moment (reading minus truth), us.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The stay's number; 0 is the one before the first move.
    pub stay: usize,
    /// Time since the first sample, s.
    pub at_s: f64,
    /// Time since the first sample of this stay, s.
    pub since_s: f64,
    /// Error of the page's estimate.
    pub page_us: f64,
    /// Half-width of the page's bounds.
    pub page_half_width_us: f64,
    /// Error of CLOCK_REALTIME, which chronyd steers.
    pub chronyd_us: f64,
    /// Whether the bound that chronyd states contained the truth.
    pub chronyd_held: bool,
}

/// All results.
#[derive(Debug)]
pub struct Soaked {
    moves: Vec<Move>,
    /// In chronological order.
    pub samples: Vec<Sample>,
}

impl Soaked {
    /// A short summary of the moves.
    #[must_use]
    pub fn text(&self) -> String {
        text(&self.moves)
    }

    /// Rows for a result file: moves, then samples.
    #[must_use]
    pub fn rows(&self) -> Vec<Value> {
        rows(&self.moves, &self.samples)
    }
}

/// Makes `moves` moves; prints a table and writes target/results/soak-migrate.json and .svg.
///
/// # Errors
/// As soon as a reading of the page is wrong.
pub fn run(ctx: &Context, moves: usize) -> anyhow::Result<()> {
    let soaked = travel(ctx, &Plan { moves, ..SOAK })?;
    println!("{}", soaked.text());
    summary(&soaked.samples);
    plot::write(NAME, &picture(&soaked.samples))?;
    programs::write_result(NAME, &soaked.rows())
}

/// Moves a guest between two hosts with different oscillators.
///
/// # Errors
/// As soon as a reading of the page is wrong.
pub fn travel(ctx: &Context, plan: &Plan) -> anyhow::Result<Soaked> {
    let hosts = Hosts::apart(ctx)?;
    let lan = Lan::before(ctx, hosts.servers[0].namespace())?;
    let server = hosts.servers[0].address().ip().to_string();
    let config = ctx.path("chrony.conf");
    std::fs::write(&config, format!("server {server} {}\n{}", plan.server, plan.lines))?;
    let passwd = ctx.path("passwd");
    std::fs::write(&passwd, "root:x:0:0:root:/:/bin/sh\n")?;
    let clocks = ctx.program("timevisor-lab-guest", "lab-clocks")?;
    let image = move |image: Image| -> anyhow::Result<Image> {
        let mut image = image.module("virtio_net").program(&clocks);
        for program in ["/usr/sbin/chronyd", "/usr/bin/chronyc"] {
            image = image.dynamic_program(Path::new(program))?;
        }
        let image = image.file(&config, "/etc/chrony.conf", 0o644);
        Ok(image.file(&passwd, "/etc/passwd", 0o644))
    };
    let prepare = preparing(|stay, launch| prepared(&lan, &image, stay, launch));
    let began = Instant::now();
    let mut samples: Vec<Sample> = Vec::new();
    let mut visit = |stay: usize, host: &Host, guest: &mut Client| {
        if stay == 0 {
            start_chronyd(&lan, guest, plan.settle)?;
        }
        if (plan.is_watched)(stay) {
            watch(stay, host, guest, (began, plan.watched), &mut samples)?;
        }
        println!("{:.0} s: stay {stay} done", began.elapsed().as_secs_f64());
        Ok(())
    };
    let qemu = ctx.qemu_10()?;
    let moves = plan.moves;
    let course = Course { ctx, hosts: &hosts, way: Way::Vmclock, qemu: &qemu, number: 0, moves };
    let moves = course.travel(&prepare, &mut visit)?;
    Ok(Soaked { moves, samples })
}

fn prepared<'l>(
    lan: &Lan,
    image: &(impl Fn(Image) -> anyhow::Result<Image> + Clone + 'static),
    stay: usize,
    launch: Launch<'l>,
) -> anyhow::Result<Launch<'l>> {
    // The source QEMU still exists.
    let arguments = lan.arguments_at(u8::try_from(1 + stay % 2)?, NUMBER)?;
    Ok(launch
        .image(image.clone())
        .builder(move |builder| builder.args(arguments.clone()))
        .ports(&[PORT]))
}

fn start_chronyd(lan: &Lan, guest: &mut Client, settle: Duration) -> anyhow::Result<()> {
    guest.guest.sh(&lan.guest_setup(NUMBER))?;
    guest.guest.sh("mkdir -p /run/chrony /var/lib/chrony; chmod 750 /run/chrony; chronyd -u root -f /etc/chrony.conf")?;
    let normal = interrupt::poll_until(Duration::from_secs(60), || {
        let said = guest.guest.sh("chronyc -n tracking 2>&1 || true")?;
        Ok(said.contains("Leap status     : Normal").then_some(()))
    })?;
    normal.context("chronyd in the guest does not synchronize")?;
    guest.guest.sh(&format!(
        "lab-clocks /dev/virtio-ports/{PORT} guest=/dev/vmclock0 >/run/clocks.log 2>&1 &"
    ))?;
    interrupt::sleep(settle)
}

fn watch(
    stay: usize,
    host: &Host,
    guest: &Client,
    (began, watched): (Instant, Duration),
    samples: &mut Vec<Sample>,
) -> anyhow::Result<()> {
    let mut clocks = connect_port(host, &guest.name, PORT)?;
    let offset = client::offset(host, &guest.name)?;
    let here = Instant::now();
    while here.elapsed() < watched {
        let (at_s, since_s) = (began.elapsed().as_secs_f64(), here.elapsed().as_secs_f64());
        let (answer, truth) = Truth::around(&Tsc::unchecked(), || clocks.ask("clocks"))?;
        let ns = |value: &Value, name: &str| {
            value[name].as_i64().with_context(|| format!("no {name} in {answer}"))
        };
        let true_at = |value: &Value| -> anyhow::Result<i64> {
            let at = |name: &str| -> anyhow::Result<i64> {
                let counter =
                    value[name].as_u64().with_context(|| format!("no {name} in {answer}"))?;
                let counter = counter.wrapping_add_signed(-offset);
                Ok(truth
                    .at(host.oscillator().map_or(counter, |oscillator| oscillator.tsc(counter))))
            };
            Ok(at("before")?.midpoint(at("after")?))
        };
        let page = &answer["pages"]["guest"];
        let true_ns = true_at(page)?;
        let (earliest, latest) = (ns(page, "earliest_ns")?, ns(page, "latest_ns")?);
        let slack = truth.uncertainty_ns();
        ensure!(
            earliest - slack <= true_ns && true_ns <= latest + slack,
            "stay {stay}: true was {true_ns}: {page}"
        );
        let us = |ns: i64| ns as f64 / 1e3;
        let chronyd = ns(&answer["realtime"], "ns")? - true_at(&answer["realtime"])?;
        let bound = answer["tracking"].as_str().and_then(bound_ns);
        samples.push(Sample {
            stay,
            at_s,
            since_s,
            page_us: us(ns(page, "estimate_ns")? - true_ns),
            page_half_width_us: us(latest - earliest) / 2.0,
            chronyd_us: us(chronyd),
            chronyd_held: bound.is_some_and(|bound| chronyd.abs() <= bound + slack),
        });
        interrupt::sleep(STEP)?;
    }
    Ok(())
}

/// Prints the errors of both clocks by the time since the guest arrived.
fn summary(samples: &[Sample]) {
    println!(
        "since the move, s | page: median |error|, most, us | chronyd inside: median |error|, most, us; its bound held"
    );
    for step in 0..(WATCHED.as_millis() / STEP.as_millis()) as usize {
        let from = step as f64 * STEP.as_secs_f64();
        let of = |s: &&Sample| s.stay > 0 && (from..from + STEP.as_secs_f64()).contains(&s.since_s);
        let these: Vec<&Sample> = samples.iter().filter(of).collect();
        if these.is_empty() {
            continue;
        }
        let (page, page_most) = median_and_most(these.iter().map(|s| s.page_us.abs()));
        let (chronyd, chronyd_most) = median_and_most(these.iter().map(|s| s.chronyd_us.abs()));
        let held = these.iter().filter(|s| s.chronyd_held).count();
        println!(
            "{from:.1} | {page:.1} {page_most:.1} | {chronyd:.0} {chronyd_most:.0}; {held} of {}",
            these.len()
        );
    }
}

fn median_and_most(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}

/// The first moves, as in the paper's figure 11.
fn picture(samples: &[Sample]) -> String {
    let first = |s: &&Sample| s.stay <= DRAWN;
    let start = samples.first().map_or(0.0, |s| s.at_s);
    let of = |name: &str, value: fn(&Sample) -> f64| Series {
        name: name.to_owned(),
        points: samples.iter().filter(first).map(|s| (s.at_s - start, value(s) / 1e3)).collect(),
    };
    let series = vec![of("chronyd inside the guest", |s| s.chronyd_us), of("page", |s| s.page_us)];
    plot::lines(
        "ten migrations between hosts of different oscillators",
        ["time, s", "offset from truth, ms"],
        series,
        false,
    )
}

fn rows(moves: &[Move], samples: &[Sample]) -> Vec<Value> {
    let moved = moves.iter().enumerate().map(|(n, one)| {
        json!({
            "move": n + 1, "reads": one.reads, "unknown": one.unknown, "gap_ms": one.gap_ms, "ran_us": one.ran_us,
            "error_us": one.error_us, "half_width_us": one.half_width_us, "held_ms": one.held_ms,
        })
    });
    let sampled = samples.iter().map(|s| {
        json!({
            "stay": s.stay, "at_s": s.at_s, "since_s": s.since_s, "page_us": s.page_us,
            "page_half_width_us": s.page_half_width_us, "chronyd_us": s.chronyd_us, "chronyd_held": s.chronyd_held,
        })
    });
    moved.chain(sampled).collect()
}
