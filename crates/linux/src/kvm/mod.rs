//! Whether KVM on this host can actually run a guest.
//!
//! /dev/kvm can exist on hosts where no ordinary guest boots. Two checks detect this: the processor
//! must offer VMX or SVM (software KVM emulates small guests well enough to pass any small test,
//! and hangs in a real kernel's boot), and five bytes of guest code must run. They run in a child
//! process, so that a hang does not affect this one. The result says nothing about how well KVM
//! works.

mod child;
#[cfg(target_arch = "x86_64")]
pub mod exits;
mod halt;
pub mod prefix;
pub mod prefix_users;
mod probe;

use std::io;
use std::time::Duration;

pub use self::halt::no_halt_polling;

use self::child::{Report, run_in_child};
use self::probe::{Step, probe};

/// How long the probe may take; a working KVM needs a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// KVM cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "KVM cannot run guests here: {reason}; use `-accel tcg`, or enable hardware virtualization"
)]
pub struct KvmUnusable {
    /// Which step failed, and how.
    pub reason: String,
}

/// Runs a tiny guest.
///
/// # Errors
/// The step that failed, the unexpected exit, or the hang.
pub fn usable() -> Result<(), KvmUnusable> {
    let fail = |reason: String| Err(KvmUnusable { reason });
    if cfg!(target_arch = "x86_64") {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if !has_virtualization(&cpuinfo) && std::fs::exists("/dev/kvm").unwrap_or(true) {
            return fail(
                "the processor offers this host neither VMX nor SVM, so its /dev/kvm is software"
                    .to_owned(),
            );
        }
    }
    match run_in_child(probe, PATIENCE) {
        Err(source) => fail(format!("the probe could not run: {source}")),
        Ok(None) => fail(format!("a guest of five bytes hung for {} s", PATIENCE.as_secs())),
        Ok(Some(report)) => judge(report).map_err(|reason| KvmUnusable { reason }),
    }
}

/// The kernel hides `vmx` when firmware has locked it (arch/x86/kernel/cpu/feat_ctl.c).
fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// include/uapi/linux/kvm.h: the guest stores one byte to a port, then halts.
const EXIT_IO: u32 = 2;
const EXIT_HLT: u32 = 5;

fn judge(report: Report) -> Result<(), String> {
    let [step, errno, first, second] = report;
    let Some(step) = Step::ALL.into_iter().find(|known| *known as u32 == step) else {
        return Err("the probe died".to_owned());
    };
    if step != Step::Done {
        let error = io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or(0));
        let hint = if errno == libc::EACCES.unsigned_abs() {
            "; add this user to the group kvm"
        } else {
            ""
        };
        return Err(format!("{}: {error}{hint}", step.name()));
    }
    if cfg!(target_arch = "x86_64") && (first, second) != (EXIT_IO, EXIT_HLT) {
        let reason = format!("{} with KVM exit reasons {first}, {second}", step.name());
        return Err(format!("{reason} where {EXIT_IO} (IO), {EXIT_HLT} (HLT) were expected"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_judged() {
        let reason = judge([Step::Open as u32, libc::EACCES as u32, 0, 0]).unwrap_err();
        assert!(reason.starts_with("cannot open /dev/kvm: Permission denied"), "{reason}");
        assert!(reason.ends_with("group kvm"), "{reason}");
        assert_eq!(judge([0; 4]).unwrap_err(), "the probe died");
        if cfg!(target_arch = "x86_64") {
            assert_eq!(judge([Step::Done as u32, 0, EXIT_IO, EXIT_HLT]), Ok(()));
            assert!(
                judge([Step::Done as u32, 0, 17, 17]).unwrap_err().contains("exit reasons 17, 17")
            );
        }
    }

    #[test]
    fn hardware_virtualization_is_a_flag_of_the_processor() {
        assert!(has_virtualization("model name : vmx\nflags\t\t: fpu svm tsc\n"));
        assert!(!has_virtualization("model name : vmx\nflags\t\t: fpu tsc\nvmx flags : vnmi\n"));
    }

    #[test]
    fn a_hang_is_cut_short_and_a_crash_is_told() {
        let hang = || loop {
            std::hint::spin_loop();
        };
        assert_eq!(run_in_child(hang, Duration::from_millis(50)).unwrap(), None);
        let crash = || {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(3) }
        };
        assert_eq!(run_in_child(crash, PATIENCE).unwrap(), Some([0; 4]));
    }

    #[test]
    fn the_probe_answers_here_within_its_patience() {
        let start = std::time::Instant::now();
        let answer = usable();
        assert!(start.elapsed() < PATIENCE + Duration::from_secs(1));
        eprintln!("KVM on this machine: {answer:?}");
    }
}
