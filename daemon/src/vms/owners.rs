//! Whose processes are served as which VM, and how many: the rules of `timevisor_guests::owner` with
//! what is configured and prepared here.

use anyhow::{Context as _, Result, bail, ensure};
use timevisor_guests::command_line::CommandLine;
use timevisor_guests::owner::{Discover, Owner, Rules};
use timevisor_guests::qemu::{self, Qemu};
use timevisor_linux::descriptors;
use timevisor_protocols::control::{ErrorBody, ErrorCode};

use super::prepared::Prepared;
use super::{RESERVED_DESCRIPTORS, Vms};
use crate::config::Config;
use crate::report::error;

/// How many VMs of one user are served under names that belong to nobody. Root chose how many names
/// it prepared, so those are not counted.
const MOST_OF_A_USER: usize = 256;
/// Descriptors that other users' VMs must leave free, for about 20 VMs of root's.
const RESERVED_FOR_ROOT: usize = 128;

/// The rules in force.
pub fn rules(config: &Config, prepared: &Prepared) -> Rules {
    let reserved = config.guests.vm.iter().filter(|(_, vm)| !vm.reserve.is_empty());
    Rules {
        discover: config.guests.discover.clone(),
        configured: config.guests.owners(),
        prepared: prepared.owners().clone(),
        reserved: reserved.map(|(name, _)| name.clone()).collect(),
    }
}

/// Whether a QEMU has been given something that can show a page.
pub fn wants_a_page(qemu: &Qemu) -> bool {
    let CommandLine { devices, .. } = &qemu.command_line;
    devices.iter().any(|d| ["vmclock", "nvdimm", "ivshmem-plain"].contains(&d.kind.as_str()))
}

impl Vms {
    /// Names belong to others now: those who wait are judged again.
    pub(super) fn renew_rules(&mut self) {
        self.rules = rules(&self.config, &self.prepared);
        self.discovery.reconsider();
    }

    pub(super) fn tell_whom_discovery_trusts(&self) {
        let trusts = self.rules.discover.trusts();
        if self.rules.discover == Discover::All {
            tracing::warn!("{trusts}");
        } else {
            tracing::info!("{trusts}");
        }
    }

    /// Judges a process that discovery has found, and says once why it is not served. Nothing that
    /// this process does changes the VM that has the name.
    pub(super) fn may_be_served(&mut self, qemu: &Qemu, name: &str) -> bool {
        let (process, pid) = (&qemu.process, qemu.process.pid());
        let owner = match qemu::claimant(*process) {
            Ok(claimant) => self.rules.discovered(&claimant, name),
            Err(error) => {
                let error = anyhow::Error::new(error);
                self.discovery.failed(process, format!("VM {name} is not served: {error:#}"));
                return false;
            }
        };
        let owner = match owner {
            Ok(owner) => owner,
            Err(reason) => {
                // Most QEMUs of a host may have nothing to do with us.
                if self.rules.owner_of(name).is_some() || wants_a_page(qemu) {
                    let next = reason.next_step(name);
                    let text =
                        format!("process {pid} is not served as VM {name}: {reason}; {next}");
                    self.discovery.must_wait(process, text);
                }
                return false;
            }
        };
        if self.served.iter().any(|s| s.vm.name == name) {
            let advice = format!("`timevisor vm add --pid {pid} --name OTHER`");
            let problem =
                format!("there is a VM {name} already; serve the second one with {advice}");
            self.discovery.must_wait(process, problem);
            return false;
        }
        if let Some(problem) = self.has_no_place(owner, name) {
            self.discovery.must_wait(process, problem);
            return false;
        }
        true
    }

    /// Why there is no place for one more VM of this owner's.
    fn has_no_place(&self, owner: Owner, name: &str) -> Option<String> {
        let root = owner == Owner::ROOT;
        let reserved = RESERVED_DESCRIPTORS + if root { 0 } else { RESERVED_FOR_ROOT };
        if !descriptors::are_free(reserved) {
            return Some(format!(
                "VM {name} is not served: too few file descriptors are left; raise LimitNOFILE of timevisord"
            ));
        }
        let theirs = self.served.iter().filter(|s| s.user == owner.uid && !s.bound).count();
        let full = !root && self.rules.owner_of(name).is_none() && theirs >= MOST_OF_A_USER;
        full.then(|| {
            format!(
                "VM {name} is not served: {owner} has {theirs} VMs under names that belong to nobody, and may not \
                 have more; prepare it: `timevisor vm args --name {name} --user {}`",
                owner.uid
            )
        })
    }

    /// Judges a process that root adds as `name`, and returns its owner.
    pub(super) fn owner_of_added(&self, qemu: &Qemu, name: &str) -> Result<Owner, ErrorBody> {
        let claimant = qemu::claimant(qemu.process).map_err(|e| {
            let text = format!("{:#}", anyhow::Error::new(e));
            error(ErrorCode::Permission, text, "run timevisord as root")
        })?;
        let judge = |name: &str| {
            self.rules.added(&claimant, name).map_err(|reason| {
                let text = format!("process {} cannot be VM {name}: {reason}", qemu.process.pid());
                error(ErrorCode::Permission, text, &reason.next_step(name))
            })
        };
        // The page may have been prepared under another name.
        if let Some(page) = self.pages().name_of(qemu).filter(|page| page != name) {
            judge(&page)?;
        }
        judge(name)
    }

    /// Judges a VM that is served already, or was by an earlier daemon: `added` is the owner if root
    /// added it.
    pub(super) fn judge_again(&self, name: &str, added: Option<Owner>, qemu: &Qemu) -> Result<()> {
        if let Some(then) = added {
            let now = self.owner_of_added(qemu, name)?;
            ensure!(
                now == then,
                "it belonged to {then} when it was added, and belongs to {now} now"
            );
            return Ok(());
        }
        let claimant = qemu::claimant(qemu.process).context("its owner is not known")?;
        if let Err(reason) = self.rules.discovered(&claimant, name) {
            bail!("{reason}; {}", reason.next_step(name));
        }
        Ok(())
    }
}
