//! A file's text, checked as a whole: a plugin that exists needs no further check.

use super::error::{Fault, PluginError, ensure};
use super::file::{EventTable, File, FilterTable, Or, PointTable};
use super::limits;
use super::note::NoteRule;
use super::reads::{self, Bits, ReadRule};
use super::tasks::{TaskRule, TaskTables};
use super::values::{PolicyRule, SchedulerRule, Scope, Value, Want};
use crate::point::{self, Filter};

/// The only format.
const FORMAT: i64 = 1;
/// Where the keys are explained.
const REFERENCE: &str = "docs/reference/introspection-plugins.md lists all keys";

/// A checked file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plugin {
    /// The guest system's name.
    pub name: String,
    /// The version of the file.
    pub version: String,
    /// The versions of the guest system that the file is for, in words.
    pub supports: String,
    /// The file's name, for messages.
    pub file: String,
    pub(super) bits: Bits,
    pub(super) note: NoteRule,
    pub(super) points: Vec<PointRule>,
}

/// One trap point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PointRule {
    pub(super) symbol: String,
    pub(super) reads: Vec<ReadRule>,
    pub(super) filter: Option<Filter>,
    pub(super) event: EventRule,
}

/// What a point's event means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EventRule {
    pub(super) thread: TaskRule,
    pub(super) kind: KindRule,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum KindRule {
    SetScheduler { target: TaskRule, attributes: Box<AttributesRule> },
    Yield,
    Sleep(Box<SleepRule>),
    Abort,
    ChooseScheduler(Box<ChoiceRule>),
    Exit(ExitRule),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AttributesRule {
    pub(super) policy: PolicyRule,
    pub(super) flags: Value,
    pub(super) nice: Value,
    pub(super) priority: Value,
    pub(super) runtime_ns: Value,
    pub(super) deadline_ns: Value,
    pub(super) period_ns: Value,
    pub(super) utility: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SleepRule {
    pub(super) clock: Value,
    pub(super) absolute: Absolute,
    pub(super) ns: Value,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ChoiceRule {
    pub(super) scheduler: SchedulerRule,
    pub(super) priority: Value,
    pub(super) processors: Value,
}

/// How a task ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ExitRule {
    /// As of wait(2).
    Status(Value),
    /// What it gave exit(3), of which wait(2) has the low 8 bits.
    Code(Value),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Absolute {
    Constant(bool),
    /// Unless it is zero.
    Read(Value),
}

impl Plugin {
    /// Reads the text of a file; `file` is its name, for messages.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(file: &str, text: &str) -> Result<Self, PluginError> {
        Self::compile(file, text).map_err(|fault| fault.of(file))
    }

    fn compile(file: &str, text: &str) -> Result<Self, Fault> {
        let most = usize::try_from(limits::FILE).unwrap_or(usize::MAX);
        ensure(
            text.len() <= most,
            "the file",
            || format!("it has {} bytes; at most {most} are read", text.len()),
            "describe one guest system in a file",
        )?;
        let unreadable = |error: &toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count().saturating_add(1);
            Fault::new(format!("line {line}"), error.message(), REFERENCE)
        };
        let table: toml::Table = toml::from_str(text).map_err(|error| unreadable(&error))?;
        let format = table.get("format").and_then(toml::Value::as_integer);
        ensure(
            format == Some(FORMAT),
            "format",
            || format.map_or("it is missing".to_owned(), |it| format!("{it} is not known here")),
            "write `format = 1`, or use a timevisord that knows the format",
        )?;
        let parsed: File = toml::from_str(text).map_err(|error| unreadable(&error))?;
        let File { name, version, supports, bits, note, reads, tasks, points, .. } = parsed;
        limits::text(&name, "name", limits::NAME)?;
        limits::text(&version, "version", limits::NAME)?;
        limits::text(&supports, "supports", limits::TEXT)?;
        let bits = widths(bits.as_deref())?;
        let note = NoteRule::compile(note)?;
        let mut tasks = TaskTables::new(tasks)?;
        ensure(
            (1..=point::limits::POINTS).contains(&points.len()),
            "point",
            || format!("{} points; 1 to {} are possible", points.len(), point::limits::POINTS),
            "add a [[point]] for each function that is trapped",
        )?;
        let mut compiled: Vec<PointRule> = Vec::new();
        for table in points {
            let PointTable { symbol, reads: own, filter, event } = table;
            limits::text(&symbol, "point.symbol", limits::TEXT)?;
            let key = format!("point.{symbol}");
            ensure(
                compiled.iter().all(|other| other.symbol != symbol),
                &key,
                || "two points are at this function".to_owned(),
                "make one of them",
            )?;
            let rules = reads::compile(&reads, &own, &note, bits, &key)?;
            let scope = Scope { reads: &rules, note: &note, bits };
            let filter = filter.map(|table| filter_of(&table, &scope, &key)).transpose()?;
            let event = event_of(&event, &mut tasks, &scope, &format!("{key}.event"))?;
            compiled.push(PointRule { symbol, reads: rules, filter, event });
        }
        tasks.all_are_used()?;
        Ok(Self { name, version, supports, file: file.to_owned(), bits, note, points: compiled })
    }
}

fn widths(bits: Option<&[i64]>) -> Result<Bits, Fault> {
    let bits = bits.unwrap_or(&[32, 64]);
    let widths = Bits { narrow: bits.contains(&32), wide: bits.contains(&64) };
    ensure(
        !bits.is_empty() && bits.iter().all(|bits| matches!(bits, 32 | 64)),
        "bits",
        || "not a list of 32, 64 or both".to_owned(),
        "list the widths of the guests, or leave it out for both",
    )?;
    Ok(widths)
}

fn filter_of(table: &FilterTable, scope: &Scope<'_>, key: &str) -> Result<Filter, Fault> {
    let key = format!("{key}.filter");
    let index = scope.reads.iter().position(|read| read.name == table.read);
    let read = index.and_then(|index| Some((u8::try_from(index).ok()?, scope.reads.get(index)?)));
    let Some((read, rule)) = read else {
        let problem = format!("no read {:?} is at this point", table.read);
        return Err(Fault::new(key, problem, "name one of the point's reads"));
    };
    ensure(
        rule.bytes(scope.note, scope.bits).1 <= 8,
        &key,
        || format!("{} may have more than 8 bytes", table.read),
        "read the number by itself",
    )?;
    let mut mask = 0u64;
    for value in &table.values {
        let bit = u32::try_from(*value).ok().and_then(|value| 1u64.checked_shl(value));
        mask |= bit.ok_or_else(|| {
            let problem = format!("{value} is not 0 to 63");
            Fault::new(&key, problem, "list numbers in this range, or remove the filter")
        })?;
    }
    ensure(
        mask != 0,
        &key,
        || "no number passes".to_owned(),
        "list the numbers that pass, or remove the point",
    )?;
    Ok(Filter { read, mask })
}

fn event_of(
    table: &EventTable,
    tasks: &mut TaskTables,
    scope: &Scope<'_>,
    key: &str,
) -> Result<EventRule, Fault> {
    let of = |name: &str| format!("{key}.{name}");
    let number =
        |value: &Option<_>, want, name: &str| scope.value_or(value.as_ref(), 0, want, &of(name));
    let (thread, kind) = match table {
        EventTable::SetScheduler {
            thread,
            target,
            policy,
            flags,
            nice,
            priority,
            runtime_ns,
            deadline_ns,
            period_ns,
            utility,
        } => {
            let attributes = Box::new(AttributesRule {
                policy: scope.choice(policy, &of("policy"))?,
                flags: number(flags, Want::Long, "flags")?,
                nice: number(nice, Want::Nice, "nice")?,
                priority: number(priority, Want::Priority, "priority")?,
                runtime_ns: number(runtime_ns, Want::Time, "runtime_ns")?,
                deadline_ns: number(deadline_ns, Want::Time, "deadline_ns")?,
                period_ns: number(period_ns, Want::Time, "period_ns")?,
                utility: number(utility, Want::Long, "utility")?,
            });
            let target = tasks.rule(target, scope, &of("target"))?;
            (thread, KindRule::SetScheduler { target, attributes })
        }
        EventTable::Yield { thread } => (thread, KindRule::Yield),
        EventTable::Sleep { thread, clock, absolute, ns } => {
            // CLOCK_MONOTONIC.
            let clock = scope.value_or(clock.as_ref(), 1, Want::Word, &of("clock"))?;
            let absolute = match absolute {
                Or::Constant(is) => Absolute::Constant(*is),
                Or::Table(table) => {
                    Absolute::Read(scope.read_value(table, Want::Long, &of("absolute"))?)
                }
            };
            let ns = scope.value(ns, Want::Time, &of("ns"))?;
            (thread, KindRule::Sleep(Box::new(SleepRule { clock, absolute, ns })))
        }
        EventTable::Abort { thread } => (thread, KindRule::Abort),
        EventTable::ChooseScheduler { thread, scheduler, priority, processors } => {
            let rule = ChoiceRule {
                scheduler: scope.choice(scheduler, &of("scheduler"))?,
                priority: number(priority, Want::Priority, "priority")?,
                processors: number(processors, Want::Word, "processors")?,
            };
            (thread, KindRule::ChooseScheduler(Box::new(rule)))
        }
        EventTable::Exit { thread, status, code } => {
            ensure(
                status.is_none() || code.is_none(),
                &of("code"),
                || "both `status` and `code`".to_owned(),
                "give `code` for what the guest calls exit with, or `status` for one as of wait(2)",
            )?;
            let rule = match code {
                Some(code) => ExitRule::Code(scope.value(code, Want::Code, &of("code"))?),
                None => ExitRule::Status(number(status, Want::Word, "status")?),
            };
            (thread, KindRule::Exit(rule))
        }
    };
    Ok(EventRule { thread: tasks.rule(thread, scope, &of("thread"))?, kind })
}
