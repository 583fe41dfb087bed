//! `timevisor reserve plan --host`: which cores could serve a vCPU, in the order in which `apply` tries them, and
//! why the others could not. timevisord answers, with the code that `apply` uses.

use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use timevisor_protocols::control::{HostCore, HostCores, Request, ReserveCores, Response};

use super::{PlanOptions, ns};
use crate::connection::{ask, unexpected};

/// What is left of a core is said for this period unless another one is given, ns.
const PERIOD: u64 = 50_000_000;

#[derive(Args)]
// The other options of this name have their group in the same command.
#[group(skip)]
pub struct Options {
    /// Instead of tasks: show this host's cores, which of them could serve VM (any, without it), and why the others
    /// could not; asks timevisord
    #[arg(
        id = "host_cores",
        long = "host",
        value_name = "VM",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["file", "vms", "costs_from", "vcpus", "aligned", "plot"]
    )]
    vm: Option<String>,
    /// With --host: its vCPU
    #[arg(long, value_name = "N", default_value_t = 0, requires = "host_cores")]
    vcpu: u32,
}

impl Options {
    pub const fn is_given(&self) -> bool {
        self.vm.is_some()
    }
}

pub fn run(directory: &Path, options: &PlanOptions) -> Result<()> {
    ensure!(
        !options.host.is_given(),
        "--host shows what is reserved here; what the host takes is in plans for tasks"
    );
    // It refuses what is for a fleet.
    options.fleet.file()?;
    let of = &options.cores;
    let period_ns = options.period.map_or(PERIOD, ns);
    let asked = ReserveCores {
        vm: of.vm.clone().filter(|vm| !vm.is_empty()),
        vcpu: of.vcpu,
        budget_ns: options.budget.map(ns),
        period_ns,
        alone: options.alone,
    };
    let answer = match ask(directory, &Request::ReserveCores(asked))? {
        Response::HostCores(answer) => answer,
        response => return Err(unexpected(&response)),
    };
    if options.json {
        println!("{}", serde_json::to_string(&answer.cores)?);
    } else {
        print!("{}", table(&answer, period_ns));
    }
    Ok(())
}

fn table(answer: &HostCores, period: u64) -> String {
    let ms = |ns: u64| format!("{} ms", ns as f64 / 1e6);
    let left = format!("left of {}", ms(period));
    let mut text =
        format!("{:>5} {:>4}  {left:<14} {:<28} why not\n", "order", "core", "what it is");
    for core in &answer.cores {
        let place = core.place.map_or_else(|| "-".to_owned(), |place| place.to_string());
        let left = if core.online { ms(core.left_ns) } else { "-".to_owned() };
        text.push_str(&format!(
            "{place:>5} {:>4}  {left:<14} {:<28} {}",
            core.core,
            properties(core),
            core.why_not.as_deref().unwrap_or_default()
        ));
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn properties(core: &HostCore) -> String {
    let mut all = Vec::new();
    if core.isolated {
        all.push("isolated".to_owned());
    } else if core.quiet {
        all.push("no tick".to_owned());
    }
    if !core.near {
        all.push("other NUMA node".to_owned());
    }
    if !core.siblings.is_empty() {
        let siblings: Vec<String> = core.siblings.iter().map(u32::to_string).collect();
        all.push(format!("sibling of {}", siblings.join(",")));
    }
    if core.cpuset.as_deref() == Some("shared") {
        all.push("shared by cpusets".to_owned());
    } else if core.cpuset.is_some() {
        all.push("a cpuset's own".to_owned());
    }
    if !core.reserved.is_empty() {
        all.push(core.reserved.join(", "));
    }
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_why_not() {
        let plain = |core| HostCore {
            core,
            place: None,
            why_not: None,
            online: true,
            allowed: true,
            isolated: false,
            quiet: false,
            near: true,
            siblings: Vec::new(),
            cpuset: None,
            reserved: Vec::new(),
            left_ns: 47_500_000,
        };
        let cores = vec![
            HostCore { place: Some(1), siblings: vec![1], ..plain(3) },
            HostCore {
                place: Some(2),
                reserved: vec!["VM db vCPU 0".into()],
                left_ns: 22_000_000,
                ..plain(2)
            },
            HostCore {
                why_not: Some("core 0 is where the kernel's own work gathers".into()),
                ..plain(0)
            },
            HostCore {
                why_not: Some("core 1 is offline".into()),
                online: false,
                left_ns: 0,
                ..plain(1)
            },
        ];
        let text = table(&HostCores { cores }, 50_000_000);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "order core  left of 50 ms  what it is                   why not");
        assert_eq!(lines[1], "    1    3  47.5 ms        sibling of 1");
        assert_eq!(lines[2], "    2    2  22 ms          VM db vCPU 0");
        assert!(lines[3].starts_with("    -    0  47.5 ms") && lines[3].ends_with("gathers"));
        assert!(lines[4].starts_with("    -    1  -  ") && lines[4].ends_with("offline"));
    }
}
