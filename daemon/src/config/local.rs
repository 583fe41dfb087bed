//! `[[reference]]` tables for the clocks that are read on this machine: PHC, PTP, vmclock, chrony,
//! and the file of visits.

use std::path::PathBuf;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use timevisor_protocols::ptp::Assumptions;
use timevisor_time::RateError;

use super::{OscillatorConfig, span};

/// The timescale of a device or a master.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    #[default]
    Tai,
    Utc,
}

/// `type = "phc"`: a PTP hardware clock that something else synchronizes.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PhcConfig {
    pub device: PathBuf,
    pub timescale: Scale,
    /// The maximum distance of the device from true time, as the operator states it.
    #[serde(with = "humantime_serde")]
    pub accuracy: StdDuration,
    #[serde(with = "humantime_serde")]
    pub poll: StdDuration,
}

impl Default for PhcConfig {
    fn default() -> Self {
        Self {
            device: "/dev/ptp0".into(),
            timescale: Scale::Tai,
            accuracy: StdDuration::from_micros(1),
            poll: StdDuration::from_secs(1),
        }
    }
}

/// `type = "ptp"`: a clock that ptp4l steers, with ptp4l's own measurements.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PtpConfig {
    /// The PHC, or `realtime` if ptp4l uses software time stamps.
    pub device: PathBuf,
    /// ptp4l's `uds_address`.
    pub socket: PathBuf,
    pub domain: u8,
    pub transport_specific: u8,
    /// `utc` treats a master on an arbitrary timescale as one that serves UTC; of a master on PTP
    /// time it says nothing.
    pub timescale: Scale,
    /// Replaces the accuracy that the grandmaster claims.
    #[serde(with = "humantime_serde::option")]
    pub grandmaster_accuracy: Option<StdDuration>,
    #[serde(with = "humantime_serde")]
    pub hop_error: StdDuration,
    pub drift_ppm: u32,
    #[serde(with = "humantime_serde")]
    pub accuracy: StdDuration,
    #[serde(with = "humantime_serde")]
    pub max_age: StdDuration,
    #[serde(with = "humantime_serde")]
    pub poll: StdDuration,
    /// The run directory, in which our socket is created; set by [`super::Config::parse`].
    #[serde(skip)]
    pub own_directory: PathBuf,
    /// `oscillator.unmeasured_rate_ppm`; set by [`super::Config::parse`].
    #[serde(skip)]
    pub unmeasured_rate_ppm: u32,
}

impl Default for PtpConfig {
    fn default() -> Self {
        Self {
            device: "/dev/ptp0".into(),
            socket: "/var/run/ptp4l".into(),
            domain: 0,
            transport_specific: 0,
            timescale: Scale::Tai,
            grandmaster_accuracy: None,
            hop_error: StdDuration::from_micros(1),
            drift_ppm: 15,
            accuracy: StdDuration::from_nanos(100),
            max_age: StdDuration::from_secs(8),
            poll: StdDuration::from_secs(1),
            own_directory: PathBuf::new(),
            unmeasured_rate_ppm: OscillatorConfig::default().unmeasured_rate_ppm,
        }
    }
}

impl PtpConfig {
    /// True if ptp4l uses software time stamps and steers CLOCK_REALTIME.
    pub fn is_realtime(&self) -> bool {
        self.device.as_os_str() == "realtime"
    }

    /// The assumptions behind the bound.
    pub fn assumptions(&self) -> Assumptions {
        let drift = RateError::from_ppm(self.drift_ppm);
        Assumptions {
            grandmaster_accuracy: self.grandmaster_accuracy.map(span),
            hop_error: span(self.hop_error),
            drift,
            // Before ptp4l has locked the clock, its rate is the counter's, and what was seen of
            // the servo: nobody has measured the counter's yet.
            drift_unlocked: drift.max(RateError::from_ppm(self.unmeasured_rate_ppm)),
            accuracy: span(self.accuracy),
            max_age: span(self.max_age),
            arbitrary_is_utc: self.timescale == Scale::Utc,
        }
    }
}

/// `type = "vmclock"`: this machine is a guest, and the host provides the time.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmclockConfig {
    pub device: PathBuf,
    #[serde(with = "humantime_serde")]
    pub poll: StdDuration,
}

impl Default for VmclockConfig {
    fn default() -> Self {
        Self { device: "/dev/vmclock0".into(), poll: StdDuration::from_secs(1) }
    }
}

/// `type = "chrony"`: the knowledge of a running chronyd; read-only.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChronyConfig {
    /// The path of chronyd's Unix socket, or the `address:port` of its UDP socket.
    pub address: String,
    #[serde(with = "humantime_serde")]
    pub poll: StdDuration,
    /// The run directory, in which our socket is created; set by [`super::Config::parse`].
    #[serde(skip)]
    pub own_directory: PathBuf,
}

impl Default for ChronyConfig {
    fn default() -> Self {
        Self {
            address: "/run/chrony/chronyd.sock".to_owned(),
            poll: StdDuration::from_secs(1),
            own_directory: PathBuf::new(),
        }
    }
}

/// Where chronyd accepts commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChronyAddress {
    Unix(PathBuf),
    Udp(std::net::SocketAddr),
}

impl ChronyConfig {
    pub fn address(&self) -> Result<ChronyAddress> {
        if self.address.starts_with('/') {
            return Ok(ChronyAddress::Unix(PathBuf::from(&self.address)));
        }
        self.address.parse().map(ChronyAddress::Udp).with_context(|| {
            format!(
                "the address of a chrony reference is {:?}; use the socket's path or an address with a port, such as \
                 127.0.0.1:323",
                self.address
            )
        })
    }
}

/// `type = "visits"`: what a server said when `timevisor cluster bootstrap --save` asked it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VisitsConfig {
    pub file: PathBuf,
    /// How often the file is looked at.
    #[serde(with = "humantime_serde")]
    pub poll: StdDuration,
}

impl Default for VisitsConfig {
    fn default() -> Self {
        Self { file: "/var/lib/timevisor/visits.json".into(), poll: StdDuration::from_secs(10) }
    }
}

/// Rejects polls at which reading a local clock costs more than it gains.
pub fn check_poll(poll: StdDuration, kind: &str) -> Result<()> {
    let sane = StdDuration::from_millis(10)..=StdDuration::from_secs(3600);
    ensure!(sane.contains(&poll), "the poll of a {kind} reference must be from 10ms to 1h");
    Ok(())
}

/// Accepts only paths that can be located from a log line.
pub fn check_path(path: &std::path::Path, kind: &str) -> Result<()> {
    ensure!(
        path.is_absolute(),
        "{} of a {kind} reference must be an absolute path",
        path.display()
    );
    Ok(())
}

impl PtpConfig {
    pub fn validate(&self) -> Result<()> {
        check_poll(self.poll, "ptp")?;
        check_path(&self.socket, "ptp")?;
        if !self.is_realtime() {
            check_path(&self.device, "ptp")?;
        }
        ensure!(self.transport_specific < 16, "transport_specific must be from 0 to 15");
        ensure!(self.drift_ppm <= 500, "drift_ppm must be 500 or less");
        ensure!(self.max_age >= self.poll, "max_age of a ptp reference must not be below its poll");
        Ok(())
    }
}
