//! The runner: a table of named tests, each with its own log directory, and the one-line verdicts.
//!
//! Tests run one after another; a test that fails does not stop the others.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};

use crate::builder::GuestBuilder;
use crate::chronyd::Chronyd;
use crate::fetch::Fetcher;
use crate::image::Image;
use crate::interrupt::{self, Late};
use crate::kernel::Kernel;
use crate::programs;
use crate::qemu::Qemu;

/// One test. `run` returns what it measured, in a few words.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// The name on the command line, and of the log directory.
    pub name: &'static str,
    /// One line for `test list`.
    pub about: &'static str,
    /// The test itself.
    pub run: fn(&Context) -> anyhow::Result<String>,
}

/// What a test may use.
#[derive(Debug)]
pub struct Context {
    lab_dir: PathBuf,
    log_dir: PathBuf,
    kvm_usable: bool,
    fetcher: Fetcher,
    images: Cell<u32>,
}

impl Context {
    /// A context for the test `name`, with an empty log directory.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn new(lab_dir: &Path, name: &str, kvm_usable: bool) -> anyhow::Result<Self> {
        let log_dir = lab_dir.join(name);
        let _ = fs::remove_dir_all(&log_dir);
        fs::create_dir_all(&log_dir)
            .with_context(|| format!("cannot create {}", log_dir.display()))?;
        let fetcher = Fetcher::new(lab_dir.join("cache"));
        Ok(Self { lab_dir: lab_dir.to_owned(), log_dir, kvm_usable, fetcher, images: Cell::new(0) })
    }

    /// The test's own directory, for its logs and files.
    pub fn log_dir(&self) -> &Path {
        &self.log_dir
    }

    /// A file in the test's own directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.log_dir.join(name)
    }

    /// Adds a line to the test's `lab.log`.
    pub fn log(&self, line: &str) {
        let file = fs::File::options().create(true).append(true).open(self.path("lab.log"));
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{line}");
        }
    }

    /// The newest cloud kernel of a suite (`bookworm` has 6.1, `trixie-backports` 7.2), or a certain one
    /// (`trixie-backports:6.17`); fetched on first use.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn kernel(&self, spec: &str) -> anyhow::Result<Kernel> {
        Kernel::open(&self.fetcher.artifact(&format!("kernel:{spec}"))?)
    }

    /// An image for `kernel`, to be completed by the test and given to [`Context::guest`].
    ///
    /// # Errors
    /// When busybox cannot be fetched.
    pub fn image(&self, kernel: &Kernel) -> anyhow::Result<Image> {
        Ok(Image::new(kernel, &self.busybox()?))
    }

    /// A static busybox.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn busybox(&self) -> anyhow::Result<PathBuf> {
        Ok(self.fetcher.artifact("busybox")?.join("bin/busybox"))
    }

    /// The system's QEMU.
    ///
    /// # Errors
    /// When none is installed.
    pub fn qemu(&self) -> anyhow::Result<Qemu> {
        Qemu::system()
    }

    /// A QEMU with the vmclock device: the system's own if it is new enough, else one fetched and unpacked.
    ///
    /// # Errors
    /// When it cannot be fetched or does not run.
    pub fn qemu_10(&self) -> anyhow::Result<Qemu> {
        match Qemu::system() {
            Ok(qemu) if qemu.version >= (10, 0) => Ok(qemu),
            _ => Qemu::unpacked(&self.fetcher.artifact("qemu-10")?),
        }
    }

    /// A guest that boots `kernel` with `image`; call `start` on the result.
    ///
    /// # Errors
    /// When the image cannot be built.
    pub fn guest(
        &self,
        qemu: &Qemu,
        kernel: &Kernel,
        image: &Image,
    ) -> anyhow::Result<GuestBuilder> {
        let number = self.images.get();
        self.images.set(number + 1);
        let initramfs = image.write(&self.path(&format!("initramfs-{number}.cpio")))?;
        Ok(GuestBuilder::new(qemu, &kernel.image, &initramfs, &self.log_dir, self.kvm_usable))
    }

    /// A chronyd in its own network namespace.
    ///
    /// # Errors
    /// When not root or chronyd does not answer.
    pub fn chronyd(&self, name: &str) -> anyhow::Result<Chronyd> {
        Chronyd::start(name, &self.log_dir)
    }

    /// The root of an unpacked ntpd-rs, for [`crate::ntpd_rs`].
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn ntpd_rs(&self) -> anyhow::Result<PathBuf> {
        self.fetcher.artifact("ntpd-rs")
    }

    /// A static build of one of our programs, for [`Image::program`].
    ///
    /// # Errors
    /// When it does not build.
    pub fn program(&self, package: &str, bin: &str) -> anyhow::Result<PathBuf> {
        programs::static_binary(package, bin, &self.lab_dir)
    }

    /// QEMU's plugin for introspection.
    ///
    /// # Errors
    /// When it does not build.
    pub fn introspection_plugin(&self) -> anyhow::Result<PathBuf> {
        crate::introspection::plugin(&self.lab_dir)
    }

    /// A guest in one flat address space (lab/freertos): `periodic`, which is FreeRTOS, or `segments`.
    ///
    /// # Errors
    /// When FreeRTOS's source cannot be fetched, or it does not build.
    pub fn flat_program(&self, name: &str) -> anyhow::Result<PathBuf> {
        crate::freertos::build(&self.lab_dir, name)
    }

    /// A guest that runs one of these; call `start` on the result.
    pub fn flat_guest(&self, qemu: &Qemu, program: &Path) -> GuestBuilder {
        GuestBuilder::flat(qemu, program, &self.log_dir)
    }

    /// A static build of one of the examples that users copy.
    ///
    /// # Errors
    /// When it does not build.
    pub fn example(&self, package: &str, name: &str) -> anyhow::Result<PathBuf> {
        programs::static_example(package, name, &self.lab_dir)
    }
}

/// How often a test that was not in time is run again.
const MORE_TRIES: usize = 2;

/// Runs `tests` and prints a verdict for each and the sum; true when all passed.
///
/// Those that failed because a wait ended ([`Late`]) are run again at the end, at most twice, when whatever kept the machine busy may be
/// over; every verdict is printed. Anything else that fails has failed.
pub fn run(tests: &[Test], lab_dir: &Path, kvm_usable: bool) -> bool {
    let (mut passed, mut failed, mut late) = (0, 0, Vec::new());
    for test in tests {
        match run_one(test, lab_dir, kvm_usable) {
            Verdict::Ok => passed += 1,
            Verdict::Late => late.push(test),
            Verdict::Failed => failed += 1,
        }
        if interrupt::requested() {
            break;
        }
    }
    let first = late.len();
    for test in late {
        let mut verdict = Verdict::Late;
        for _ in 0..MORE_TRIES {
            if verdict == Verdict::Late && !interrupt::requested() && keep_log(lab_dir, test) {
                verdict = run_one(test, lab_dir, kvm_usable);
            }
        }
        if verdict == Verdict::Ok {
            passed += 1;
        } else {
            failed += 1;
        }
    }
    println!("{passed} passed, {failed} failed, {first} not in time at first");
    failed == 0 && !interrupt::requested()
}

#[derive(PartialEq, Eq)]
enum Verdict {
    Ok,
    Late,
    Failed,
}

/// Runs one and prints its verdict.
fn run_one(test: &Test, lab_dir: &Path, kvm_usable: bool) -> Verdict {
    let started = Instant::now();
    let result = Context::new(lab_dir, test.name, kvm_usable).and_then(|context| {
        let result = (test.run)(&context);
        match &result {
            Ok(measured) => context.log(&format!("ok: {measured}")),
            Err(error) => context.log(&format!("failed: {error:?}")),
        }
        result
    });
    let error = match result {
        Ok(measured) => {
            println!("ok {} ({measured}; {:.1} s)", test.name, started.elapsed().as_secs_f64());
            return Verdict::Ok;
        }
        Err(error) => error,
    };
    let (word, verdict) =
        if error.is::<Late>() { ("LATE", Verdict::Late) } else { ("FAILED", Verdict::Failed) };
    let text = format!("{error:#}");
    let (reason, details) = text.split_once('\n').unwrap_or((&text, ""));
    println!("{word} {}: {reason} ({})", test.name, lab_dir.join(test.name).display());
    for line in details.lines() {
        println!("    {line}");
    }
    verdict
}

/// Puts a late test's log aside: it may be the only trace of a defect that is rare.
fn keep_log(lab_dir: &Path, test: &Test) -> bool {
    let aside = lab_dir.join(format!("{}.late", test.name));
    let _ = fs::remove_dir_all(&aside);
    fs::rename(lab_dir.join(test.name), aside).is_ok()
}

/// The tests that `names` choose: single names, or `all`.
///
/// # Errors
/// When a name is unknown.
pub fn select(tests: &[Test], extra: &[Test], names: &[String]) -> anyhow::Result<Vec<Test>> {
    let mut chosen = Vec::new();
    for name in names {
        if name == "all" {
            chosen.extend(tests);
        } else if let Some(test) = tests.iter().chain(extra).find(|t| t.name == name) {
            chosen.push(*test);
        } else {
            bail!("no test {name:?}; `timevisor-lab test list` shows them");
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    static TRIED: AtomicBool = AtomicBool::new(false);

    fn late_once(_: &Context) -> anyhow::Result<String> {
        let again = TRIED.swap(true, Ordering::Relaxed);
        again.then(String::new).context(Late).context("a guest's boot")
    }

    fn always_late(_: &Context) -> anyhow::Result<String> {
        Err(anyhow::Error::new(Late).context("a guest's boot"))
    }

    fn wrong(_: &Context) -> anyhow::Result<String> {
        bail!("the truth is outside")
    }

    #[test]
    fn only_what_was_late_has_another_try() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let test = |name, run| Test { name, about: "", run };
        assert!(run(&[test("late-once", late_once)], dir, false));
        assert!(dir.join("late-once.late").is_dir());
        assert!(!run(&[test("always-late", always_late)], dir, false));
        assert!(!run(&[test("wrong", wrong)], dir, false));
        assert!(!dir.join("wrong.late").exists());
    }
}
