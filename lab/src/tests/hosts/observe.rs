//! timevisor-observe beside a real timevisord with references and VMs: read by another user, checked by
//! Prometheus' own tool, flooded and killed, while the clock goes on as before.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::command::{self, Tethered};
use crate::host::{Host, mentions, ntp_reference};
use crate::interrupt::{self, Late};
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::reader::HostPage;
use crate::scenario::Context;
use crate::scratch;
use crate::tests::faults::common::honest_reading;
use crate::tests::faults::qemu::Bare;

/// A user who is not there otherwise, and the group of observers.
const USER: &str = "64124";
const GROUP: &str = "64123";
/// Requests of each flood.
const FLOOD: u64 = 10_000;
const FLOODERS: u64 = 8;
/// How long publications are counted where nothing happens.
const SPAN: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn observe(ctx: &Context) -> anyhow::Result<String> {
    make_group(ctx)?;
    let servers = [Impostor::honest()?, Impostor::honest()?];
    let mut host = Host::preloadable(ctx)?;
    // By the grid, hardly ever by an answer: the count says whether the event loop is in time.
    let often = "[clock]\npublish_interval = \"200ms\"\n".to_owned();
    host.start(&(often + &servers.each_ref().map(|it| ntp_reference(&it.address())).concat()))?;
    host.wait_synchronized(5_000)?;
    let _vms = [Bare::nvdimm(ctx, &host, "one")?, Bare::nvdimm(ctx, &host, "two")?];
    for name in ["one", "two"] {
        host.wait_vm(name, "synchronized")?;
    }
    let observer = Observer::start(ctx, &host)?;
    observer.reads_and_changes_nothing(&host).context("the command line without root")?;
    let page = observer.scraped(ctx, &host).context("promtool")?;
    observer.news().context("events")?;
    let told = undisturbed(ctx, &host, &observer)?;
    daemon_goes(&mut host, &observer).context("timevisord killed")?;
    host.check_alive()?;
    Ok(format!("a scrape of {} lines, {told}", page.lines().count()))
}

/// Gives this test's mount namespace the group.
fn make_group(ctx: &Context) -> anyhow::Result<()> {
    let groups = fs::read_to_string("/etc/group")?;
    let others: Vec<_> = groups.lines().filter(|line| !line.starts_with("timevisor:")).collect();
    let path = ctx.path("group");
    fs::write(&path, format!("{}\ntimevisor:x:{GROUP}:\n", others.join("\n")))?;
    command::run("mount", &["--bind", &path.display().to_string(), "/etc/group"]).map(drop)
}

/// A running timevisor-observe of another user's.
struct Observer {
    _process: Tethered,
    pid: u32,
    address: SocketAddr,
    /// Copies of the programs that this user may execute.
    programs: TempDir,
    directory: PathBuf,
}

fn as_user(program: &Path, groups: &[&str]) -> Command {
    let mut command = command::tethered("setpriv");
    command.args(["--reuid", USER, "--regid", USER]).args(groups).arg("--").arg(program);
    command
}

impl Observer {
    fn start(ctx: &Context, host: &Host) -> anyhow::Result<Self> {
        let programs = scratch::directory()?;
        fs::set_permissions(programs.path(), Permissions::from_mode(0o755))?;
        for name in ["timevisor", "timevisor-observe"] {
            fs::copy(programs::binary(name, name)?, programs.path().join(name))?;
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut command = as_user(&programs.path().join("timevisor-observe"), &["--groups", GROUP]);
        command.arg("--run-directory").arg(host.directory());
        command.arg("--listen").arg(address.to_string());
        let mut process =
            Tethered::spawn(&mut command, "timevisor-observe", &ctx.path("observe.log"))?;
        let up = interrupt::poll_until(PATIENCE, || {
            process.check_alive()?;
            let page = get(address, "/metrics").unwrap_or_default();
            Ok(page.contains("\ntimevisor_up 1.0\n").then_some(()))
        })?;
        up.context(Late).context("timevisor-observe has no answers of timevisord")?;
        let pid = process.pid();
        Ok(Self { _process: process, pid, address, programs, directory: host.directory().into() })
    }

    fn cli(&self, groups: &[&str], words: &[&str]) -> anyhow::Result<Output> {
        let mut command = as_user(&self.programs.path().join("timevisor"), groups);
        command.arg("--run-directory").arg(&self.directory).args(words);
        command.output().context("cannot run timevisor")
    }

    /// A member of the group reads; nobody else does, and nobody changes anything.
    fn reads_and_changes_nothing(&self, host: &Host) -> anyhow::Result<()> {
        let member = ["--groups", GROUP];
        for (words, expected) in [
            (&["status"][..], "synchronized"),
            (&["vm", "list"], "two"),
            (&["sources"], "ntp"),
            (&["tracking"], "stratum"),
        ] {
            let out = self.cli(&member, words)?;
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            ensure!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
            mentions(&said, &[expected])?;
        }
        let refused = |groups: &[&str], words: &[&str], part: &str| -> anyhow::Result<()> {
            let out = self.cli(groups, words)?;
            ensure!(!out.status.success(), "{words:?} is done");
            mentions(&String::from_utf8_lossy(&out.stderr), &[part])
        };
        refused(&member, &["reload"], "root")?;
        refused(&member, &["vm", "remove", "one"], "root")?;
        refused(&["--clear-groups"], &["status"], "usermod -aG timevisor")?;
        // The socket itself refuses, too.
        let mut socket = UnixStream::connect(host.directory().join("observe"))?;
        socket.write_all(b"{\"v\":1,\"request\":{\"vm_remove\":{\"name\":\"one\"}}}\n")?;
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line)?;
        mentions(&line, &["permission", "for reading"])?;
        ensure!(host.vm("one")?["status"] == "synchronized", "a VM was removed");
        Ok(())
    }

    /// Prometheus' own tool finds nothing to complain about.
    fn scraped(&self, ctx: &Context, host: &Host) -> anyhow::Result<String> {
        let bound = || {
            let below = host.json(&["status"])?["clock"]["below_ns"].as_f64();
            Ok::<_, anyhow::Error>(below.context("no bound")? / 1e9)
        };
        let before = bound()?;
        let answer = get(self.address, "/metrics")?;
        let (_, page) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
        let file = ctx.path("metrics.txt");
        fs::write(&file, page)?;
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(fs::File::open(&file)?);
        let said = promtool.output().context("install the package prometheus")?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        mentions(
            page,
            &[
                "timevisor_vms 2.0\n",
                "timevisor_clock_status{status=\"synchronized\"} 1.0\n",
                "timevisor_vm_status{vm=\"two\",status=\"synchronized\"} 1.0\n",
                "timevisor_reference_earliest_offset_seconds{reference=",
                "timevisor_timeline_achieved_earliest_distance_seconds{timeline=\"utc\"",
                "timevisor_daemon_cpu_seconds_total",
            ],
        )?;
        // The page's bounds and those of the scrape are the same clock's.
        let distance = number(page, "timevisor_clock_earliest_distance_seconds")?;
        let after = bound()?;
        let range = before.min(after) / 2.0..before.max(after) * 2.0;
        ensure!(
            range.contains(&distance),
            "{distance} s in the scrape, {before} s and {after} s around it"
        );
        let packaging = programs::workspace()?.join("packaging/observe");
        for words in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts-test.yml"]] {
            let mut promtool = Command::new("promtool");
            command::output(promtool.args(words).current_dir(&packaging))?;
        }
        Ok(page.to_owned())
    }

    /// A browser gets all topics at once, and then the clock.
    fn news(&self) -> anyhow::Result<()> {
        let mut events = Events::open(self.address)?;
        let mut first: Vec<_> = (0..8).map(|_| events.next()).collect::<Result<_, _>>()?;
        first.sort_unstable();
        let topics = [
            "clock",
            "clusters",
            "daemon",
            "introspections",
            "references",
            "reservations",
            "timelines",
            "vms",
        ];
        ensure!(first.iter().map(|(name, _)| name.as_str()).eq(topics), "{first:?}");
        let clocks = (0..6).map(|_| events.next()).filter(|it| {
            it.as_ref().is_ok_and(|(name, data)| name == "clock" && data.contains("below_ns"))
        });
        ensure!(clocks.count() >= 2, "the clock is not told");
        Ok(())
    }
}

/// Server-sent events.
struct Events(BufReader<TcpStream>);

impl Events {
    fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        Ok(Self(BufReader::new(stream)))
    }

    /// The next event's name and data.
    fn next(&mut self) -> anyhow::Result<(String, String)> {
        let mut name = None;
        loop {
            let mut line = String::new();
            ensure!(self.0.read_line(&mut line)? > 0, "the events end");
            if let Some(event) = line.strip_prefix("event: ") {
                name = Some(event.trim().to_owned());
            } else if let (Some(data), Some(name)) = (line.strip_prefix("data: "), &name) {
                return Ok((name.clone(), data.trim().to_owned()));
            }
        }
    }
}

/// The clock's publications and what its readers see are the same whether nobody looks, the socket
/// or the web server is flooded, or timevisor-observe is killed.
fn undisturbed(ctx: &Context, host: &Host, observer: &Observer) -> anyhow::Result<String> {
    let quiet = publications(host, |over| {
        while !over() {
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(())
    })?;
    let answered = AtomicU64::new(0);
    let socket = publications(host, |_| {
        std::thread::scope(|scope| {
            let flood = || flood_socket(host.directory(), &answered);
            let floods: Vec<_> = (0..FLOODERS).map(|_| scope.spawn(flood)).collect();
            // Another user waits for nobody.
            while floods.iter().any(|flood| !flood.is_finished()) {
                let out = observer.cli(&["--groups", GROUP], &["vm", "list"])?;
                ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            }
            floods.into_iter().try_for_each(|it| it.join().expect("a flood panics"))
        })
    })?;
    ensure!(answered.load(Ordering::Relaxed) == FLOOD, "{answered:?} of {FLOOD} were answered");
    let web = publications(host, |_| {
        std::thread::scope(|scope| {
            let flood = || flood_web(observer.address);
            let floods: Vec<_> = (0..FLOODERS).map(|_| scope.spawn(flood)).collect();
            floods.into_iter().try_for_each(|it| it.join().expect("a flood panics"))
        })
    })?;
    ensure!(get(observer.address, "/metrics")?.contains("timevisor_up 1.0"), "it was flooded away");
    command::run("kill", &["-9", &observer.pid.to_string()])?;
    let killed = publications(host, |over| {
        while !over() {
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(())
    })?;
    for (what, rate) in
        [("the socket flooded", socket), ("the web flooded", web), ("killed", killed)]
    {
        ensure!(
            rate > 0.8 * quiet,
            "{what}: {rate:.2} publications a second instead of {quiet:.2}"
        );
    }
    fs::write(ctx.path("publications.txt"), format!("{quiet} {socket} {web} {killed}\n"))?;
    Ok(format!(
        "{quiet:.1} publications a second when nobody looks, {socket:.1} and {web:.1} in floods of {FLOOD} requests, {killed:.1} after kill -9"
    ))
}

/// Publications of a VM's page a second while `work` runs, at least for [`SPAN`]; every reading of
/// the host's page meanwhile is right.
fn publications(
    host: &Host,
    work: impl FnOnce(&dyn Fn() -> bool) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let page = HostPage::open(host.directory())?;
    let disruption = page.read()?.disruption;
    let published = || -> anyhow::Result<f64> {
        host.vm("one")?["pages_published"].as_f64().context("no publications")
    };
    let (begun, before) = (Instant::now(), published()?);
    std::thread::scope(|scope| {
        let (over, reading) = std::sync::mpsc::channel::<()>();
        let readings = scope.spawn(move || -> anyhow::Result<u64> {
            let mut readings = 0;
            while reading
                .recv_timeout(Duration::from_millis(5))
                .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let now = honest_reading(&page)?;
                ensure!(now.status().name() == "synchronized", "it is {}", now.status().name());
                ensure!(now.disruption == disruption, "a disruption");
                readings += 1;
            }
            Ok(readings)
        });
        let worked = work(&|| begun.elapsed() >= SPAN);
        drop(over);
        let readings = readings.join().expect("the reader panics")?;
        worked?;
        ensure!(readings > 20, "{readings} readings");
        Ok(())
    })?;
    Ok((published()? - before) / begun.elapsed().as_secs_f64())
}

/// Requests over the read-only socket, in bursts, each answered.
fn flood_socket(directory: &Path, answered: &AtomicU64) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(directory.join("observe"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    for _ in 0..FLOOD / FLOODERS / 25 {
        stream.write_all("{\"v\":1,\"request\":\"vm_list\"}\n".repeat(25).as_bytes())?;
        for _ in 0..25 {
            line.clear();
            lines.read_line(&mut line)?;
            mentions(&line, &["\"vm_list\""])?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Requests over HTTP; one in ten is a scrape.
fn flood_web(address: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    for number in 0..FLOOD / FLOODERS {
        let path = if number % 10 == 0 { "/metrics" } else { "/icon.svg" };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut lines = BufReader::new(&stream);
        let (mut length, mut line) = (0, String::new());
        while lines.read_line(&mut line)? > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            line.clear();
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body)?;
        ensure!(length > 0, "{path} is empty");
    }
    Ok(())
}

/// While there is no timevisord, the page is still told and the metrics say that it is gone.
fn daemon_goes(host: &mut Host, observer: &Observer) -> anyhow::Result<()> {
    // The one before was killed.
    let mut command =
        as_user(&observer.programs.path().join("timevisor-observe"), &["--groups", GROUP]);
    command.arg("--run-directory").arg(host.directory());
    command.arg("--listen").arg(observer.address.to_string());
    let log = host.directory().with_extension("observe.log");
    let _process = Tethered::spawn(&mut command, "timevisor-observe", &log)?;
    let says = |what: &'static str, part: &str| -> anyhow::Result<String> {
        let page = interrupt::poll_until(PATIENCE, || {
            let page = get(observer.address, "/metrics").unwrap_or_default();
            Ok(page.contains(part).then_some(page))
        })?;
        page.context(Late).with_context(|| format!("{what}: {part} is not in the metrics"))
    };
    says("with timevisord", "\ntimevisor_up 1.0\n")?;
    let mut events = Events::open(observer.address)?;
    host.kill();
    let page = says("without", "\ntimevisor_up 0.0\n")?;
    mentions(&page, &["timevisor_page_up 1.0\n", "timevisor_clock_earliest_distance_seconds"])?;
    ensure!(!page.contains("timevisor_vm_status"), "VMs of a timevisord that is gone: {page}");
    let told = (0..40).any(|_| {
        let event = events.next().unwrap_or_default();
        event.0 == "daemon" && event.1.contains("timevisord is not running")
    });
    ensure!(told, "browsers are not told");
    host.restart()?;
    says("again", "\ntimevisor_up 1.0\n").map(drop)
}

fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn number(page: &str, name: &str) -> anyhow::Result<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("no {name}"))?.parse().context("no number")
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
