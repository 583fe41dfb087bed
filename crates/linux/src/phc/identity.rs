//! Which clock a device file leads to.
//!
//! The kernel numbers PTP clocks in the order in which they appear, so after a hot-unplug or a
//! reboot /dev/ptp0 may be another card's. What stays is the driver's name for the clock and the
//! device that it sits on, in sysfs.
//!
//! What it does not do: tell two clocks of one device apart that have one name.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Phc;

/// A clock, whatever its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The driver's name for it (`clock_name`).
    pub name: String,
    /// The device that it sits on, such as a PCI function; `None` for a virtual clock.
    pub device: Option<PathBuf>,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let device = self.device.as_deref().and_then(Path::file_name);
        device.map_or(Ok(()), |device| write!(f, " on {}", device.to_string_lossy()))
    }
}

impl Phc {
    /// The clock behind the open device; `None` where sysfs does not say.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let device = self.file().metadata().ok()?.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        of_directory(Path::new(&format!("/sys/dev/char/{major}:{minor}")))
    }
}

/// From the clock's directory in sysfs.
fn of_directory(directory: &Path) -> Option<Identity> {
    let name = fs::read_to_string(directory.join("clock_name")).ok()?;
    let device = fs::canonicalize(directory.join("device")).ok();
    Some(Identity { name: name.trim().to_owned(), device })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_is_no_ptp_clock_has_no_identity() {
        assert_eq!(Phc(File::open("/dev/null").unwrap()).identity(), None);
    }

    #[test]
    fn a_clock_is_known_by_name_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let card = dir.join("0000:3b:00.0");
        fs::create_dir_all(&card).unwrap();
        let clock = dir.join("ptp0");
        fs::create_dir_all(&clock).unwrap();
        assert_eq!(of_directory(&clock), None);
        fs::write(clock.join("clock_name"), "ice-clk\n").unwrap();
        let virtual_one = of_directory(&clock).unwrap();
        assert_eq!((virtual_one.to_string().as_str(), &virtual_one.device), ("ice-clk", &None));
        std::os::unix::fs::symlink(&card, clock.join("device")).unwrap();
        let found = of_directory(&clock).unwrap();
        assert_eq!(found.to_string(), "ice-clk on 0000:3b:00.0");
        assert_ne!(found, virtual_one);
    }
}
