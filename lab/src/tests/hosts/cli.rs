//! What scripts rely on: exit statuses of commands that read, pipes that are closed, disks that are
//! full, times in UTC, and a look that goes on while the daemon is away.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::{Host, mentions};
use crate::ntp_impostor::Impostor;
use crate::scenario::Context;
use crate::tests::faults::common::reference;

/// Commands that read, and whether they need the daemon.
const READS: [(&[&str], bool); 8] = [
    (&["now"], false),
    (&["status"], true),
    (&["tracking"], true),
    (&["sources"], true),
    (&["timelines"], true),
    (&["bind", "tai", "--best-effort"], true),
    (&["vm", "list"], true),
    (&["reserve", "list"], true),
];
/// Those of them that have nothing to vouch for as long as there is no VM.
const EMPTY: [&str; 2] = ["vm", "reserve"];

fn code(out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stderr);
    format!("{:?}, {}", out.status.code(), said.trim())
}

/// Runs every command that reads, with and without --json, and compares the exit status.
fn each(host: &Host, why: &str, wanted: impl Fn(&[&str], bool) -> i32) -> anyhow::Result<usize> {
    let mut count = 0;
    for (words, needs_daemon) in READS {
        for more in [&[][..], &["--json"][..]] {
            let out = host.cli_output(&[words, more].concat())?;
            let wanted = wanted(words, needs_daemon);
            ensure!(
                out.status.code() == Some(wanted),
                "{why}: {words:?} {more:?}: {} and not {wanted}",
                code(&out)
            );
            // What could be read is on the output; why nothing could is on the other one.
            let is_shown = !out.stdout.is_empty() && out.stderr.is_empty();
            ensure!(
                is_shown == (wanted < 2) || EMPTY.contains(&words[0]),
                "{why}: {words:?}: {out:?}"
            );
            count += 1;
        }
    }
    Ok(count)
}

fn shell(program: &Path, directory: &Path, script: &str) -> anyhow::Result<Output> {
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(program).arg("--run-directory").arg(directory);
    bash.output().context("cannot run bash")
}

fn seconds(text: &str, line: &str) -> anyhow::Result<f64> {
    let found = text.lines().find_map(|text| text.strip_prefix(line)).context("no such line")?;
    let word = found.split_whitespace().next().context("nothing in the line")?;
    word.parse().with_context(|| format!("{word} is no number"))
}

/// UTC is 37 s behind TAI, in both notations, and lies between two readings.
fn in_utc(host: &Host) -> anyhow::Result<()> {
    let (before, utc) = (host.cli(&["now"])?, host.cli(&["now", "--utc"])?);
    let iso = host.cli(&["now", "--iso"])?;
    let json = host.json(&["now", "--utc"])?;
    let after = host.cli(&["now"])?;
    let from = seconds(&before, "earliest")? - 37.0;
    let to = seconds(&after, "latest")? - 37.0;
    let date =
        iso.lines().find_map(|line| line.strip_prefix("estimate")).context("no date")?.trim();
    let date = command_date(date)?;
    let json_s = json["estimate_ns"].as_i64().context("no estimate")? as f64 * 1e-9;
    for (said, what) in [(seconds(&utc, "estimate")?, "--utc"), (date, "--iso"), (json_s, "--json")]
    {
        ensure!((from..=to).contains(&said), "{what}: {said} is not within {from} to {to}");
    }
    ensure!(json["timescale"] == "utc" && utc.contains(" utc\n"), "{json} {utc}");
    Ok(())
}

/// coreutils' opinion of a date.
fn command_date(date: &str) -> anyhow::Result<f64> {
    let out = Command::new("date").args(["-u", "-d", date, "+%s.%N"]).output()?;
    Ok(String::from_utf8_lossy(&out.stdout).trim().parse::<f64>()?)
}

/// A daemon that is there and does not answer.
fn hung(host: &Host) -> anyhow::Result<()> {
    let pid = host.pid()?.to_string();
    crate::command::run("kill", &["-STOP", &pid])?;
    let out = host.cli_output(&["sources"]);
    crate::command::run("kill", &["-CONT", &pid])?;
    let out = out?;
    ensure!(out.status.code() == Some(3), "{} and not 3", code(&out));
    mentions(&String::from_utf8_lossy(&out.stderr), &["has not answered for 5 s"])
}

pub(crate) fn scripts(ctx: &Context) -> anyhow::Result<String> {
    let mut host = Host::new(ctx)?;
    // A guest's own page would be one to read.
    ensure!(!Path::new("/dev/vmclock0").exists(), "this machine is a guest with a page");
    let mut count = each(&host, "no daemon", |_, _| 3)?;
    mentions(
        &String::from_utf8_lossy(&host.cli_output(&["status"])?.stderr),
        &["timevisord is not running", "systemctl start timevisord"],
    )?;

    // Nobody answers at this address (RFC 5737).
    host.start(&reference("192.0.2.1"))?;
    count += each(&host, "no time", |words, _| {
        i32::from(!EMPTY.contains(&words[0]) && words[0] != "timelines")
    })?;
    let asked = host.cli_output(&["now", "--utc"])?;
    ensure!(asked.status.code() == Some(1), "{}", code(&asked));
    host.terminate()?;

    let server = Impostor::honest()?;
    host.start(&reference(&server.address()))?;
    host.wait_synchronized(10_000)?;
    count += each(&host, "synchronized", |_, _| 0)?;
    for (words, wanted) in [
        (&["now", "--within", "10 sec"][..], 0),
        (&["now", "--within", "1ns"][..], 1),
        (&["now", "--within", "1.5ns"][..], 2),
        (&["now", "--within", "5 fortnights"][..], 2),
        (&["now", "--nonsense"][..], 2),
        (&["bind", "tai", "--within", "1ns", "--best-effort"][..], 1),
        (&["sources", &server.address()][..], 0),
        (&["wait-sync", "--within", "0.000001ms", "--timeout", "0.1s"][..], 1),
        (&["vm", "args", "--name", "web", "--memory", "1.5G"][..], 0),
    ] {
        let out = host.cli_output(words)?;
        ensure!(out.status.code() == Some(wanted), "{words:?}: {} and not {wanted}", code(&out));
        count += 1;
    }
    in_utc(&host)?;
    hung(&host)?;
    count += 1;

    let program = ctx.program("timevisor", "timevisor")?;
    let run = |script: &str| shell(&program, host.directory(), script);
    let piped = run(r#""$@" now --every 0.01 | head -2; echo "${PIPESTATUS[0]}""#)?;
    let said = String::from_utf8_lossy(&piped.stdout);
    ensure!(piped.stderr.is_empty() && said.ends_with("\n141\n"), "a closed pipe: {piped:?}");
    let full = run(r#""$@" status >/dev/full"#)?;
    let said = String::from_utf8_lossy(&full.stderr);
    ensure!(full.status.code() == Some(1) && !said.contains("panicked"), "a full disk: {full:?}");
    mentions(&said, &["cannot write the output", "No space left"])?;

    let looks = looks(&program, &mut host)?;
    Ok(format!(
        "{count} exit statuses of commands as documented; a closed pipe and a full disk without a panic; `status --watch` went on \
         over a restart of timevisord ({looks} looks)"
    ))
}

/// Watches the daemon while it is restarted.
fn looks(program: &Path, host: &mut Host) -> anyhow::Result<usize> {
    let mut watch = Command::new(program);
    watch.arg("--run-directory").arg(host.directory()).args(["status", "--json", "--watch=20ms"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("no output")?).lines();
    let mut count = 0;
    let mut until = |is_wanted: &dyn Fn(&Value) -> bool, what: &str| {
        for line in lines.by_ref().take(10_000) {
            count += 1;
            if is_wanted(&serde_json::from_str(&line?)?) {
                return Ok(());
            }
        }
        anyhow::bail!("{what}: not seen in {count} looks")
    };
    let pid = u64::from(host.pid()?);
    let done = (|| {
        until(&|seen| seen["pid"] == pid, "the daemon")?;
        host.terminate()?;
        until(
            &|seen| seen["error"].as_str().is_some_and(|e| e.contains("not running")),
            "its end",
        )?;
        host.restart()?;
        let pid = u64::from(host.pid()?);
        until(&|seen| seen["pid"] == pid, "the next daemon")
    })();
    watch.kill()?;
    watch.wait()?;
    done.map(|()| count)
}
