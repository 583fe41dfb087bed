//! Finds other programs that steer CLOCK_REALTIME: two disciplines on one clock fight, and both are
//! wrong.
//!
//! The kernel's own state is the better evidence: a loop in use, a synchronized status, a rate that
//! changes under us. The list of programs names the culprit and catches programs that have only
//! just started. Anybody can give a process such a name, and decide whether its arguments can be read;
//! only those count that may set the clock. Limitation: programs in another PID namespace are invisible until they act.
//! timevisord and timevisor-guest share this module.

use timevisor_time::Duration;

use crate::adjust::{self, Settings};
use crate::process::Process;

/// Programs that set CLOCK_REALTIME, by the first 15 letters of their name, as the kernel keeps it.
const PROGRAMS: &[&str] =
    &["chronyd", "ntpd", "ntp-daemon", "openntpd", "systemd-timesyn", "phc2sys", "timemaster"];

/// Says why steering may not begin. `instead` is the advice for how to turn our steering off.
#[must_use]
pub fn conflict(kernel: &Settings, instead: &str) -> Option<String> {
    if let Some(name) = running() {
        return Some(format!(
            "{name} keeps CLOCK_REALTIME; stop it (systemctl disable --now ...) or {instead}"
        ));
    }
    if kernel.in_use() {
        return Some(format!(
            "the kernel says that somebody keeps CLOCK_REALTIME (adjtimex: a loop is on, or STA_UNSYNC is off); find out \
             who, stop it, or {instead}"
        ));
    }
    match adjust::pending_adjtime() {
        Ok(Duration::ZERO) => None,
        Ok(pending) => Some(format!(
            "another program is slewing CLOCK_REALTIME with adjtime ({pending} left); stop that program"
        )),
        Err(error) => Some(format!("clock_adjtime is forbidden here: {error}; allow CAP_SYS_TIME")),
    }
}

/// Returns the name of a running program that sets CLOCK_REALTIME.
#[must_use]
pub fn running() -> Option<String> {
    running_comm().map(whole_name)
}

/// What the kernel has cut off.
fn whole_name(comm: String) -> String {
    if comm == "systemd-timesyn" { "systemd-timesyncd".to_owned() } else { comm }
}

fn running_comm() -> Option<String> {
    let processes = Process::all().ok()?;
    processes.into_iter().find_map(|seen| {
        let process = seen.process();
        let arguments = || process.patiently(|process| process.arguments());
        let sets = PROGRAMS.contains(&seen.name.as_str())
            && process.may_set_clocks()
            && !(seen.name == "chronyd" && arguments().is_ok_and(|a| leaves_alone(&a)));
        sets.then_some(seen.name)
    })
}

/// Flags of chronyd(8) with which it leaves the system clock alone (`-x`), or ends by itself (`-q`,
/// `-Q`).
fn leaves_alone(arguments: &[String]) -> bool {
    arguments.iter().skip(1).any(|argument| {
        let flags = argument.strip_prefix('-').unwrap_or("");
        flags.contains('x') && flags.chars().all(|c| "46dmnqQrRsvxU".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chronyd_that_only_watches_is_no_rival() {
        let arguments = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(leaves_alone(&arguments("chronyd -x -d")));
        assert!(leaves_alone(&arguments("chronyd -dx")));
        assert!(!leaves_alone(&arguments("chronyd -f /x/chrony.conf")));
        assert!(!leaves_alone(&arguments("chronyd -u x")));
        assert!(!leaves_alone(&arguments("x")));
    }

    #[test]
    fn names_are_whole() {
        assert_eq!(whole_name("systemd-timesyn".to_owned()), "systemd-timesyncd");
        assert_eq!(whole_name("phc2sys".to_owned()), "phc2sys");
    }
}
