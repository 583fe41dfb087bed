//! Offsets in the structures of this host's KVM.

use crate::symbols::btf::{Btf, BtfError};

/// The virtualization extension that KVM uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// SVM.
    Amd,
    /// VMX. Not verified on hardware.
    Intel,
}

/// Offsets in `struct kvm_vcpu` and in a VMCB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvmLayout {
    /// Sixteen general registers, in KVM's order.
    pub registers: u32,
    /// The instruction pointer.
    pub rip: u32,
    /// The vCPU's id.
    pub vcpu_id: u32,
    /// Offset of three consecutive words: the guest's counter offset, the counter offset of a
    /// nested guest, and the guest's counter at the last exit.
    pub times: u32,
    /// AMD only: the offset of the pointer to the VMCB, and of GS_BASE and CR3 in the VMCB.
    pub vmcb: Option<(u32, u32, u32)>,
}

impl KvmLayout {
    /// Reads the offsets from the types of the kernel with those of kvm_amd or kvm_intel.
    ///
    /// # Errors
    /// When a member is missing or has an unexpected size.
    pub fn new(btf: &Btf, vendor: Vendor) -> Result<Self, BtfError> {
        let place = |structure: &str, path: &str, size: u32| {
            let member = btf.member(structure, path)?;
            let fits = if size == 0 { member.size >= 16 * 8 } else { member.size == size };
            let odd =
                || BtfError::Missing(format!("struct {structure} with {path} as it is known"));
            fits.then_some(member.offset).ok_or_else(odd)
        };
        let registers = place("kvm_vcpu", "arch.regs", 0)?;
        // It was the seventeenth register before it became a separate field (7.x).
        let rip = place("kvm_vcpu", "arch.rip", 8).unwrap_or(registers + 16 * 8);
        let times = place("kvm_vcpu", "arch.l1_tsc_offset", 8)?;
        let at_exit = place("kvm_vcpu", "arch.last_guest_tsc", 8)?;
        if at_exit.checked_sub(times) != Some(16) {
            let what = "struct kvm_vcpu with arch.last_guest_tsc behind the offsets of its counter";
            return Err(BtfError::Missing(what.into()));
        }
        let vmcb = match vendor {
            Vendor::Amd => {
                let odd = || BtfError::Missing("struct vcpu_svm that begins with its vcpu".into());
                (btf.member("vcpu_svm", "vcpu")?.offset == 0).then_some(()).ok_or_else(odd)?;
                Some((
                    place("vcpu_svm", "vmcb", 8)?,
                    place("vmcb", "save.gs.base", 8)?,
                    place("vmcb", "save.cr3", 8)?,
                ))
            }
            Vendor::Intel => None,
        };
        Ok(Self { registers, rip, vcpu_id: place("kvm_vcpu", "vcpu_id", 4)?, times, vmcb })
    }
}
