//! C and C++ programs against the library as `make install` leaves it, under AddressSanitizer;
//! against a running timevisord, too.
//!
//! Needs gcc, g++, make and pkg-config; says so where one is missing.
#![expect(clippy::unwrap_used, reason = "every line here is a test")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A command that does not see what cargo tells a test about its package. Build scripts of
/// dependencies (ring) look at these variables; with ours in them, cargo would build the dependency
/// and all that needs it anew, here and then once more in the workspace.
fn outside_of_cargo(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told == "OUT_DIR"
            || told.starts_with("CARGO_PKG_")
            || told.starts_with("CARGO_MANIFEST_")
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs it to its end; a failure ends the test with all that it said.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "{:?} cannot be run ({error}); `apt-get install gcc g++ make pkg-config` brings what these tests need",
            command.get_program()
        )
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{errors}", output.status);
    said
}

/// Runs a test program: it and the library have nothing to say.
fn check(program: &mut Command) {
    let output = program.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{program:?}: {}\n{said}", output.status);
}

/// Where `make install` put everything: once for all tests of this file.
fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let mut make = outside_of_cargo("make");
        make.arg("-C").arg(here()).args(["install", "PROFILE=dev", "DESTDIR="]);
        make.arg(format!("PREFIX={}", prefix.display()));
        // Not the outer make's variables and jobs.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env("CARGO", env!("CARGO"));
        run(&mut make);
        prefix
    })
}

fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("timevisor");
    command.env("PKG_CONFIG_PATH", installed().join("lib/pkgconfig"));
    run(&mut command).split_whitespace().map(str::to_owned).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// With the static library, under AddressSanitizer and its leak checker.
    Checked,
    /// With the shared library, as pkg-config says.
    Shared,
    /// Without any shared library, for a guest's initramfs.
    Static,
}

fn compile(source: &str, link: Link) -> PathBuf {
    let source = here().join(source);
    let cpp = source.extension() == Some(OsStr::new("cpp"));
    let kind = match link {
        Link::Checked => "checked",
        Link::Shared => "shared",
        Link::Static => "static",
    };
    let name = source.file_stem().unwrap().to_string_lossy().into_owned();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{kind}"));
    let mut compiler = Command::new(if cpp { "g++" } else { "gcc" });
    compiler.arg(if cpp { "-std=c++11" } else { "-std=c99" });
    compiler.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-D_POSIX_C_SOURCE=200809L"]);
    compiler.args(pkg_config(&["--cflags"])).arg("-o").arg(&program);
    let archive = installed().join("lib/libtimevisor.a");
    match link {
        Link::Checked => {
            compiler.args(["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
            compiler.arg(&source).arg(archive).args(["-lpthread", "-ldl", "-lm"]);
        }
        Link::Shared => {
            compiler.arg(&source).args(pkg_config(&["--libs"])).arg("-lpthread");
        }
        Link::Static => {
            compiler.arg("-static").arg(&source).args(pkg_config(&["--static", "--libs"]));
        }
    }
    run(&mut compiler);
    program
}

fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", installed().join("lib"));
    command
}

#[test]
fn reading() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("tests/reading.c", Link::Checked);
    check(start(&program).arg(folder.path().join("tai.rec")));
}

#[test]
fn waiting() {
    check(&mut start(&compile("tests/waiting.c", Link::Checked)));
}

#[test]
fn misuse() {
    check(&mut start(&compile("tests/misuse.c", Link::Checked)));
}

#[test]
fn plusplus() {
    check(&mut start(&compile("tests/plusplus.cpp", Link::Checked)));
}

/// The name that the linker writes into programs, and what the library gives to them: what the
/// header has.
#[test]
fn shared_library() {
    let program = compile("tests/misuse.c", Link::Shared);
    check(&mut start(&program));
    let needed = run(Command::new("readelf").arg("-d").arg(&program));
    assert!(needed.contains("[libtimevisor.so.0]"), "{needed}");
    let symbols = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(installed().join("lib/libtimevisor.so"))
        .output()
        .unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(installed().join("include/timevisor.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| {
            line.starts_with(|c: char| c.is_ascii_lowercase()) && !line.starts_with("static")
        })
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("timevisor_"))
        .collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    assert!(declared.len() > 50, "{}", declared.len());
}

#[test]
fn the_guide_has_the_first_program() {
    let guide = std::fs::read_to_string(here().join("../../docs/reference/clients/c.md")).unwrap();
    let program = std::fs::read_to_string(here().join("examples/first.c")).unwrap();
    assert!(
        guide.contains(&format!("```c\n{program}```\n")),
        "docs/reference/clients/c.md has another first.c"
    );
    let header = std::fs::read_to_string(here().join("include/timevisor.h")).unwrap();
    let words = guide.split(|c: char| !c.is_alphanumeric() && c != '_');
    for word in words.filter(|word| word.starts_with("timevisor_") && !word.ends_with('_')) {
        assert!(header.contains(word), "the guide has {word}, timevisor.h has not");
    }
}

/// One of the workspace's programs.
fn built(program: &str) -> PathBuf {
    let mut build = outside_of_cargo(env!("CARGO"));
    // Not `-p`, which chooses other features of shared dependencies: see .ci/program.
    build.args(["build", "--quiet", "--workspace", "--bin", program, "--manifest-path"]);
    run(build.arg(here().join("../../Cargo.toml")));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug").join(program)
}

/// A timevisord of our own, in a folder of our own, which is stopped at the end.
struct Daemon {
    folder: tempfile::TempDir,
    process: Child,
}

impl Daemon {
    fn start() -> Self {
        let daemon = built("timevisord");
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("timevisord.toml");
        let text = format!(
            "run_directory = {:?}\n[clock]\ntai_offset = 37\n[guests]\ndiscover = false\n\
             [[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n",
            folder.path().join("run")
        );
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(daemon);
        command.arg("--config").arg(config).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().unwrap();
        Self { folder, process }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("run").join(name)
    }

    /// The example, until the clock is synchronized.
    fn first(&self, program: &Path) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let mut command = start(program);
            let output =
                command.args([self.path("clock"), self.path("timelines")]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() && said.contains("synchronized") {
                return said;
            }
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < end, "{output:?}\n{}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The number in the line that begins with `word`.
fn number(said: &str, word: &str) -> i64 {
    let line = said.lines().find_map(|line| line.strip_prefix(word)).unwrap();
    line.trim().trim_end_matches(" ns").parse().unwrap()
}

#[test]
fn with_a_timevisord() {
    let daemon = Daemon::start();
    for link in [Link::Checked, Link::Shared, Link::Static] {
        let said = daemon.first(&compile("examples/first.c", link));
        let [earliest, estimate, latest] =
            ["earliest", "estimate", "latest"].map(|word| number(&said, word));
        assert!(earliest < estimate && estimate < latest, "{said}");
        assert!(latest - earliest < 2_000_000_000 && number(&said, "lateness") >= 0, "{said}");
        assert!(said.contains("met       true\n"), "{said}");
        assert!(
            said.contains(&format!("page      {}\n", daemon.path("clock").display())),
            "{said}"
        );
    }
    let truncated = compile("tests/truncated.c", Link::Shared);
    let copy = daemon.folder.path().join("copy");
    std::fs::copy(daemon.path("clock"), &copy).unwrap();
    check(start(&truncated).arg(copy));
    let bound = compile("tests/bound.c", Link::Checked);
    check(start(&bound).args([daemon.path("clock"), daemon.path("timelines")]));
    act_together(&daemon);
}

/// Two programs of the example.
fn act_together(daemon: &Daemon) {
    let socket = daemon.folder.path().join("bus");
    let _bus = Bus::start(&built("timevisor-bus"), &socket, &[]);
    let example = compile("examples/group.c", Link::Checked);
    let mut members = ["left", "right"].map(|name| {
        let mut command = start(&example);
        command.arg(name).args([daemon.path("clock"), daemon.path("timelines")]);
        command.env("TIMEVISOR_BUS", &socket).stdout(Stdio::piped()).spawn().unwrap()
    });
    for member in &mut members {
        let status = member.wait().unwrap();
        let said = std::io::read_to_string(member.stdout.take().unwrap()).unwrap();
        assert!(status.success(), "{said}");
        assert!(said.contains("fire      grip the part at "), "{said}");
        assert!(said.ends_with("fired     left right\n"), "{said}");
    }
}

/// A bus of our own, which is stopped at the end.
struct Bus(Child);

impl Bus {
    fn start(program: &Path, socket: &Path, arguments: &[&OsStr]) -> Self {
        let mut command = Command::new(program);
        command.arg("--socket").arg(socket).args(arguments).stderr(Stdio::null());
        let bus = Self(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < end, "the bus does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        bus
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn groups_with_a_bus() {
    let program = built("timevisor-bus");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let key = "0123456789abcdef".repeat(4);
    std::fs::write(path("key"), &key).unwrap();
    let config = format!("[[group]]\nname = \"cell7\"\nkey = {:?}\n", path("key"));
    std::fs::write(path("bus.toml"), config).unwrap();
    let socket = path("socket");
    let _bus = Bus::start(&program, &socket, &[]);
    let config = path("bus.toml");
    let arguments = [OsStr::new("--config"), config.as_os_str()];
    let _with_key = Bus::start(&program, &path("with-key"), &arguments);
    for link in [Link::Checked, Link::Shared] {
        let members = compile("tests/members.c", link);
        check(start(&members).arg(&socket).arg(path("with-key")).arg(&key));
    }
}
