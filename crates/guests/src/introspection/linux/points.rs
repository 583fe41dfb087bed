//! The functions that are trapped.
//!
//! | point | function | why this one |
//! | --- | --- | --- |
//! | 1 | __sched_setscheduler(p, attr) | all of sched_setscheduler, sched_setparam and sched_setattr pass it, with the kernel's own copy of the attributes |
//! | 2 | do_sched_yield() | sched_yield of both system call tables |
//! | 3 | hrtimer_nanosleep(ns, mode, clock) | nanosleep and clock_nanosleep, with the time already read from the program |
//! | 4 | do_exit(code) | every end of a thread |
//! | 5 | x64_sys_call(regs, number) | every system call, where that is asked for, by backends that need no NOP: Linux 6.9 and later |
//!
//! All but the first and the last are of real-time tasks only: others' yields and ends are nobody's business, and many.

use super::super::event::Policy;
use super::super::kallsyms::Kernel;
use super::super::memory::GuestMemory;
use super::super::point::{Filter, Point, PointError, Read, Register, SLOT, slot};
use super::layout::Layout;

pub(super) const SET: u16 = 1;
pub(super) const YIELD: u16 = 2;
pub(super) const SLEEP: u16 = 3;
pub(super) const EXIT: u16 = 4;
pub(super) const CALL: u16 = 5;

/// Bytes of a task: pointer, pid and tgid, comm, policy.
pub(super) const TASK: [u16; 4] = [8, 8, 16, 4];
/// Which of these is the policy.
const POLICY: u8 = 3;
/// struct sched_attr as far as it is read.
pub(super) const ATTRIBUTES: u16 = 48;

/// The lengths of a point's reads.
pub(super) fn lens(point: u16) -> Option<Vec<u16>> {
    let more: &[u16] = match point {
        SET => &[8, 8, 16, 4, ATTRIBUTES],
        YIELD => &[],
        SLEEP => &[8, 8, 8],
        EXIT | CALL => &[8],
        _ => return None,
    };
    Some([&TASK, more].concat())
}

/// All but the last, and the last one or why there is none.
type Points = (Vec<Point>, Result<Point, PointError>);

pub(super) fn all(
    memory: &dyn GuestMemory,
    kernel: &Kernel,
    layout: &Layout,
) -> Result<Points, PointError> {
    let task = |pointer: Read, first: u8| {
        let at = |offset, len| Read::from(first, offset, len);
        let [_, ids, comm, policy] = TASK;
        [pointer, at(layout.ids, ids), at(layout.comm, comm), at(layout.policy, policy)]
    };
    let current = task(Read::at(Register::GsBase, layout.current, 8), 0);
    let target = task(Read::value(Register::Rdi), 4);
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
    // It is built without ftrace's NOP: there is room for a trap that takes no room only.
    let every = || {
        let address = kernel.symbols.address("x64_sys_call")?;
        let mut expected = [0; 5];
        kernel.read(memory, address, &mut expected)?;
        let reads = [&current[..], &[value(Register::Rsi)]].concat();
        let symbol = "x64_sys_call".to_owned();
        Ok(Point { id: CALL, symbol, address, expected, reads, filter: None })
    };
    let every = every();
    let all = vec![
        point(SET, "__sched_setscheduler", &[&target[..], &[attributes]].concat(), None)?,
        point(YIELD, "do_sched_yield", &[], Some(real_time))?,
        point(
            SLEEP,
            "hrtimer_nanosleep",
            &[value(Register::Rdi), value(Register::Rsi), value(Register::Rdx)],
            Some(real_time),
        )?,
        point(EXIT, "do_exit", &[value(Register::Rdi)], Some(real_time))?,
    ];
    Ok((all, every))
}
