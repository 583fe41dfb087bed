//! The offsets of the structure members that points read.

use crate::symbols::btf::Btf;
use crate::symbols::kallsyms::Symbols;

/// The members that points read, each with the size in bytes that it must have.
pub const MEMBERS: [(&str, &str, u32); 11] = [
    ("task_struct", "pid", 4),
    ("task_struct", "tgid", 4),
    ("task_struct", "comm", 16),
    ("task_struct", "policy", 4),
    ("sched_attr", "sched_policy", 4),
    ("sched_attr", "sched_flags", 8),
    ("sched_attr", "sched_nice", 4),
    ("sched_attr", "sched_priority", 4),
    ("sched_attr", "sched_runtime", 8),
    ("sched_attr", "sched_deadline", 8),
    ("sched_attr", "sched_period", 8),
];

/// The [`MEMBERS`] with fixed offsets: struct sched_attr is part of the user-space interface
/// (include/uapi/linux/sched/types.h).
const SCHED_ATTR: [u32; 7] = [4, 8, 16, 20, 24, 32, 40];

/// The offsets in this kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Offset of the pointer to the running task, from GS_BASE.
    pub current: i64,
    /// task_struct.pid, which task_struct.tgid follows.
    pub ids: i64,
    /// task_struct.comm.
    pub comm: i64,
    /// task_struct.policy.
    pub policy: i64,
}

impl Layout {
    /// Computes the offsets from the kernel's symbols and types.
    ///
    /// # Errors
    /// When a member is missing or has an unexpected size.
    pub fn new(symbols: &Symbols, btf: &Btf) -> Result<Self, String> {
        let mut found = [0; MEMBERS.len()];
        for (place, (structure, member, size)) in found.iter_mut().zip(MEMBERS) {
            let is = btf.member(structure, member).map_err(|e| e.to_string())?;
            if is.size != size {
                return Err(format!("{structure}.{member} has {} bytes, not {size}", is.size));
            }
            *place = is.offset;
        }
        let [pid, tgid, comm, policy, attributes @ ..] = found;
        if attributes != SCHED_ATTR {
            return Err(format!("its struct sched_attr is another one: {attributes:?}"));
        }
        if tgid != pid + 4 {
            return Err(format!("its task_struct has pid at {pid} and tgid at {tgid}"));
        }
        // A separate variable until 6.1 and from 6.15 on; in between, a member of pcpu_hot.
        let current = match symbols.address("current_task") {
            Ok(address) => address,
            Err(_) => {
                let hot = symbols.address("pcpu_hot").map_err(|e| e.to_string())?;
                let member = btf.member("pcpu_hot", "current_task").map_err(|e| e.to_string())?;
                hot.wrapping_add(u64::from(member.offset))
            }
        };
        // GS_BASE + address wraps around where per-CPU addresses are not counted from 0 (6.15).
        let current = current.cast_signed();
        Ok(Self { current, ids: pid.into(), comm: comm.into(), policy: policy.into() })
    }
}
