//! `timevisor reserve missed`: a guest says when a job was released and when it should have been
//! done; was it the host, or the guest?
//!
//! The guest's times mean the same here, because both read one clock.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use humantime_serde::re::humantime::parse_rfc3339;
use timevisor_linux::clock::monotonic;
use timevisor_protocols::control::{MissedCause, MissedJob, Request, ReserveMissed, Response};

use crate::bind::connect;
use crate::connection::{ask, unexpected};

#[derive(Args)]
pub struct Missed {
    /// The VM
    vm: String,
    /// The vCPU that was to run it
    #[arg(long, default_value_t = 0)]
    vcpu: u32,
    /// When the job was released: 2026-11-22T21:15:00.250Z, or seconds as `timevisor now` prints
    /// them
    #[arg(long, value_name = "TIME")]
    released: String,
    /// Its deadline, or when it was done after all
    #[arg(long, value_name = "TIME")]
    until: String,
    /// What seconds count from
    #[arg(long, value_enum, default_value = "utc")]
    timeline: Scale,
    /// JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// POSIX seconds
    Utc,
    /// Seconds since 1970-01-01 00:00:00 TAI
    Tai,
}

pub fn run(directory: &Path, options: &Missed) -> Result<()> {
    let [released, until] =
        [&options.released, &options.until].map(|text| ns(text, options.timeline));
    let (released, until) = (released?, until?);
    ensure!(released < until, "--released must be before --until");
    // Not the timeline `utc`: it is on the page only while somebody is bound to it.
    let reading = connect(directory)?.timeline("tai")?.now()?;
    let now = monotonic().floor_nanos();
    ensure!(reading.is_known(), "the time is not known here; `timevisor status` says why");
    let ahead = match options.timeline {
        Scale::Tai => 0,
        Scale::Utc => reading.tai_offset().context("TAI - UTC is not known here; give TAI")?,
    };
    let ahead = i64::from(ahead) * 1_000_000_000;
    ensure!(until <= reading.latest_ns() - ahead, "that is still to come");
    let here = |ns: i64| -> Result<u64> {
        let ns = now - (reading.estimate_ns() - ahead - ns);
        u64::try_from(ns).context("that was before this machine was started")
    };
    let asked = ReserveMissed {
        vm: options.vm.clone(),
        vcpu: options.vcpu,
        released_ns: here(released)?,
        until_ns: here(until)?,
    };
    let answer = match ask(directory, &Request::ReserveMissed(asked))? {
        Response::MissedJob(answer) => answer,
        response => return Err(unexpected(&response)),
    };
    if options.json {
        println!("{}", serde_json::to_string(&answer)?);
    } else {
        print!("{}", words(&answer));
    }
    Ok(())
}

/// Of the timeline, since its beginning.
fn ns(text: &str, scale: Scale) -> Result<i64> {
    if text.contains('T') {
        if scale != Scale::Utc {
            bail!("{text}: dates are UTC; give seconds for --timeline tai");
        }
        let time = parse_rfc3339(text).with_context(|| format!("{text} is no time"))?;
        return Ok(time.duration_since(std::time::UNIX_EPOCH)?.as_nanos().try_into()?);
    }
    let (seconds, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = part.len() <= 9 && part.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        digits,
        "{text} is no time: seconds with up to nine places, or 2026-11-22T21:15:00.250Z"
    );
    let seconds: i64 = seconds.parse().with_context(|| format!("{text} is no time"))?;
    let part: i64 = format!("{part:0<9}").parse()?;
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(part)).context("too far away")
}

fn words(answer: &MissedJob) -> String {
    let why = match answer.cause {
        MissedCause::HostBroke => "host broke its promise: the vCPU got less than it has reserved",
        MissedCause::GuestUnderDeclared => {
            "guest under-declared: the vCPU got what it has reserved and wanted more; raise the budget, or look for what else the guest ran"
        }
        MissedCause::GuestPolicy => {
            "guest policy: the vCPU slept although the job was there; the guest did not run it (a lock, a device, its own limits?)"
        }
        MissedCause::Unclear => "unclear: the job was there for too short a time to tell",
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = format!(
        "cause      {why}\nlooked at  {:.1} ms of that time: ran {:.1} ms, waited {:.1} ms\n",
        ms(answer.looked_at_ns),
        ms(answer.ran_ns),
        ms(answer.waited_ns)
    );
    if answer.missing_ns > 0 {
        out += &format!("missing    {:.1} ms\n", ms(answer.missing_ns));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_guests_write_them() {
        let utc = |text| ns(text, Scale::Utc);
        assert_eq!(utc("1970-01-01T00:00:01.25Z").unwrap(), 1_250_000_000);
        assert_eq!(utc("1.25").unwrap(), 1_250_000_000);
        assert_eq!(ns("7", Scale::Tai).unwrap(), 7_000_000_000);
        assert!(ns("1970-01-01T00:00:01Z", Scale::Tai).is_err());
        for bad in ["", "x", "1.2.3", "1.-5", "99999999999999", "1.0000000001"] {
            assert!(utc(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_host_says_what_is_missing() {
        let answer = MissedJob {
            cause: MissedCause::HostBroke,
            looked_at_ns: 180_000_000,
            ran_ns: 20_000_000,
            waited_ns: 160_000_000,
            missing_ns: 31_500_000,
        };
        let said = words(&answer);
        assert!(said.contains("host broke") && said.contains("missing    31.5 ms"), "{said}");
    }
}
