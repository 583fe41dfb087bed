//! The threads of a QEMU that run its vCPUs. Their names identify them with `debug-threads=on` (the
//! default of libvirt, and of QEMU from 10 on); otherwise QEMU's monitor does (`query-cpus-fast`).

use timevisor_linux::scheduling::Thread;
use timevisor_protocols::qmp::CpuThread;

/// A vCPU and its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vcpu {
    /// QEMU's cpu-index; `None` if one thread runs all vCPUs (TCG, `thread=single`).
    pub index: Option<u32>,
    /// Its thread.
    pub tid: u32,
    /// Whether TCG emulates it; QEMU's main loop then generates the guest's timer interrupts.
    pub emulated: bool,
}

/// The vCPUs among a QEMU's threads, by their names: `CPU 0/KVM`, `CPU 1/TCG`, `ALL CPUs/TCG`.
#[must_use]
pub fn named(threads: &[Thread]) -> Vec<Vcpu> {
    let of = |thread: &Thread| {
        let (left, right) = thread.name.split_once('/')?;
        if !matches!(right, "KVM" | "TCG") {
            return None;
        }
        let index =
            if left == "ALL CPUs" { None } else { Some(left.strip_prefix("CPU ")?.parse().ok()?) };
        Some(Vcpu { index, tid: thread.tid, emulated: right == "TCG" })
    };
    let mut all: Vec<Vcpu> = threads.iter().filter_map(of).collect();
    all.sort_by_key(|vcpu| (vcpu.index, vcpu.tid));
    all
}

/// Keeps one thread for each vCPU. A thread that a vCPU's thread has started (plugins do this)
/// inherits its name. In that case `told` decides; without it, the lowest thread id wins, which
/// belongs to the older thread unless ids have wrapped around.
#[must_use]
pub fn one_each(mut named: Vec<Vcpu>, told: &[Vcpu]) -> Vec<Vcpu> {
    let twins = named.windows(2).any(|pair| pair[0].index == pair[1].index);
    if twins && !told.is_empty() {
        return told.to_vec();
    }
    named.dedup_by_key(|vcpu| vcpu.index);
    named
}

/// The vCPUs as QEMU's monitor reports them, by the ids of QEMU's own PID namespace. Threads of other
/// processes are left out: the monitor's answer alone must not make us change another process.
#[must_use]
pub fn told(threads: &[Thread], cpus: &[CpuThread], emulated: bool) -> Vec<Vcpu> {
    let outside = |cpu: &CpuThread| {
        let thread = threads.iter().find(|thread| thread.inner_tid == cpu.thread_id)?;
        Some(CpuThread { thread_id: thread.tid, ..*cpu })
    };
    let known: Vec<CpuThread> = cpus.iter().filter_map(outside).collect();
    if let [first, second, ..] = known[..]
        && first.thread_id == second.thread_id
    {
        return vec![Vcpu { index: None, tid: first.thread_id, emulated }];
    }
    let of = |cpu: &CpuThread| Vcpu { index: Some(cpu.cpu_index), tid: cpu.thread_id, emulated };
    let mut all: Vec<Vcpu> = known.iter().map(of).collect();
    all.sort_by_key(|vcpu| vcpu.index);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_qemu() {
        let thread = |tid, name: &str| Thread { tid, inner_tid: tid, name: name.to_owned() };
        let all = [
            thread(10, "qemu-system-x86"),
            thread(11, "call_rcu"),
            thread(14, "CPU 1/KVM"),
            thread(13, "CPU 0/KVM"),
            thread(15, "CPU x/KVM"),
            thread(16, "CPU 2/other"),
            thread(17, "IO mon_iothread"),
        ];
        let vcpu = |index, tid, emulated| Vcpu { index, tid, emulated };
        assert_eq!(named(&all), [vcpu(Some(0), 13, false), vcpu(Some(1), 14, false)]);
        assert_eq!(named(&[thread(5, "ALL CPUs/TCG")]), [vcpu(None, 5, true)]);
    }

    #[test]
    fn a_thread_with_an_inherited_name_is_no_vcpu() {
        let thread = |tid, name: &str| Thread { tid, inner_tid: tid, name: name.to_owned() };
        let names = [thread(20, "CPU 0/TCG"), thread(13, "CPU 0/TCG"), thread(14, "CPU 1/TCG")];
        let named = named(&names);
        let vcpu = |index, tid| Vcpu { index: Some(index), tid, emulated: true };
        assert_eq!(one_each(named.clone(), &[]), [vcpu(0, 13), vcpu(1, 14)]);
        let told = [vcpu(0, 20), vcpu(1, 14)];
        assert_eq!(one_each(named, &told), told, "QEMU knows");
        assert_eq!(one_each(vec![vcpu(0, 13)], &told), [vcpu(0, 13)]);
    }

    #[test]
    fn what_the_monitor_tells() {
        let thread = |tid, inner_tid| Thread { tid, inner_tid, name: "qemu-system-x86".to_owned() };
        let threads = [10, 13, 14].map(|tid| thread(tid, tid));
        let cpu = |cpu_index, thread_id| CpuThread { cpu_index, thread_id };
        let vcpu = |index, tid| Vcpu { index, tid, emulated: false };
        let two = [cpu(1, 14), cpu(0, 13)];
        assert_eq!(told(&threads, &two, false), [vcpu(Some(0), 13), vcpu(Some(1), 14)]);
        // A thread of another process.
        assert_eq!(told(&threads, &[cpu(0, 13), cpu(1, 99)], false), [vcpu(Some(0), 13)]);
        let single = told(&threads, &[cpu(0, 13), cpu(1, 13)], true);
        assert_eq!(single, [Vcpu { index: None, tid: 13, emulated: true }]);
        assert_eq!(told(&threads, &[], true), []);
        // A QEMU in a container says ids that may be another thread's out here.
        let inside = [thread(4010, 1), thread(4013, 13), thread(4014, 14)];
        assert_eq!(told(&inside, &two, false), [vcpu(Some(0), 4013), vcpu(Some(1), 4014)]);
        assert_eq!(told(&inside, &[cpu(0, 4013)], false), []);
    }
}
