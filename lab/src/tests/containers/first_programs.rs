//! The first program on each language's page: one file each, run on the host, in a container and in
//! a stock guest, without flags, arguments or a separate build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, ensure};

use crate::client::{Launch, Way};
use crate::command::tail;
use crate::container::{Container, PAGE, Users};
use crate::host::Host;
use crate::programs;
use crate::python::Python;
use crate::reader::HostPage;
use crate::scenario::Context;

const NOBODY: u32 = 65534;
const LANGUAGES: [&str; 3] = ["C", "Rust", "Python"];

/// What the three programs need and how they are started.
struct Programs {
    c: PathBuf,
    rust: PathBuf,
    script: PathBuf,
    python: Python,
}

impl Programs {
    fn build(ctx: &Context) -> anyhow::Result<Self> {
        let root = programs::workspace()?;
        let (c, rust) = (ctx.path("first-c"), ctx.path("first-rust"));
        fs::copy(ctx.example("timevisor-client", "first")?, &rust)?;
        programs::build_c(&root.join("clients/c/examples/first.c"), &ctx.path("prefix"), &c)?;
        let script = ctx.path("first.py");
        fs::copy(root.join("clients/python/examples/first.py"), &script)?;
        Ok(Self { c, rust, script, python: Python::archive(ctx.log_dir())? })
    }

    /// The command line for each of [`LANGUAGES`], with programs and script in `folder`.
    fn lines(&self, folder: &Path) -> [Vec<String>; 3] {
        let at =
            |path: &Path| folder.join(path.file_name().unwrap_or_default()).display().to_string();
        let interpreter = self.python.interpreter.display().to_string();
        [vec![at(&self.c)], vec![at(&self.rust)], vec![interpreter, at(&self.script)]]
    }
}

pub(crate) fn first_programs(ctx: &Context) -> anyhow::Result<String> {
    let programs = Programs::build(ctx)?;
    let server = ctx.chronyd("server")?;
    let host = Host::following(ctx, &server.address().ip().to_string())?;
    host.wait_synchronized(200)?;
    let page = HostPage::open(host.directory())?;
    let check = |place: &str,
                 language: &str,
                 wanted: &str,
                 run: &mut dyn FnMut() -> anyhow::Result<String>| {
        check(ctx, &page, place, language, wanted, run)
            .with_context(|| format!("{language} {place}"))
    };

    for (language, line) in LANGUAGES.iter().zip(programs.lines(ctx.log_dir())) {
        check("on the host", language, PAGE, &mut || {
            said(&on_host(&host, &line, &programs.python.packages)?)
        })?;
    }

    let files = [&programs.c, &programs.rust, &programs.script].map(PathBuf::as_path);
    let container = Container::new(&files, host.directory(), Users::Host, NOBODY)?;
    let container = container.unpack(&programs.python.archive)?;
    for (language, line) in LANGUAGES.iter().zip(programs.lines(Path::new("/bin"))) {
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        check("in a container", language, PAGE, &mut || said(&container.run(&words)?))?;
    }

    let qemu = ctx.qemu_10()?;
    let files =
        [&programs.c, &programs.rust, &programs.script, &programs.python.archive].map(Clone::clone);
    let mut client =
        Launch::new(ctx, &host, &qemu, Way::Vmclock, "guest").programs(&files).start()?;
    client.guest.wait_ready()?;
    client.reader.ask("read")?;
    host.wait_vm("guest", "synchronized")?;
    client.guest.sh("tar -xzf /bin/python.tar.gz -C / && rm /bin/python.tar.gz")?;
    for (language, line) in LANGUAGES.iter().zip(programs.lines(Path::new("/bin"))) {
        check("in a guest", language, "/dev/vmclock0", &mut || client.guest.sh(&line.join(" ")))?;
    }
    Ok(format!(
        "{} on the host, as nobody in a container, and in a guest: 9 outputs in {}, each estimate between the host's \
         before and after",
        LANGUAGES.join(", "),
        ctx.path("outputs.txt").display()
    ))
}

/// Runs a program with the test's run directory mounted at /run/timevisor, for this process only.
fn on_host(host: &Host, line: &[String], packages: &Path) -> anyhow::Result<Output> {
    let script = "mount -t tmpfs none /run && mkdir /run/timevisor && mount --bind \"$0\" /run/timevisor && exec \"$@\"";
    let mut run = Command::new("unshare");
    run.args(["--mount", "--", "sh", "-c", script]).arg(host.directory()).args(line);
    run.env("PYTHONPATH", packages).output().context("cannot run unshare")
}

/// Runs the program once and checks what it prints.
fn check(
    ctx: &Context,
    page: &HostPage,
    place: &str,
    language: &str,
    wanted: &str,
    run: &mut dyn FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let before = page.read()?.estimate.floor_nanos();
    let text = run()?;
    let after = page.read()?.estimate.floor_nanos();
    ctx.log(&format!("{language} {place}:\n{text}"));
    let outputs = ctx.path("outputs.txt");
    let mut kept = fs::read_to_string(&outputs).unwrap_or_default();
    kept += &format!("== {language} {place} ==\n{text}\n");
    fs::write(outputs, kept)?;

    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).with_context(|| format!("no {name} in {text}"))
    };
    let ns = |name: &str| -> anyhow::Result<i64> {
        value(name)?.trim_end_matches(" ns").parse().with_context(|| format!("{name} in {text}"))
    };
    let (earliest, estimate, latest) = (ns("earliest")?, ns("estimate")?, ns("latest")?);
    ensure!(value("page")? == wanted, "another page than {wanted}: {text}");
    ensure!(before <= estimate && estimate <= after, "not between {before} and {after}: {text}");
    ensure!(earliest <= estimate && estimate <= latest, "{text}");
    ensure!(value("status")? == "synchronized", "{text}");
    ensure!(value("met")?.eq_ignore_ascii_case("true"), "{text}");
    // wait_past returns when `earliest` has passed the estimate plus 10 ms, so this took at least
    // 10 ms.
    ensure!(ns("lateness")? >= 0 && after - estimate > 10_000_000, "{text}");
    Ok(())
}

fn said(output: &Output) -> anyhow::Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", tail(&error, 8));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
