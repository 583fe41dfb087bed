//! A network namespace that a veth pair connects to the host. It is removed on drop, or at the next
//! start if the lab was killed.
//!
//! No delay or loss is added, and nothing is routed beyond the pair.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::command;
use crate::packages;
use crate::scratch;

/// A namespace with one interface.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    number: u8,
}

impl Namespace {
    /// Creates a namespace; the pair gets the first free 10.213.N.0/24.
    ///
    /// # Errors
    /// When not root, or when the kernel does not support network namespaces.
    pub fn create() -> anyhow::Result<Self> {
        if !packages::is_root() {
            bail!("network namespaces need root; run the lab as root");
        }
        let taken = command::run("ip", &["-4", "-o", "address"])?;
        let free = (1..=250).filter(|n| !taken.contains(&format!(" 10.213.{n}.")));
        for number in free {
            // The interface's name serves as a lock: if two runs choose the same number, one of
            // them fails here.
            let (outer, inner) = (format!("tvlab{number}"), format!("tvlab{number}n"));
            let add = ["link", "add", &outer, "type", "veth", "peer", "name", &inner];
            match command::run("ip", &add) {
                Ok(_) => {}
                Err(error) if format!("{error:#}").contains("File exists") => continue,
                Err(error) => return Err(error).context("cannot create a veth pair"),
            }
            let namespace = Self { name: scratch::name(&number.to_string()), number };
            namespace.set_up(&outer, &inner)?;
            return Ok(namespace);
        }
        bail!("no free network in 10.213.0.0/16; delete left-over interfaces `ip link del tvlabN`")
    }

    fn set_up(&self, outer: &str, inner: &str) -> anyhow::Result<()> {
        let (host, guest) = (format!("{}/24", self.host()), format!("{}/24", self.address()));
        command::run("ip", &["netns", "add", &self.name])?;
        command::run("ip", &["link", "set", inner, "netns", &self.name])?;
        command::run("ip", &["address", "add", &host, "dev", outer])?;
        command::run("ip", &["link", "set", outer, "up"])?;
        let within = ["-n", &self.name];
        for rest in [
            &["address", "add", &guest, "dev", inner][..],
            &["link", "set", inner, "up"],
            &["link", "set", "lo", "up"],
        ] {
            command::run("ip", &[&within[..], rest].concat())?;
        }
        Ok(())
    }

    /// The address inside the namespace.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.number, 2)
    }

    /// The host's end of the pair.
    pub fn host(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 213, self.number, 1)
    }

    /// The name of the host's end.
    pub fn interface(&self) -> String {
        format!("tvlab{}", self.number)
    }

    /// The name of a bridge that an experiment may put in front of it; removed with the namespace
    /// after a killed run.
    pub fn bridge(&self) -> String {
        format!("{}b", self.interface())
    }

    /// Runs a program inside to its end.
    ///
    /// # Errors
    /// When it fails.
    pub fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<String> {
        command::run("ip", &[&["netns", "exec", &self.name, program], arguments].concat())
    }

    /// Like [`Self::command`], for a program that needs this machine's /sys: `ip netns exec` mounts one without cgroups.
    pub fn command_with_sys(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command::tethered("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        command
    }

    /// A program that will be started inside; like [`command::tethered`], it does not outlive the
    /// lab.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = command::tethered("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The pair goes first: a namespace lingers as long as a process or socket holds it.
        let _ = command::run("ip", &["link", "delete", &format!("tvlab{}", self.number)]);
        let _ = command::run("ip", &["netns", "delete", &self.name]);
    }
}

/// Removes the namespaces (and with them the veth pairs) of killed runs.
pub fn remove_stale() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return };
    for name in entries.filter_map(Result::ok).map(|e| e.file_name().to_string_lossy().into_owned())
    {
        if !scratch::is_stale(&name) {
            continue;
        }
        if let Some(number) = name.rsplit('-').next() {
            remove_interfaces(number);
        }
        let _ = command::run("ip", &["netns", "delete", &name]);
    }
}

/// Removes the veth pair of namespace `number`, and what an experiment has put in front of it.
fn remove_interfaces(number: &str) {
    let Ok(entries) = std::fs::read_dir("/sys/class/net") else { return };
    for name in entries.filter_map(Result::ok).map(|e| e.file_name().to_string_lossy().into_owned())
    {
        let rest = name.strip_prefix("tvlab").and_then(|rest| rest.strip_prefix(number));
        if rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())) {
            let _ = command::run("ip", &["link", "delete", &name]);
        }
    }
}
