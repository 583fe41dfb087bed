//! A process's time, memory and descriptors, from /proc (proc(5)).

use std::fs;

/// Ticks of /proc/PID/stat in a second: USER_HZ, which is 100 on every architecture that we build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// What is known of a process.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Process {
    /// Processor time in user and kernel mode.
    pub cpu_seconds: f64,
    pub resident_bytes: f64,
    /// `None` for processes of other users.
    pub open_descriptors: Option<f64>,
    /// After the boot.
    pub started_seconds: f64,
}

impl Process {
    /// A process by id, or `self`; `None` if it is gone or hidden from us.
    pub fn read(pid: &str) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok();
        #[expect(clippy::cast_precision_loss, reason = "thousands at most")]
        let open_descriptors = descriptors.map(|entries| entries.count() as f64);
        Self::parse(&read("stat")?, &read("status")?, open_descriptors)
    }

    fn parse(stat: &str, status: &str, open_descriptors: Option<f64>) -> Option<Self> {
        // The command's name is in parentheses, and may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: f64 = resident.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / TICKS_PER_SECOND,
            resident_bytes: kib * 1024.0,
            open_descriptors,
            started_seconds: field(22)? / TICKS_PER_SECOND,
        })
    }
}

/// When this machine booted, Unix seconds.
pub fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_those_of_proc_5() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 3 0 12345 9 8 7";
        let process = Process::parse(stat, "Name:\tx\nVmRSS:\t  2048 kB\n", None).unwrap();
        assert_eq!(process.cpu_seconds.to_bits(), 2.0f64.to_bits());
        assert_eq!(process.resident_bytes.to_bits(), 2_097_152.0f64.to_bits());
        assert_eq!(process.started_seconds.to_bits(), 123.45f64.to_bits());
    }

    #[test]
    fn this_process_is_there_and_another_one_is_not() {
        let own = Process::read("self").unwrap();
        assert!(own.resident_bytes > 0.0 && own.open_descriptors.is_some_and(|count| count > 2.0));
        assert!(boot_time().is_some_and(|at| at + own.started_seconds > 1e9));
        assert!(Process::read("0").is_none());
    }
}
