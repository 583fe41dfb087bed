//! `make demo`: a real chronyd, a real timevisord and a stock guest. It shows the intervals of host
//! and guest side by side, a verdict and a picture.

mod picture;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use timevisor_linux::clock::bracket;

use self::picture::Point;
use crate::client::{Way, launch, offset};
use crate::comparison::{Comparison, Nanos, Worst, compare};
use crate::host::Host;
use crate::interrupt;
use crate::progress::step;
use crate::reader::HostPage;
use crate::scenario::Context;

/// Debian packages that the demo needs on the host; the tests need more.
pub const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "chrony",
    "iproute2",
    "kmod",
    "xz-utils",
    "debian-archive-keyring",
    "tzdata",
    "gcc",
];

/// The driver is in kernels from 6.13 on; this suite has the newest kernel that Debian ships for
/// its stable release.
const KERNEL: &str = "trixie-backports";

/// What is built: package and program.
const PROGRAMS: [(&str, &str); 3] = [
    ("timevisord", "timevisord"),
    ("timevisor", "timevisor"),
    ("timevisor-lab-guest", "lab-reader"),
];

/// How often CLOCK_REALTIME is read for one reading of the server's clock; the narrowest bracket
/// counts.
const BRACKET_TRIES: usize = 16;

/// Runs the demo for `seconds`. With `keep`, everything then stays up until Ctrl-C.
///
/// # Errors
/// When anything fails, or guest and host disagree.
pub fn run(ctx: &Context, accelerator: &str, seconds: u32, keep: bool) -> anyhow::Result<()> {
    let began = Instant::now();
    for (number, (package, program)) in PROGRAMS.into_iter().enumerate() {
        let (number, all) = (number + 1, PROGRAMS.len());
        step(&format!("building {number} of {all}: {program}"), || ctx.program(package, program))?;
    }
    let (kernel, qemu) =
        step("fetching a stock Debian kernel, busybox and QEMU 10, if missing", || {
            ctx.busybox()?;
            Ok((ctx.kernel(KERNEL)?, ctx.qemu_10()?))
        })?;
    let server = step(
        "starting a chronyd as NTP server in a network namespace (it serves this machine's clock and leaves it alone)",
        || ctx.chronyd("server"),
    )?;
    let address = server.address().ip().to_string();
    let host = step(
        &format!("starting timevisord, which follows {address} with one exchange a second"),
        || {
            let host = Host::following(ctx, &address)?;
            host.wait_synchronized(500)?;
            Ok(host)
        },
    )?;
    let version = &kernel.version;
    let (mut client, boot) = step(
        &format!(
            "booting a stock Debian guest: Linux {version}, QEMU 10's vmclock device, accelerator {accelerator}"
        ),
        || {
            let mut client = launch(ctx, &host, KERNEL, &qemu, Way::Vmclock, "demo", "tai")?;
            let boot = client.guest.wait_ready()?;
            client.reader.ask("read")?;
            Ok((client, boot))
        },
    )?;
    println!(
        "- booted in {:.1} s; its kernel: {}",
        boot.as_secs_f64(),
        driver_line(&client.guest.serial_text())
    );
    println!("\n{HEADER}");

    let page = HostPage::open(host.directory())?;
    let offset = offset(&host, &client.name)?;
    let (mut worst, mut points) = (Worst::default(), Vec::new());
    let start = Instant::now();
    for second in 1..=seconds {
        let comparison = compare(&page, &mut client.reader, offset)?;
        println!("{}", row(second, &comparison));
        worst.add(&comparison)?;
        points.push(Point {
            at_s: start.elapsed().as_secs_f64(),
            host: comparison.host,
            guest: comparison.guest,
            server_ns: server_minus_host(&page)?,
        });
        while start.elapsed() < Duration::from_secs(u64::from(second)) {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    ensure!(worst.count == seconds, "{} of {seconds} readings", worst.count);
    println!("\nVERDICT: the guest reads the host's clock. {}.", worst.text());
    println!("         Every one of the guest's intervals agreed with the host's. PASS");
    let [svg, png] = picture::write(ctx.log_dir(), "demo", &points)?;
    println!("\nPicture: {}\n         {}", svg.display(), png.display());
    println!("         All of it took {} s.", began.elapsed().as_secs());
    if keep {
        stay(&host)?;
    }
    Ok(())
}

/// The server's clock minus the host's estimate, ns, at one counter value. The server's chronyd
/// serves this machine's CLOCK_REALTIME, so reading that clock gives the true time to within the
/// bracket.
fn server_minus_host(page: &HostPage) -> anyhow::Result<i64> {
    let truth = bracket(page.counter(), BRACKET_TRIES);
    let middle = truth.before.wrapping_add(truth.width() / 2);
    let host = page.convert(middle)?;
    let offset = host.tai_offset().context("the host's page does not know TAI - UTC")?;
    let server = truth.realtime.floor_nanos() + i64::from(offset) * 1_000_000_000;
    Ok(server - host.estimate.floor_nanos())
}

const HEADER: &str = "\
      one counter value, read in the guest, evaluated on both pages (TAI, bounds in us)          the guest's kernel
 sec  host's page: time    [bounds]         guest's /dev/vmclock0     [bounds]       guest-host  ptp0-host";

fn row(second: u32, c: &Comparison) -> String {
    let ptp = match c.ptp {
        Some(ptp) => {
            format!("{:+.1} +-{:.1} us", ptp.error as f64 / 1000.0, ptp.slack as f64 / 1000.0)
        }
        None => "no /dev/ptp0".to_owned(),
    };
    format!(
        "{second:>4}  {}  {}  {:>+7} ns  {ptp}",
        interval(&c.host),
        interval(&c.guest),
        c.difference()
    )
}

/// The time of day and its bounds: `14:03:21.123456789 [-31.2 +33.1]`.
fn interval(i: &Nanos) -> String {
    let (seconds, nanos) =
        (i.estimate.div_euclid(1_000_000_000), i.estimate.rem_euclid(1_000_000_000));
    let (h, m, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let below = (i.estimate - i.earliest) as f64 / 1000.0;
    let above = (i.latest - i.estimate) as f64 / 1000.0;
    format!("{h:02}:{m:02}:{s:02}.{nanos:09} [-{below:<5.1} +{above:<5.1}]")
}

fn driver_line(serial: &str) -> String {
    let line = serial.lines().find(|line| line.contains("vmclock0: registered"));
    line.and_then(|line| line.find("vmclock0").map(|at| line[at..].to_owned()))
        .unwrap_or_else(|| "(no driver line)".into())
}

fn stay(host: &Host) -> anyhow::Result<()> {
    let cli = host.cli_program().display();
    let directory = host.directory().display();
    println!("\nStill running. In another terminal, for instance:");
    for command in ["status", "now", "vm list"] {
        println!("  {cli} --run-directory {directory} {command}");
    }
    println!("Ctrl-C ends it.");
    while !interrupt::requested() {
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("\nended; nothing is left running.");
    Ok(())
}
