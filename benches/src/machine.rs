//! What the figures were measured on: asked from the processor and the kernel, so that it works without /proc.

use core::arch::x86_64::__cpuid;
use std::ffi::CStr;
use std::process::Command;

/// Processor, whether under a hypervisor, and kernel: `AMD EPYC, in a VM, Linux 6.12.0`.
#[must_use]
pub fn machine() -> String {
    let place = if __cpuid(1).ecx >> 31 == 1 { "in a VM" } else { "bare metal" };
    format!("{}, {place}, {}", processor(), kernel())
}

/// True when `leaf`'s EDX has `bit`; false when the processor does not know the leaf.
#[must_use]
pub fn has_extended_feature(leaf: u32, bit: u32) -> bool {
    __cpuid(0x8000_0000).eax >= leaf && __cpuid(leaf).edx >> bit & 1 == 1
}

/// The brand string, CPUID 0x80000002 to 0x80000004.
fn processor() -> String {
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return "unknown processor".to_owned();
    }
    let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004)
        .map(__cpuid)
        .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
        .flat_map(u32::to_le_bytes)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn kernel() -> String {
    // SAFETY: utsname is plain bytes, for which zero is valid.
    let mut name: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: `name` is a valid utsname for the call to fill.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return "unknown kernel".to_owned();
    }
    let text = |field: &[libc::c_char]| {
        // SAFETY: uname terminates its strings, and `name` began as zeroes.
        unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
    };
    format!("{} {}", text(&name.sysname), text(&name.release))
}

/// The commit that is checked out, or `TIMEVISOR_COMMIT` of the build where there is no git (in a guest).
#[must_use]
pub fn commit() -> String {
    let git = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let found = git.ok().filter(|output| output.status.success());
    let text = found.and_then(|output| String::from_utf8(output.stdout).ok());
    let built = option_env!("TIMEVISOR_COMMIT").unwrap_or("unknown");
    text.map_or_else(|| built.to_owned(), |text| text.trim().to_owned())
}
