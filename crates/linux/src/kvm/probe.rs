//! The probe itself: five bytes of guest code on one vCPU.
//!
//! Runs in a forked child of a multithreaded process, so it only makes system calls and does not
//! allocate.

use std::io;

use super::child::Report;

/// A step of the probe, as the child reports it in one byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Step {
    Open = 1,
    CreateVm,
    Memory,
    CreateVcpu,
    MapVcpu,
    Run,
    Done,
}

impl Step {
    pub(super) const ALL: [Self; 7] = [
        Self::Open,
        Self::CreateVm,
        Self::Memory,
        Self::CreateVcpu,
        Self::MapVcpu,
        Self::Run,
        Self::Done,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Open => "cannot open /dev/kvm",
            Self::CreateVm => "KVM_CREATE_VM failed",
            Self::Memory => "KVM_SET_USER_MEMORY_REGION failed",
            Self::CreateVcpu => "KVM_CREATE_VCPU failed",
            Self::MapVcpu => "cannot map the vCPU's run structure",
            Self::Run => "KVM_RUN failed",
            Self::Done => "the guest stopped",
        }
    }
}

// include/uapi/linux/kvm.h; ioctl numbers are _IO*(0xAE, nr, size) and the same on x86 and Arm.
const KVM_CREATE_VM: u32 = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: u32 = 0xae04;
const KVM_CREATE_VCPU: u32 = 0xae41;
#[cfg(target_arch = "x86_64")]
const KVM_SET_TSS_ADDR: u32 = 0xae47;
const KVM_SET_USER_MEMORY_REGION: u32 = 0x4020_ae46;
#[cfg(target_arch = "x86_64")]
const KVM_RUN: u32 = 0xae80;

#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    bytes: u64,
    host_address: u64,
}

/// The last page below 4 GiB, which holds the reset vector: an x86 starts at 0xfffffff0.
const GUEST_PAGE: u64 = 0xffff_f000;
/// `mov al, 0x54; out 0x80, al; hlt`
#[cfg(target_arch = "x86_64")]
const GUEST_CODE: [u8; 5] = [0xb0, 0x54, 0xe6, 0x80, 0xf4];

/// Runs in the child: system calls only.
pub(super) fn probe() -> Report {
    let stop = |step: Step| {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        [step as u32, errno.unsigned_abs(), 0, 0]
    };
    // SAFETY: system calls on descriptors and memory that this function made; the region and the
    // page live until the child's end; the run structure is at least two words long
    // (KVM_GET_VCPU_MMAP_SIZE).
    unsafe {
        let kvm = libc::open(c"/dev/kvm".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if kvm < 0 {
            return stop(Step::Open);
        }
        let vm = libc::ioctl(kvm, KVM_CREATE_VM as _, 0);
        if vm < 0 {
            return stop(Step::CreateVm);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(
            core::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return stop(Step::Memory);
        }
        #[cfg(target_arch = "x86_64")]
        {
            core::ptr::copy_nonoverlapping(
                GUEST_CODE.as_ptr(),
                page.cast::<u8>().add(0xff0),
                GUEST_CODE.len(),
            );
            // Old Intel processors need this for real mode; it is harmless elsewhere.
            libc::ioctl(vm, KVM_SET_TSS_ADDR as _, 0xfffb_d000_u64);
        }
        let region = MemoryRegion {
            slot: 0,
            flags: 0,
            guest_address: GUEST_PAGE,
            bytes: 4096,
            host_address: page as u64,
        };
        if libc::ioctl(vm, KVM_SET_USER_MEMORY_REGION as _, &raw const region) < 0 {
            return stop(Step::Memory);
        }
        let vcpu = libc::ioctl(vm, KVM_CREATE_VCPU as _, 0);
        if vcpu < 0 {
            return stop(Step::CreateVcpu);
        }
        let Ok(bytes @ 4096..) = usize::try_from(libc::ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE as _, 0))
        else {
            return stop(Step::MapVcpu);
        };
        let run = libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            vcpu,
            0,
        );
        if run == libc::MAP_FAILED {
            return stop(Step::MapVcpu);
        }
        #[cfg(target_arch = "x86_64")]
        let reasons = {
            let mut reasons = [0; 2];
            for reason in &mut reasons {
                if libc::ioctl(vcpu, KVM_RUN as _, 0) < 0 {
                    return stop(Step::Run);
                }
                // struct kvm_run: u8 request, u8 immediate_exit, u8[6] padding, u32 exit_reason at
                // offset 8.
                *reason = run.cast::<u32>().add(2).read_volatile();
            }
            reasons
        };
        // An Arm vCPU needs KVM_ARM_VCPU_INIT and stage-2 page tables to run; creating one is
        // sufficient evidence.
        #[cfg(not(target_arch = "x86_64"))]
        let reasons = [0; 2];
        [Step::Done as u32, 0, reasons[0], reasons[1]]
    }
}
