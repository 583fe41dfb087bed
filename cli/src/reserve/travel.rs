//! Reservations that go with a VM to another host: `reserve export` there, `vm add --reserve` here.
//!
//! Budgets are scaled up where this host is slower, if both hosts' speeds are known; only a plan
//! (`reserve plan --costs-from`) knows what this host takes from them.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use timevisor_protocols::control::{Promise, Request, ReserveApply, ReserveRelease, ReserveRow};
use timevisor_schedule::Speed;
use timevisor_schedule::speed::{Slowdown, Work};

use super::costs::factor;
use super::overheads::{SpeedTable, own_speed};
use super::{held, ns};

#[derive(Args)]
pub struct Export {
    /// The VM, as `timevisor vm list` shows it
    vm: String,
    /// JSON
    #[arg(long)]
    json: bool,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Travelling {
    reserve: Vec<Table>,
    /// Of the host where these budgets were enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    speed: Option<SpeedTable>,
}

/// The keys of `[[guests.vm.NAME.reserve]]`, without the core: that is the host's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    vcpu: u32,
    #[serde(with = "humantime_serde")]
    budget: Duration,
    #[serde(with = "humantime_serde")]
    period: Duration,
    #[serde(default, with = "humantime_serde::option", skip_serializing_if = "Option::is_none")]
    at_most: Option<Duration>,
    #[serde(default, with = "humantime_serde::option", skip_serializing_if = "Option::is_none")]
    deadline: Option<Duration>,
    #[serde(default)]
    promise: Promise,
    #[serde(default)]
    alone: bool,
}

/// A VM that is to come has no place here.
#[derive(Debug)]
pub struct NoPlace(String);

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for NoPlace {}

pub fn export(directory: &Path, options: &Export) -> Result<()> {
    let rows = held::reserve(directory, &Request::ReserveList)?.reservations;
    // Introspection makes its own where the VM goes.
    let of_vm = rows.iter().filter(|row| row.vm == options.vm && !row.followed);
    let reserve: Vec<Table> = of_vm.map(table).collect();
    ensure!(
        !reserve.is_empty(),
        "VM {} has no reservation here but what follows its tasks; see `timevisor reserve list`",
        options.vm
    );
    let all = Travelling { reserve, speed: own_speed()?.map(Into::into) };
    if options.json {
        println!("{}", serde_json::to_string(&all)?);
        return Ok(());
    }
    println!(
        "# The reservations of VM {}: for `timevisor vm add --reserve` where it goes.",
        options.vm
    );
    print!("{}", toml::to_string(&all)?);
    Ok(())
}

fn table(row: &ReserveRow) -> Table {
    let (budget, at_most) = match row.soft_ns {
        Some((least, most)) => (least, Some(most)),
        None => (row.budget_ns, None),
    };
    let deadline = Some(row.deadline_ns).filter(|deadline| *deadline != row.period_ns);
    Table {
        vcpu: row.vcpu,
        budget: Duration::from_nanos(budget),
        period: Duration::from_nanos(row.period_ns),
        at_most: at_most.map(Duration::from_nanos),
        deadline: deadline.map(Duration::from_nanos),
        promise: row.promise,
        alone: row.alone,
    }
}

/// Reads the file; `-` is the standard input.
pub fn read(path: &Path) -> Result<Travelling> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("cannot read the standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| {
            format!("cannot read {}; `timevisor reserve export` there", path.display())
        })?;
    }
    let read: Travelling = toml::from_str(&text).with_context(|| path.display().to_string())?;
    ensure!(!read.reserve.is_empty(), "{}: it reserves nothing", path.display());
    Ok(read)
}

impl Travelling {
    /// How much longer work takes on a host of this speed than where the VM was; `None` if that is not known.
    fn slowdown(&self, here: Option<Speed>) -> Result<Option<Slowdown>> {
        let there = self.speed.map(Speed::try_from).transpose()?;
        let between = |(there, here)| Slowdown::between(&there, &here, Work::Any);
        Ok(there.zip(here).map(between))
    }

    /// What to ask of timevisord for VM `vm`.
    fn requests(&self, vm: &str, slowdown: Option<&Slowdown>) -> Result<Vec<ReserveApply>> {
        let request = |table: &Table| {
            let most = ns(table.deadline.unwrap_or(table.period));
            let scaled = |budget: Duration| match (table.promise, slowdown) {
                // A limit takes time away and promises none.
                (Promise::Limit, _) | (_, None) => ns(budget),
                (_, Some(slowdown)) => slowdown.budget(ns(budget)),
            };
            let budget = scaled(table.budget);
            if budget > most && ns(table.budget) <= most {
                return Err(NoPlace(format!(
                    "VM {vm} vCPU {}: {} ms would have to be {} ms here, because this host is slower, which is more than there is in {} ms; send it elsewhere, or plan again (`reserve plan --costs-from`)",
                    table.vcpu,
                    ms(ns(table.budget)),
                    ms(budget),
                    ms(most)
                )));
            }
            Ok(ReserveApply {
                vm: vm.to_owned(),
                vcpu: table.vcpu,
                budget_ns: budget,
                at_most_ns: table.at_most.map(|at_most| scaled(at_most).min(most)),
                deadline_ns: table.deadline.map(ns),
                period_ns: ns(table.period),
                promise: table.promise,
                core: None,
                alone: table.alone,
                dry_run: false,
            })
        };
        Ok(self.reserve.iter().map(request).collect::<Result<_, _>>()?)
    }

    /// Reserves all of it for a VM that is to come, or nothing. Tells what was done on the standard error output.
    ///
    /// # Errors
    /// [`NoPlace`] where that cannot be made.
    pub fn admit(&self, directory: &Path, vm: &str) -> Result<()> {
        let slowdown = self.slowdown(own_speed()?)?;
        match &slowdown {
            Some(slowdown) if slowdown.is_slower() => eprintln!(
                "this host is slower: work takes up to {} of what it took; budgets grow as much",
                factor(slowdown)
            ),
            Some(_) => {}
            None => eprintln!(
                "budgets stay as they are: one host's speed is not known (`timevisor reserve measure --write {}`)",
                super::overheads::FILE
            ),
        }
        let mut made = Vec::new();
        for request in self.requests(vm, slowdown.as_ref())? {
            let vcpu = request.vcpu;
            if let Err(refused) = held::admitted(directory, &Request::ReserveApply(request)) {
                let mut why = format!("VM {vm} vCPU {vcpu} has no place here: {refused:#}");
                for vcpu in made {
                    let release = ReserveRelease { vm: Some(vm.to_owned()), vcpu: Some(vcpu) };
                    let given_back = held::reserve(directory, &Request::ReserveRelease(release));
                    if let Err(error) = given_back {
                        why = format!("{why}; vCPU {vcpu} keeps its reservation: {error:#}");
                    }
                }
                bail!(NoPlace(why));
            }
            made.push(vcpu);
        }
        let all = held::reserve(directory, &Request::ReserveList)?.reservations;
        all.iter().filter(|row| row.vm == vm).for_each(|row| eprintln!("{}", held::line(row)));
        Ok(())
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use timevisor_schedule::speed::Pace;

    use super::*;

    fn row() -> ReserveRow {
        ReserveRow {
            vm: "web".into(),
            vcpu: 1,
            tid: 7,
            promise: Promise::Core,
            core: Some(3),
            budget_ns: 28_000_000,
            soft_ns: None,
            deadline_ns: 50_000_000,
            period_ns: 50_000_000,
            alone: true,
            followed: false,
            held_ns: 1,
            ran_ns: None,
            waited_ns: None,
            audit: None,
            late: None,
            problem: None,
        }
    }

    fn speed(compute: u64) -> Speed {
        let pace = |typical| Pace { typical, slow: typical };
        Speed { compute: pace(compute), memory: pace(10) }
    }

    /// What the destination asks for.
    fn asked(
        rows: &[ReserveRow],
        there: Option<Speed>,
        here: Option<Speed>,
    ) -> Result<Vec<ReserveApply>> {
        let all =
            Travelling { reserve: rows.iter().map(table).collect(), speed: there.map(Into::into) };
        let read: Travelling = toml::from_str(&toml::to_string(&all)?)?;
        let slowdown = read.slowdown(here)?;
        read.requests("db", slowdown.as_ref())
    }

    #[test]
    fn what_was_held_there_is_asked_for_here() {
        let soft = ReserveRow {
            vcpu: 0,
            alone: false,
            soft_ns: Some((5_000_000, 30_000_000)),
            deadline_ns: 40_000_000,
            ..row()
        };
        let all = asked(&[row(), soft], None, Some(speed(1))).unwrap();
        let (hard, soft) = (&all[0], &all[1]);
        assert_eq!((hard.vm.as_str(), hard.vcpu, hard.budget_ns), ("db", 1, 28_000_000));
        assert_eq!((hard.core, hard.alone, hard.deadline_ns), (None, true, None));
        assert_eq!((soft.budget_ns, soft.at_most_ns), (5_000_000, Some(30_000_000)));
        assert_eq!(soft.deadline_ns, Some(40_000_000));
    }

    #[test]
    fn budgets_grow_where_the_host_is_slower_and_never_shrink() {
        let budget = |here, promise| {
            let rows = [ReserveRow { promise, ..row() }];
            asked(&rows, Some(speed(100)), Some(speed(here))).map(|all| all[0].budget_ns)
        };
        assert_eq!(budget(80, Promise::Core).unwrap(), 35_000_000);
        assert_eq!(budget(200, Promise::Core).unwrap(), 28_000_000);
        assert_eq!(budget(80, Promise::Limit).unwrap(), 28_000_000);
        let error = budget(50, Promise::Core).unwrap_err();
        assert!(error.is::<NoPlace>() && error.to_string().contains("56 ms"), "{error}");
    }

    #[test]
    fn a_file_of_nothing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("web.toml");
        for (text, why) in [
            ("reserve = []", "nothing"),
            ("[[reserve]]\nbudget = \"1ms\"", "period"),
            ("[[reserve]]\nbudget = \"1ms\"\nperiod = \"5ms\"\ncore = 3", "core"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", read(&path).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
