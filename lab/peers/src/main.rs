//! Reads a vmclock page with AWS ClockBound's own reader and prints what it decoded, in one line of
//! `field=value`.
//!
//! `clockbound-vmclock [PATH]`; PATH is /dev/vmclock0 unless given. Exit status 1, with
//! ClockBound's reason on standard error, when it refuses the page.
//!
//! Independent of us: the crate clock-bound-vmclock opens the file, maps it, takes the sequence
//! lock and decodes every byte. Limitations: it decodes 0x00 to 0x67 of the page, so neither
//! `vm_generation_counter` nor our own header; it does not convert a counter to a time; and the
//! header's fields are public in `VMClockShmHeader` but not in its reader, so they come from a
//! separate read of the file that the sequence lock does not cover.
#![forbid(unsafe_code)]

use std::fmt;
use std::fs;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use clock_bound_vmclock::shm::{VMCLOCK_SHM_DEFAULT_PATH, VMClockShmBody, VMClockShmHeader};
use clock_bound_vmclock::shm_reader::VMClockShmReader;

/// Everything that the crate makes of a page.
struct Decoded {
    header: VMClockShmHeader,
    body: VMClockShmBody,
}

/// Lets the crate open, check and read the page at `path`.
fn decode(path: &str) -> Result<Decoded, String> {
    let mut reader =
        VMClockShmReader::new(path).map_err(|error| format!("cannot open {path}: {error:?}"))?;
    let body = *reader
        .snapshot()
        .map_err(|error| format!("cannot take a snapshot of {path}: {error:?}"))?;
    let bytes = fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let header = VMClockShmHeader::read(&bytes)
        .map_err(|error| format!("cannot decode the header of {path}: {error:?}"))?;
    Ok(Decoded { header, body })
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (header, body) = (&self.header, &self.body);
        write!(
            f,
            "magic={:#010x} size={} version={} counter_id={} time_type={} seq_count={} ",
            header.magic.load(Relaxed),
            header.size.load(Relaxed),
            header.version.load(Relaxed),
            header.counter_id.load(Relaxed),
            header.time_type.load(Relaxed),
            header.seq_count.load(Relaxed),
        )?;
        write!(
            f,
            "disruption_marker={} flags={:#x} clock_status={:?} leap_second_smearing_hint={} tai_offset_sec={} \
             leap_indicator={} counter_period_shift={} counter_value={} counter_period_frac_sec={} \
             counter_period_esterror_rate_frac_sec={} counter_period_maxerror_rate_frac_sec={} time_sec={} \
             time_frac_sec={} time_esterror_nanosec={} time_maxerror_nanosec={}",
            body.disruption_marker,
            body.flags,
            body.clock_status,
            body.leap_second_smearing_hint,
            body.tai_offset_sec,
            body.leap_indicator,
            body.counter_period_shift,
            body.counter_value,
            body.counter_period_frac_sec,
            body.counter_period_esterror_rate_frac_sec,
            body.counter_period_maxerror_rate_frac_sec,
            body.time_sec,
            body.time_frac_sec,
            body.time_esterror_nanosec,
            body.time_maxerror_nanosec,
        )
    }
}

fn main() -> ExitCode {
    // The crate's error values carry no cause; it logs the cause instead.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
    let path = std::env::args().nth(1);
    match decode(path.as_deref().unwrap_or(VMCLOCK_SHM_DEFAULT_PATH)) {
        Ok(decoded) => {
            println!("{decoded}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("clockbound-vmclock: {reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests;
