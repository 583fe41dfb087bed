//! `timevisor introspect`: what VMs' real-time tasks do, through timevisord.
//!
//! | file | owns |
//! | --- | --- |
//! | `introspect/plot.rs` | events as a picture |
//! | `introspect/plugins.rs` | the guest systems that are known, and the check of a plugin |

mod plot;
mod plugins;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use timevisor_introspection::os::described;
use timevisor_introspection::registry;
use timevisor_introspection::symbols::image::Image;
use timevisor_protocols::control::{
    IntrospectAttach, IntrospectBackend, IntrospectEvents, IntrospectReserve, IntrospectReserved,
    IntrospectRow, IntrospectSenseless, IntrospectState, IntrospectTask, IntrospectTrace,
    IntrospectVm, Request, Response,
};

use crate::connection::{ask, unexpected};
use crate::reserve::overheads;
use crate::spans::span;

#[derive(Subcommand)]
pub enum Command {
    /// Begin to introspect a VM; docs/how-to/introspect.md says what that needs
    Attach(Attach),
    /// Stop introspecting a VM
    Detach(Which),
    /// List the introspected VMs and their real-time tasks
    List(List),
    /// Print events as they happen, until interrupted
    Trace(Trace),
    /// List the guest systems that are known: built in, and described by plugins
    Plugins(plugins::Plugins),
}

#[derive(Args)]
pub struct Which {
    /// The VM, as `timevisor vm list` shows it
    vm: String,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Backend {
    /// Our plugin in a QEMU that emulates the guest
    Tcg,
    /// KVM's instruction emulator and BPF on this host: experimental, and open to every guest of
    /// the host
    Kvm,
    /// A write to a port where nobody listens, and BPF on this host: experimental, slower for the
    /// guest, and opens nothing
    Port,
    /// QEMU's gdb stub, for debugging only: the VM stands still at every event
    Gdb,
}

#[derive(Args)]
pub struct Attach {
    /// The VM, as `timevisor vm list` shows it
    vm: String,
    /// How to trap [default: what is known to work for this VM]
    #[arg(long, value_enum)]
    backend: Option<Backend>,
    #[arg(long, value_name = "FILE", help = image_help())]
    image: Option<PathBuf>,
    /// Also trap every system call of a Linux guest, to measure what that costs
    #[arg(long)]
    every_system_call: bool,
    /// Reserve for its vCPU what its tasks under SCHED_DEADLINE need, as long as they need it
    #[arg(long)]
    reserve: bool,
    /// With --reserve: the reservation's period [default: half of the shortest deadline]
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "reserve")]
    period: Option<Duration>,
    /// With --reserve: what the threads of this name under SCHED_FIFO or SCHED_RR need; may be
    /// repeated
    #[arg(long = "task", value_name = "NAME[@PRIORITY]=COST/PERIOD", value_parser = task, requires = "reserve")]
    tasks: Vec<IntrospectTask>,
    /// With --reserve: no other reservation may come to its core
    #[arg(long, requires = "reserve")]
    alone: bool,
    /// With --reserve: the guest keeps its real-time tasks on this one of several vCPUs
    #[arg(long, value_name = "N", requires = "reserve")]
    vcpu: Option<u32>,
    /// With --reserve: the guest has so many vCPUs, and runs its tasks on any of them; each gets a
    /// reservation, alone on its core
    #[arg(long, value_name = "N", requires = "alone", conflicts_with = "vcpu", value_parser = clap::value_parser!(u16).range(2..=1024))]
    vcpus: Option<u16>,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct List {
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Trace {
    /// The VM
    vm: String,
    /// Begin with the remembered events, from this number on
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Print the remembered events, and do not wait for more
    #[arg(long)]
    once: bool,
    /// One JSON object a line
    #[arg(long, conflicts_with = "plot")]
    json: bool,
    /// Draw the remembered events into this SVG file: a row for each thread
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The longest thread name in bytes (TASK_COMM_LEN without the terminator).
const COMM: usize = 15;
/// How long to wait until trap points are out: running vCPUs reach a place where they can be removed
/// within this time.
const DETACHING: Duration = Duration::from_secs(35);
/// The pause between two looks whether they are.
const PAUSE: Duration = Duration::from_millis(10);
/// The pause between two requests.
const INTERVAL: Duration = Duration::from_millis(100);

fn image_help() -> String {
    let names = registry::names_with_image();
    format!(
        "The ELF file that runs in it, with its symbols: for {names} (docs/how-to/introspect-rtos.md), and guests of plugins"
    )
}

pub fn run(directory: &Path, command: &Command) -> Result<()> {
    let of = |which: &Which| IntrospectVm { vm: which.vm.clone() };
    let (request, json) = match command {
        Command::Attach(options) => {
            (Request::IntrospectAttach(attach(directory, options)?), options.json)
        }
        Command::Detach(which) => (Request::IntrospectDetach(of(which)), which.json),
        Command::List(list) => (Request::IntrospectList, list.json),
        Command::Trace(options) => return trace(directory, options),
        Command::Plugins(options) => return plugins::run(directory, options),
    };
    let rows = |request: &Request| match ask(directory, request)? {
        Response::Introspections(answer) => Ok(answer.vms),
        response => Err(unexpected(&response)),
    };
    // Attaching again changes nothing, which somebody who has changed a plugin has to know.
    let mut attached_already = None;
    if let Command::Attach(options) = command
        && !json
        && rows(&Request::IntrospectList)?.iter().any(|row| row.vm == options.vm)
    {
        attached_already = Some(&options.vm);
    }
    let mut rows_now = rows(&request)?;
    if let Some(vm) = attached_already {
        println!(
            "VM {vm} is attached already, and nothing has changed; for another plugin or image, `timevisor introspect detach {vm}` first"
        );
    }
    if let Command::Detach(which) = command {
        let until = Instant::now() + DETACHING;
        while let Some(row) = rows_now.iter().find(|row| row.vm == which.vm) {
            let is_over = row.state != IntrospectState::Detaching || Instant::now() > until;
            if let Some(problem) = row.problem.as_ref().filter(|_| is_over) {
                bail!(
                    "the trap points of VM {} cannot be removed: {problem}; timevisord tries again, and the VM must not migrate before that (`timevisor introspect list`)",
                    which.vm
                );
            }
            ensure!(
                !is_over,
                "VM {} is still being detached; see `timevisor introspect list`",
                which.vm
            );
            std::thread::sleep(PAUSE);
            rows_now = rows(&Request::IntrospectList)?;
        }
    }
    let rows = rows_now;
    if json {
        println!("{}", serde_json::to_string(&rows)?);
    } else if rows.is_empty() {
        println!("nothing is introspected");
    } else {
        rows.iter().for_each(|row| print!("{}", words(row)));
    }
    Ok(())
}

fn task(text: &str) -> Result<IntrospectTask> {
    let usage = "NAME=COST/PERIOD or NAME@PRIORITY=COST/PERIOD, for example control@60=5ms/20ms";
    let (who, needs) = text.split_once('=').context(usage)?;
    let (name, priority) = who.split_once('@').map_or((who, None), |(name, p)| (name, Some(p)));
    let (cost, period) = needs.split_once('/').context(usage)?;
    let ns = |text: &str| -> Result<u64> {
        Ok(u64::try_from(span(text).map_err(anyhow::Error::msg)?.as_nanos())?)
    };
    let (cost_ns, period_ns) = (ns(cost)?, ns(period)?);
    ensure!(
        !name.is_empty() && name.len() <= COMM,
        "a name has 1 to {COMM} bytes: /proc/PID/comm in the guest"
    );
    ensure!(0 < cost_ns && cost_ns <= period_ns, "0 < cost <= period");
    let priority = priority.map(str::parse).transpose().context(usage)?;
    ensure!(priority.is_none_or(|priority| (1..=99).contains(&priority)), "priorities are 1 to 99");
    Ok(IntrospectTask { name: name.to_owned(), priority, cost_ns, period_ns })
}

fn attach(directory: &Path, options: &Attach) -> Result<IntrospectAttach> {
    let image = options.image.as_deref().map(|path| image(directory, path)).transpose()?;
    let ns = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let host = options.reserve.then(|| overheads::Options::default().known()).transpose()?;
    let reserve = IntrospectReserve {
        period_ns: options.period.map(ns),
        overheads: host.map(|host| host.told()),
        alone: options.alone,
        vcpu: options.vcpu,
        vcpus: options.vcpus,
        tasks: options.tasks.clone(),
    };
    let backend = options.backend.map(|backend| match backend {
        Backend::Tcg => IntrospectBackend::Tcg,
        Backend::Kvm => IntrospectBackend::Kvm,
        Backend::Port => IntrospectBackend::Port,
        Backend::Gdb => IntrospectBackend::Gdb,
    });
    let reserve = options.reserve.then_some(reserve);
    let (vm, every_system_call) = (options.vm.clone(), options.every_system_call);
    Ok(IntrospectAttach { vm, backend, image, every_system_call, reserve })
}

/// The file's path for timevisord, whose directory is another one. What is wrong with it is said
/// here, at once: timevisord reads it later.
fn image(directory: &Path, path: &Path) -> Result<PathBuf> {
    let whole = path.canonicalize().with_context(|| path.display().to_string())?;
    let bytes = std::fs::read(&whole).with_context(|| path.display().to_string())?;
    let image = Image::parse(&bytes).with_context(|| path.display().to_string())?;
    // An older timevisord knows no plugins.
    let plugins = plugins::directory(directory);
    let plugins =
        plugins.map(|directory| described::read_directory(&directory)).unwrap_or_default();
    if let Err(why) = registry::probe_image_or_plugin(&image, &plugins) {
        bail!("{}: {}", path.display(), why.reasons.join("\n    "));
    }
    Ok(whole)
}

fn reserved_words(reserved: &IntrospectReserved) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = match reserved.budget_ns {
        0 => "    nothing is reserved".to_owned(),
        budget => format!("    reserved: {} ms of {} ms", ms(budget), ms(reserved.period_ns)),
    };
    if let Some(after) = reserved.after_ns {
        out += &format!(", {:.0} ms after it was asked for", ms(after));
    }
    if let Some(why) = &reserved.refused {
        out += &format!("; what its tasks need now is refused: {why}");
    }
    out + "\n"
}

fn words(row: &IntrospectRow) -> String {
    let guest = row.guest.as_deref().unwrap_or("not known yet");
    let state = match (row.state, &row.problem) {
        (IntrospectState::Attached, None) => format!("{} trap points", row.points),
        (IntrospectState::Attached, Some(problem)) => {
            format!("{} trap points; {problem}", row.points)
        }
        (IntrospectState::Waiting, Some(problem)) => format!("waits: {problem}"),
        (IntrospectState::Waiting, None) => "looks for the guest's kernel".to_owned(),
        (IntrospectState::Detaching, None) => "its trap points are being removed".to_owned(),
        (IntrospectState::Detaching, Some(problem)) => {
            format!("its trap points cannot be removed yet: {problem}")
        }
    };
    let uncounted = if row.losses_not_counted { ", losses not counted" } else { "" };
    let senseless = senseless_words(row.senseless, row.senseless_last.as_ref());
    let mut out = format!(
        "{}  {guest}, by {} ({}); {state}; {} events, {} dropped{uncounted}{senseless}\n",
        row.vm, row.backend, row.reason, row.events, row.dropped
    );
    out += &row.reserved.as_ref().map(reserved_words).unwrap_or_default();
    for task in &row.tasks {
        out += &format!("    {}\n", task_words(task));
    }
    out
}

fn senseless_words(count: u64, last: Option<&IntrospectSenseless>) -> String {
    match (count, last) {
        (0, _) => String::new(),
        (count, None) => format!(", {count} senseless"),
        (count, Some(IntrospectSenseless { point, read })) => {
            format!(", {count} senseless (of the last, at {point}, the read {read} failed)")
        }
    }
}

/// A thread's number and name.
fn named(value: &Value) -> String {
    let comm = value["comm"].as_str().filter(|comm| !comm.is_empty());
    format!("{} {}", value["tid"], comm.unwrap_or("(no name)"))
}

fn thread(value: &Value) -> String {
    format!("{} {}", named(value), policy_words(&value["policy"]))
}

fn policy_words(policy: &Value) -> String {
    policy.as_str().map_or_else(|| policy.to_string(), str::to_owned)
}

fn attributes(value: &Value) -> String {
    let policy = policy_words(&value["policy"]);
    let ms = |key: &str| value[key].as_u64().unwrap_or(0) as f64 / 1e6;
    match policy.as_str() {
        "deadline" => {
            let mut out = format!(
                "deadline runtime {} ms, deadline {} ms, period {} ms",
                ms("runtime_ns"),
                ms("deadline_ns"),
                ms("period_ns")
            );
            // Only segments have these two.
            for key in ["priority", "utility"] {
                if let Some(number) = value[key].as_u64().filter(|number| *number > 0) {
                    out += &format!(", {key} {number}");
                }
            }
            out
        }
        "fifo" | "round_robin" => format!("{policy} priority {}", value["priority"]),
        _ => policy,
    }
}

fn task_words(task: &Value) -> String {
    let of = &task["thread"];
    let wanted = match &task["attributes"] {
        Value::Null => {
            format!("{}; what it asked for was not seen", policy_words(&of["policy"]))
        }
        asked if asked["policy"] == of["policy"] => attributes(asked),
        // The policy before its last event, which is the one that asked.
        asked => {
            format!("asks for {}; {} before that", attributes(asked), policy_words(&of["policy"]))
        }
    };
    let aborted = match task["aborted"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} aborted"),
    };
    format!("{}: {wanted}; {} jobs{aborted}", named(of), task["jobs"])
}

fn trace(directory: &Path, options: &Trace) -> Result<()> {
    // A picture is of what has happened.
    let mut from = options.from.or(options.plot.is_some().then_some(0));
    let mut drawn = Vec::new();
    loop {
        let asked = IntrospectTrace { vm: options.vm.clone(), from };
        let answer = match ask(directory, &Request::IntrospectTrace(asked))? {
            Response::IntrospectEvents(answer) => answer,
            response => return Err(unexpected(&response)),
        };
        match &options.plot {
            Some(_) => drawn.extend_from_slice(&answer.events),
            None => print_events(&answer, options.json),
        }
        from = Some(answer.next);
        if answer.events.is_empty() {
            if let Some(path) = &options.plot {
                return draw(&options.vm, &drawn, path);
            }
            if options.once {
                return Ok(());
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

fn draw(vm: &str, events: &[Value], path: &Path) -> Result<()> {
    let svg = plot::svg(vm, events).with_context(|| {
        format!("no event of {vm} whose time is known; see `timevisor introspect list` and `timevisor status`")
    })?;
    std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

fn print_events(answer: &IntrospectEvents, json: bool) {
    if answer.forgotten > 0 && !json {
        println!("({} events are not remembered any more)", answer.forgotten);
    }
    for event in &answer.events {
        if json {
            println!("{event}");
        } else {
            println!("{}", line(event));
        }
    }
}

/// As strace writes it.
fn line(event: &Value) -> String {
    let time = event["estimate_ns"].as_i64().map_or_else(
        || "-".to_owned(),
        |ns| format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000),
    );
    let call = match event["kind"].as_str().unwrap_or("?") {
        "set_scheduler" => {
            format!(
                "sched_setattr({}, {})",
                event["target"]["tid"],
                attributes(&event["attributes"])
            )
        }
        "yield" => "sched_yield()".to_owned(),
        "sleep" => {
            let until = if event["absolute"] == true { "until" } else { "for" };
            format!("clock_nanosleep(clock {}, {until} {} ns)", event["clock"], event["ns"])
        }
        "abort" => "abort()".to_owned(),
        "choose_scheduler" => format!(
            "choose_scheduler({}, priority {}, processors {:#x})",
            policy_words(&event["scheduler"]),
            event["priority"],
            event["processors"].as_u64().unwrap_or(0)
        ),
        "exit" => format!("exit({})", event["status"].as_u64().unwrap_or(0) >> 8),
        "system_call" => format!("system call {}", event["number"]),
        other => other.to_owned(),
    };
    format!("{time} vcpu {} [{}] {call}", event["vcpu"], thread(&event["thread"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_as_people_write_them() {
        let read = task("control@60=5ms/20ms").unwrap();
        assert_eq!((read.name.as_str(), read.priority), ("control", Some(60)));
        assert_eq!((read.cost_ns, read.period_ns), (5_000_000, 20_000_000));
        assert_eq!(task("a=1us/1us").unwrap().priority, None);
        for wrong in
            ["a", "a=5ms", "=1ms/2ms", "a=3ms/2ms", "a=0s/2ms", "a@0=1ms/2ms", "a@x=1ms/2ms"]
        {
            assert!(task(wrong).is_err(), "{wrong}");
        }
        assert!(task("sixteen-bytes---=1ms/2ms").is_err());
    }

    #[test]
    fn events_in_words() {
        let thread = json!({"tid": 7, "pid": 7, "comm": "rt", "policy": "deadline"});
        let mut event = json!({"vcpu": 1, "thread": thread, "kind": "yield", "counter": 5});
        assert_eq!(line(&event), "- vcpu 1 [7 rt deadline] sched_yield()");
        event["kind"] = "exit".into();
        event["status"] = 768.into();
        event["estimate_ns"] = 1_500_000_000.into();
        assert_eq!(line(&event), "1.500000 vcpu 1 [7 rt deadline] exit(3)");
        event["kind"] = "set_scheduler".into();
        event["target"] = json!({"tid": 9});
        event["attributes"] = json!({"policy": "fifo", "priority": 60});
        assert!(line(&event).ends_with("sched_setattr(9, fifo priority 60)"));
        let mut task = json!({"thread": thread, "attributes": null, "jobs": 4});
        assert_eq!(task_words(&task), "7 rt: deadline; what it asked for was not seen; 4 jobs");
        task["aborted"] = 2.into();
        assert!(task_words(&task).ends_with("; 4 jobs, 2 aborted"));
    }

    #[test]
    fn a_task_that_has_only_been_created() {
        let mut task = json!({
            "thread": {"tid": 1_072_784, "pid": 0, "comm": "", "policy": "normal"},
            "attributes": {"policy": "round_robin", "priority": 0},
            "jobs": 0,
        });
        let asks = "1072784 (no name): asks for round_robin priority 0; normal before that; 0 jobs";
        assert_eq!(task_words(&task), asks);
        task["thread"]["policy"] = "round_robin".into();
        task["thread"]["comm"] = "nav".into();
        assert_eq!(task_words(&task), "1072784 nav: round_robin priority 0; 0 jobs");
    }

    #[test]
    fn events_that_made_no_sense_are_shown() {
        let mut row = IntrospectRow { vm: "robot".into(), ..IntrospectRow::default() };
        assert!(!words(&row).contains("senseless"));
        row.senseless = 2;
        assert!(words(&row).ends_with("0 events, 0 dropped, 2 senseless\n"));
        row.senseless_last =
            Some(IntrospectSenseless { point: "msleep".into(), read: "ms".into() });
        let last = ", 2 senseless (of the last, at msleep, the read ms failed)\n";
        assert!(words(&row).ends_with(last), "{}", words(&row));
    }

    #[test]
    fn events_of_segments_in_words() {
        let nobody = json!({"tid": 0, "pid": 0, "comm": "", "policy": "normal"});
        let mut event = json!({"vcpu": 0, "thread": nobody, "kind": "choose_scheduler"});
        event["scheduler"] = "hvdf".into();
        event["priority"] = 2.into();
        event["processors"] = 1.into();
        let choice = "choose_scheduler(hvdf, priority 2, processors 0x1)";
        assert!(line(&event).ends_with(choice), "{}", line(&event));
        event["kind"] = "abort".into();
        assert!(line(&event).ends_with("] abort()"));
        let mut asked = json!({"policy": "deadline", "runtime_ns": 1_000_000});
        let plain = "deadline runtime 1 ms, deadline 0 ms, period 0 ms";
        assert_eq!(attributes(&asked), plain);
        asked["priority"] = 3.into();
        asked["utility"] = 9.into();
        assert_eq!(attributes(&asked), format!("{plain}, priority 3, utility 9"));
    }
}
