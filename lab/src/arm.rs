//! Builds and runs our code for 64-bit Arm: Debian 13's Rust compiler with both standard libraries,
//! Debian's cross linker, and QEMU's user emulation.
//!
//! rustup's servers are out of reach in many labs, and Debian 12's own compiler is too old for our
//! edition. The compiler is unpacked into the cache, never installed, and runs with its own C
//! library. Limitations: the emulator uses its host's memory ordering, and its counter has a
//! resolution of a microsecond. The order of instructions is therefore checked in the machine code
//! ([`functions`]), and nothing is measured here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::apt::Apt;
use crate::command;
use crate::interrupt;
use crate::programs;

/// This suite has the oldest compiler that our portable crates support (`rust-version` in their
/// manifests).
const SUITE: &str = "trixie";
/// The tools that the compiler links with; Debian 12's cross compiler replaces them.
const LINKERS: &[&str] = &["gcc", "libc-dev", "binutils"];
const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// A hanging test must not hang the lab.
const PATIENCE_SECONDS: &str = "900";

/// A compiler for Arm, ready to use.
#[derive(Debug)]
pub struct ArmToolchain {
    rustc: PathBuf,
    target_dir: PathBuf,
}

/// The result of a test run.
#[derive(Debug)]
pub struct ArmRun {
    /// Number of tests that passed; none failed.
    pub passed: u32,
    /// Everything cargo and the tests printed.
    pub output: String,
}

impl ArmToolchain {
    /// The toolchain in `lab_dir`'s cache; fetched on first use (135 MB, 600 MB unpacked).
    ///
    /// # Errors
    /// When its packages cannot be fetched or the compiler does not run.
    pub fn open(lab_dir: &Path) -> anyhow::Result<Self> {
        let dir = lab_dir.join("cache/rust-arm");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        // Concurrent lab runs share the cache; the second one waits here.
        let lock = File::create(dir.join(".lock"))?;
        lock.lock().context("cannot lock the cache")?;
        if !dir.join("ready").exists() {
            let apt_dir = lab_dir.join("cache/apt");
            let unpacked = unpack(&apt_dir, &dir, false).or_else(|error| {
                interrupt::check()?;
                eprintln!("Rust for Arm: reading the package lists again, because {error:#}");
                unpack(&apt_dir, &dir, true)
            });
            fs::write(dir.join("ready"), unpacked.context("cannot fetch Rust for Arm")?)?;
        }
        let (rustc, script) = (dir.join("rustc"), wrapper(&dir.join("root/usr")));
        // Cargo would rebuild everything if the compiler's file were rewritten.
        if !fs::read_to_string(&rustc).is_ok_and(|text| text == script) {
            fs::write(&rustc, script)?;
            fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { rustc, target_dir: lab_dir.join("static-arm") })
    }

    /// The compiler's version, such as `1.85.1`.
    ///
    /// # Errors
    /// When the compiler does not run.
    pub fn version(&self) -> anyhow::Result<String> {
        let text = command::output(Command::new(&self.rustc).arg("--version"))?;
        text.split(' ').nth(1).map(str::to_owned).with_context(|| format!("odd version {text:?}"))
    }

    /// Runs `cargo test` with `args` for Arm under emulation; all output goes to `log`.
    ///
    /// # Errors
    /// When something does not build or a test fails.
    pub fn test(&self, args: &[&str], log: &Path) -> anyhow::Result<ArmRun> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE_SECONDS]).arg(cargo);
        command.args(["test", "--no-fail-fast", "--target", TARGET, "--target-dir"]);
        command.arg(&self.target_dir);
        command.args(args);
        for inherited in ["CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"] {
            command.env_remove(inherited);
        }
        command
            .current_dir(programs::workspace()?)
            .env("RUSTC", &self.rustc)
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", EMULATOR);
        let out = command.output().context("cannot run cargo")?;
        let output = [&out.stderr, &out.stdout].map(|b| String::from_utf8_lossy(b)).concat();
        fs::write(log, format!("$ {}\n{output}", command::describe(&command)))?;
        interrupt::check()?;
        if !out.status.success() {
            bail!("`cargo test` for Arm failed ({}): {}", out.status, complaints(&output));
        }
        Ok(ArmRun { passed: passed(&output), output })
    }
}

impl ArmRun {
    /// The file that holds the compiled test `source`, such as `tests/arm_page.rs`.
    ///
    /// # Errors
    /// When cargo ran no such test.
    pub fn binary(&self, source: &str) -> anyhow::Result<PathBuf> {
        let start = format!("Running {source} (");
        self.output
            .lines()
            .find_map(|line| line.trim().strip_prefix(&start)?.strip_suffix(')'))
            .map(|path| self.absolute(path))
            .with_context(|| format!("cargo ran no {source}"))
    }

    fn absolute(&self, path: &str) -> PathBuf {
        programs::workspace().unwrap_or_default().join(path)
    }
}

/// Fetches and unpacks all packages below `dir`; returns their names and versions.
fn unpack(apt_dir: &Path, dir: &Path, refresh: bool) -> anyhow::Result<String> {
    let host = Apt::open(apt_dir, SUITE)?;
    if refresh {
        host.update()?;
    }
    let arm = arm_apt(apt_dir, refresh)?;
    let mut packages = Vec::new();
    let mut queue = vec!["rustc".to_owned()];
    while let Some(name) = queue.pop() {
        let known = packages.iter().any(|(_, p): &(&Apt, crate::apt::Package)| p.name == name);
        if known || LINKERS.contains(&name.as_str()) {
            continue;
        }
        let (package, depends) = host.show(&name)?;
        packages.push((&host, package));
        queue.extend(depends);
    }
    packages.push((&arm, arm.show("libstd-rust-dev")?.0));

    let fresh = dir.join("root.new");
    let _ = fs::remove_dir_all(&fresh);
    fs::create_dir_all(&fresh)?;
    let mut names = String::new();
    for (apt, package) in &packages {
        interrupt::check()?;
        // apt has verified the file against the suite's signed checksums.
        let file = apt.download(package, dir)?;
        let unpacked =
            command::run("dpkg-deb", &["-x".as_ref(), file.as_os_str(), fresh.as_os_str()]);
        fs::remove_file(&file)?;
        unpacked?;
        names += &format!("{} {} {}\n", package.suite, package.name, package.version);
    }
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&root);
    fs::rename(&fresh, &root)?;
    Ok(names)
}

/// The same suite of the Arm port, with its own state beside that of [`Apt`], which reads only
/// amd64.
fn arm_apt(apt_dir: &Path, refresh: bool) -> anyhow::Result<Apt> {
    let name = format!("{SUITE}-arm64");
    let (amd64, arm64) = (apt_dir.join(SUITE), apt_dir.join(&name));
    if refresh || !arm64.join("ready").exists() {
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(arm64.join(sub))?;
        }
        fs::write(arm64.join("status"), "")?;
        let path = |dir: &Path| format!("\"{}/", dir.display());
        for file in ["apt.conf", "sources.list"] {
            let text = fs::read_to_string(amd64.join(file))?
                .replace(&path(&amd64), &path(&arm64))
                .replace("APT::Architecture \"amd64\"", "APT::Architecture \"arm64\"")
                .replace("[arch=amd64 ", "[arch=arm64 ");
            fs::write(arm64.join(file), text)?;
        }
        let mut update = Command::new("apt-get");
        update.arg("-c").arg(arm64.join("apt.conf")).args(["-q", "update", "--error-on=any"]);
        command::output(&mut update)
            .with_context(|| format!("cannot read suite {SUITE} for Arm; check the network"))?;
        fs::write(arm64.join("ready"), "")?;
    }
    Apt::open(apt_dir, &name)
}

/// A script that cargo runs as rustc: Debian 13's compiler needs a newer C library than Debian
/// 12's.
fn wrapper(usr: &Path) -> String {
    let usr = usr.display();
    format!(
        r#"#!/bin/sh
usr='{usr}'
lib="$usr/lib/x86_64-linux-gnu"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$usr/bin/rustc" --sysroot "$usr" "$@"
"#
    )
}

/// The total over all lines such as `test result: ok. 17 passed; ...`.
fn passed(output: &str) -> u32 {
    let count =
        |line: &str| line.strip_prefix("test result: ok. ")?.split(' ').next()?.parse::<u32>().ok();
    output.lines().filter_map(count).sum()
}

/// The lines that explain the failure.
fn complaints(output: &str) -> String {
    let telling =
        |l: &&str| l.ends_with("... FAILED") || l.starts_with("error") || l.contains("panicked at");
    let lines: Vec<&str> = output.lines().filter(telling).take(12).collect();
    if lines.is_empty() { command::tail(output, 12) } else { lines.join("\n") }
}

/// The functions of an Arm program whose names contain `name`, each as a list of instructions such
/// as `mrs x9, cntvct_el0`.
///
/// # Errors
/// When objdump fails or there is no such function.
pub fn functions(program: &Path, name: &str) -> anyhow::Result<Vec<Vec<String>>> {
    let text = command::output(
        Command::new("aarch64-linux-gnu-objdump").args(["-dC", "--no-show-raw-insn"]).arg(program),
    )?;
    let found = disassembled(&text, name);
    ensure!(!found.is_empty(), "{} has no function {name}", program.display());
    Ok(found)
}

/// Calls of our own functions that deep are followed: what the compiler inlines differs from build
/// to build, but not what is executed in which order.
const CALLS: usize = 3;

/// Name and body by address: of a generic function, several may have one name.
type Blocks<'a> = BTreeMap<&'a str, (&'a str, &'a str)>;

fn disassembled(text: &str, name: &str) -> Vec<Vec<String>> {
    let block = |block| {
        let (head, body) = str::split_once(str::trim_start_matches(block, '\n'), '\n')?;
        let (address, function) = head.strip_suffix(':')?.split_once(' ')?;
        Some((address.trim_start_matches('0'), (function, body)))
    };
    let blocks: Blocks<'_> = text.split("\n\n").filter_map(block).collect();
    let named = blocks.values().filter(|(function, _)| function.contains(name));
    named.map(|(_, body)| executed(&blocks, body, CALLS)).collect()
}

/// The instructions of a function with those of the functions that it calls.
fn executed(blocks: &Blocks<'_>, body: &str, calls: usize) -> Vec<String> {
    let mut all = Vec::new();
    for line in body.lines() {
        let Some((_, instruction)) = line.split_once(":\t") else { continue };
        let words = instruction.split("//").next().unwrap_or_default().split_whitespace();
        let instruction = words.collect::<Vec<_>>().join(" ");
        let called = instruction.strip_prefix("bl ").filter(|_| calls > 0);
        let called = called.and_then(|called| blocks.get(called.split(' ').next()?));
        let ours = called.filter(|(function, _)| function.contains("timevisor_"));
        let inside = ours.map(|(_, body)| executed(blocks, body, calls - 1));
        all.push(instruction);
        all.extend(inside.into_iter().flatten());
    }
    all
}

/// True when `function` has instructions that contain each of `wanted`, in that order.
#[must_use]
pub fn in_order(function: &[String], wanted: &[&str]) -> bool {
    let mut rest = function.iter();
    wanted.iter().all(|w| rest.any(|instruction| instruction.contains(w)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_found_in_order() {
        let text = "a: file format elf64\n\n\n0000 <page::read>:\n  40:\tldar\tx19, [x23]\n  \
                    44:\tmrs\tx9, cntvct_el0\n  48:\tdmb\tishld\t// x\n\n0050 <other>:\n  50:\tisb\n";
        let read = disassembled(text, "<page::read>");
        assert_eq!(read, [["ldar x19, [x23]", "mrs x9, cntvct_el0", "dmb ishld"]]);
        assert!(in_order(&read[0], &["ldar", "cntvct_el0", "dmb ishld"]));
        assert!(!in_order(&read[0], &["cntvct_el0", "ldar"]));
        assert!(!in_order(&read[0], &["ldar", "isb"]));
    }

    #[test]
    fn calls_of_our_own_functions_are_followed() {
        let text = "a: file format elf64\n\n\n0000 <page::publish>:\n  0:\tdsb\tish\n  \
                    4:\tbl\t20 <timevisor_page::next>\n  8:\tstlr\tx8, [x9]\n\n\
                    0020 <timevisor_page::next>:\n  20:\tmrs\tx9, cntvct_el0\n  24:\tbl\t20 <timevisor_page::next>\n";
        let publish = disassembled(text, "page::publish");
        assert!(in_order(&publish[0], &["dsb ish", "cntvct_el0", "stlr"]));
        assert!(!in_order(&publish[0], &["cntvct_el0", "dsb ish"]));
        assert_eq!(publish[0].iter().filter(|i| i.contains("cntvct")).count(), CALLS);
    }

    #[test]
    fn results_are_summed_and_failures_told() {
        let output =
            "test result: ok. 17 passed; 0 failed\nx\ntest result: ok. 4 passed; 0 failed\n";
        assert_eq!(passed(output), 21);
        assert_eq!(complaints("a\ntest b ... FAILED\nc\n"), "test b ... FAILED");
        assert_eq!(complaints("a\nb\n"), "a\nb");
    }
}
