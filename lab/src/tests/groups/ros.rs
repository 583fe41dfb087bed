//! timevisor-ros beside real rclpy, in a network namespace of their own: what it says of the clock, and trajectories
//! that go from ROS to a group and from the group to ROS.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::command::{self, Tethered};
use crate::host::Host;
use crate::interrupt;
use crate::netns::Namespace;
use crate::programs;
use crate::scenario::Context;
use crate::venv;

const NODE: &str = include_str!("ros_node.py");
const REFERENCE: &str = "[clock]\ntai_offset = 37\n[guests]\ndiscover = false\n[[reference]]\ntype = \"system\"\nassumed_max_error = \"1ms\"\n";
const TAI_OFFSET_NS: i64 = 37_000_000_000;
/// So many trajectories go to the group and come back.
const TRAJECTORIES: usize = 80;

pub(crate) fn ros(ctx: &Context) -> anyhow::Result<String> {
    let python = venv::rclpy()?;
    let network = Namespace::create()?;
    // DDS finds its peers by multicast.
    network.run("ip", &["link", "set", "lo", "multicast", "on"])?;
    network.run("ip", &["route", "add", "224.0.0.0/4", "dev", "lo"])?;
    let mut host = Host::inside(ctx, "ros", network)?;
    host.start(REFERENCE)?;
    let socket = ctx.path("bus.socket");
    let mut bus = host.command(programs::binary("timevisor-bus", "timevisor-bus")?);
    bus.arg("--socket").arg(&socket);
    let _bus = Tethered::spawn(&mut bus, "timevisor-bus", &ctx.path("bus.log"))?;
    let listens = || Ok(socket.exists().then_some(()));
    interrupt::poll_until(Duration::from_secs(30), listens)?.context("the bus does not listen")?;
    let mut node = host.command(programs::binary("timevisor-ros", "timevisor-ros")?);
    node.arg("--page").arg(host.directory().join("clock"));
    node.arg("--channel").arg(host.directory().join("timelines")).args(["--within-us", "5000"]);
    node.args([
        "--group",
        "cell",
        "--from-ros",
        "/arm/command=commands",
        "--to-ros",
        "plans=/arm/planned",
    ]);
    node.arg("--bus").arg(&socket);
    let _node = Tethered::spawn(&mut node, "timevisor-ros", &ctx.path("timevisor-ros.log"))?;

    let member = |rest: &[&str], name: &str| {
        let mut member = host.command(host.cli_program());
        member.arg("--run-directory").arg(host.directory()).arg("group").arg(rest[0]).arg("cell");
        member.args(&rest[1..]).args(["--as", name]).arg("--bus").arg(&socket);
        member
    };
    // A member of the group that sends back what it gets.
    let mut hears =
        member(&["subscribe", "commands", "--json"], "hears").stdout(Stdio::piped()).spawn()?;
    let mut says = member(&["publish", "plans"], "says").stdin(Stdio::piped()).spawn()?;
    let (from, mut to) =
        (hears.stdout.take().context("no pipe")?, says.stdin.take().context("no pipe")?);
    let echo = std::thread::spawn(move || -> anyhow::Result<Vec<Value>> {
        let mut heard = Vec::new();
        for line in BufReader::new(from).lines().take(TRAJECTORIES) {
            let message: Value = serde_json::from_str(&line?)?;
            let text = message["text"].as_str().context("no text")?;
            writeln!(to, "{text}")?;
            heard.push(serde_json::from_str(text)?);
        }
        Ok(heard)
    });
    // Both are members before anything is sent.
    let all_there = || {
        let output = command::output(&mut member(&["members"], "looks"))?;
        Ok((output.contains("hears") && output.contains("says")).then_some(()))
    };
    interrupt::poll_until(Duration::from_secs(30), all_there)?
        .context("the members are not there")?;

    let mut observer = host.command(&python);
    observer.arg("-c").arg(NODE).arg(TRAJECTORIES.to_string());
    let said = command::output(&mut observer)?;
    std::fs::write(ctx.path("rclpy.json"), &said)?;
    let _ = (hears.kill(), hears.wait(), says.kill(), says.wait());
    let heard = echo.join().map_err(|_| anyhow::anyhow!("the echo's thread ended"))??;
    let said: Value = serde_json::from_str(said.trim())?;
    let widest = clock(&said)?;
    trajectories(&said, &heard)?;
    let readings = list(&said["interval"])?.len();
    Ok(format!(
        "rclpy got {readings} intervals, half-width {} us at most, and diagnostics; {TRAJECTORIES} trajectories went to the \
         group and back, each with its time to the nanosecond",
        widest / 1000
    ))
}

fn list(value: &Value) -> anyhow::Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("no list: {value}"))
}

fn number(value: &Value) -> anyhow::Result<i64> {
    value.as_i64().with_context(|| format!("no number: {value}"))
}

/// Checks what was said of the clock; the widest half-width, ns.
fn clock(said: &Value) -> anyhow::Result<i64> {
    let (mut before, mut widest) = (i64::MIN, 0);
    for interval in list(&said["interval"])? {
        let [earliest, estimate, latest] =
            [number(&interval[0])?, number(&interval[1])?, number(&interval[2])?];
        ensure!(earliest <= estimate && estimate <= latest && before < estimate, "{interval}");
        (before, widest) = (estimate, widest.max(latest - estimate).max(estimate - earliest));
    }
    // The stamp is this machine's clock, read just after; the daemon follows that clock here.
    let intervals = list(&said["interval"])?;
    for (reference, interval) in list(&said["time_reference"])?.iter().zip(intervals) {
        let (stamp, time) = (number(&reference[0])?, number(&reference[1])?);
        ensure!(reference[2] == "timevisor", "{reference}");
        // Both topics say the same readings; which one is first, and whether one was missed, may differ.
        if number(&interval[1])? == time {
            ensure!(
                number(&interval[0])? <= stamp,
                "the lower bound is beyond the truth: {interval}, {stamp}"
            );
        }
    }
    let diagnostics = &said["diagnostics"];
    ensure!(diagnostics["level"] == 0 && diagnostics["message"] == "bounds hold", "{diagnostics}");
    ensure!(diagnostics["values"]["met"] == "true", "{diagnostics}");
    Ok(widest)
}

/// Each trajectory arrived in the group with its time, and came back as it was sent.
fn trajectories(said: &Value, heard: &[Value]) -> anyhow::Result<()> {
    let (sent, received) = (list(&said["sent"])?, list(&said["received"])?);
    ensure!(
        sent.len() == TRAJECTORIES && received.len() == TRAJECTORIES && heard.len() == TRAJECTORIES,
        "{said}"
    );
    for ((sent, received), heard) in sent.iter().zip(received).zip(heard) {
        ensure!(sent == received, "sent {sent}, received {received}");
        let at_ns = number(&sent["stamp_ns"])? + TAI_OFFSET_NS;
        ensure!(number(&heard["at_ns"])? == at_ns, "sent {sent}, in the group {heard}");
        ensure!(heard["joints"] == sent["joints"] && heard["frame"] == sent["frame"], "{heard}");
    }
    Ok(())
}
