//! Table 1 of T. Cucinotta, G. Anastasi, L. Abeni, "Real-Time Virtual Machines": response times of
//! Apache 2 with a compute-bound CGI program (lab-rotate), for 10 clients with 10 requests each.
//! They are measured on this machine, in a guest, in a guest on a busy host, and in a reservation
//! of 3 in 5 ms; here it is 30 in 50, because this machine's kernel enforces budgets at its ticks
//! of 4 ms.
//!
//! Differences from the paper: the guest is emulated, so the first two columns are far apart. An
//! additional column shows the effect of the reservation alone, without a busy host. The cost of a
//! request varies on this machine by more than the ratios do, so the running time of the guest's
//! vCPU is measured, and responses are also compared for equal amounts of work.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use timevisor_lab::client::{Client, Launch, Way};
use timevisor_lab::command::{Tethered, tethered};
use timevisor_lab::host::Host;
use timevisor_lab::interrupt::{self, Late};
use timevisor_lab::packages;
use timevisor_lab::real_time::{Load, Restore, costs};
use timevisor_lab::scenario::Context;
use timevisor_linux::scheduling::schedstat;

use super::super::report;
use super::super::statistics::confidence_95;

const NAME: &str = "rtvm-apache";
const CLIENTS: usize = 10;
const REQUESTS: usize = 10;
/// Of all columns, if there is time.
const ROUNDS: usize = 20;
const BUDGET: &str = "30ms/50ms";
const APACHE: &str = "/usr/sbin/apache2";
const MODULES: [&str; 4] = ["mpm_prefork", "authz_core", "alias", "cgi"];
/// Time limit for a request on a loaded host.
const PATIENCE: Duration = Duration::from_secs(600);
/// The paper's averages, s.
const PAPER: [Option<f64>; 5] = [Some(1.14), Some(1.22), Some(11.367), Some(2.044), None];

/// The response time of each request, s.
type Seconds = Vec<f64>;

/// One condition.
#[derive(Default)]
struct Column {
    name: &'static str,
    found: Seconds,
    /// Running time of the guest's vCPU, s.
    ran: f64,
    /// The average of each round, s.
    rounds: Vec<f64>,
}

impl Column {
    fn average(&self) -> f64 {
        self.found.iter().sum::<f64>() / self.found.len() as f64
    }

    /// Processor time per request, s; 0 natively.
    fn cost(&self) -> f64 {
        self.ran / self.found.len() as f64
    }
}

pub(crate) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    install()?;
    let end = Instant::now() + span;
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(500)?;
    let _restore = Restore::of(&host);
    let rotate = ctx.program("timevisor-lab-guest", "lab-rotate")?;
    let native = Native::start(ctx, &rotate)?;
    let (guest_port, mut guest) = guest(ctx, &host, "guest", rotate)?;
    let mut columns = [
        "host, idle",
        "guest, idle host",
        "guest, loaded host",
        "guest, 30 of 50 ms, loaded host",
        "guest, 30 of 50 ms, idle host",
    ]
    .map(|name| Column { name, ..Column::default() });
    let (pid, tid) = (guest.guest.pid(), costs::vcpu(guest.guest.pid())?);
    let mut rounds = 0;
    // Every round measures each column, so that a temporary slowdown of the machine affects all of
    // them.
    while rounds < 2 || (rounds < ROUNDS && Instant::now() < end) {
        for (index, column) in columns.iter_mut().enumerate() {
            let load = [2, 3].contains(&index).then(Load::start).transpose()?;
            let reserved = index > 2;
            if reserved {
                host.cli(&["reserve", "apply", "guest", "--alone", "--budget", BUDGET])?;
            }
            let before = schedstat(pid, tid)?.ran;
            let found = requests(if index == 0 { native.port } else { guest_port })?;
            column.rounds.push(found.iter().sum::<f64>() / found.len() as f64);
            column.found.extend(found);
            if index > 0 {
                column.ran += (schedstat(pid, tid)?.ran - before) as f64 / 1e9;
            }
            drop(load);
            if reserved {
                host.cli(&["reserve", "release", "guest"])?;
            }
        }
        rounds += 1;
    }
    guest.guest.kill();
    println!("  {rounds} times {CLIENTS} clients with {REQUESTS} requests each; seconds\n");
    println!(
        "{:<34} {:>8} {:>14} {:>8} {:>8}  {:>10}  {:>7}  {:>8}  {:>22}",
        "",
        "min",
        "average +-95 %",
        "max",
        "std.dev",
        "of idle",
        "paper's",
        "vCPU ran",
        "of idle, for same work"
    );
    let [_, idle, ..] = &columns;
    let mut rows = Vec::new();
    for (column, paper) in columns.iter().zip(PAPER) {
        let (name, all, mean) = (column.name, &column.found, column.average());
        let deviation =
            (all.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / all.len() as f64).sqrt();
        let (least, most) =
            all.iter().fold((f64::MAX, 0.0_f64), |(l, m), s| (l.min(*s), m.max(*s)));
        // Both are relative to the guest's response time on an idle host.
        let (ratio, paper) = (mean / idle.average(), paper.map(|s| s / PAPER[1].unwrap_or(1.0)));
        let paper_text = paper.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        let cost = column.cost();
        let (_, half) = confidence_95(&column.rounds);
        let same_work = (cost > 0.0).then(|| ratio / (cost / idle.cost()));
        let same_work_text = same_work.map_or(String::new(), |ratio| format!("{ratio:.2}"));
        println!(
            "{name:<34} {least:>8.2} {:>14} {most:>8.2} {deviation:>8.2}  {ratio:>10.2}  {paper_text:>7}  {cost:>8.3}  {same_work_text:>22}",
            format!("{mean:.2} +-{half:.2}"),
        );
        rows.push(json!({
            "column": name, "average_s": mean, "half_width_95_s": half, "rounds_s": column.rounds, "min_s": least, "max_s": most, "standard_deviation_s": deviation,
            "vcpu_ran_s": cost, "of_guest_idle_for_same_work": same_work, "of_guest_idle": ratio, "paper_of_guest_idle": paper, "responses_s": all,
        }));
    }
    println!("\nperiod / budget: 1.67");
    report::write(NAME, rows)
}

pub(super) fn install() -> anyhow::Result<()> {
    packages::ensure_installed(&["apache2-bin"]).map(drop)
}

/// Runs all clients at the same time; each begins its next request when it has received the answer.
fn requests(port: u16) -> anyhow::Result<Seconds> {
    std::thread::scope(|scope| {
        let client = || (0..REQUESTS).map(|_| request(port)).collect::<anyhow::Result<Seconds>>();
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let answers = clients
            .into_iter()
            .map(|client| client.join().map_err(|_| anyhow::anyhow!("a client panicked"))?);
        Ok(answers.collect::<anyhow::Result<Vec<_>>>()?.concat())
    })
}

pub(super) fn request(port: u16) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /rotate HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let sum = answer.trim_end().lines().last().and_then(|line| line.parse::<u64>().ok());
    ensure!(answer.starts_with("HTTP/1.1 200 ") && sum > Some(0), "Apache says: {answer:?}");
    Ok(begin.elapsed().as_secs_f64())
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Apache's configuration; its own files go below `dir`.
fn configuration(dir: &Path, listen: &str, rotate: &Path) -> String {
    let (dir, rotate) = (dir.display(), rotate.display());
    let modules: String = MODULES
        .iter()
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .collect();
    format!(
        "{modules}ServerName lab\nServerRoot {dir}\nPidFile {dir}/apache2.pid\nMutex fcntl:{dir} default\n\
         ErrorLog {dir}/apache2.log\nListen {listen}\nUser nobody\nGroup nogroup\nStartServers {CLIENTS}\n\
         MaxRequestWorkers {CLIENTS}\nScriptAlias /rotate {rotate}\n<Location /rotate>\nRequire all granted\n</Location>\n"
    )
}

/// Apache on this machine; ended on drop.
struct Native {
    port: u16,
    _process: Tethered,
    _dir: tempfile::TempDir,
}

impl Native {
    fn start(ctx: &Context, rotate: &Path) -> anyhow::Result<Self> {
        // In a world-readable place, because its workers run as nobody.
        let dir = tempfile::tempdir_in("/tmp")?;
        command_mode(dir.path(), 0o755)?;
        let program = dir.path().join("lab-rotate");
        fs::copy(rotate, &program)?;
        let port = free_port()?;
        let file = dir.path().join("apache2.conf");
        fs::write(&file, configuration(dir.path(), &format!("127.0.0.1:{port}"), &program))?;
        let mut command = tethered(APACHE);
        command.args(["-D", "FOREGROUND", "-f"]).arg(&file);
        let mut process = Tethered::spawn(&mut command, "apache2", &ctx.path("apache2.log"))?;
        wait_for_answer(port, || process.check_alive())?;
        Ok(Self { port, _process: process, _dir: dir })
    }
}

fn command_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn wait_for_answer(port: u16, mut alive: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut last = None;
    let answer = interrupt::poll_until(Duration::from_secs(60), || {
        alive()?;
        Ok(request(port).map_err(|error| last = Some(error)).ok())
    })?;
    answer.context(Late).with_context(|| format!("Apache does not answer: {last:?}")).map(drop)
}

/// A guest with Apache behind a port of this machine.
pub(super) fn guest(
    ctx: &Context,
    host: &Host,
    name: &str,
    rotate: PathBuf,
) -> anyhow::Result<(u16, Client)> {
    let port = free_port()?;
    let file = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = ctx.path(name);
        fs::write(&path, text)?;
        Ok(path)
    };
    let settings = configuration(Path::new("/run"), "80", Path::new("/bin/lab-rotate"));
    let settings = file("apache2.conf", &settings)?;
    let users = file("passwd", "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    let groups = file("group", "root:x:0:\nnogroup:x:65534:\n")?;
    let image = move |image: timevisor_lab::image::Image| {
        let image =
            image.program(&rotate).module("virtio_net").dynamic_program(Path::new(APACHE))?;
        let image = image
            .file(settings.clone(), "/etc/apache2.conf", 0o644)
            .file(users.clone(), "/etc/passwd", 0o644)
            .file(groups.clone(), "/etc/group", 0o644);
        Ok(MODULES.iter().fold(image, |image, name| {
            let module = format!("/usr/lib/apache2/modules/mod_{name}.so");
            image.file(module.clone(), &module, 0o644)
        }))
    };
    let named = format!("{name},debug-threads=on");
    let builder = move |builder: timevisor_lab::builder::GuestBuilder| {
        builder.args([
            "-name".to_owned(),
            named.clone(),
            "-netdev".to_owned(),
            format!("user,id=web,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:80"),
            "-device".to_owned(),
            "virtio-net-pci,netdev=web,romfile=".to_owned(),
        ])
    };
    let qemu = ctx.qemu_10()?;
    let launch = Launch::new(ctx, host, &qemu, Way::Vmclock, name).image(image).builder(builder);
    let mut guest = launch.start()?;
    guest.guest.wait_ready()?;
    host.wait_vm(name, "synchronized")?;
    guest
        .guest
        .sh("ip link set lo up; ip address add 10.0.2.15/24 dev eth0; ip link set eth0 up")?;
    guest.guest.sh("mount -o remount,size=50% /run 2>/dev/null; apache2 -f /etc/apache2.conf")?;
    wait_for_answer(port, || Ok(()))?;
    Ok((port, guest))
}
