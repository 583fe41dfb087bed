//! Defines a lab test: its place in the table, its needs, and what it may use while it runs.
//!
//! [`crate::runner`] runs tests; nothing is started here.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::builder::GuestBuilder;
use crate::chronyd::Chronyd;
use crate::debian::Debian;
use crate::fetch::Fetcher;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::programs;
use crate::qemu::Qemu;

/// One test. `run` returns what it measured, in a few words.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// The name on the command line, which is also the name of the log directory.
    pub name: &'static str,
    /// One line for `test list`.
    pub about: &'static str,
    /// How often it runs.
    pub tier: Tier,
    /// What the runner must prepare or keep free for it.
    pub needs: &'static [Need],
    /// How long it takes on two cores; used until a run has measured it.
    pub seconds: u32,
    /// The test itself.
    pub run: fn(&Context) -> anyhow::Result<String>,
}

/// Tests about one subject; each has a folder in `lab/src/tests`.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The name of the folder.
    pub name: &'static str,
    /// Its tests.
    pub tests: &'static [Test],
}

/// How often a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// By `make test`: tests without a guest, and the boots that demonstrate each guarantee once.
    Test,
    /// By `make test-all`.
    All,
    /// By `make weekly`.
    Weekly {
        /// Why it does not run more often.
        why: &'static str,
    },
}

impl Tier {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::All => "all",
            Self::Weekly { .. } => "weekly",
        }
    }
}

/// What the runner must prepare or keep free for a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Namespaces, and programs that only root may start.
    Root,
    /// It changes or measures the host's scheduling: no other test runs at the same time.
    ExclusiveCpu,
    /// It keeps two processors busy, as an emulated host of emulated guests does.
    Processors,
    /// An artifact of [`Fetcher::artifact`].
    Fetched(&'static str),
    /// A Debian package on this host, in addition to those of the other needs.
    Apt(&'static str),
    /// QEMU's plugin for introspection.
    Plugin,
    /// FreeRTOS and the program without an operating system (lab/freertos).
    FlatPrograms,
    /// The guest with brickOS (lab/brickos).
    BrickOs,
    /// A Rust compiler for 64-bit Arm.
    ArmToolchain,
    /// The Python package's wheel.
    Wheel,
    /// rclpy, in an environment of its own.
    Rclpy,
    /// The image of a suite that `crate::disk` boots.
    Disk(&'static str),
    /// Debian packages of this workspace, in two versions.
    Packages,
}

impl Need {
    /// The name in `test list`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::ExclusiveCpu => "exclusive-cpu",
            Self::Processors => "processors",
            Self::Fetched(name) | Self::Apt(name) => name,
            Self::Plugin => "plugin",
            Self::FlatPrograms => "flat-programs",
            Self::BrickOs => "brickos",
            Self::ArmToolchain => "arm-toolchain",
            Self::Wheel => "wheel",
            Self::Rclpy => "rclpy",
            Self::Disk("bookworm") => "disk-bookworm",
            Self::Disk(_) => "disk-trixie",
            Self::Packages => "packages",
        }
    }

    /// The Debian packages that it requires, in addition to those of every test
    /// ([`crate::packages::EVERY_TEST`]).
    pub fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Apt(name) => vec![name],
            // It installs the libraries that the fetched QEMU needs; iasl is for its NVDIMM.
            Self::Fetched("qemu-10") => vec!["qemu-system-x86", "acpica-tools"],
            Self::Fetched(artifact) if artifact.starts_with("kernel:") => vec!["kmod", "xz-utils"],
            Self::Root | Self::ExclusiveCpu | Self::Processors | Self::Fetched(_) => vec![],
            Self::Plugin | Self::FlatPrograms | Self::BrickOs => vec!["make"],
            Self::ArmToolchain => {
                vec!["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user-static"]
            }
            Self::Disk(_) => vec!["mmdebstrap", "e2fsprogs", "kmod"],
            Self::Packages => vec!["dpkg-dev", "make", "e2fsprogs"],
            Self::Wheel | Self::Rclpy => vec!["python3", "python3-venv"],
        }
    }
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
        Self::with_logs(lab_dir, &lab_dir.join(name), kvm_usable)
    }

    /// Like [`Self::new`], with logs in `log_dir`, which is emptied.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn with_logs(lab_dir: &Path, log_dir: &Path, kvm_usable: bool) -> anyhow::Result<Self> {
        let _ = fs::remove_dir_all(log_dir);
        fs::create_dir_all(log_dir)
            .with_context(|| format!("cannot create {}", log_dir.display()))?;
        let fetcher = Fetcher::new(lab_dir.join("cache"));
        let (lab_dir, log_dir) = (lab_dir.to_owned(), log_dir.to_owned());
        Ok(Self { lab_dir, log_dir, kvm_usable, fetcher, images: Cell::new(0) })
    }

    /// A context for another host of the same test, with logs in the subfolder `name`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn further(&self, name: &str) -> anyhow::Result<Self> {
        Self::with_logs(&self.lab_dir, &self.log_dir.join(name), false)
    }

    /// The directory of all tests' folders and of what was fetched.
    pub fn lab_dir(&self) -> &Path {
        &self.lab_dir
    }

    /// Whether guests may use KVM.
    pub fn kvm_usable(&self) -> bool {
        self.kvm_usable
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

    /// The newest cloud kernel of a suite (`bookworm` has 6.1, `trixie-backports` 7.2), or a
    /// specific one (`trixie-backports:6.17`), or the generic one (`trixie-backports:amd64`); fetched
    /// on first use.
    ///
    /// # Errors
    /// When it cannot be fetched.
    pub fn kernel(&self, spec: &str) -> anyhow::Result<Kernel> {
        Kernel::open(&self.fetcher.artifact(&format!("kernel:{spec}"))?)
    }

    /// An image for `kernel`, which the test completes and passes to [`Context::guest`].
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

    /// A QEMU with the vmclock device: the system's own if it is new enough, else one fetched and
    /// unpacked.
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

    /// Trixie's systemd and udev, unpacked.
    ///
    /// # Errors
    /// When they cannot be fetched.
    pub(crate) fn systemd(&self) -> anyhow::Result<PathBuf> {
        self.fetcher.artifact("systemd")
    }

    /// A guest that boots `kernel` into a systemd; call `start` on the result.
    ///
    /// # Errors
    /// When the image cannot be built.
    pub(crate) fn guest_with_systemd(
        &self,
        qemu: &Qemu,
        kernel: &Kernel,
        image: &Debian,
    ) -> anyhow::Result<GuestBuilder> {
        let initramfs = self.path("initramfs-systemd.cpio");
        image.write(&initramfs)?;
        let guest =
            GuestBuilder::new(qemu, &kernel.image, &initramfs, &self.log_dir, self.kvm_usable);
        Ok(guest.memory_mib(768))
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
        programs::static_binary(package, bin)
    }

    /// QEMU's plugin for introspection.
    ///
    /// # Errors
    /// When it does not build.
    pub fn introspection_plugin(&self) -> anyhow::Result<PathBuf> {
        crate::introspection::plugin(&self.lab_dir)
    }

    /// A guest with a single flat address space (lab/freertos): `periodic`, which is FreeRTOS, or
    /// `segments`.
    ///
    /// # Errors
    /// When FreeRTOS's source cannot be fetched, or the build fails.
    pub fn flat_program(&self, name: &str) -> anyhow::Result<PathBuf> {
        crate::freertos::build(&self.lab_dir, name)
    }

    /// A guest of the same kind with brickOS (lab/brickos).
    ///
    /// # Errors
    /// When brickOS's source cannot be fetched, or the build fails.
    pub fn brickos_program(&self) -> anyhow::Result<PathBuf> {
        crate::brickos::build(&self.lab_dir)
    }

    /// A guest that runs such a program; call `start` on the result.
    pub fn flat_guest(&self, qemu: &Qemu, program: &Path) -> GuestBuilder {
        GuestBuilder::flat(qemu, program, &self.log_dir)
    }

    /// A static build of one of the examples that users are meant to copy.
    ///
    /// # Errors
    /// When it does not build.
    pub fn example(&self, package: &str, name: &str) -> anyhow::Result<PathBuf> {
        programs::static_example(package, name)
    }
}

/// A whole number from the environment, for tests that run longer on request.
pub(crate) fn number(variable: &str, default: u64) -> anyhow::Result<u64> {
    let Ok(text) = std::env::var(variable) else { return Ok(default) };
    text.parse().with_context(|| format!("{variable}={text}: a whole number"))
}

/// The tests selected by `names`: single tests, families, or tiers (`test`, `all`, `weekly`).
///
/// # Errors
/// When a name is unknown.
pub fn select(families: &[Family], names: &[String]) -> anyhow::Result<Vec<Test>> {
    let mut chosen: Vec<Test> = Vec::new();
    for name in names {
        let by_name = |test: &&Test| test.name == name;
        let by_tier = |test: &&Test| test.tier.name() == name;
        let all = || families.iter().flat_map(|family| family.tests);
        let mut found: Vec<&Test> = all().filter(by_name).collect();
        if found.is_empty() {
            found = all().filter(by_tier).collect();
        }
        if found.is_empty() {
            found = families.iter().filter(|f| f.name == name).flat_map(|f| f.tests).collect();
        }
        if found.is_empty() {
            bail!("no test {name:?}; `timevisor-lab test list` shows them");
        }
        for test in found {
            if !chosen.iter().any(|other| other.name == test.name) {
                chosen.push(*test);
            }
        }
    }
    Ok(chosen)
}

/// The family of a test.
pub fn family_of(families: &[Family], name: &str) -> &'static str {
    let holds = |family: &&Family| family.tests.iter().any(|test| test.name == name);
    families.iter().find(holds).map_or("", |family| family.name)
}

/// Part `index` of `count` (from 1). Tests are distributed by duration, so that all parts take
/// about as long.
///
/// # Errors
/// When the text is not `INDEX/COUNT`.
pub fn shard(
    mut tests: Vec<Test>,
    part: &str,
    seconds: impl Fn(&Test) -> f64,
) -> anyhow::Result<Vec<Test>> {
    let numbers = part.split_once('/').and_then(|(index, count)| {
        Some((index.parse::<usize>().ok()?, count.parse::<usize>().ok()?))
    });
    let Some((index, count)) = numbers.filter(|(index, count)| (1..=*count).contains(index)) else {
        bail!("{part:?} is no part; say INDEX/COUNT, as in 1/2");
    };
    // All shards must sort identically: tests with equal times are sorted by name.
    tests.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)).then(a.name.cmp(b.name)));
    let mut loads = vec![0.0_f64; count];
    tests.retain(|test| {
        let least = (0..count).min_by(|a, b| loads[*a].total_cmp(&loads[*b])).unwrap_or(0);
        loads[least] += seconds(test);
        least + 1 == index
    });
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tests::FAMILIES;

    fn names(tests: &[Test]) -> BTreeSet<&'static str> {
        tests.iter().map(|test| test.name).collect()
    }

    #[test]
    fn every_test_has_one_name_and_a_weekly_one_a_reason() {
        let all: Vec<&Test> = FAMILIES.iter().flat_map(|family| family.tests).collect();
        let distinct: BTreeSet<&str> = all.iter().map(|test| test.name).collect();
        assert_eq!(distinct.len(), all.len());
        for test in all {
            assert!(test.seconds > 0, "{}", test.name);
            if let Tier::Weekly { why } = test.tier {
                assert!(!why.is_empty(), "{}", test.name);
            }
        }
    }

    #[test]
    fn tiers_families_and_names_choose() {
        let chosen = select(FAMILIES, &["test".into()]).unwrap();
        assert!(names(&chosen).contains("clock-vmclock"));
        assert!(!names(&chosen).contains("kvm-nested"));
        let twice = select(FAMILIES, &["clock-vmclock".into(), "guests".into()]).unwrap();
        assert_eq!(names(&twice).len(), twice.len());
        assert!(select(FAMILIES, &["no such".into()]).is_err());
    }

    #[test]
    fn shards_hold_every_test_once() {
        let all = select(FAMILIES, &["all".into()]).unwrap();
        let seconds = |test: &Test| f64::from(test.seconds);
        let one = shard(all.clone(), "1/2", seconds).unwrap();
        let two = shard(all.clone(), "2/2", seconds).unwrap();
        assert_eq!(one.len() + two.len(), all.len());
        assert!(names(&one).is_disjoint(&names(&two)));
        let total = |tests: &[Test]| tests.iter().map(seconds).sum::<f64>();
        assert!((total(&one) - total(&two)).abs() < 120.0);
        assert!(shard(all.clone(), "3/2", seconds).is_err() && shard(all, "x", seconds).is_err());
    }
}
