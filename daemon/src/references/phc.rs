//! A PTP hardware clock that another program or device synchronizes: a card with its own GNSS
//! receiver, a hypervisor's clock, or a clock that ptp4l steers (for which the `ptp` reference
//! knows the error better).
//!
//! The error is the configured accuracy plus the granularity of the device's nanoseconds. The
//! duration of the reading is part of the exchange itself.
//!
//! A device that fails is opened again at each poll, and used again when it is back. A path that
//! then leads to another clock is refused: the stated accuracy is the former one's.

use std::io;
use std::path::{Path, PathBuf};

use timevisor_estimate::Exchange;
use timevisor_linux::phc::{Identity, Method, Phc, Sample};
use timevisor_time::{Duration, Instant, Tai};

use super::Surroundings;
use super::jump::Watch;
use super::sampled::Source;
use super::tally::Refused;
use crate::config::{PhcConfig, Scale, span};

/// The device's time has a resolution of one nanosecond.
const GRANULARITY: Duration = Duration::from_nanos(1);

/// An open device, and how it is read.
pub struct Reader {
    path: PathBuf,
    open: Option<(Phc, Method)>,
    /// The clock that was read first. The configuration means this one.
    known: Option<Identity>,
    /// The method that was logged. A device that fails at every reading is opened every time.
    told: Option<Method>,
}

impl Reader {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, known: None, told: None }
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
            .map_err(|error| problem(&self.path, "read", &error))?;
        self.open = Some((phc, method));
        Ok(sample)
    }

    fn open(&mut self, around: &Surroundings<'_>) -> Result<(Phc, Method), Refused> {
        let path = &self.path;
        let phc = Phc::open(path).map_err(|error| problem(path, "opened", &error))?;
        if phc.capabilities().is_err_and(|error| error.raw_os_error() == Some(ENOTTY)) {
            let text = format!(
                "{} is no PTP clock; check `ls /sys/class/ptp` and the key device",
                path.display()
            );
            return Err(Refused::new("not-a-clock", text));
        }
        let found = phc.identity();
        same_clock(path, self.known.as_ref(), found.as_ref())?;
        let method = phc
            .probe(around.counter, around.calibration)
            .map_err(|error| problem(path, "read", &error))?;
        if self.told.replace(method) != Some(method) {
            let name = found.as_ref().map_or_else(String::new, |clock| format!(" ({clock})"));
            tracing::info!("{}{name}: read with {}", path.display(), method.name());
        }
        self.known = self.known.take().or(found);
        Ok((phc, method))
    }
}

const ENOTTY: i32 = 25;

/// Refuses a path that leads to another clock than before.
fn same_clock(
    path: &Path,
    known: Option<&Identity>,
    found: Option<&Identity>,
) -> Result<(), Refused> {
    match (known, found) {
        (Some(known), Some(found)) if known != found => {
            let text = format!(
                "{} is another clock now: {found}, it was {known}. Name the device by a link that udev keeps for its \
                 clock (SYMLINK), or, if the new clock is meant, restart timevisord",
                path.display()
            );
            Err(Refused::new("other-clock", text))
        }
        _ => Ok(()),
    }
}

/// What an error of a device means, and the next step.
fn problem(path: &Path, what: &str, error: &io::Error) -> Refused {
    let path = path.display();
    match error.raw_os_error() {
        // ENOENT, ENXIO, ENODEV
        Some(2 | 6 | 19) => Refused::new(
            "no-device",
            format!(
                "{path} does not exist ({error}); check `ls /sys/class/ptp` and the driver; it is used again when it is back"
            ),
        ),
        // EPERM, EACCES
        Some(1 | 13) => Refused::new(
            "permission",
            format!("{path} cannot be {what} ({error}); run as root or add a udev rule"),
        ),
        // EIO
        Some(5) => Refused::new(
            "device-error",
            format!(
                "{path} cannot be {what} ({error}): the driver does not reach the hardware; see dmesg. It is tried \
                 again at every poll"
            ),
        ),
        // EAGAIN, EBUSY, ETIME, ETIMEDOUT
        Some(11 | 16 | 62 | 110) => Refused::new(
            "device-busy",
            format!(
                "{path} did not answer in time ({error}); it is asked again at the next poll. If this lasts, check \
                 what else uses the card"
            ),
        ),
        // EINVAL
        Some(22) => Refused::new(
            "device-refuses",
            format!(
                "{path} gives no time ({error}); a hypervisor's clock says so when it is not reliable"
            ),
        ),
        // EOPNOTSUPP
        Some(95) => Refused::new(
            "unsupported",
            format!(
                "{path} no longer supports the call ({error}); another one is tried at the next poll"
            ),
        ),
        _ => Refused::new(
            "device",
            format!("{path} cannot be {what} ({error}); see dmesg and `phc_ctl {path} get`"),
        ),
    }
}

pub struct PhcSource {
    reader: Reader,
    scale: Scale,
    accuracy: Duration,
    watch: Watch,
}

impl PhcSource {
    pub fn new(config: &PhcConfig) -> Self {
        Self {
            reader: Reader::new(config.device.clone()),
            scale: config.timescale,
            accuracy: span(config.accuracy),
            watch: Watch::default(),
        }
    }
}

impl Source for PhcSource {
    fn kind(&self) -> &'static str {
        "phc"
    }

    fn detail(&self) -> String {
        let method = self.reader.method().map_or("not open", Method::name);
        let jumps = self.watch.remark().map_or_else(String::new, |said| format!("; {said}"));
        format!("{method}, assumed right to {}{jumps}", self.accuracy)
    }

    fn sample(&mut self, around: &Surroundings<'_>) -> Result<Exchange, Refused> {
        let (reader, scale) = (&mut self.reader, self.scale);
        let error = self.accuracy + GRANULARITY;
        let jumps = self.watch.jumps();
        let exchange = self.watch.read(around.calibration.0, || {
            let sample = reader.read(around)?;
            let time = to_tai(sample.time.relabel::<Tai>(), scale, around)?;
            Ok(Exchange::of_reading(sample.before, time, sample.after, error))
        })?;
        // A device that jumps at every poll must not fill the log: the 1st, 2nd, 4th, 8th are said.
        if self.watch.jumps() > jumps && self.watch.jumps().is_power_of_two() {
            tracing::warn!(
                "{} {}: its stated accuracy did not hold; find out who sets it (phc2sys, phc_ctl, ts2phc), or which \
                 source it lost",
                self.reader.path.display(),
                self.watch.remark().unwrap_or_default()
            );
        }
        Ok(exchange)
    }

    fn restart(&mut self) {
        self.watch.restart();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_word_and_a_next_step() {
        let cases = [
            (2, "no-device", "ls /sys/class/ptp"),
            (19, "no-device", "used again when it is back"),
            (13, "permission", "udev rule"),
            (5, "device-error", "dmesg"),
            (62, "device-busy", "next poll"),
            (22, "device-refuses", "hypervisor"),
            (95, "unsupported", "next poll"),
            (27, "device", "phc_ctl"),
        ];
        for (errno, word, step) in cases {
            let told =
                problem(Path::new("/dev/ptp7"), "read", &io::Error::from_raw_os_error(errno));
            assert_eq!(told.word, word);
            assert!(told.text.contains("/dev/ptp7") && told.text.contains(step), "{}", told.text);
        }
    }

    #[test]
    fn a_path_that_leads_to_another_clock_is_refused_by_both_names() {
        let clock = |name: &str, device: Option<&str>| Identity {
            name: name.to_owned(),
            device: device.map(PathBuf::from),
        };
        let path = Path::new("/dev/ptp0");
        let card = clock("ice-clk", Some("/sys/devices/pci0000:00/0000:3b:00.0"));
        let kvm = clock("KVM virtual PTP", None);
        assert_eq!(same_clock(path, None, Some(&card)), Ok(()));
        assert_eq!(same_clock(path, Some(&card), Some(&card)), Ok(()));
        // Without sysfs nothing is known, and nothing is held against the device.
        assert_eq!(same_clock(path, Some(&card), None), Ok(()));
        let told = same_clock(path, Some(&card), Some(&kvm)).unwrap_err();
        assert_eq!(told.word, "other-clock");
        for part in ["KVM virtual PTP", "ice-clk on 0000:3b:00.0", "udev", "restart timevisord"] {
            assert!(told.text.contains(part), "{}", told.text);
        }
    }
}
