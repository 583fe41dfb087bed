//! A PTP hardware clock that another program or device synchronizes: a card with its own GNSS
//! receiver, a hypervisor's clock, or a clock that ptp4l steers (for which the `ptp` reference
//! knows the error better).
//!
//! The error is the configured accuracy plus the granularity of the device's nanoseconds. The
//! duration of the reading is part of the exchange itself.

use std::io;
use std::path::PathBuf;

use timevisor_estimate::Exchange;
use timevisor_linux::phc::{Method, Phc, Sample};
use timevisor_time::{Duration, Instant, Tai};

use super::Surroundings;
use super::sampled::Source;
use super::tally::Refused;
use crate::config::{PhcConfig, Scale, span};

/// The device's time has a resolution of one nanosecond.
const GRANULARITY: Duration = Duration::from_nanos(1);

/// An open device, and how it is read.
pub struct Reader {
    path: PathBuf,
    open: Option<(Phc, Method)>,
    /// The method that was logged. A device that fails at every reading is opened every time.
    told: Option<Method>,
}

impl Reader {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, told: None }
    }

    /// The method of reading.
    pub fn method(&self) -> Option<Method> {
        self.open.as_ref().map(|(_, method)| *method)
    }

    /// Takes one reading. After a failure, the next call reopens the device, because it may have
    /// been unplugged.
    pub fn read(&mut self, around: &Surroundings<'_>) -> Result<Sample, Refused> {
        let (phc, method) = match self.open.take() {
            Some(open) => open,
            None => self.open(around)?,
        };
        let sample = phc
            .sample(method, around.counter, around.calibration)
            .map_err(|error| self.refused("read", &error))?;
        self.open = Some((phc, method));
        Ok(sample)
    }

    fn open(&mut self, around: &Surroundings<'_>) -> Result<(Phc, Method), Refused> {
        let phc = Phc::open(&self.path).map_err(|error| self.refused("opened", &error))?;
        let method = phc
            .probe(around.counter, around.calibration)
            .map_err(|error| self.refused("read", &error))?;
        if self.told.replace(method) != Some(method) {
            tracing::info!("{}: read with {}", self.path.display(), method.name());
        }
        Ok((phc, method))
    }

    fn refused(&self, what: &str, error: &io::Error) -> Refused {
        let path = self.path.display();
        match error.raw_os_error() {
            Some(2 | 6 | 19) => Refused::new(
                "no-device",
                format!(
                    "{path} does not exist ({error}); check `ls /sys/class/ptp` and the driver"
                ),
            ),
            Some(13) => Refused::new(
                "permission",
                format!("{path} cannot be {what} ({error}); run as root or add a udev rule"),
            ),
            Some(22) => Refused::new(
                "device-refuses",
                format!(
                    "{path} gives no time ({error}); a hypervisor's clock says so when it is not reliable"
                ),
            ),
            _ => Refused::new("device", format!("{path} cannot be {what}: {error}")),
        }
    }
}

pub struct PhcSource {
    reader: Reader,
    scale: Scale,
    accuracy: Duration,
}

impl PhcSource {
    pub fn new(config: &PhcConfig) -> Self {
        Self {
            reader: Reader::new(config.device.clone()),
            scale: config.timescale,
            accuracy: span(config.accuracy),
        }
    }
}

impl Source for PhcSource {
    fn kind(&self) -> &'static str {
        "phc"
    }

    fn detail(&self) -> String {
        let method = self.reader.method().map_or("not open", Method::name);
        format!("{method}, assumed right to {}", self.accuracy)
    }

    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let sample = self.reader.read(around)?;
        let time = to_tai(sample.time.relabel::<Tai>(), self.scale, around)?;
        let error = self.accuracy + GRANULARITY;
        Ok(Exchange { ta: sample.before, tb: time, te: time, tf: sample.after, error })
    }
}

/// Converts a count on `scale` to TAI.
pub fn to_tai(
    count: Instant<Tai>,
    scale: Scale,
    around: &Surroundings<'_>,
) -> Result<Instant<Tai>, Refused> {
    match scale {
        Scale::Tai => Ok(count),
        Scale::Utc => {
            around.leap.to_tai(count.relabel()).map_err(|e| Refused::new("leap-table", e))
        }
    }
}
