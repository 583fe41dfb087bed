//! A vCPU that sleeps has its reservation when `reserve apply` answers, each time; and what the audit of
//! fifty reserved threads costs. One QEMU that stands still has them all.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use timevisor_linux::affinity::{allow, allowed_of, online};
use timevisor_linux::scheduling::{Attributes, Policy, is_runnable, processor_of, threads, wake};
use timevisor_protocols::control::{
    ClientCodec, Promise, Request, Reservations, ReserveApply, ReserveRelease, Response,
};

use crate::host::Host;
use crate::interrupt;
use crate::ntp_impostor::Impostor;
use crate::real_time::Restore;
use crate::scenario::Context;
use crate::tests::faults::common::reference;
use crate::tests::faults::qemu::Bare;

/// vCPUs of the VM that has the costs of fifty reservations measured.
const THREADS: u32 = 50;
/// vCPUs of the VM that is reserved again and again.
const ORDINARY: u32 = 4;
/// How often one that sleeps is reserved.
const TIMES: usize = 200;
/// The kernel lets a thread come back this long after it left: a period, and 10 ms at its rate.
const AWAY: Duration = Duration::from_millis(110);
/// How long the audit is watched.
const SPAN: Duration = Duration::from_secs(20);
/// How often a second each of these threads is looked at: every 140 ms.
const LOOKS: f64 = 1.0 / 0.14;

fn ask(host: &Host, request: &Request) -> anyhow::Result<Reservations> {
    let mut stream = UnixStream::connect(host.directory().join("control"))?;
    stream.write_all(&ClientCodec::encode(request)?)?;
    let mut codec = ClientCodec::default();
    let mut buffer = [0; 8192];
    loop {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "no answer");
        match codec.on_bytes(&buffer[..count]).into_iter().next() {
            Some(Ok(Response::Reservations(answer))) => return Ok(answer),
            Some(other) => bail!("{other:?}"),
            None => {}
        }
    }
}

fn request(vcpu: u32, budget_ms: u64, period_ms: u64) -> Request {
    Request::ReserveApply(ReserveApply {
        vm: "web".to_owned(),
        vcpu,
        budget_ns: budget_ms * 1_000_000,
        at_most_ns: None,
        deadline_ns: None,
        period_ns: period_ms * 1_000_000,
        promise: Promise::Core,
        core: None,
        alone: false,
        dry_run: false,
    })
}

const RELEASE: Request = Request::ReserveRelease(ReserveRelease { vm: None, vcpu: None });

/// A host that serves a QEMU with so many vCPUs, all of which sleep.
fn start(ctx: &Context, vcpus: u32) -> anyhow::Result<(Host, Bare, u32, Impostor)> {
    let server = Impostor::honest()?;
    let mut host = Host::in_memory(ctx)?;
    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    let printed = host.json(&["vm", "args", "--name", "web", "--memory", "64"])?;
    let words = printed["arguments"].as_array().context("no arguments")?;
    let mut words: Vec<&str> = words.iter().filter_map(serde_json::Value::as_str).collect();
    let count = vcpus.to_string();
    words.extend(["-cpu", "qemu64", "-smp", &count]);
    let qemu = Bare::start(ctx, &ctx.qemu()?, "web,debug-threads=on", &words)?;
    let pid: u32 = qemu.pid().parse()?;
    host.wait_vm("web", "synchronized")?;
    qemu.qmp()?.run("stop")?;
    Ok((host, qemu, pid, server))
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

pub(crate) fn at_once(ctx: &Context) -> anyhow::Result<String> {
    let (host, _qemu, pid, _server) = start(ctx, ORDINARY)?;
    let _restore = Restore::of(&host);
    let all = threads(pid)?;
    let vcpu = all.iter().find(|thread| thread.name == "CPU 0/TCG").context("no vCPU 0")?.tid;
    let (usual, first) = (allowed_of(vcpu)?, online()?[0]);
    let (mut took, mut elsewhere) = (Vec::new(), 0);
    for turn in 0..TIMES {
        interrupt::sleep(AWAY)?;
        // It last ran on the first processor, which is never reserved.
        allow(vcpu, &[first])?;
        interrupt::poll_until(Duration::from_secs(5), || {
            let _ = wake(pid, vcpu, None);
            Ok((processor_of(pid, vcpu)? == first && !is_runnable(pid, vcpu)?).then_some(()))
        })?
        .context("the vCPU does not sleep")?;
        allow(vcpu, &usual)?;
        elsewhere += usize::from(processor_of(pid, vcpu)? == first);
        let began = Instant::now();
        let answer = ask(&host, &request(0, 10, 50))?;
        took.push(began.elapsed());
        let row = answer.reservations.first().context("no reservation")?;
        ensure!(row.problem.is_none(), "turn {turn}: {:?}", row.problem);
        let now = Attributes::of(vcpu)?;
        ensure!(
            now.policy == Policy::DEADLINE && now.runtime == 10_000_000,
            "turn {turn}: {now:?}"
        );
        ensure!(ask(&host, &RELEASE)?.problems.is_empty(), "turn {turn}");
        ensure!(allowed_of(vcpu)? == usual, "turn {turn}: {:?}", allowed_of(vcpu)?);
    }
    // Otherwise nothing had to be woken.
    ensure!(elsewhere == TIMES, "it slept elsewhere {elsewhere} times only");
    let waits = host.log_text().matches("waits").count();
    ensure!(waits == 0, "{}", host.log_text());
    took.sort();
    Ok(format!(
        "in force when apply answered {TIMES} of {TIMES} times, asleep on another core each time; median {:?}, p99 {:?}, \
         at most {:?}",
        quantile(&took, 50),
        quantile(&took, 99),
        took[TIMES - 1]
    ))
}

/// The processor time that a process has had, and the files that it has read (read(2), pread(2)).
fn used(pid: u32) -> anyhow::Result<(Duration, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("odd stat")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    let io = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let reads = io.lines().find_map(|line| line.strip_prefix("syscr: ")).context("odd io")?;
    // USER_HZ.
    Ok((Duration::from_millis(ticks * 10), reads.parse()?))
}

fn cost(host: &Host) -> anyhow::Result<(f64, f64)> {
    let pid = host.pid()?;
    let (began, (time, reads)) = (Instant::now(), used(pid)?);
    interrupt::sleep(SPAN)?;
    let (later, more) = used(pid)?;
    let span = began.elapsed().as_secs_f64();
    Ok(((later - time).as_secs_f64() / span, (more - reads) as f64 / span))
}

pub(crate) fn audit_cost(ctx: &Context) -> anyhow::Result<String> {
    let (host, _qemu, pid, _server) = start(ctx, THREADS)?;
    let _restore = Restore::of(&host);
    let without = cost(&host)?;
    for vcpu in 0..THREADS {
        let answer = ask(&host, &request(vcpu, 1, 300)).with_context(|| format!("vCPU {vcpu}"))?;
        let problem = answer.reservations.iter().find_map(|row| row.problem.clone());
        ensure!(problem.is_none(), "vCPU {vcpu}: {problem:?}");
    }
    let mut reserved = 0;
    for thread in threads(pid)? {
        reserved += u32::from(Attributes::of(thread.tid)?.policy == Policy::DEADLINE);
    }
    ensure!(reserved == THREADS, "{reserved} threads have a reservation");
    let with = cost(&host)?;
    let (share, reads) = (with.0 - without.0, with.1 - without.1);
    let each = reads / (LOOKS * f64::from(THREADS));
    ensure!(ask(&host, &RELEASE)?.problems.is_empty(), "not released");
    // A read for each thread at each look, and once a second up to ten for each.
    ensure!((0.5..1.0 + 10.0 / LOOKS).contains(&each), "{each} reads for each thread and look");
    Ok(format!(
        "{THREADS} reserved threads: {each:.2} reads for each thread and look, {:.2} % of a processor (and {:.2} % without)",
        share * 100.0,
        without.0 * 100.0
    ))
}
