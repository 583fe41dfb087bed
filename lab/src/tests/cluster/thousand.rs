//! A thousand nodes of a cluster, each with a socket of its own, start at once against one timevisord; and
//! once more in a cluster with a key, whose questions and answers are packets of NTS.
//!
//! They run in one thread of this program, which looks at each of them in turn, so that the kernel's stamps
//! decide how wide their bounds are. `NODES` says how many others to take (up to 10,000 where the limit of open files allows
//! it). Bounds are compared with CLOCK_REALTIME, which the
//! daemon's server serves. Beside it, one chronyd starts. Times are reported and gate nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_clock_page::Counter as _;
use timevisor_linux::counter::{HostCounter, Tsc};
use timevisor_protocols::ntp::precise::Name;
use timevisor_protocols::nts::shared::Secret;
use timevisor_simulation::cluster::published::Serving;
use timevisor_time::Period;

use crate::chrony_client::ChronyClient;
use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::plot::{Series, lines};
use crate::scenario::{Context, number};
use crate::tests::cluster::member::{Member, period, step};
use crate::tests::faults::common::reference;

const NODES: u64 = 1_000;
/// Members have ports of their own from 20,000 on, below those that the kernel gives away.
/// One thread of this program is all of them: with 3,000 it keeps up, with 10,000 it lost answers of its own.
const MOST_NODES: usize = 4_000;
const PORT: u16 = 41_240;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn thousand(ctx: &Context) -> anyhow::Result<String> {
    let nodes = usize::try_from(number("NODES", NODES)?)?;
    ensure!((100..=MOST_NODES).contains(&nodes), "NODES is from 100 to {MOST_NODES}");
    let upstream = Impostor::honest()?;
    let mut host = Host::new(ctx)?;
    let key = host.directory().join("sealed.key");
    host.cli(&["cluster", "key", key.to_str().context("a path of UTF-8")?])?;
    let configuration = format!(
        "{1}[server]\nlisten = [\"127.0.0.1:{PORT}\"]\nrate_interval = \"0s\"\n[[cluster]]\nname = \"lab\"\nchildren = {0}\nchildren_per_address = {0}\n\
         [[cluster]]\nname = \"sealed\"\nchildren = {0}\nchildren_per_address = {0}\nkey = {key:?}\n",
        2 * nodes,
        reference(&upstream.address()),
    );
    host.start(&configuration)?;
    host.wait_synchronized(1_000)?;

    let counter = HostCounter::Tsc(Tsc::unchecked());
    let nominal = period(&counter)?;
    let secret = Secret::parse(&std::fs::read(&key)?)?;
    let (plain, settled) = start(&host, &counter, nominal, nodes, ("lab", None))?;
    let (sealed, settled_sealed) =
        start(&host, &counter, nominal, nodes, ("sealed", Some(&secret)))?;
    let beside = chronyd_beside(ctx)?;
    std::fs::write(ctx.path("settled.svg"), picture(&settled, &settled_sealed))?;
    Ok(format!("{nodes} nodes without a key: {plain}; with one: {sealed}; {beside}"))
}

/// Figure 5 of the paper with what was measured in it: how many nodes are done by when.
fn picture(plain: &[Duration], sealed: &[Duration]) -> String {
    let measured = |name: &str, settled: &[Duration]| Series {
        name: name.to_owned(),
        points: settled
            .iter()
            .enumerate()
            .map(|(done, at)| (at.as_secs_f64() * 1e3, (done + 1) as f64))
            .collect(),
    };
    let settled_most = plain.len() as f64;
    let published = |name: &str, serving: Serving| Series {
        name: name.to_owned(),
        points: (1..=1000)
            .map(|ms| (f64::from(ms), serving.as_published(ms)))
            .take_while(|(_, nodes)| *nodes <= settled_most)
            .collect(),
    };
    let all = vec![
        measured("measured, without a key", plain),
        measured("measured, with a key", sealed),
        published("published: one server", Serving::Root),
        published("published: two levels", Serving::TwoLevels),
        published("published: everybody serves", Serving::Everybody),
    ];
    let title = format!("{} nodes and one timevisord, and the lines of figure 5", plain.len());
    lines(&title, ["ms after the first question", "nodes"], all, true)
}

/// How long one chronyd with a burst takes from its start until it says that it is synchronized to
/// the same server.
fn chronyd_beside(ctx: &Context) -> anyhow::Result<String> {
    let began = Instant::now();
    let server = format!("127.0.0.1 port {PORT} iburst minpoll 0 maxpoll 0");
    let mut chronyd = ChronyClient::start(ctx, "cold", &server, 0)?;
    chronyd.wait(PATIENCE)?;
    let took = began.elapsed();
    Ok(format!(
        "one chronyd with iburst was synchronized {:.0} ms after its start, and claims {:.1} us then",
        took.as_secs_f64() * 1e3,
        Duration::from_nanos(u64::try_from(chronyd.claim()?)?).as_secs_f64() * 1e6
    ))
}

/// All nodes start; returns how they got on, and when each of them was done.
fn start(
    host: &Host,
    counter: &HostCounter,
    nominal: Period,
    nodes: usize,
    (cluster, secret): (&str, Option<&Secret>),
) -> anyhow::Result<(String, Vec<Duration>)> {
    let name = Name::new(cluster).context("a short name")?;
    let began = Instant::now();
    let mut members = (0..nodes)
        .map(|index| Member::new(PORT, index, name, secret, nominal))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let ready = began.elapsed();
    let cpu = daemon_cpu(host)?;
    let began = Instant::now();
    let mut random = 1;
    while members.iter().any(|member| member.vouched.is_none()) {
        interrupt::check()?;
        ensure!(began.elapsed() < PATIENCE, "{}", unsettled(&members));
        step(&mut members, counter, nominal, began, &mut random)?;
    }
    let cpu = daemon_cpu(host)?.saturating_sub(cpu);
    let outside = members.iter().filter(|member| !member.holds(counter)).count();
    ensure!(outside == 0, "the bounds of {outside} nodes exclude the truth");

    let mut settled: Vec<Duration> = members.iter().filter_map(|member| member.vouched).collect();
    settled.sort();
    let mut questions: Vec<u64> = members.iter().map(|member| member.client.questions()).collect();
    questions.sort_unstable();
    let median = questions[nodes / 2];
    ensure!(median <= 12, "{median} questions a node in the median");
    let refused: usize = members.iter().map(|member| member.client.refusals().count()).sum();
    ensure!(refused == 0, "{refused} refusals");
    let (half, widest) = widths(&members, counter);
    let told = format!(
        "bounded within {:.0} ms (median {:.0}) of the first question, sockets took {:.0} ms, {median} questions a \
         node and {} at most, half-width {half:.1} us in the median and {widest:.1} at most, truth inside each, the daemon used \
         {:.1} ms of a processor ({:.0} nodes a second of it)",
        settled[nodes - 1].as_secs_f64() * 1e3,
        settled[nodes / 2].as_secs_f64() * 1e3,
        ready.as_secs_f64() * 1e3,
        questions[nodes - 1],
        cpu.as_secs_f64() * 1e3,
        f64::from(u32::try_from(nodes)?) / cpu.as_secs_f64(),
    );
    Ok((told, settled))
}

fn unsettled(members: &[Member]) -> String {
    let left: Vec<&Member> = members.iter().filter(|m| m.vouched.is_none()).collect();
    let questions: u64 = left.iter().map(|member| member.client.questions()).sum();
    format!("{} nodes have no bounds after {PATIENCE:?}, and {questions} questions", left.len())
}

/// Median and largest half-width, us.
fn widths(members: &[Member], counter: &HostCounter) -> (f64, f64) {
    let now = counter.read_ordered();
    let half = |member: &Member| {
        let interval = member.client.node().at(now).map(|(interval, _)| interval.width());
        interval.map_or(f64::MAX, |width| width.as_secs_f64() * 5e5)
    };
    let mut all: Vec<f64> = members.iter().map(half).collect();
    all.sort_by(f64::total_cmp);
    (all[all.len() / 2], all[all.len() - 1])
}

/// Processor time of the daemon's threads, from /proc/PID/task/TID/schedstat.
fn daemon_cpu(host: &Host) -> anyhow::Result<Duration> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{}/task", host.pid()?))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("an empty schedstat")?;
        sum += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(sum))
}
