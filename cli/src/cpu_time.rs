//! `timevisor cpu-time`: how much processor time the host has given this VM's vCPUs, read from the
//! clock page.

use std::path::Path;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

use crate::bind::connect;

#[derive(Args)]
pub struct Options {
    /// JSON
    #[arg(long)]
    json: bool,
}

pub fn run(directory: &Path, options: &Options) -> Result<()> {
    let client = connect(directory)?;
    let mut rows = Vec::new();
    for vcpu in 0..timevisor_clock_page::abi::vcpus::CAPACITY {
        if let Some(time) = client.host_cpu_time(vcpu)? {
            rows.push((vcpu, time));
        }
    }
    ensure!(
        !rows.is_empty(),
        "the page says nothing of vCPUs: inside a VM, does timevisord on the host serve it and know its threads (`timevisor vm list`)? \
         On a host there are none"
    );
    if options.json {
        let row = |(vcpu, time): &(usize, timevisor::HostCpuTime)| json!({"vcpu": vcpu, "least_ns": time.least_ns, "most_ns": time.most_ns, "disruption": time.disruption});
        println!("{}", json!(rows.iter().map(row).collect::<Vec<_>>()));
        return Ok(());
    }
    println!("vcpu  at least, s  at most, s");
    for (vcpu, time) in rows {
        println!(
            "{vcpu:>4}  {:>11.3}  {:>10.3}",
            time.least_ns as f64 / 1e9,
            time.most_ns as f64 / 1e9
        );
    }
    Ok(())
}
