//! `timevisor reserve plan --vms`: several VMs on one host, planned and assigned to cores at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use timevisor_schedule::Reservation;
use timevisor_schedule::admission::Host;
use timevisor_schedule::fleet::{Assignment, Fit, Rules, Wanted, assign};
use timevisor_schedule::synthesis::Sharing;

use super::because::Because;
use super::file::{self, OverheadTable, PolicyName, TaskTable, Tasks};
use super::overheads::Known;
use super::plan::{self, KERNEL_SHARE, On, Plan, Question};
use super::{PlanOptions, fleet_text, ns, several};

#[derive(Args)]
#[group(id = "fleet")]
pub struct Options {
    /// Plan for all VMs of this file at once, on the cores of one host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["budget", "plot", "vcpus", "global", "alone", "aligned", "costs_from"])]
    vms: Option<PathBuf>,
    /// Their cores: a number (that many, from core 1), or a list as in 2-5,7 [default: as the file
    /// says]
    #[arg(long, value_name = "CORES", value_parser = cores)]
    cores: Option<Cores>,
    /// Put each vCPU on the core that has the most left, instead of the first that has enough
    #[arg(long)]
    spread: bool,
    /// No core for VMs of different cgroups, which cannot share one that is reserved (cgroup v2):
    /// VMs whose `cgroup` in the file is the same, or the vCPUs of one VM
    #[arg(long)]
    apart: bool,
}

impl Options {
    /// The fleet's file, if there is one.
    pub fn file(&self) -> Result<Option<&Path>> {
        // clap forgives what a file of tasks excludes.
        let more = self.cores.is_some() || self.spread || self.apart;
        ensure!(self.vms.is_some() || !more, "--cores, --spread and --apart are for --vms FILE");
        Ok(self.vms.as_deref())
    }
}

/// Numbers of cores.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "CoresTable")]
struct Cores(Vec<u16>);

#[derive(Deserialize)]
#[serde(untagged)]
enum CoresTable {
    Count(u16),
    List(Vec<u16>),
    Text(String),
}

impl TryFrom<CoresTable> for Cores {
    type Error = anyhow::Error;
    fn try_from(table: CoresTable) -> Result<Self> {
        match table {
            CoresTable::Count(count) => cores(&count.to_string()),
            CoresTable::List(list) => Self::of(list),
            CoresTable::Text(text) => cores(&text),
        }
    }
}

/// The greatest number of a core.
const MOST_CORE: u16 = 8191;

impl Cores {
    fn of(mut list: Vec<u16>) -> Result<Self> {
        list.sort_unstable();
        list.dedup();
        ensure!(!list.is_empty() && list.iter().all(|core| *core <= MOST_CORE), "no such cores");
        Ok(Self(list))
    }
}

fn cores(text: &str) -> Result<Cores> {
    let next = || format!("{text:?} is neither a number of cores nor a list, as in 2-5,7");
    let number = |text: &str| text.trim().parse::<u16>().with_context(next);
    if !text.contains([',', '-']) {
        let count = number(text)?;
        ensure!(count <= MOST_CORE, next());
        // Core 0 is left to the kernel, as `reserve apply` does.
        return Cores::of((1..=count).collect());
    }
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last && last <= MOST_CORE, next());
        list.extend(first..=last);
    }
    Cores::of(list)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    cores: Option<Cores>,
    #[serde(rename = "vm")]
    vms: Vec<VmTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VmTable {
    name: String,
    /// A file of tasks, from the fleet file's folder.
    tasks: Option<PathBuf>,
    policy: Option<PolicyName>,
    #[serde(default)]
    overhead: Option<OverheadTable>,
    #[serde(default)]
    task: Vec<TaskTable>,
    #[serde(with = "humantime_serde", default)]
    budget: Option<Duration>,
    #[serde(with = "humantime_serde", default)]
    period: Option<Duration>,
    vcpus: Option<u16>,
    #[serde(default)]
    global: bool,
    #[serde(default)]
    alone: bool,
    /// Those of one cgroup can share a core also with cgroup v2.
    cgroup: Option<String>,
}

/// What one vCPU of a VM wants.
#[derive(Debug)]
pub struct Asked {
    pub vm: String,
    pub vcpu: u16,
    pub wanted: Wanted,
    /// Why no reservation is enough, if none is.
    pub impossible: Option<Impossible>,
    /// How the guest keeps its tasks there, if it must.
    pub pinned: Option<String>,
}

/// No reservation is enough for the tasks of a vCPU.
#[derive(Clone, Debug)]
pub struct Impossible {
    pub why: String,
    pub because: Because,
}

/// The answer.
#[derive(Debug)]
pub struct Fleet {
    pub asked: Vec<Asked>,
    /// VMs whose tasks could not be divided among their vCPUs, and why.
    pub undivided: Vec<(String, String)>,
    /// Of each VM that is in `asked`: its cgroup.
    cgroups: BTreeMap<String, Option<String>>,
    pub cores: Vec<u16>,
    pub assignment: Assignment,
}

impl Fleet {
    pub fn fits(&self) -> bool {
        self.undivided.is_empty() && self.assignment.places.iter().all(Result::is_ok)
    }

    /// The VMs that share this core (of this index), if they are not known to be in one cgroup.
    pub fn strangers(&self, core: usize) -> Vec<&str> {
        let there = &self.assignment.cores[core].reservations;
        let vms: BTreeSet<&str> =
            there.iter().map(|(index, _)| self.asked[*index].vm.as_str()).collect();
        let cgroups: BTreeSet<_> =
            vms.iter().map(|vm| self.cgroups.get(*vm).and_then(Option::as_ref)).collect();
        let is_one = vms.len() < 2 || (cgroups.len() == 1 && !cgroups.contains(&None));
        if is_one { Vec::new() } else { vms.into_iter().collect() }
    }
}

pub fn run(path: &Path, options: &PlanOptions, host: &Known) -> Result<ExitCode> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let given = &options.fleet;
    let fit = if given.spread { Fit::Worst } else { Fit::First };
    let how = How { cores: given.cores.clone(), fit, apart: given.apart };
    let fleet = planned(&text, folder, &options.question(host), how)
        .with_context(|| path.display().to_string())?;
    if options.json {
        println!("{}", fleet_text::json(&fleet, host));
    } else {
        print!("{}", fleet_text::words(&fleet, host));
    }
    Ok(if fleet.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How the cores are filled.
#[derive(Default)]
struct How {
    cores: Option<Cores>,
    fit: Fit,
    /// VMs of different cgroups share no core.
    apart: bool,
}

/// Plans what a fleet file says.
fn planned(text: &str, folder: &Path, question: &Question, how: How) -> Result<Fleet> {
    let file: FleetFile = toml::from_str(text)?;
    let Cores(cores) =
        how.cores.or(file.cores).context("which cores? give --cores, or `cores` in the file")?;
    ensure!(!file.vms.is_empty(), "there are no VMs");
    let (mut asked, mut undivided): (Vec<Asked>, Vec<(String, String)>) = Default::default();
    for (index, vm) in file.vms.iter().enumerate() {
        let same = file.vms.iter().filter(|other| other.name == vm.name).count();
        ensure!(same == 1, "VM {} is listed {same} times", vm.name);
        let of_vm = match wants(vm, folder, question) {
            // The others have their places without it.
            Err(error) if error.is::<several::Undivided>() => {
                undivided.push((vm.name.clone(), error.to_string()));
                continue;
            }
            of_vm => of_vm.with_context(|| format!("VM {}", vm.name))?,
        };
        let is_of_group = |other: &VmTable| other.cgroup.is_some() && other.cgroup == vm.cgroup;
        let first = file.vms.iter().position(is_of_group).unwrap_or(index);
        let group = if how.apart { first } else { 0 };
        asked.extend(of_vm.into_iter().map(|one| {
            let wanted = Wanted { group, ..one.wanted };
            Asked { wanted, ..one }
        }));
    }
    let fit = how.fit;
    let cgroups = file.vms.iter().map(|vm| (vm.name.clone(), vm.cgroup.clone())).collect();
    let wanted: Vec<Wanted> = asked.iter().map(|one| one.wanted.clone()).collect();
    // As timevisord admits them, or more carefully.
    let Host { switch, blocking, tick } = Host::LINUX;
    let host = Host { switch, blocking, tick: tick.max(question.overheads.tick) };
    let assignment = assign(&wanted, cores.len(), &Rules { fit, host, most: KERNEL_SHARE });
    Ok(Fleet { asked, undivided, cgroups, cores, assignment })
}

fn wants(vm: &VmTable, folder: &Path, question: &Question) -> Result<Vec<Asked>> {
    let question = Question { period: vm.period.map(ns).or(question.period), ..*question };
    let vcpus = vm.vcpus.unwrap_or(1);
    ensure!((1..=1024).contains(&vcpus), "vcpus is 1 to 1024");
    let named =
        |vcpu, wanted| Asked { vm: vm.name.clone(), vcpu, wanted, impossible: None, pinned: None };
    let Some(tasks) = tasks(vm, folder)? else {
        let (Some(budget), Some(period)) = (vm.budget.map(ns), vm.period.map(ns)) else {
            bail!("give tasks, or a budget and a period");
        };
        ensure!(!vm.global, "global is about tasks, and the budget is given");
        let of = Reservation::shared(budget, period)?;
        let wanted = if vm.alone {
            Wanted { shared: None, alone: Some(of), group: 0 }
        } else {
            Wanted { shared: Some(of), alone: None, group: 0 }
        };
        return Ok((0..vcpus).map(|vcpu| named(vcpu, wanted.clone())).collect());
    };
    ensure!(vm.budget.is_none(), "tasks and a budget: one of the two");
    if vm.global {
        ensure!(tasks.stated.is_empty(), "global, and tasks that state their vcpu: one of the two");
        ensure!(vcpus > 1, "global needs vcpus");
        let question = Question { sharing: Sharing::Alone, on: On::AnyOf(vcpus), ..question };
        let plan = plan::make(&tasks.set, &question)?;
        let wanted = Wanted { shared: None, alone: recommended(&plan), group: 0 };
        let impossible = impossible(&plan);
        return Ok((0..vcpus)
            .map(|vcpu| Asked { impossible: impossible.clone(), ..named(vcpu, wanted.clone()) })
            .collect());
    }
    let alone = Question { sharing: Sharing::Alone, ..question };
    let shared = Question { sharing: Sharing::Shared, ..question };
    let first = if vm.alone { alone } else { shared };
    let several = vcpus > 1 || !tasks.stated.is_empty();
    let parts = if several {
        several::divided(&tasks, vcpus, &first).or_else(|error| {
            // What does not fit beside others may fit alone.
            if vm.alone { Err(error) } else { several::divided(&tasks, vcpus, &alone) }
        })?
    } else {
        let plan = plan::make(&tasks.set, &first)?;
        vec![several::Part { vcpu: 0, set: tasks.set, plan }]
    };
    parts
        .iter()
        .map(|part| {
            let by = |question: &Question| plan::make(&part.set, question);
            let on_its_own = by(&alone)?;
            let beside = if vm.alone { None } else { recommended(&by(&shared)?) };
            let wanted = Wanted { shared: beside, alone: recommended(&on_its_own), group: 0 };
            let pinned = several.then(|| several::pinned(part));
            Ok(Asked { impossible: impossible(&on_its_own), pinned, ..named(part.vcpu, wanted) })
        })
        .collect()
}

fn tasks(vm: &VmTable, folder: &Path) -> Result<Option<Tasks>> {
    ensure!(
        vm.overhead.is_none() || vm.policy.is_some(),
        "an overhead is of tasks that are here: one of a file of tasks is in that file"
    );
    match (&vm.tasks, vm.policy) {
        (Some(_), Some(_)) => bail!("tasks of a file, and others here: one of the two"),
        (Some(path), None) => {
            ensure!(vm.task.is_empty(), "tasks of a file, and others here: one of the two");
            file::read(&folder.join(path)).map(Some)
        }
        (None, Some(policy)) => {
            let (overhead, tasks) = (vm.overhead.clone().unwrap_or_default(), vm.task.clone());
            let of = file::File { policy, work: file::WorkName::Any, overhead, tasks };
            of.tasks().map(Some)
        }
        (None, None) => {
            ensure!(vm.task.is_empty(), "tasks need a policy");
            Ok(None)
        }
    }
}

fn recommended(plan: &Plan) -> Option<Reservation> {
    if let Plan::Found(found) = plan { Some(found.recommended) } else { None }
}

fn impossible(plan: &Plan) -> Option<Impossible> {
    let Plan::TooMuch { because, .. } = plan else { return None };
    let sentence = because.sentence();
    let nothing = "no reservation is enough for its tasks";
    let why = if sentence.is_empty() {
        nothing.to_owned()
    } else {
        format!("{nothing} here: {sentence}")
    };
    Some(Impossible { why, because: because.clone() })
}

#[cfg(test)]
mod tests {
    use timevisor_schedule::Overheads;
    use timevisor_schedule::fleet::{Place, Unplaced};

    use super::*;
    use crate::reserve::overheads;

    const FLEET: &str = r#"
cores = 3
[[vm]]
name = "control"
policy = "rate-monotonic"
period = "50ms"
alone = true
task = [{ name = "tau1", cost = "30ms", period = "150ms" }, { name = "tau2", cost = "50ms", period = "200ms" }]
[[vm]]
name = "db"
budget = "20ms"
period = "50ms"
[[vm]]
name = "web"
budget = "25ms"
period = "50ms"
"#;

    fn question() -> Question {
        Question {
            period: None,
            budget: None,
            sharing: Sharing::Shared,
            overheads: Overheads::of_tick(1_000_000),
            switch: 50_000,
            on: On::One,
        }
    }

    fn fleet(text: &str) -> Fleet {
        planned(text, Path::new("."), &question(), How::default()).unwrap()
    }

    fn words(of: &Fleet) -> String {
        fleet_text::words(of, &overheads::unmeasured())
    }

    #[test]
    fn all_vms_have_a_place_at_once() {
        let of = fleet(FLEET);
        let words = words(&of);
        for said in [
            "core 1        control vCPU 0 ",
            "alone; nothing is left",
            "core 2        web vCPU 0 25 ms in 50 ms (50.0 %), db vCPU 0 20 ms in 50 ms (40.0 %); 5.0 % are left",
            "core 3        nothing; 95.0 % are left",
            "timevisor reserve apply db --vcpu 0 --core 2 --budget 20ms/50ms\n",
            "timevisor reserve apply control --vcpu 0 --core 1 --budget 27",
            "/50ms --alone",
        ] {
            assert!(words.contains(said), "{said}: {words}");
        }
        assert!(of.fits());
        let json = fleet_text::json(&of, &overheads::unmeasured());
        assert_eq!(json["schedulable"], true);
        assert_eq!(json["cores"][1]["left_ppm"], 50_000);
        assert_eq!(json["vms"][1]["vcpus"][0]["core"], 2);
    }

    #[test]
    fn who_does_not_fit_is_named() {
        let of = fleet(&FLEET.replace("cores = 3", "cores = [4, 6]").replace("20ms", "30ms"));
        assert!(!of.fits());
        // 60 and 50 % on one core, which the kernel admits 95 of.
        let words = words(&of);
        let said = "does not fit  web vCPU 0 needs 50.0 % of a core, and core 6 has the most left, 35.0 %: 15.0 % are missing";
        assert!(words.contains(said) && !words.contains("apply web"), "{words}");
        let json = fleet_text::json(&of, &overheads::unmeasured());
        assert_eq!(json["vms"][2]["vcpus"][0]["missing_ppm"], 150_000);
        // The tasks themselves: because of the tick.
        let late = FLEET.replace("\"50ms\"\nalone", "\"3ms\"\nalone");
        let coarse = Question { overheads: Overheads::of_tick(4_000_000), ..question() };
        let of = planned(&late, Path::new("."), &coarse, How::default()).unwrap();
        let words = self::words(&of);
        let said = "does not fit  control vCPU 0: no reservation is enough for its tasks here: budgets end at a tick of 4 ms";
        assert!(words.contains(said) && words.contains("apply web"), "{words}");
        let json = fleet_text::json(&of, &overheads::unmeasured());
        let row = &json["vms"][0]["vcpus"][0];
        assert_eq!(row["because"][0]["overhead"], "tick", "{row}");
        assert_eq!(row["because"][0]["is"], 4_000_000, "{row}");
        assert!(row["missing_ppm"].is_null() && row["reason"] != "", "{row}");
    }

    #[test]
    fn who_cannot_be_divided_stops_nobody() {
        let heavy = "[[vm]]\nname = \"smp\"\npolicy = \"edf\"\nvcpus = 2\nperiod = \"10ms\"\n\
                     task = [{ name = \"a\", cost = \"19ms\", period = \"20ms\" }]\n";
        let of = fleet(&format!("{FLEET}{heavy}"));
        let words = words(&of);
        let said = "does not fit  smp: no division among 2 vCPUs was found: a fits on none";
        assert!(words.contains(said) && words.contains("apply web"), "{words}");
        assert!(!of.fits());
        let json = fleet_text::json(&of, &overheads::unmeasured());
        assert_eq!(json["schedulable"], false);
        let row = &json["vms"][3];
        assert!(row["name"] == "smp" && row["vcpus"][0].is_null(), "{row}");
        assert!(row["reason"].as_str().unwrap().contains("take more vCPUs"), "{row}");
        // What is wrong with the file still is.
        let wrong = heavy.replace("\"20ms\" }", "\"20ms\", vcpu = 7 }");
        let text = format!("{FLEET}{wrong}");
        assert!(planned(&text, Path::new("."), &question(), How::default()).is_err());
    }

    #[test]
    fn vms_of_several_cgroups_on_a_core_are_told_or_kept_apart() {
        let of = fleet(FLEET);
        let words = self::words(&of);
        let said = "note          core 2 is for VMs db and web: with cgroup v2 they share it only if they are in one cgroup";
        assert!(words.contains(said) && words.matches("note ").count() == 1, "{words}");
        let json = fleet_text::json(&of, &overheads::unmeasured());
        assert!(json["cores"][1]["note"].as_str().unwrap().contains("--apart"), "{json}");
        assert!(json["cores"][0]["note"].is_null() && json["cores"][2]["note"].is_null());
        let apart = |text: &str| {
            let how = How { apart: true, ..How::default() };
            planned(text, Path::new("."), &question(), how).unwrap()
        };
        let at = |of: &Fleet| -> Vec<_> {
            of.assignment.places.iter().map(|place| place.map(|place| place.core)).collect()
        };
        let of = apart(FLEET);
        assert_eq!(at(&of), [Ok(0), Ok(2), Ok(1)]);
        assert!(!self::words(&of).contains("note "));
        let of = apart(&FLEET.replace("cores = 3", "cores = 2"));
        assert_eq!(at(&of), [Ok(0), Err(Unplaced::OtherGroups(400_000)), Ok(1)]);
        let said = "db vCPU 0 needs 40.0 % of a core, and only cores of VMs in other cgroups have that left";
        assert!(self::words(&of).contains(said), "{}", self::words(&of));
        // One cgroup: they share, and nothing is to be told.
        let one = FLEET.replace("budget", "cgroup = \"machine.slice/rt\"\nbudget");
        let of = apart(&one.replace("cores = 3", "cores = 2"));
        assert_eq!(at(&of), [Ok(0), Ok(1), Ok(1)]);
        assert!(!self::words(&of).contains("note "));
    }

    #[test]
    fn a_vm_with_several_vcpus_has_a_place_for_each() {
        let tasks = r#"task = [
            { name = "a", cost = "4ms", period = "20ms", vcpu = 0 },
            { name = "b", cost = "4ms", period = "20ms", vcpu = 1 }]"#;
        let vm = |more: &str| {
            format!("cores = \"1-2\"\n[[vm]]\nname = \"smp\"\npolicy = \"listed\"\n{more}\n{tasks}")
        };
        let of = fleet(&vm("period = \"10ms\""));
        let cores: Vec<_> = of.assignment.places.iter().map(|place| place.unwrap().core).collect();
        assert_eq!((of.asked.len(), cores), (2, vec![0, 1]), "{of:?}");
        assert!(words(&of).contains("in the guest  smp: taskset -acp 1 PID, of b"), "{of:?}");
        let global = vm("period = \"10ms\"\nglobal = true\nvcpus = 2").replace(", vcpu = 0", "");
        let error = planned(&global, Path::new("."), &question(), How::default()).unwrap_err();
        assert!(format!("{error:#}").contains("one of the two"), "{error:#}");
        let of = fleet(&global.replace(", vcpu = 1", ""));
        assert!(matches!(
            of.assignment.places[..],
            [Ok(Place { core: 0, alone: true, .. }), Ok(Place { core: 1, alone: true, .. })]
        ));
        let one = global.replace(", vcpu = 1", "").replace("1-2", "1,1");
        assert!(matches!(
            fleet(&one).assignment.places[..],
            [Ok(_), Err(Unplaced::NoEmptyCore(_))]
        ));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (from, to, said) in [
            ("cores = 3", "", "which cores"),
            ("cores = 3", "cores = 0", "no such cores"),
            ("name = \"db\"", "name = \"web\"", "VM web is listed 2 times"),
            ("budget = \"20ms\"\n", "", "give tasks, or a budget"),
            ("budget = \"20ms\"", "budget = \"60ms\"", "VM db"),
            ("alone = true", "budget = \"1ms\"", "one of the two"),
            ("policy = \"rate-monotonic\"\n", "", "tasks need a policy"),
            ("alone = true", "tasks = \"x.toml\"", "one of the two"),
            ("alone = true", "vcpus = 0", "vcpus is 1 to 1024"),
            ("alone = true", "colour = 1", "colour"),
        ] {
            let text = FLEET.replacen(from, to, 1);
            let error = planned(&text, Path::new("."), &question(), How::default()).unwrap_err();
            assert!(format!("{error:#}").contains(said), "{said}: {error:#}");
        }
        let list = |text: &str| cores(text).map(|cores| cores.0);
        assert_eq!(list("2").unwrap(), [1, 2]);
        assert_eq!(list("2-4,7,3").unwrap(), [2, 3, 4, 7]);
        for bad in ["", "0", "a", "3-1", "1,,2", "1-99999", "-1"] {
            assert!(list(bad).is_err(), "{bad}");
        }
    }
}
