//! Who a task of an event is: its number, its name and its policy before the event.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Fault, ensure};
use super::file::{Choice as ChoiceText, Or, TaskTable};
use super::limits;
use super::values::{Found, Name, PolicyRule, Scope, Value, Want};
use crate::os::guest_os::DecodeError;
use crate::tasks::event::{Policy, Thread};
use crate::tasks::table::{Task, Tasks};

/// The name of no task: tid 0, without a name, under SCHED_NORMAL.
const NOBODY: &str = "nobody";
/// The policy that the task asked for last.
const ASKED: &str = "asked";

/// The rules of one task at one point; `None` is nobody.
pub(super) type TaskRule = Option<Box<Rule>>;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    tid: Value,
    pid: Value,
    name: Name,
    policy: Before,
    /// If this is zero, it is the other task.
    unless_zero: Option<(Value, TaskRule)>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Before {
    Asked,
    Is(PolicyRule),
}

/// All `[task.NAME]` of a file, and which of them points use.
pub(super) struct TaskTables {
    all: BTreeMap<String, TaskTable>,
    used: BTreeSet<String>,
}

impl TaskTables {
    pub(super) fn new(all: BTreeMap<String, TaskTable>) -> Result<Self, Fault> {
        ensure(
            all.len() <= limits::TASKS,
            "task",
            || format!("{} tasks; at most {} are possible", all.len(), limits::TASKS),
            "remove some",
        )?;
        for name in all.keys() {
            let key = format!("task.{name}");
            limits::identifier(name, &key)?;
            ensure(
                name != NOBODY,
                &key,
                || "this name means that no task runs".to_owned(),
                "give it another name",
            )?;
        }
        Ok(Self { all, used: BTreeSet::new() })
    }

    /// The rules of the task with this name, with the reads of one point.
    pub(super) fn rule(
        &mut self,
        name: &str,
        scope: &Scope<'_>,
        key: &str,
    ) -> Result<TaskRule, Fault> {
        self.step(name, scope, [key, key], 0)
    }

    /// `event` is the key of the event that begins here, `key` the one that has the name.
    fn step(
        &mut self,
        name: &str,
        scope: &Scope<'_>,
        [event, key]: [&str; 2],
        steps: usize,
    ) -> Result<TaskRule, Fault> {
        if name == NOBODY {
            return Ok(None);
        }
        ensure(
            steps <= limits::OTHERWISE,
            key,
            || format!("`otherwise` leads to more than {} tasks", limits::OTHERWISE),
            "let the last one be \"nobody\"",
        )?;
        let Some(table) = self.all.get(name) else {
            let problem = format!("there is no [task.{name}]");
            return Err(Fault::new(key, problem, "name a task of the file, or \"nobody\""));
        };
        self.used.insert(name.to_owned());
        // A task is one of a point: both are named.
        let of = |key_of: &str| format!("{event}: task.{name}.{key_of}");
        let tid = scope.value(&table.tid, Want::Word, &of("tid"))?;
        let pid = scope.value_or(table.pid.as_ref(), 0, Want::Word, &of("pid"))?;
        let name = scope.name(table.name.as_ref(), &of("name"))?;
        let policy = before(&table.policy, scope, &of("policy"))?;
        let test = table.unless_zero.as_ref();
        let test = test.map(|test| scope.read_value(test, Want::Long, &of("unless_zero")));
        let (test, otherwise) = (test.transpose()?, table.otherwise.clone());
        ensure(
            test.is_some() || otherwise.is_none(),
            &of("otherwise"),
            || "`otherwise` without `unless_zero`".to_owned(),
            "say when it is another task, or remove `otherwise`",
        )?;
        let key = of("otherwise");
        let unless_zero = match test {
            None => None,
            Some(test) => {
                let other = otherwise.unwrap_or_else(|| NOBODY.to_owned());
                Some((test, self.step(&other, scope, [event, &key], steps + 1)?))
            }
        };
        Ok(Some(Box::new(Rule { tid, pid, name, policy, unless_zero })))
    }

    /// Every task has to be one of a point: what is not used is not checked.
    pub(super) fn all_are_used(&self) -> Result<(), Fault> {
        match self.all.keys().find(|name| !self.used.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                let problem = "no event uses this task";
                Err(Fault::new(
                    format!("task.{name}"),
                    problem,
                    "remove it, or name it in an event",
                ))
            }
        }
    }
}

fn before(text: &ChoiceText, scope: &Scope<'_>, key: &str) -> Result<Before, Fault> {
    match text {
        Or::Constant(name) if name == ASKED => Ok(Before::Asked),
        text => {
            let policy = scope.choice(text, key)?;
            ensure(
                policy != PolicyRule::Constant(Policy::Keep),
                key,
                || "a task does not have the policy \"keep\"".to_owned(),
                "use \"asked\" for the policy that it asked for last",
            )?;
            Ok(Before::Is(policy))
        }
    }
}

/// The task that the rules make of what was read.
pub(super) fn thread(
    rule: &TaskRule,
    found: &Found<'_>,
    tasks: &Tasks,
) -> Result<Thread, DecodeError> {
    // As deep as `otherwise` leads, which the file's check limits.
    let mut rule = rule;
    while let Some(of) = rule {
        if let Some((test, other)) = &of.unless_zero
            && test.is_zero(found)?
        {
            rule = other;
            continue;
        }
        let tid = of.tid.u32(found)?;
        let known = tasks.get(tid);
        let policy = match &of.policy {
            Before::Is(policy) => policy.chosen(found)?,
            Before::Asked => asked(known),
        };
        let (pid, comm) = (of.pid.u32(found)?, of.name.text(found, known)?);
        return Ok(Thread { tid, pid, comm, policy });
    }
    Ok(Thread::default())
}

fn asked(known: Option<&Task>) -> Policy {
    let policy = |task: &Task| match task.attributes {
        Some(asked) => asked.policy,
        None => task.thread.policy,
    };
    known.map_or(Policy::Normal, policy)
}
