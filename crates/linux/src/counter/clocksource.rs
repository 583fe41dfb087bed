//! Which clocksources the kernel uses and offers.
//!
//! The kernel's watchdog compares the TSC with another clock while the machine runs. A TSC that it
//! finds unstable is no longer offered (kernel/time/clocksource.c, `__clocksource_unstable`), and
//! another clocksource takes its place.

use timevisor_clock_page::CounterId;

const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";

/// The kernel's clocksources, as sysfs names them. Empty where sysfs is not mounted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clocksources {
    /// The one in use, such as `tsc`, `hpet` or `kvm-clock`.
    pub current: String,
    /// All that can be used, separated by spaces.
    pub available: String,
}

impl Clocksources {
    /// Reads them from sysfs.
    #[must_use]
    pub fn read() -> Self {
        let file = |name| {
            let text = std::fs::read_to_string(format!("{DIRECTORY}/{name}"));
            text.map_or_else(|_| String::new(), |text| text.trim().to_owned())
        };
        Self { current: file("current_clocksource"), available: file("available_clocksource") }
    }

    /// Whether the kernel is still measuring the TSC's frequency (arch/x86/kernel/tsc.c,
    /// `tsc_refine_calibration_work`: until about a second after boot's end). Until then every clock
    /// of the kernel runs at a first guess; 1,340 ppm were seen in an emulated guest.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.current == "tsc-early"
    }

    /// Whether the kernel still offers this counter as a clocksource; `None` where the answer says
    /// nothing about the counter. Only a TSC is ever taken off the list. Another *current* source
    /// is no reason: an operator may choose it, and guests run on kvm-clock.
    #[must_use]
    pub fn offer(&self, counter: CounterId) -> Option<bool> {
        let known = counter == CounterId::X86Tsc && !self.available.is_empty();
        known.then(|| self.available.split_whitespace().any(|word| word == "tsc"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_guess_is_known_by_its_name() {
        let with =
            |current: &str| Clocksources { current: current.to_owned(), ..Default::default() };
        assert!(with("tsc-early").is_early());
        assert!(!with("tsc").is_early() && !with("").is_early());
    }

    #[test]
    fn only_a_tsc_that_is_missing_from_a_list_is_dropped() {
        let with = |available: &str| Clocksources {
            current: "hpet".to_owned(),
            available: available.to_owned(),
        };
        assert_eq!(with("tsc hpet acpi_pm").offer(CounterId::X86Tsc), Some(true));
        assert_eq!(with("hpet acpi_pm tsc-early").offer(CounterId::X86Tsc), Some(false));
        assert_eq!(with("").offer(CounterId::X86Tsc), None, "no sysfs");
        assert_eq!(with("hpet").offer(CounterId::MonotonicRaw), None);
        assert_eq!(with("arch_sys_counter").offer(CounterId::ArmVcnt), None);
    }
}
