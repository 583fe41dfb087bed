//! The controllers of clients/rust/examples/controller.rs in two guests: they act together at
//! planned instants, and do not act while the clock is worse than the plan requires.
//!
//! Their actions are judged by the true time: the lab's server serves this machine's
//! CLOCK_REALTIME, and the guests' counters are this machine's, shifted.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;
use timevisor_linux::clock::{Bracket, bracket};

use crate::chronyd::Chronyd;
use crate::client::{Client, Launch, Way, connect_port, offset};
use crate::host::Host;
use crate::interrupt;
use crate::reader::{GuestReader, HostPage};
use crate::scenario::Context;
use crate::tests::faults::common::truth;

const PORT: &str = "org.example.controller";
const PLANS: usize = 40;
const MS: i64 = 1_000_000;

/// How long bounds may take to grow beyond a limit, and to come back within it.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Copy)]
struct Plan {
    t_ns: i64,
    max_error_ns: i64,
    latest_ns: i64,
}

impl Plan {
    /// A plan for the near future that tolerates the lateness of a loaded machine.
    fn soon(max_error_ns: i64) -> Self {
        let t_ns = truth().floor_nanos() + 200 * MS;
        Self { t_ns, max_error_ns, latest_ns: t_ns + 20_000 * MS }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Fired {
        actual_ns: i64,
        error_ns: i64,
        counter: u64,
    },
    TooLate,
    Violated {
        half_width_ns: u64,
    },
    /// Nothing is known; it does not act.
    NoTime,
}

impl Outcome {
    fn of(answer: &Value) -> anyhow::Result<Self> {
        let ns = |name: &str| answer[name].as_i64().with_context(|| format!("no {name}: {answer}"));
        let outcome = match answer["outcome"].as_str() {
            Some("fired") => Self::Fired {
                actual_ns: ns("actual_ns")?,
                error_ns: ns("error_ns")?,
                counter: answer["counter"].as_u64().context("no counter")?,
            },
            Some("too_late") => Self::TooLate,
            Some("qot_violated") => Self::Violated {
                half_width_ns: answer["half_width_ns"].as_u64().context("no half_width_ns")?,
            },
            Some("no_time") => Self::NoTime,
            _ => bail!("unexpected: {answer}"),
        };
        let wanted = if outcome.has_fired() { ("normal", "open") } else { ("degraded", "shut") };
        ensure!(answer["mode"] == wanted.0 && answer["valve"] == wanted.1, "{answer}");
        Ok(outcome)
    }

    fn has_fired(self) -> bool {
        matches!(self, Self::Fired { .. })
    }
}

/// Both controllers, and the worst values observed.
struct Cell {
    page: HostPage,
    controllers: [(GuestReader, i64); 2],
    fired: usize,
    refused: usize,
    error_ns: i64,
    lateness_ns: Vec<i64>,
    off_ns: Vec<i64>,
    apart_ns: Vec<i64>,
    truly_apart_ns: Vec<i64>,
}

impl Cell {
    /// Gives both controllers the plan at the same time and judges what they did.
    fn act(&mut self, plan: Plan) -> anyhow::Result<[Outcome; 2]> {
        interrupt::check()?;
        let before = bracket(self.page.counter(), 5);
        let line = format!("act {} {} {}", plan.t_ns, plan.max_error_ns, plan.latest_ns);
        let [(a, _), (b, _)] = &mut self.controllers;
        let (a, b) = std::thread::scope(|scope| {
            let a = scope.spawn(|| a.ask(&line));
            let b = b.ask(&line);
            (a.join(), b)
        });
        let (a, b) = (a.map_err(|_| anyhow::anyhow!("the asking thread panicked"))??, b?);
        let after = bracket(self.page.counter(), 5);
        let outcomes = [Outcome::of(&a)?, Outcome::of(&b)?];
        let mut instants = Vec::new();
        for (outcome, (_, offset)) in outcomes.iter().zip(&self.controllers) {
            match *outcome {
                Outcome::Fired { actual_ns, error_ns, counter } => {
                    let here = counter.wrapping_sub(offset.cast_unsigned());
                    let (true_ns, slack_ns) = truth_at(&before, &after, here)?;
                    ensure!(
                        error_ns <= plan.max_error_ns,
                        "fired without what it needs: {outcome:?}"
                    );
                    ensure!(actual_ns >= plan.t_ns && actual_ns <= plan.latest_ns, "{outcome:?}");
                    ensure!(
                        (actual_ns - true_ns).abs() <= error_ns + slack_ns,
                        "{outcome:?}, but truly {true_ns} (+-{slack_ns})"
                    );
                    self.fired += 1;
                    self.error_ns = self.error_ns.max(error_ns);
                    self.lateness_ns.push(actual_ns - plan.t_ns);
                    self.off_ns.push((actual_ns - true_ns).abs());
                    instants.push((actual_ns, true_ns));
                }
                Outcome::Violated { half_width_ns } => {
                    ensure!(half_width_ns.cast_signed() > plan.max_error_ns, "{outcome:?}");
                    self.refused += 1;
                }
                Outcome::NoTime => bail!("the time is lost without a reason"),
                Outcome::TooLate => {}
            }
        }
        if let [a, b] = instants[..] {
            self.apart_ns.push((a.0 - b.0).abs());
            self.truly_apart_ns.push((a.1 - b.1).abs());
        }
        Ok(outcomes)
    }

    /// Repeats plans until both outcomes are as wanted.
    fn until(
        &mut self,
        what: &str,
        max_error_ns: i64,
        wanted: impl Fn(Outcome) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let outcomes = self.act(Plan::soon(max_error_ns))?;
            if outcomes.into_iter().all(&wanted) {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}: {outcomes:?}");
            // Refusals are immediate.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Repeats plans until both controllers refuse, then checks that they keep refusing.
    fn until_refused(&mut self, what: &str, max_error_ns: i64) -> anyhow::Result<Duration> {
        let took = self.until(what, max_error_ns, |o| matches!(o, Outcome::Violated { .. }))?;
        for _ in 0..5 {
            let outcomes = self.act(Plan::soon(max_error_ns))?;
            ensure!(!outcomes.iter().any(|o| o.has_fired()), "{what}: {outcomes:?}");
        }
        Ok(took)
    }
}

/// The true time at this counter value, from the two brackets around it, and its uncertainty, in
/// ns.
fn truth_at(before: &Bracket, after: &Bracket, counter: u64) -> anyhow::Result<(i64, i64)> {
    ensure!((before.before..=after.after).contains(&counter), "fired at no time of this plan");
    let middle = |b: &Bracket| i128::from(b.before) + i128::from(b.width() / 2);
    let (c0, c1) = (middle(before), middle(after));
    let (t0, t1) = (before.realtime.floor_nanos(), after.realtime.floor_nanos());
    let span_ns = i128::from(t1 - t0);
    let at = |ticks: i128| i64::try_from(ticks * span_ns / (c1 - c0));
    let width = before.width().max(after.width());
    // The lab's servers are 37 s behind TAI, as is UTC.
    let true_ns = t0 + 37_000 * MS + at(i128::from(counter) - c0)?;
    Ok((true_ns, at(i128::from(width))? + 1))
}

fn guest(ctx: &Context, host: &Host, name: &str) -> anyhow::Result<Client> {
    let (qemu, programs) = (ctx.qemu_10()?, [ctx.example("timevisor-client", "controller")?]);
    Launch::new(ctx, host, &qemu, Way::Vmclock, name).programs(&programs).ports(&[PORT]).start()
}

/// Starts the guest's controller; returns it with the offset of the guest's counter.
fn start(host: &Host, client: &mut Client) -> anyhow::Result<(GuestReader, i64)> {
    client.guest.wait_ready()?;
    host.wait_vm(&client.name, "synchronized")?;
    client.guest.sh(&format!("controller /dev/virtio-ports/{PORT} >/run/controller.log 2>&1 &"))?;
    Ok((connect_port(host, &client.name, PORT)?, offset(host, &client.name)?))
}

pub(crate) fn controllers(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let mut host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(5_000)?;
    let mut guests = [guest(ctx, &host, "a")?, guest(ctx, &host, "b")?];
    let [a, b] = &mut guests;
    let mut cell = Cell {
        page: HostPage::open(host.directory())?,
        controllers: [start(&host, a)?, start(&host, b)?],
        fired: 0,
        refused: 0,
        error_ns: 0,
        lateness_ns: Vec::new(),
        off_ns: Vec::new(),
        apart_ns: Vec::new(),
        truly_apart_ns: Vec::new(),
    };
    for _ in 0..PLANS {
        let outcomes = cell.act(Plan::soon(10 * MS))?;
        ensure!(outcomes.iter().all(|o| o.has_fired()), "{outcomes:?}");
    }
    let together = format!(
        "{PLANS} plans: late {}; apart by their clocks {}, in truth {}; stated error <= {} us, true \
         error {}",
        text(&cell.lateness_ns),
        text(&cell.apart_ns),
        text(&cell.truly_apart_ns),
        cell.error_ns / 1000,
        text(&cell.off_ns)
    );

    let past = truth().floor_nanos() - 10_000 * MS;
    let late = Plan { t_ns: past, max_error_ns: 10 * MS, latest_ns: past + 5_000 * MS };
    let outcomes = cell.act(late)?;
    ensure!(outcomes == [Outcome::TooLate; 2], "a command of the past: {outcomes:?}");
    cell.until("normal again", 10 * MS, Outcome::has_fired)?;

    // Slightly more than the worst error so far; without new exchanges, the bounds outgrow it
    // within a minute.
    let limit_ns = cell.error_ns + cell.error_ns / 4 + 100_000;
    let namespace = server.stop();
    let deaf = cell.until_refused("refusing without a server", limit_ns)?;
    let _server =
        Chronyd::start_in(namespace, 123, "server-again", ctx.log_dir(), "local stratum 1\n")?;
    let heard = cell.until("the server is back", limit_ns, Outcome::has_fired)?;

    host.kill();
    let alone = cell.until_refused("refusing without timevisord", limit_ns)?;
    host.restart()?;
    let resumed = cell.until("timevisord is back", limit_ns, Outcome::has_fired)?;
    Ok(format!(
        "{together}; late commands refused; with a limit of {} us both refused {} s after the server had gone and fired {} s \
         after its return, {} s and {} s for timevisord; {} fired, none beyond its stated error, {} refused",
        limit_ns / 1000,
        deaf.as_secs(),
        heard.as_secs(),
        alone.as_secs(),
        resumed.as_secs(),
        cell.fired,
        cell.refused
    ))
}

/// Median and maximum, in us, as text.
fn text(all: &[i64]) -> String {
    let mut all = all.to_vec();
    all.sort_unstable();
    let us = |n: Option<&i64>| n.map_or(0, |ns| ns / 1000);
    format!("{} us, at most {} us", us(all.get(all.len() / 2)), us(all.last()))
}
