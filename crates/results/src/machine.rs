//! The machine's name, from the processor and the kernel: neither needs /proc, so that it also
//! works in an initramfs.

/// Processor, whether under a hypervisor, and kernel: `AMD EPYC, in a VM, Linux 6.12.0`.
#[must_use]
pub fn machine() -> String {
    format!("{}, {}", processor(), kernel())
}

fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

/// The brand string, CPUID leaves 0x80000002 to 0x80000004, and the hypervisor bit.
#[cfg(target_arch = "x86_64")]
fn processor() -> String {
    use core::arch::x86_64::__cpuid;

    let place = if __cpuid(1).ecx >> 31 == 1 { "in a VM" } else { "bare metal" };
    if __cpuid(0x8000_0000).eax < 0x8000_0004 {
        return format!("unknown processor, {place}");
    }
    let bytes: Vec<u8> = (0x8000_0002..=0x8000_0004)
        .map(__cpuid)
        .flat_map(|leaf| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx])
        .flat_map(u32::to_le_bytes)
        .take_while(|byte| *byte != 0)
        .collect();
    format!("{}, {place}", String::from_utf8_lossy(&bytes).trim())
}

/// The architecture: other processors do not tell a program their name.
#[cfg(not(target_arch = "x86_64"))]
fn processor() -> String {
    std::env::consts::ARCH.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_one_that_runs() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let name = machine();
        assert!(name.ends_with(&format!(", Linux {}", release.trim())), "{name}");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_processor_is_the_one_that_the_kernel_names() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap();
        let model = model.trim_start_matches(['\t', ' ', ':']).trim();
        assert!(machine().starts_with(model), "{} is not {model}", machine());
    }
}
