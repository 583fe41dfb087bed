//! A reboot of a host with systemd: the shipped unit, an empty /run, and a VM that starts with the words
//! that `vm args` printed before the reboot, at the same time as timevisord.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::shipped_unit::boot;
use crate::ntp_impostor::Impostor;
use crate::programs;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

/// Boots after the first one.
const REBOOTS: usize = 3;

pub(crate) fn real_boot(ctx: &Context) -> anyhow::Result<String> {
    let server = Impostor::honest()?;
    let root = programs::workspace()?;
    let folder = ctx.path("host");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("state"))?;
    fs::write(folder.join("timevisord.toml"), reference(&server.address()))?;
    let (daemon, cli) = (
        programs::static_binary("timevisord", "timevisord")?,
        programs::static_binary("timevisor", "timevisor")?,
    );
    let shown = folder.display();
    let shipped = fs::read_to_string(root.join("packaging/timevisord.service"))?;
    // Only where things are differs from a host on which the package is installed.
    let places = format!(
        "[Unit]\nDefaultDependencies=no\n[Service]\nBindReadOnlyPaths={} {shown}\nExecStart=\n\
         ExecStart={} --config {shown}/timevisord.toml\n\
         StandardOutput=append:{shown}/timevisord.log\nStandardError=append:{shown}/timevisord.log\n",
        root.display(),
        daemon.display(),
    );
    let run = |script: &str| {
        format!(
            "[Unit]\nDefaultDependencies=no\nWants=timevisord.service libvirt-guests.service\n[Service]\nType=oneshot\n\
             ExecStart=-/bin/bash {shown}/{script}\nExecStopPost=systemctl exit\n\
             StandardOutput=append:{shown}/output.log\nStandardError=append:{shown}/output.log\n"
        )
    };
    let wait = |what: &str| format!("for i in $(seq 300); do {what} && break; sleep 0.1; done\n");
    let cli = cli.display();
    fs::write(
        folder.join("prepare"),
        wait(&format!("{cli} status --json > /dev/null"))
            + &format!("{cli} vm args --name web --memory 128 --json > {shown}/args.json\n"),
    )?;
    let units = |script: &str| {
        vec![
            ("timevisord.service", shipped.clone()),
            ("timevisord.service.d/places.conf", places.clone()),
            ("lab.service", run(script)),
        ]
    };
    let start = |units: Vec<(&str, String)>| {
        let units: Vec<(&str, &str)> = units.iter().map(|(n, text)| (*n, text.as_str())).collect();
        boot(&folder, &units)
    };
    start(units("prepare"))?;
    let args = fs::read_to_string(folder.join("args.json"));
    let output = || fs::read_to_string(folder.join("output.log")).unwrap_or_default();
    let args: Value = serde_json::from_str(&args.with_context(output)?).with_context(output)?;
    let words = args["arguments"].as_array().context("no arguments")?;
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    let qemu = ctx.qemu()?;
    let firmware: Vec<_> = qemu.firmware.iter().map(|f| format!("-L {}", f.display())).collect();
    let line = format!(
        "{} {} -accel tcg -nodefaults -no-user-config -display none -machine q35 -name web \"{}\"",
        qemu.binary.display(),
        firmware.join(" "),
        words.join("\" \"")
    );
    // It starts when the shipped unit says so: Before=libvirt-guests.service.
    let vm = format!(
        "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart={line}\n\
         StandardOutput=append:{shown}/qemu.log\nStandardError=append:{shown}/qemu.log\n"
    );
    for reboot in 1..=REBOOTS {
        let list = folder.join(format!("list-{reboot}.json"));
        let served = format!(
            "{cli} vm list --json 2> /dev/null | tee {} | grep -q synchronized",
            list.display()
        );
        fs::write(folder.join("look"), wait(&served))?;
        start([units("look"), vec![("libvirt-guests.service", vm.clone())]].concat())?;
        let text = fs::read_to_string(&list).with_context(output)?;
        let rows: Value = serde_json::from_str(&text).with_context(output)?;
        ensure!(
            rows[0]["name"] == "web" && rows[0]["status"] == "synchronized",
            "after reboot {reboot}: {text} {}",
            fs::read_to_string(folder.join("qemu.log")).unwrap_or_default()
        );
    }
    Ok(format!(
        "a VM that was prepared once is served after each of {REBOOTS} boots of a host with systemd"
    ))
}
