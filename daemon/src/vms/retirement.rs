//! VMs that are not served any more: they have ended, or their page was taken from under us.

use timevisor_linux::clock::monotonic;
use timevisor_linux::process::PidFd;

use super::{Served, Vms};

/// A VM that is running, and must not be served.
pub(super) struct Removed {
    pub(super) name: String,
    pid: u32,
    pub(super) ended: PidFd,
}

impl Removed {
    /// Its page is retired.
    pub(super) fn of(served: Served) -> Self {
        let (name, pid) = (served.vm.name.clone(), served.vm.qemu.process.pid());
        Self { name, pid, ended: served.vm.retire() }
    }

    /// Whether this process is its QEMU.
    pub(super) fn is(&self, pid: u32) -> bool {
        self.pid == pid && !self.ended.has_ended()
    }
}

impl Vms {
    /// Retires VMs whose process has ended.
    pub(super) fn retire_ended(&mut self) {
        let ended = self.part_with(|served| served.vm.ended().has_ended());
        if !ended.is_empty() {
            self.discovery.reconsider();
        }
        for served in ended {
            if self.told.take(served.user, monotonic()) {
                tracing::info!("VM {} has ended: its page is retired", served.vm.name);
            }
            served.vm.retire();
            self.note();
        }
    }

    /// Retires VMs whose owner has truncated their page: nothing reaches their guests any more. They
    /// are not served again while their process runs, unless `timevisor vm add` says so.
    pub(super) fn retire_lost(&mut self) {
        let lost = self.part_with(|served| served.vm.has_lost_page());
        if lost.is_empty() {
            return;
        }
        self.removed.retain(|removed| !removed.ended.has_ended());
        for served in lost {
            let name = &served.vm.name;
            if self.told.take(served.user, monotonic()) {
                tracing::warn!(
                    "VM {name}: its page was truncated by its owner (user {}): it is served no longer; restart the VM",
                    served.user
                );
            }
            self.removed.push(Removed::of(served));
        }
        self.note();
    }

    /// Retires VMs that belong to somebody else now, or are not to be found any more.
    pub(super) fn retire_misowned(&mut self) {
        let judged = |s: &Served| self.judge_again(&s.vm.name, s.added, &s.vm.qemu);
        let refused: Vec<_> = self.served.iter().map(|s| judged(s).err()).collect();
        for index in (0..refused.len()).rev() {
            let Some(reason) = &refused[index] else { continue };
            let served = self.served.remove(index);
            let (name, process) = (&served.vm.name, served.vm.qemu.process);
            tracing::warn!("VM {name} is no longer served: {reason:#}");
            let problem =
                format!("process {} is not served as VM {name}: {reason:#}", process.pid());
            self.discovery.must_wait(&process, problem);
            served.vm.retire();
        }
        if refused.iter().any(Option::is_some) {
            self.note();
            self.discovery.reconsider();
        }
    }

    fn part_with(&mut self, gone: impl Fn(&Served) -> bool) -> Vec<Served> {
        self.served.extract_if(.., |served| gone(served)).collect()
    }
}
