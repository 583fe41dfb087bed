//! A program that runs in a guest for a while and prints one line of JSON. It allows several guests
//! to be busy at the same time.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use timevisor_lab::command;
use timevisor_lab::guest::{BOOT, Guest};
use timevisor_lab::interrupt;

const OUTPUT: &str = "/run/job";

/// Starts the program.
pub(super) fn begin(guest: &mut Guest, line: &str) -> anyhow::Result<()> {
    guest.sh(&format!(
        "rm -f {OUTPUT}; ({line} >{OUTPUT}.part 2>&1; mv {OUTPUT}.part {OUTPUT}) &"
    ))?;
    Ok(())
}

/// Waits for the end of what [`begin`] started; its running time must already have passed.
pub(super) fn end(guest: &mut Guest) -> anyhow::Result<Value> {
    let text = interrupt::poll_until(BOOT, || {
        std::thread::sleep(Duration::from_millis(200));
        let text = guest.sh(&format!("cat {OUTPUT} 2>/dev/null || true"))?;
        Ok((!text.is_empty()).then_some(text))
    })?;
    parse(&text.context("the program in the guest does not end")?)
}

/// Runs the same program on this machine.
pub(super) fn native(program: &Path, arguments: &[&str]) -> anyhow::Result<Value> {
    parse(&command::output(Command::new(program).args(arguments))?)
}

fn parse(text: &str) -> anyhow::Result<Value> {
    let Ok(value) = serde_json::from_str(text) else { bail!("it says: {}", text.trim()) };
    Ok(value)
}
