//! Moves under real KVM: two timevisords on one emulated host, whose KVM and kernel are real
//! ([`crate::nested`]), and their guests.
//!
//! Both follow the host's CLOCK_REALTIME, and both count its TSC. A guest's TSC is another one after
//! each move: KVM gives it another offset.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::interrupt;
use crate::nested::{NestedHost, PERIODIC, write};
use crate::scenario::{Context, number};

/// As in `kvm-nested`.
const PROCESSORS: u32 = 1;
/// An emulated guest reads for so long after its arrival, ms, and gives up after so long, s.
const JOURNEY: &str = "journey 1500 900";
const DIRECTORIES: [&str; 2] = ["/run/a", "/run/b"];

/// The configuration of a second host on the same machine.
fn config(directory: &str) -> String {
    format!(
        "run_directory = \"{directory}\"\n[guests]\ndiscover = false\n[clock]\ntai_offset = 37\n\
         [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\npoll = \"1s\"\n"
    )
}

/// How a destination is started, and who makes it run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `-S`, and `vm add --resume`.
    Held,
    /// QEMU runs it as soon as it can, as libvirt has it do.
    AtOnce,
    /// `-S`, and somebody else's `cont`.
    Theirs,
    /// With the capability multifd.
    Multifd,
    /// It runs before its memory is there.
    Postcopy,
}

/// Under two layers of emulation KVM itself now and then gives up a guest at its first instructions
/// ("KVM internal error", state `internal-error`). Such a move shows nothing; a new guest makes it again. So
/// many may be lost in a run.
const MOST_LOST: usize = 8;

/// What one move was like.
struct Move {
    reads: u64,
    unknown: u64,
    /// From the first instruction on the destination to the first reading that vouches, us of the
    /// guest's counter; and the same before the move.
    ran_us: f64,
}

pub(crate) fn kvm(ctx: &Context) -> anyhow::Result<String> {
    let kernel = ctx.kernel("trixie-backports")?;
    let qemu = ctx.qemu_10()?;
    let configs = DIRECTORIES
        .map(|directory| write(ctx, &format!("{}.toml", &directory[5..]), &config(directory)));
    let [a, b] = configs;
    let (a, b) = (a?, b?);
    let more = |image: crate::image::Image| {
        Ok(image.file(a, "/etc/a.toml", 0o644).file(b, "/etc/b.toml", 0o644))
    };
    let kernels = [&kernel, &kernel];
    let mut host = NestedHost::boot_for(ctx, &qemu, &qemu, kernels, PROCESSORS, PERIODIC, more)?;
    for directory in DIRECTORIES {
        let name = &directory[5..];
        host.sh(&format!("timevisord --config /etc/{name}.toml >>/run/{name}.log 2>&1 &"))?;
        host.wait("a timevisord", |host| {
            let status =
                host.json(&format!("timevisor status --json --run-directory {directory}"))?;
            Ok(status["clock"]["status"] == "synchronized")
        })?;
    }
    let moves = number("MOVES", 1)?;
    let (mut told, mut lost) = (Vec::new(), Vec::new());
    let courses: [(&str, &[Way]); 2] = [
        ("vmclock", &[Way::Held, Way::AtOnce, Way::Theirs, Way::Multifd, Way::Postcopy]),
        ("nvdimm", &[Way::Held, Way::AtOnce, Way::Theirs]),
    ];
    for (delivery, ways) in courses {
        let mut all = Vec::new();
        let mut guests = 0;
        let mut new_name = || {
            guests += 1;
            format!("{delivery}-{guests}")
        };
        let mut name = new_name();
        start(&mut host, DIRECTORIES[0], &name, delivery)?;
        let planned = ways.iter().cycle().take(ways.len() * usize::try_from(moves)?);
        for (n, way) in planned.enumerate() {
            let [from, to] = [DIRECTORIES[n % 2], DIRECTORIES[(n + 1) % 2]];
            let one = loop {
                interrupt::check()?;
                let next = new_name();
                let one = one_move(&mut host, *way, delivery, [from, to], [&name, &next])
                    .with_context(|| format!("{delivery}, move {}: {way:?}", n + 1))?;
                host.sh(&format!("lab-compare qmp /run/{name}.qmp quit; true"))?;
                if let Some(one) = one {
                    name = next;
                    break one;
                }
                host.sh(&format!("lab-compare qmp /run/{next}.qmp quit; true"))?;
                let why = host.sh(&format!("head -n 4 /run/{next}-qemu.log"))?;
                lost.push(why.trim().replace('\n', "; "));
                ensure!(lost.len() <= MOST_LOST, "KVM gave up {} guests: {lost:?}", lost.len());
                name = new_name();
                start(&mut host, from, &name, delivery)?;
            };
            all.push(one);
        }
        host.sh(&format!("lab-compare qmp /run/{name}.qmp quit; true"))?;
        told.push(format!("{delivery}: {}", text(&all)));
    }
    told.push(format!("{} guests were given up by KVM, and replaced", lost.len()));
    Ok(told.join("; "))
}

fn start(host: &mut NestedHost, directory: &str, name: &str, delivery: &str) -> anyhow::Result<()> {
    host.launch_on(directory, name, delivery, 1, "-S")?;
    add(host, directory, name, "--resume")?;
    host.wait_ready(name, 1)?;
    host.wait("the guest's time", |host| {
        Ok(host.vm_on(directory, name)?["status"] == "synchronized")
    })
}

fn add(host: &mut NestedHost, directory: &str, name: &str, more: &str) -> anyhow::Result<()> {
    let qmp = format!("{directory}/vms/{name}/monitor/qmp");
    let line = format!(
        "timevisor vm add --run-directory {directory} --qmp {qmp} --name {name} --within 60 {more}"
    );
    host.sh(&line).map(drop)
}

fn one_move(
    host: &mut NestedHost,
    way: Way,
    delivery: &str,
    [from, to]: [&str; 2],
    [name, next]: [&str; 2],
) -> anyhow::Result<Option<Move>> {
    let uri = format!("unix:/run/{next}.migration");
    let held = !matches!(way, Way::AtOnce | Way::Postcopy);
    let options = if held { "-S -incoming defer" } else { "-incoming defer" };
    host.launch_on(to, next, delivery, 1, options)?;
    host.wait("the destination's QEMU", |host| {
        Ok(host.qmp(next, "query-status")?["status"] == "inmigrate")
    })?;
    // A source has those of its arrival.
    for name in [name, next] {
        let all = json!({"capabilities": [
            {"capability": "multifd", "state": way == Way::Multifd},
            {"capability": "postcopy-ram", "state": way == Way::Postcopy},
        ]});
        host.execute(name, "migrate-set-capabilities", &all)?;
    }
    let resume = if matches!(way, Way::Held | Way::Multifd) { "--resume" } else { "" };
    add(host, to, next, &format!("{resume} --incoming {uri}"))?;
    host.wait("it to be awaited", |host| Ok(host.vm_on(to, next)?["migration"] == "incoming"))?;
    let row = host.vm_on(to, next)?;
    ensure!(row["status"] != "synchronized" && row["mapping"] == "unknown", "awaited, and {row}");

    // The answer comes at the destination's port.
    host.sh(&format!("lab-compare answer /run/{next}.reader >/run/{next}.report 2>&1 &"))?;
    let begun = host.json(&format!("lab-compare ask /run/{name}.reader \"{JOURNEY}\""))?;
    ensure!(begun["begun"] == true, "{begun}");
    host.sh(&format!(
        "timevisor vm migrate {name} --run-directory {from} --to {uri} >/run/{name}.left 2>&1 &"
    ))?;
    if way == Way::Postcopy {
        host.wait("the migration to begin", |host| {
            Ok(host.qmp(name, "query-migrate")?["status"] == "active")
        })?;
        host.qmp(name, "migrate-start-postcopy")?;
    }
    if way == Way::Theirs {
        host.wait(
            "it to arrive",
            |host| Ok(host.qmp(next, "query-status")?["status"] == "paused"),
        )?;
        host.qmp(next, "cont")?;
    }
    let mut is_lost = false;
    host.wait("the journey's report", |host| {
        if host.sh(&format!("test -s /run/{next}.report")).is_ok() {
            return Ok(true);
        }
        is_lost = host.qmp(next, "query-status")?["status"] == "internal-error";
        Ok(is_lost)
    })?;
    if is_lost {
        return Ok(None);
    }
    let report: Value = host.json(&format!("cat /run/{next}.report"))?;
    for never in ["backward", "outside", "errors"] {
        ensure!(report[never] == 0, "{never} reads on the way: {report}");
    }
    let (before, after) = (&report["gap"]["before"], &report["gap"]["after"]);
    ensure!(before["disruption"] != after["disruption"], "the marker did not change: {report}");
    ensure!(after["status"] == "synchronized", "{report}");
    host.wait("the destination's row", |host| {
        Ok(host.vm_on(to, next)?["status"] == "synchronized")
    })?;
    host.compare_on(to, next, 20)?;
    // With post-copy the source sends memory for a while.
    host.wait("it to have left", |host| Ok(host.vm_on(from, name)?["migration"] == "left"))?;
    let left = host.vm_on(from, name)?;
    ensure!(left["status"] == "unknown", "the old page: {left}");
    interrupt::sleep(Duration::from_millis(10))?;
    Ok(Some(Move {
        reads: report["reads"].as_u64().unwrap_or(0),
        unknown: report["unknown"].as_u64().unwrap_or(0),
        ran_us: report["gap"]["guest_us"].as_f64().context("no length")?,
    }))
}

fn text(moves: &[Move]) -> String {
    let mut ran: Vec<f64> = moves.iter().map(|one| one.ran_us / 1e3).collect();
    ran.sort_by(f64::total_cmp);
    let sum = |of: fn(&Move) -> u64| moves.iter().map(of).sum::<u64>();
    format!(
        "{} moves, {} reads, none back, {} said unknown; the guest ran between two vouched reads for {:.1} ms in the median, {:.1} at most",
        moves.len(),
        sum(|one| one.reads),
        sum(|one| one.unknown),
        ran[ran.len() / 2],
        ran[ran.len() - 1]
    )
}
