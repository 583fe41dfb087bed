//! `timevisor-lab`: fetches kernels and QEMU, and runs the end-to-end tests. It decides nothing itself.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use timevisor_lab::{fetch, interrupt, leap, netns, packages, programs, scenario, scratch, tests};

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
    /// Install what is missing on the host, and fetch kernels, QEMU 10 and busybox into the cache
    Fetch {
        /// busybox, qemu-10, kernel:SUITE or kernel:SUITE:VERSION [default: what the tests need]
        artifacts: Vec<String>,
    },
    /// Run tests
    Test {
        /// Names of tests, `all`, or `list`
        #[arg(required = true)]
        names: Vec<String>,
        /// Use KVM; give it only where a virtual CPU can really be created and run
        #[arg(long)]
        kvm: bool,
    },
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
        Action::Fetch { artifacts } => {
            install()?;
            fetch_all(&dir, &artifacts)?;
            Ok(true)
        }
        Action::Test { names, .. } if names.iter().any(|n| n == "list") => {
            for test in tests::ALL {
                println!("{:<20} {}", test.name, test.about);
            }
            Ok(true)
        }
        Action::Test { names, kvm } => {
            let chosen = scenario::select(tests::ALL, &names)?;
            install()?;
            scratch::remove_stale();
            netns::remove_stale();
            Ok(scenario::run(&chosen, &dir, kvm))
        }
    }
}

fn install() -> anyhow::Result<()> {
    let installed = packages::ensure_installed(packages::HOST_PACKAGES)?;
    if !installed.is_empty() {
        println!("installed {}", installed.join(" "));
    }
    if leap::ensure_valid()? {
        println!("upgraded tzdata: its leap second table had expired");
    }
    Ok(())
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
