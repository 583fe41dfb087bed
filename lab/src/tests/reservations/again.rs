//! A reservation that is released and made again at once. A thread may leave SCHED_DEADLINE while
//! it is out of budget and come back between its deadline and the moment when its overrun is paid
//! back. Linux never runs such a thread again (`timevisor_guests::reservation::Ledger::leave`).

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::affinity::allowed_of;
use timevisor_linux::scheduling::{Attributes, schedstat};

use crate::client::Client;
use crate::host::{Host, mentions};
use crate::real_time::stolen::of_core_ms;
use crate::real_time::{self, Restore};
use crate::scenario::Context;

/// Repetitions. Without timevisord's wait, the guest freezes for ever after three to nine of them.
const TIMES: u32 = 60;
/// Number of changes that the test itself makes; about every tenth one freezes the guest.
const TRIES: u32 = 300;
const BUDGET: &str = "3ms/30ms";
/// A guest that wants to run does so within this time.
const FROZEN: Duration = Duration::from_millis(500);
const BUSY: &str = "(while :; do :; done) >/dev/null 2>&1 &";

/// The vCPU's thread.
#[derive(Clone, Copy)]
struct Thread {
    pid: u32,
    tid: u32,
}

impl Thread {
    fn ran(self) -> anyhow::Result<u64> {
        Ok(schedstat(self.pid, self.tid)?.ran)
    }

    /// Whether the thread runs within this time.
    ///
    /// Time that this machine's own host took from the core meanwhile does not count.
    fn goes_on(self, within: Duration) -> anyhow::Result<bool> {
        let (before, began) = (self.ran()?, Instant::now());
        let core = allowed_of(self.tid)?[0];
        let taken = of_core_ms(core);
        while self.ran()? == before {
            let taken = Duration::from_millis(of_core_ms(core) - taken);
            if began.elapsed().saturating_sub(taken) > within {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }
}

pub(crate) fn reserve_again(ctx: &Context) -> anyhow::Result<String> {
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let mut guest = real_time::guest(ctx, &host, "guest")?;
    guest.guest.sh(BUSY)?;
    let pid = u32::try_from(host.vm("guest")?["pid"].as_u64().context("no pid")?)?;

    let asked = Instant::now();
    let mut thread = None;
    for n in 0..TIMES {
        host.cli(&["reserve", "apply", "guest", "--budget", BUDGET])?;
        let row = held(&host)?;
        ensure!(row["problem"].is_null(), "{row}");
        let tid = u32::try_from(row["tid"].as_u64().context("no tid")?)?;
        let this = Thread { pid, tid };
        thread = Some(this);
        ensure!(this.goes_on(FROZEN)?, "the guest stands still after {n} times: {row}");
        in_any_phase(n);
        host.cli(&["reserve", "release", "guest"])?;
    }
    let each = asked.elapsed() / TIMES;
    let log = host.log_text();
    ensure!(!log.contains("does not let it run"), "timevisord had to begin anew: {log}");

    let thread = thread.context("no thread")?;
    host.cli(&["reserve", "apply", "guest", "--budget", BUDGET])?;
    let tries = frozen(thread)?;
    if tries.is_some() {
        let began = Instant::now();
        host.wait_until("the guest to go on", |_| thread.goes_on(FROZEN))?;
        mentions(&host.log_text(), &["does not let it run", "starts again"])?;
        ensure!(held(&host)?["problem"].is_null(), "{}", held(&host)?);
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(10), "it went on after {took:?} only");
        // A frozen thread does not keep its VM from ending either.
        ensure!(frozen(thread)?.is_some(), "it was frozen once in {TRIES} changes only");
    }
    ended(&host, guest)?;
    let told = match tries {
        Some(tries) => format!("frozen by others' changes after {tries}, and gone on"),
        None => format!("this kernel did not freeze it in {TRIES} of others' changes"),
    };
    Ok(format!("{TIMES} times, {} ms each; {told}", each.as_millis()))
}

/// The thread runs now; after a fraction of two periods, it may be out of budget.
fn in_any_phase(n: u32) {
    std::thread::sleep(Duration::from_micros(u64::from(n) * 7_919 % 100_000));
}

fn held(host: &Host) -> anyhow::Result<Value> {
    Ok(host.json(&["reserve", "list"])?[0].clone())
}

/// Changes the thread's policy, as another program might, until it freezes; returns how many
/// changes that took.
fn frozen(thread: Thread) -> anyhow::Result<Option<u32>> {
    let reserved = Attributes::of(thread.tid)?;
    for n in 0..TRIES {
        Attributes::other().set(thread.tid)?;
        std::thread::sleep(Duration::from_micros(u64::from(n) * 1_237 % 10_000));
        reserved.set(thread.tid)?;
        if !thread.goes_on(FROZEN)? {
            return Ok(Some(n + 1));
        }
        in_any_phase(n);
    }
    Ok(None)
}

fn ended(host: &Host, mut guest: Client) -> anyhow::Result<()> {
    guest.guest.kill();
    host.wait_until("the core to be given back", |host| {
        Ok(host.json(&["reserve", "list"])? == Value::Array(Vec::new()))
    })
}
