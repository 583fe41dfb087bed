//! `timevisor-lab`: fetches kernels and QEMU, and runs the end-to-end tests. The logic is in the
//! library.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use timevisor_lab::{
    demo, fetch, interrupt, introspection, migration, netns, packages, programs, progress, runner,
    scenario, scratch, soak, sync, tests,
};

/// Boots stock kernels under stock QEMU and runs Timevisor's end-to-end tests.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where logs, fetched packages and guest programs go [default: target/lab of the workspace]
    #[arg(long, global = true)]
    dir: Option<PathBuf>,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Install what is missing on the host for all tests, soaks and experiments
    Install,
    /// Install what is missing on the host, and fetch kernels, QEMU 10 and busybox into the cache
    Fetch {
        /// busybox, qemu-10, kernel:SUITE, kernel:SUITE:VERSION or kernel:SUITE:amd64 [default: what the tests need]
        artifacts: Vec<String>,
    },
    /// Show the main job: a stock guest reads this host's clock
    Demo {
        /// How long to watch
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Leave everything running until Ctrl-C
        #[arg(long)]
        keep: bool,
    },
    /// Compare four guests with the host for a while
    Soak {
        /// How long
        #[arg(long, default_value_t = 10)]
        minutes: u32,
    },
    /// Compare the host's page with the clock of the NTP server that it follows
    SoakSync {
        /// How long
        #[arg(long, default_value_t = 30)]
        minutes: u32,
        /// Interval between requests
        #[arg(long, default_value = "16s")]
        poll: String,
    },
    /// Move a guest between two hosts many times, by every delivery
    SoakMigrate {
        /// How often, by each
        #[arg(long, default_value_t = 100)]
        moves: usize,
    },
    /// Attach to a guest's plugin and print events, until killed: part of a test
    #[command(hide = true)]
    Watch {
        /// The plugin's
        socket: PathBuf,
        /// QEMU's
        pid: u32,
        /// Where the guest's memory is in QEMU's
        base: u64,
        /// How much of it
        mib: u64,
    },
    /// Run tests side by side, each in its own namespaces
    Test {
        /// Tests, families, tiers (`test`, `all`, `weekly`), or `list`
        #[arg(required = true)]
        names: Vec<String>,
        /// Emulate guests although KVM works here
        #[arg(long)]
        no_kvm: bool,
        /// Run only this part, as in 1/2
        #[arg(long)]
        shard: Option<String>,
    },
    /// Run one test in this process: the runner starts it so
    #[command(hide = true)]
    TestOne {
        /// The test
        name: String,
        /// KVM works here
        #[arg(long)]
        kvm: bool,
    },
    /// Build the programs that tests use
    Build,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("timevisor-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let dir = match arguments.dir {
        Some(dir) => std::path::absolute(dir)?,
        None => programs::workspace()?.join("target/lab"),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    interrupt::install()?;
    match arguments.action {
        Action::Install => {
            packages::install(&packages::all())?;
            Ok(true)
        }
        Action::Fetch { artifacts } => {
            packages::install(&packages::all())?;
            fetch_all(&dir, &artifacts)?;
            Ok(true)
        }
        Action::Demo { seconds, keep } => {
            packages::install(demo::PACKAGES)?;
            scratch::remove_stale();
            netns::remove_stale();
            show(&dir, seconds, keep)
        }
        Action::Soak { minutes } => {
            packages::install(&packages::all())?;
            scratch::remove_stale();
            netns::remove_stale();
            soak::run(&scenario::Context::new(&dir, "soak", false)?, minutes)?;
            Ok(true)
        }
        Action::SoakSync { minutes, poll } => {
            packages::install(&packages::all())?;
            scratch::remove_stale();
            netns::remove_stale();
            sync::run(&scenario::Context::new(&dir, "soak-sync", false)?, minutes, &poll)?;
            Ok(true)
        }
        Action::SoakMigrate { moves } => {
            packages::install(&packages::all())?;
            scratch::remove_stale();
            netns::remove_stale();
            let context = scenario::Context::new(&dir, "soak-migrate", false)?;
            migration::soak::run(&context, moves.max(1))?;
            Ok(true)
        }
        Action::Watch { socket, pid, base, mib } => {
            introspection::watch(&socket, pid, base, mib)?;
            Ok(true)
        }
        Action::Test { names, .. } if names.iter().any(|n| n == "list") => {
            list();
            Ok(true)
        }
        Action::Test { names, no_kvm, shard } => {
            let mut chosen = scenario::select(tests::FAMILIES, &names)?;
            if let Some(part) = shard {
                let times = runner::Times::default();
                chosen = scenario::shard(chosen, &part, |test| times.seconds(test))?;
            }
            progress::step("packages", || packages::install(&packages::packages_of(&chosen)))?;
            scratch::remove_stale();
            netns::remove_stale();
            let kvm = !no_kvm && timevisor_linux::kvm::usable().is_ok();
            runner::run(&chosen, &dir, kvm)
        }
        Action::TestOne { name, kvm } => {
            let chosen = scenario::select(tests::FAMILIES, std::slice::from_ref(&name))?;
            let test = chosen.first().filter(|test| test.name == name).context("no such test")?;
            runner::run_one(test, &dir, kvm)?;
            Ok(true)
        }
        Action::Build => {
            programs::build_all()?;
            Ok(true)
        }
    }
}

/// Prints the table of tests.
fn list() {
    for family in tests::FAMILIES {
        for test in family.tests {
            let needs: Vec<&str> = test.needs.iter().map(|need| need.name()).collect();
            println!(
                "{:<14} {:<7} {:<24} {}",
                family.name,
                test.tier.name(),
                test.name,
                test.about
            );
            println!("{:<22} needs: {}", "", needs.join(" "));
            if let scenario::Tier::Weekly { why } = test.tier {
                println!("{:<22} weekly: {why}", "");
            }
        }
    }
}

/// Uses KVM only where a virtual CPU can really be created and run: the existence of /dev/kvm
/// proves nothing.
fn show(dir: &std::path::Path, seconds: u32, keep: bool) -> anyhow::Result<bool> {
    let accelerator = match timevisor_linux::kvm::usable() {
        Ok(()) => "KVM".to_owned(),
        Err(why) => {
            println!("- no usable KVM, so the guest is emulated: {why}");
            "TCG".to_owned()
        }
    };
    let context = scenario::Context::new(dir, "demo", accelerator == "KVM")?;
    match demo::run(&context, &accelerator, seconds, keep) {
        Ok(()) => Ok(true),
        Err(_) if interrupt::requested() => {
            println!("\ninterrupted; nothing is left running.");
            Ok(false)
        }
        Err(error) => {
            println!("\nVERDICT: FAILED: {error:#} (logs: {})", context.log_dir().display());
            Ok(false)
        }
    }
}

fn fetch_all(dir: &std::path::Path, artifacts: &[String]) -> anyhow::Result<()> {
    let fetcher = fetch::Fetcher::new(dir.join("cache"));
    let mut wanted: Vec<&str> = artifacts.iter().map(String::as_str).collect();
    if wanted.is_empty() {
        wanted.extend(fetch::DEFAULT_ARTIFACTS);
    }
    for artifact in wanted {
        let started = Instant::now();
        let root = fetcher.artifact(artifact)?;
        println!("{artifact}: {} ({:.1} s)", root.display(), started.elapsed().as_secs_f64());
    }
    Ok(())
}
