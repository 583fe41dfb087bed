//! The mapping, and why there may be none.

use std::io;
use std::path::PathBuf;

use timevisor_linux::process::ProcessError;
use timevisor_time::{CounterRatio, Period};

/// A guest's counter as a function of the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterMapping {
    /// Guest ticks per host tick.
    pub ratio: CounterRatio,
    /// Added after scaling, modulo 2^64. While not `running`, the value at which the guest's
    /// counter is frozen.
    pub offset: i64,
    /// Whether the guest's counter advances. Under KVM it always does, even while the vCPUs are
    /// stopped.
    pub running: bool,
}

impl CounterMapping {
    /// The mapping for a reader of the host's own counter.
    pub const IDENTITY: Self = Self { ratio: CounterRatio::ONE, offset: 0, running: true };

    /// The guest's counter when the host's is `host`, rounded down to a tick exactly as in
    /// hardware.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counters are modulo 2^64"
    )]
    pub const fn guest_from_host(&self, host: u64) -> u64 {
        if !self.running {
            return self.offset as u64;
        }
        let scaled = (host as u128 * self.ratio.mul as u128) >> self.ratio.frac_bits;
        (scaled as u64).wrapping_add(self.offset as u64)
    }

    /// The period of the guest's counter for a host tick of `period`: rounded down for the page's
    /// lower line, and up for its upper line. `None` when the guest's counter would be slower than
    /// 1.05 MHz.
    #[must_use]
    pub fn period_for_guest(&self, period: Period) -> Option<(Period, Period)> {
        let scaled = u128::from(period.to_bits()) << self.ratio.frac_bits;
        let mul = u128::from(self.ratio.mul);
        if mul == 0 {
            return None;
        }
        let lower = u64::try_from(scaled / mul).ok()?;
        let upper = u64::try_from(scaled.div_ceil(mul)).ok()?;
        Some((Period::from_bits(lower), Period::from_bits(upper)))
    }
}

/// Why a guest's counter cannot be derived from the host's.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The guest counts instructions: there is no relation.
    #[error(
        "the virtual machine runs with -icount, so its counter has no relation to the host's; start it without"
    )]
    Icount,
    /// The QEMU process could not be read.
    #[error("cannot read QEMU's counter offset")]
    Process(#[from] ProcessError),
    /// The QEMU executable could not be parsed.
    #[error(
        "cannot read QEMU's symbols: {reason}; publish by the agent's measured mapping instead"
    )]
    Program {
        /// What is wrong.
        reason: String,
    },
    /// The executable lacks this symbol, because its dynamic symbols were stripped.
    #[error("this QEMU does not export {0}; publish by the agent's measured mapping instead")]
    NoSymbol(&'static str),
    /// The memory does not contain a valid timer state.
    #[error("QEMU's timer state looks unlike any known version ({0}); report the version of QEMU")]
    UnknownLayout(String),
    /// QEMU will move the offset by an unknown amount when the guest next reads its counter.
    #[error(
        "the guest has not read its counter since its state was restored; its next read settles it"
    )]
    Unsettled,
    /// The values kept changing.
    #[error("the counter offset kept changing while it was read; try again")]
    Unstable,
    /// debugfs is not there.
    #[error("{0} does not exist; run `mount -t debugfs none /sys/kernel/debug`")]
    NoDebugfs(PathBuf),
    /// Only root may read debugfs.
    #[error("not allowed to read {path}; run as root")]
    NotAllowed {
        /// The file or folder.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// KVM knows no virtual machine of this process.
    #[error(
        "KVM has no virtual machine of process {0}; has it ended, or runs it in another pid namespace?"
    )]
    NoVirtualMachine(u32),
    /// The virtual machine has no vCPU with a TSC.
    #[error("{0} shows no vCPU with a TSC offset yet; try again when QEMU has started")]
    NoVcpu(PathBuf),
    /// A file in debugfs does not contain a number.
    #[error("cannot read a number from {path}")]
    Number {
        /// The file.
        path: PathBuf,
        /// The kernel's error, or the text that was found.
        #[source]
        source: io::Error,
    },
    /// One page cannot serve vCPUs with different counters.
    #[error(
        "vCPUs disagree: {first:?} and {other:?}; a guest that wrote its TSC has to be restarted"
    )]
    Disagree {
        /// The first vCPU's.
        first: CounterMapping,
        /// Another vCPU's.
        other: CounterMapping,
    },
}

/// A source of one guest's mapping.
pub trait MappingSource {
    /// The mapping at this moment.
    ///
    /// # Errors
    /// When there is none, or it cannot be read; the page must then state this.
    fn read(&mut self) -> Result<CounterMapping, MappingError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_values() {
        let plain =
            CounterMapping { ratio: CounterRatio::ONE, offset: -3_183_874_828_902, running: true };
        assert_eq!(plain.guest_from_host(3_183_874_828_902), 0);
        assert_eq!(plain.guest_from_host(0), 0u64.wrapping_sub(3_183_874_828_902));
        // A 2.0 GHz guest on a 2.5 GHz host, VMX: ratio 0.8.
        let mul = (1u64 << 48) / 5 * 4;
        let scaled = CounterMapping {
            ratio: CounterRatio { mul, frac_bits: 48 },
            offset: 1_000,
            running: true,
        };
        assert_eq!(scaled.guest_from_host(2_500_000_000), 1_999_999_999 + 1_000);
        let (lower, upper) =
            scaled.period_for_guest(Period::from_hz(2_500_000_000).unwrap()).unwrap();
        assert_eq!(upper.to_bits() - lower.to_bits(), 1);
        assert!((upper.hz() - 2e9).abs() < 1.0, "{}", upper.hz());
        let stopped =
            CounterMapping { running: false, offset: 522_311_348, ratio: CounterRatio::ONE };
        assert_eq!(stopped.guest_from_host(77), 522_311_348);
    }

    proptest! {
        /// A span of host ticks, mapped and measured with the guest's periods, encloses the span
        /// measured by the host.
        #[test]
        fn guest_periods_enclose(
            hz in 1_000_000_000u64..5_000_000_000, percent in 30u64..300, frac_bits in prop::sample::select(vec![32u8, 48]),
            ticks in 1u64..1 << 40, offset in any::<i64>(), start in 0u64..1 << 62,
        ) {
            let mul = u64::try_from((1u128 << frac_bits) * u128::from(percent) / 100).unwrap();
            let mapping = CounterMapping { ratio: CounterRatio { mul, frac_bits }, offset, running: true };
            let host = Period::from_hz(hz).unwrap();
            let (lower, upper) = mapping.period_for_guest(host).unwrap();
            prop_assert!(upper.to_bits() - lower.to_bits() <= 1);
            let passed = mapping.guest_from_host(start + ticks).wrapping_sub(mapping.guest_from_host(start));
            // Each end is rounded down to a tick, so the difference is off by less than one.
            prop_assert!(lower.span(passed - passed.min(1)) <= host.span_ceil(ticks));
            prop_assert!(upper.span_ceil(passed + 1) >= host.span(ticks));
        }
    }
}
