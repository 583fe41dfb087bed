//! The key-value store of clients/rust/examples/kv.rs in two guests on two hosts: commit-wait
//! compared with clocks that are simply trusted.
//!
//! The hosts' clocks really differ: the second host's requests take long to reach its server, so
//! its clock is ahead by half of that delay, and its bounds include it. This difference exposes a
//! commit that does not wait.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use timevisor_linux::clock::realtime;
use timevisor_protocols::ntp::NtpTimestamp;

use crate::client::{Client, Launch, Way, connect_port};
use crate::host::{Host, ntp_reference};
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::reader::GuestReader;
use crate::scenario::Context;

const ROUNDS: u64 = 300;

/// How long the second host's requests take to reach its server.
const SLOW_PATH: Duration = Duration::from_millis(30);

/// Stock guests set their clocks from an RTC that counts whole seconds; occasionally two of them
/// agree better than this.
const NAIVE_DIFFERENCE_NS: i64 = 50_000_000;

/// A commit that a store has acknowledged.
struct Commit {
    timestamp_ns: i64,
    uncertainty_ns: i64,
    took_ns: i64,
    store: usize,
}

/// Two stores with the same kind of clock, one in each guest, and their commits in the order of
/// acknowledgement.
struct Pair {
    stores: [GuestReader; 2],
    commits: Vec<Commit>,
}

impl Pair {
    /// Starts a store in each guest.
    fn start(
        hosts: [&Host; 2],
        guests: &mut [Client; 2],
        clock: &str,
        port: &str,
    ) -> anyhow::Result<Self> {
        for client in guests.iter_mut() {
            client.guest.sh(&format!(
                "kv --clock {clock} /dev/virtio-ports/{port} >/run/kv-{clock}.log 2>&1 &"
            ))?;
        }
        let mut connect = |n: usize| {
            let mut store = connect_port(hosts[n], &guests[n].name, port)?;
            let answered = store.ask("now");
            let log = guests[n].guest.sh(&format!("cat /run/kv-{clock}.log"))?;
            answered.with_context(|| format!("kv --clock {clock} says {log:?}"))?;
            anyhow::Ok(store)
        };
        Ok(Self { stores: [connect(0)?, connect(1)?], commits: Vec::new() })
    }

    fn put(&mut self, store: usize, key: &str, value: u64) -> anyhow::Result<()> {
        let answer = self.stores[store].ask(&format!("put {key} {value}"))?;
        let ns =
            |name: &str| answer[name].as_i64().with_context(|| format!("no {name} in {answer}"));
        let (timestamp_ns, uncertainty_ns) = (ns("timestamp_ns")?, ns("uncertainty_ns")?);
        let took_ns = ns("took_ns")?;
        self.commits.push(Commit { timestamp_ns, uncertainty_ns, took_ns, store });
        Ok(())
    }

    /// Writes x to one store and, once that is acknowledged, y to the other; the stores alternate
    /// in going first.
    fn round(&mut self, number: u64) -> anyhow::Result<()> {
        let first = usize::from(number % 2 == 1);
        self.put(first, &format!("x{first}"), number)?;
        self.put(1 - first, &format!("y{first}"), number)
    }

    /// Rounds in which y's timestamp is not later than x's.
    fn unordered_rounds(&self) -> usize {
        self.commits.chunks(2).filter(|c| c[0].timestamp_ns >= c[1].timestamp_ns).count()
    }

    /// Commits whose timestamp is not later than that of the commit acknowledged before.
    fn unordered_commits(&self) -> usize {
        self.commits.windows(2).filter(|c| c[0].timestamp_ns >= c[1].timestamp_ns).count()
    }

    /// Snapshots that show a y without its x. Nothing changes between two timestamps, so checking
    /// one snapshot per timestamp covers all of them.
    fn torn_snapshots(&mut self) -> anyhow::Result<usize> {
        let mut torn = 0;
        let times: Vec<i64> = self.commits.iter().map(|commit| commit.timestamp_ns).collect();
        for time in times {
            interrupt::check()?;
            let [a, b] = &mut self.stores;
            let seen = [a.ask(&format!("snapshot {time}"))?, b.ask(&format!("snapshot {time}"))?];
            let is_torn = |first: usize| {
                let value = |all: &Value, key: &str| {
                    all[format!("{key}{first}")].as_str().map_or(0, |v| v.parse().unwrap_or(0))
                };
                value(&seen[1 - first], "y") > value(&seen[first], "x")
            };
            torn += usize::from(is_torn(0) || is_torn(1));
        }
        Ok(torn)
    }

    /// Medians over the commits of one store, in us: how long a commit took and how wide the
    /// clock's interval was.
    fn medians_us(&self, store: usize) -> (i64, i64) {
        let median = |of: fn(&Commit) -> i64| {
            let mut all: Vec<i64> =
                self.commits.iter().filter(|c| c.store == store).map(of).collect();
            all.sort_unstable();
            all.get(all.len() / 2).map_or(0, |ns| ns / 1000)
        };
        (median(|c| c.took_ns), median(|c| c.uncertainty_ns))
    }
}

/// The second guest's clock minus the first's, accurate to some ms.
fn naive_difference_ns(naive: &mut Pair) -> anyhow::Result<i64> {
    let [a, b] = &mut naive.stores;
    let mut now = |first: bool| {
        let answer = if first { a.ask("now")? } else { b.ask("now")? };
        answer["latest_ns"].as_i64().with_context(|| format!("no latest_ns in {answer}"))
    };
    let (before, there, after) = (now(true)?, now(false)?, now(true)?);
    Ok(there - before.midpoint(after))
}

fn guest(ctx: &Context, host: &Host, name: &str, ports: &[&str]) -> anyhow::Result<Client> {
    let (qemu, programs) = (ctx.qemu_10()?, [ctx.example("timevisor-client", "kv")?]);
    Launch::new(ctx, host, &qemu, Way::Vmclock, name).programs(&programs).ports(ports).start()
}

/// A server behind a path that is slow in one direction.
fn far_server() -> anyhow::Result<Impostor> {
    Impostor::new(|mut answer| {
        std::thread::sleep(SLOW_PATH);
        // The request has only arrived now.
        answer.receive = NtpTimestamp::from_instant(realtime());
        answer.transmit = answer.receive;
        vec![answer.to_bytes().to_vec()]
    })
}

pub(crate) fn commit_wait(ctx: &Context) -> anyhow::Result<String> {
    let (near, far) = (ctx.chronyd("server")?, far_server()?);
    // Each host serves only its own VMs.
    let alone = |server: &str| ntp_reference(server) + "[guests]\ndiscover = false\n";
    let (mut first, mut second) = (Host::new(ctx)?, Host::further(ctx, "second")?);
    first.start(&alone(&near.address().ip().to_string()))?;
    second.start(&alone(&far.address()))?;
    first.wait_synchronized(5_000)?;
    second.wait_synchronized(40_000)?;
    let ports = ["org.example.timevisor", "org.example.naive"];
    let mut guests = [guest(ctx, &first, "a", &ports)?, guest(ctx, &second, "b", &ports)?];
    for (host, client) in [&first, &second].into_iter().zip(&mut guests) {
        client.guest.wait_ready()?;
        host.wait_vm(&client.name, "synchronized")?;
    }
    let hosts = [&first, &second];
    let mut timevisor = Pair::start(hosts, &mut guests, "timevisor", ports[0])?;
    let mut naive = Pair::start(hosts, &mut guests, "naive", ports[1])?;

    let mut set_back = "as they booted";
    let mut difference = naive_difference_ns(&mut naive)?;
    for _ in 0..20 {
        if difference.abs() >= NAIVE_DIFFERENCE_NS {
            break;
        }
        // Cuts off the fraction of the second, which yields a clock like that of an unsynchronized
        // guest.
        guests[1].guest.sh("date -s @$(date +%s)")?;
        set_back = "one set back by less than a second";
        difference = naive_difference_ns(&mut naive)?;
    }
    for number in 1..=ROUNDS {
        interrupt::check()?;
        naive.round(number)?;
        timevisor.round(number)?;
    }
    let (unordered, unordered_naive) = (timevisor.unordered_commits(), naive.unordered_rounds());
    let (torn, torn_naive) = (timevisor.torn_snapshots()?, naive.torn_snapshots()?);
    let ((took_a, width_a), (took_b, width_b)) = (timevisor.medians_us(0), timevisor.medians_us(1));
    let text = format!(
        "{ROUNDS} rounds each. timevisor: {unordered} commits out of order, {torn} of {} snapshots torn; commit-wait \
         {took_a} us where the interval is {width_a} us wide, {took_b} us where {width_b} us (medians). naive, clocks {} ms \
         apart ({set_back}): {unordered_naive} rounds out of order, {torn_naive} of {} snapshots torn",
        timevisor.commits.len(),
        difference / 1_000_000,
        naive.commits.len()
    );
    ctx.log(&text);
    ensure!(unordered == 0 && torn == 0, "{text}");
    ensure!(unordered_naive > 0 && torn_naive > 0, "the naive clocks did no harm: {text}");
    // Otherwise commits that do not wait would hardly be detected.
    ensure!(width_b > 20_000, "the hosts' clocks are too alike: {text}");
    Ok(text)
}
