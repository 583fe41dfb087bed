//! A group of three, each in its own language and on its own clock page: this program (Rust) on the host, a C program
//! in one guest, a Python program in another. Guests reach the bus over their network, by TLS. Again and again all
//! three fire at a proposed time, and each says what its page said then.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use timevisor::group::{Accept, BusAddress, Group, JoinOptions, Proposed, Secret};

use crate::authority::Authority;
use crate::client::{Client, Launch, Way};
use crate::command::Tethered;
use crate::host::Host;
use crate::interrupt;
use crate::lan::Lan;
use crate::programs;
use crate::python::Python;
use crate::scenario::Context;
use crate::tests::cluster::hosts::make_key;
use crate::tests::cluster::number;
use crate::tests::containers::first_programs::build_c;
use crate::tests::timelines::host::connect;

const PORT: u16 = 47_120;
const NAMES: [&str; 2] = ["c", "python"];
/// Emulated guests are slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// From a proposal to its time, and how late a member may be that fires.
const LEAD_NS: i64 = 800_000_000;
const LATE_AT_MOST: Duration = Duration::from_millis(400);
/// So many proposals are under way at once.
const AT_ONCE: usize = 8;

/// What a member said of one fire, ns.
#[derive(Clone, Copy, Debug)]
struct Fire {
    at: i64,
    earliest: i64,
    latest: i64,
    late: i64,
}

pub(crate) fn guests(ctx: &Context) -> anyhow::Result<String> {
    // Fires of all members together; 10,000 for evidence.
    let wanted = usize::try_from(number("FIRES", 300)?)?;
    let server = ctx.chronyd("server")?;
    let lan = Lan::before(ctx, server.namespace())?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(1_000)?;
    let key = make_key(&host, "cell7.key")?;
    let authority = ctx.path("authority.pem");
    let (_bus, socket) = bus(ctx, &host, &lan, &key, &authority)?;

    let mut guests = boot(ctx, &host, &lan, &authority)?;
    let client = connect(&host)?;
    let text = fs::read_to_string(&key)?;
    let secret = Some(Secret::parse(text.as_bytes())?);
    let options =
        JoinOptions { bus: Some(BusAddress::from(socket)), key: secret, ..JoinOptions::default() };
    let group = client.join_with("cell7", "host", &options)?;
    group.accept(Accept::All);
    let lines =
        ["/bin/member-c".to_owned(), format!("{} /bin/member.py", guests.interpreter.display())];
    for ((guest, name), line) in guests.all.iter_mut().zip(NAMES).zip(lines) {
        let at = format!("tls://{}:{PORT}", lan.host());
        let key = text.trim();
        guest
            .guest
            .sh(&format!("{line} {name} {at} /bin/authority.pem {key} >/run/{name}.log 2>&1 &"))?;
        let joins = interrupt::poll_until(PATIENCE, || {
            let said = guest.guest.sh(&format!("cat /run/{name}.log"))?;
            Ok(said.starts_with("joined").then_some(()))
        })?;
        joins.with_context(|| {
            format!("{name} does not join: {:?}", guest.guest.sh(&format!("cat /run/{name}.log")))
        })?;
    }
    group.wait_for(3, PATIENCE)?;
    let tai = client.timeline("tai")?;
    let run = propose(&group, &tai, wanted.div_ceil(3))?;
    group.leave();

    let mut told = vec![run.fires.clone()];
    for (guest, name) in guests.all.iter_mut().zip(NAMES) {
        let log = guest.guest.sh_within(&format!("cat /run/{name}.log"), PATIENCE)?;
        fs::write(ctx.path(&format!("{name}.txt")), &log)?;
        told.push(log.lines().filter_map(parse).collect());
    }
    let judged = judge(&told, &run)?;
    Ok(format!(
        "Rust on the host, C and Python in guests: {judged}; decided after {:.1} ms in the median, {} of {} proposals \
         fired everywhere",
        run.decided_ms, run.everywhere, run.proposals
    ))
}

/// A bus with a key for the group, at a socket and on the guests' network.
fn bus(
    ctx: &Context,
    host: &Host,
    lan: &Lan,
    key: &Path,
    authority: &Path,
) -> anyhow::Result<(Tethered, PathBuf)> {
    let issuer = Authority::new()?;
    issuer.write(authority)?;
    let files = issuer.certify(lan.host().into(), 2100, ctx.log_dir(), "bus")?;
    let config = ctx.path("bus.toml");
    fs::write(
        &config,
        format!(
            "[tcp]\nlisten = [\"{}:{PORT}\"]\ncertificate = {:?}\nkey = {:?}\n[[group]]\nname = \"cell7\"\nkey = {key:?}\n",
            lan.host(),
            files.certificate,
            files.key
        ),
    )?;
    let socket = ctx.path("bus.socket");
    let mut bus = host.command(programs::binary("timevisor-bus", "timevisor-bus")?);
    bus.arg("--config").arg(&config).arg("--socket").arg(&socket);
    let bus = Tethered::spawn(&mut bus, "timevisor-bus", &ctx.path("bus.log"))?;
    let listens = || Ok(socket.exists().then_some(()));
    interrupt::poll_until(PATIENCE, listens)?.context("the bus does not listen")?;
    Ok((bus, socket))
}

struct Guests {
    all: Vec<Client>,
    interpreter: PathBuf,
}

fn boot(ctx: &Context, host: &Host, lan: &Lan, authority: &Path) -> anyhow::Result<Guests> {
    let root = programs::workspace()?;
    let folder = root.join("lab/src/tests/groups");
    let c = ctx.path("member-c");
    build_c(&root, &folder.join("member.c"), &ctx.path("prefix"), &c)?;
    let script = ctx.path("member.py");
    fs::copy(folder.join("member.py"), &script)?;
    let python = Python::archive(ctx.log_dir())?;
    let qemu = ctx.qemu_10()?;
    let files =
        [vec![c, authority.to_owned()], vec![script, python.archive.clone(), authority.to_owned()]];
    let mut all = Vec::new();
    for ((number, name), files) in (0..).zip(NAMES).zip(files) {
        let arguments = lan.arguments(number, false)?;
        let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, name)
            .image(move |image| {
                let image = image.module("virtio_net");
                Ok(files.iter().fold(image, |image, file| image.program(file)))
            })
            .builder(move |builder| builder.args(arguments.clone()));
        all.push(launch.start()?);
    }
    for ((number, name), guest) in (0..).zip(NAMES).zip(&mut all) {
        guest.guest.wait_ready()?;
        host.wait_vm(name, "synchronized")?;
        guest.guest.sh(&lan.guest_setup(number))?;
    }
    all[1]
        .guest
        .sh_within("tar -xzf /bin/python.tar.gz -C / && rm /bin/python.tar.gz", PATIENCE)?;
    Ok(Guests { all, interpreter: python.interpreter })
}

struct Run {
    proposals: usize,
    /// How many fired with all three.
    everywhere: usize,
    decided_ms: f64,
    /// What the host's member did.
    fires: Vec<Fire>,
}

/// Proposes so many times, some at once. The payload is the time.
fn propose(group: &Group, tai: &timevisor::Timeline, count: usize) -> anyhow::Result<Run> {
    let inbox = group.proposals();
    let (mut open, mut decided) = (Vec::new(), Vec::new());
    let mut run = Run { proposals: 0, everywhere: 0, decided_ms: 0.0, fires: Vec::new() };
    while run.proposals < count || !open.is_empty() {
        interrupt::check()?;
        if run.proposals < count && open.len() < AT_ONCE {
            let at = tai.now()?.latest_ns() + LEAD_NS;
            let begun = Instant::now();
            open.push(group.propose_with(at, at.to_string().as_bytes(), None, LATE_AT_MOST)?);
            run.proposals += 1;
            if run.proposals.is_multiple_of(16)
                && let Some(pending) = open.last()
            {
                // Some of them are waited for, which says how long that takes.
                ensure!(pending.decided(PATIENCE)?, "a proposal was refused");
                decided.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        take(&inbox, &mut run)?;
        let mut still = Vec::new();
        for pending in open {
            match pending.wait(Duration::from_millis(5)) {
                Ok(outcome) if outcome.unknown.is_empty() => {
                    run.everywhere += usize::from(outcome.agreed() == Some(true));
                }
                // An outcome with unknown members may be corrected.
                Ok(_) | Err(timevisor::group::GroupError::TimedOut) => still.push(pending),
                Err(error) => return Err(error.into()),
            }
        }
        open = still;
    }
    interrupt::sleep(Duration::from_secs(1))?;
    take(&inbox, &mut run)?;
    decided.sort_by(f64::total_cmp);
    run.decided_ms = decided.get(decided.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(run)
}

fn take(inbox: &timevisor::group::Inbox<Proposed>, run: &mut Run) -> anyhow::Result<()> {
    while let Some(proposed) = inbox.try_next() {
        if let Proposed::Fire { interval, late_ns, payload, .. } = proposed {
            let at = String::from_utf8(payload)?.parse()?;
            let (earliest, latest) =
                (interval.earliest().floor_nanos(), interval.latest().ceil_nanos());
            run.fires.push(Fire { at, earliest, latest, late: late_ns });
        }
    }
    ensure!(inbox.dropped() == 0, "fires were dropped");
    Ok(())
}

fn parse(line: &str) -> Option<Fire> {
    let mut words = line.strip_prefix("fire ")?.split(' ').map(|word| word.parse().ok());
    let mut next = || words.next().flatten();
    Some(Fire { at: next()?, earliest: next()?, latest: next()?, late: next()? })
}

/// Nobody fires surely before the time, nor later than it says; nor do two of them fire farther apart than their bounds
/// and what they say of their lateness.
fn judge(told: &[Vec<Fire>], run: &Run) -> anyhow::Result<String> {
    let (mut count, mut widest, mut latest_of_all) = (0, 0, Vec::new());
    for fires in told {
        for fire in fires {
            let half = (fire.latest - fire.earliest) / 2;
            let middle = fire.earliest + half;
            if fire.latest < fire.at || fire.earliest > fire.at + fire.late || fire.late < 0 {
                bail!("a member fired at the wrong time: {fire:?}");
            }
            if middle - fire.at > fire.late + half + 1 || fire.at - middle > half + 1 {
                bail!("a member fired outside of its bounds and its lateness: {fire:?}");
            }
            (count, widest) = (count + 1, widest.max(half));
            latest_of_all.push(fire.late);
        }
    }
    // Each fires once for each proposal, if at all.
    for fires in told {
        let mut at: Vec<i64> = fires.iter().map(|fire| fire.at).collect();
        at.sort_unstable();
        ensure!(at.windows(2).all(|pair| pair[0] != pair[1]), "a member fired twice");
        ensure!(
            at.len() >= run.everywhere,
            "outcomes say {} fires, a member {}",
            run.everywhere,
            at.len()
        );
    }
    ensure!(
        run.everywhere * 2 > run.proposals,
        "only {} of {} fired",
        run.everywhere,
        run.proposals
    );
    latest_of_all.sort_unstable();
    let late =
        |share: usize| latest_of_all.get(latest_of_all.len() * share / 100).copied().unwrap_or(0);
    Ok(format!(
        "{count} fires, 0 outside of the sum of bounds (+-{} us at most) and reported lateness (median {} us, p99 {} us)",
        widest / 1000,
        late(50) / 1000,
        late(99) / 1000
    ))
}
