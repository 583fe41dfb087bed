//! The functions that are trapped.
//!
//! | point | function | why this one |
//! | --- | --- | --- |
//! | 1 | __sched_setscheduler(p, attr) | sched_setscheduler, sched_setparam and sched_setattr all pass it, with the kernel's copy of the attributes |
//! | 2 | do_sched_yield() | sched_yield of both system call tables |
//! | 3 | hrtimer_nanosleep(ns, mode, clock) | nanosleep and clock_nanosleep, with the time already read from the program |
//! | 4 | do_exit(code) | every thread that ends passes it |
//! | 5 | x64_sys_call(regs, number) | every system call, where that is asked for, by backends that need no NOP: Linux 6.9 and later |
//! | 5 | \__x64_sys_*(regs) | the same, by backends that need one |
//!
//! Points 2 to 4 report only real-time tasks: other tasks yield, sleep and exit often, and nobody
//! needs these events.

use super::layout::Layout;
use super::slot::{PointError, slot, slot_at};
use crate::memory::GuestMemory;
use crate::point::{Filter, Point, Read, Register, SLOT};
use crate::symbols::kallsyms::Kernel;
use crate::tasks::event::Policy;

pub(super) const SET: u16 = 1;
pub(super) const YIELD: u16 = 2;
pub(super) const SLEEP: u16 = 3;
pub(super) const EXIT: u16 = 4;
pub(super) const CALL: u16 = 5;

/// Lengths of the reads of a task: pointer, policy, pid and tgid, comm. The policy comes first
/// because it decides whether an event is wanted.
pub(super) const TASK: [u16; 4] = [8, 4, 8, 16];
/// Index of the read with the policy.
pub(super) const POLICY: u8 = 1;
/// Offset of the system call's number in struct pt_regs (arch/x86/include/asm/ptrace.h).
const ORIG_AX: i64 = 120;
/// Bytes of struct sched_attr that are read.
pub(super) const ATTRIBUTES: u16 = 48;

/// The lengths of a point's reads.
pub(super) fn lens(point: u16) -> Option<Vec<u16>> {
    let more: &[u16] = match point {
        SET => &[TASK[0], TASK[1], TASK[2], TASK[3], ATTRIBUTES],
        YIELD => &[],
        SLEEP => &[8, 8, 8],
        EXIT | CALL => &[8],
        _ => return None,
    };
    Some([&TASK, more].concat())
}

/// Reads of a task; the read of its pointer has index `first`.
fn task(pointer: Read, first: u8, layout: &Layout) -> [Read; 4] {
    let at = |offset, len| Read::from(first, offset, len);
    let [_, policy, ids, comm] = TASK;
    [pointer, at(layout.policy, policy), at(layout.ids, ids), at(layout.comm, comm)]
}

fn current(layout: &Layout) -> [Read; 4] {
    task(Read::at(Register::GsBase, layout.current, 8), 0, layout)
}

pub(super) fn all(
    memory: &dyn GuestMemory,
    kernel: &Kernel,
    layout: &Layout,
) -> Result<Vec<Point>, PointError> {
    let current = current(layout);
    let target = task(Read::value(Register::Rdi), 4, layout);
    let attributes = Read::at(Register::Rsi, 0, ATTRIBUTES);
    let real_time = (0..8).filter(|n| Policy::new(*n).is_real_time());
    let real_time = Filter { read: POLICY, mask: real_time.map(|n| 1 << n).sum() };
    let point = |id, symbol: &str, more: &[Read], filter| {
        Ok::<_, PointError>(Point {
            id,
            symbol: symbol.to_owned(),
            address: slot(memory, kernel, symbol)?,
            expected: SLOT,
            reads: [&current, more].concat(),
            filter,
        })
    };
    let value = Read::value;
    Ok(vec![
        point(SET, "__sched_setscheduler", &[&target[..], &[attributes]].concat(), None)?,
        point(YIELD, "do_sched_yield", &[], Some(real_time))?,
        point(
            SLEEP,
            "hrtimer_nanosleep",
            &[value(Register::Rdi), value(Register::Rsi), value(Register::Rdx)],
            Some(real_time),
        )?,
        point(EXIT, "do_exit", &[value(Register::Rdi)], Some(real_time))?,
    ])
}

/// The common entry of system calls. It has no ftrace NOP, so only a backend that needs none can
/// trap it.
pub(super) fn system_call_entry(
    memory: &dyn GuestMemory,
    kernel: &Kernel,
    layout: &Layout,
) -> Result<Point, PointError> {
    let symbol = "x64_sys_call".to_owned();
    let address = kernel.symbols.address(&symbol)?;
    let mut expected = [0; 5];
    kernel.read(memory, address, &mut expected)?;
    let reads = [&current(layout)[..], &[Read::value(Register::Rsi)]].concat();
    Ok(Point { id: CALL, symbol, address, expected, reads, filter: None })
}

/// The entry of each 64-bit system call that has an ftrace NOP.
pub(super) fn system_calls(
    memory: &dyn GuestMemory,
    kernel: &Kernel,
    layout: &Layout,
) -> Vec<Point> {
    let number = Read::at(Register::Rdi, ORIG_AX, 8);
    let reads = [&current(layout)[..], &[number]].concat();
    let names = kernel.symbols.iter().filter(|(_, _, name)| name.starts_with("__x64_sys_"));
    let mut all: Vec<Point> = names
        .filter_map(|(at, _, name)| {
            let address = slot_at(memory, kernel, at, name).ok()?;
            let (symbol, reads) = (name.to_owned(), reads.clone());
            Some(Point { id: CALL, symbol, address, expected: SLOT, reads, filter: None })
        })
        .collect();
    // Some system calls have several names.
    all.dedup_by_key(|point| point.address);
    all
}
