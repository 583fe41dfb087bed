//! Asks `timevisor reserve plan` about tasks of lab-rt.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::Value;

use super::judge::Declared;
use crate::host::Host;
use crate::scenario::Context;

/// Tasks of lab-rt as a task file: priorities as listed. `margin`: jobs cost up to so many per cent more.
#[must_use]
pub fn file(tasks: &[Declared], margin: u64) -> String {
    let mut text = format!("policy = \"listed\"\n[overhead]\ncost_ppm = {}\n", margin * 10_000);
    for (index, Declared { cost, deadline }) in tasks.iter().enumerate() {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "[[task]]\nname = \"tau{}\"\ncost = \"{cost}ns\"\nperiod = \"{deadline}ns\"",
            index + 1
        );
    }
    text
}

/// The plan for such a file, with these further arguments. One that refuses is an answer, too.
///
/// # Errors
/// When the program does not answer.
pub fn ask(ctx: &Context, host: &Host, file: &str, more: &[&str]) -> anyhow::Result<Value> {
    let path = ctx.path("tasks.toml");
    std::fs::write(&path, file)?;
    let path = path.display().to_string();
    let words = [&["reserve", "plan", &path, "--alone", "--json"][..], more].concat();
    // The exit status is 1 if the tasks do not fit.
    let out = host.cli_output(&words)?;
    let said = || String::from_utf8_lossy(&out.stderr).into_owned();
    serde_json::from_slice(&out.stdout).with_context(|| format!("no plan: {}", said()))
}

/// The arguments of the command that a plan recommends, for VM `vm`.
///
/// # Errors
/// When it recommends none.
pub fn apply(plan: &Value, vm: &str) -> anyhow::Result<Vec<String>> {
    let command = plan["apply"].as_str().with_context(|| format!("nothing fits: {plan}"))?;
    let words = command.split_whitespace().skip(1);
    Ok(words.map(|word| if word == "VM" { vm.to_owned() } else { word.to_owned() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plans_command_is_for_the_vm() {
        let plan = serde_json::json!({"apply": "timevisor reserve apply VM --budget 29167us/50ms --alone"});
        let words = apply(&plan, "web").unwrap();
        assert_eq!(words.join(" "), "reserve apply web --budget 29167us/50ms --alone");
        assert!(apply(&serde_json::json!({"schedulable": false}), "web").is_err());
        let tasks = [Declared { cost: 30_000_000, deadline: 150_000_000 }];
        assert!(
            file(&tasks, 10)
                .contains("cost_ppm = 100000\n[[task]]\nname = \"tau1\"\ncost = \"30000000ns\"")
        );
    }
}
