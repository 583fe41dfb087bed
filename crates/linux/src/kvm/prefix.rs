//! KVM's forced emulation prefix: a module parameter that makes KVM emulate the instruction behind
//! `ud2; .ascii "kvm"` (Documentation/admin-guide/kernel-parameters.txt,
//! `kvm.force_emulation_prefix`).
//!
//! It applies to the whole host, and programs in guests can use it too: while it is on, they reach
//! KVM's instruction emulator.

use std::fs;
use std::io;
use std::path::Path;

pub(super) const PARAMETER: &str = "/sys/module/kvm/parameters/force_emulation_prefix";

/// Why the switch cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// There is no KVM, or the kernel is older than 5.1.
    #[error(
        "this host's KVM has no force_emulation_prefix ({PARAMETER}); load the module kvm, of Linux 5.1 or newer"
    )]
    Absent,
    /// The parameter is read-only, as in some distributions' kernels.
    #[error(
        "{PARAMETER} cannot be changed while KVM runs here; set it for the next start: \
         `echo options kvm force_emulation_prefix=1 >/etc/modprobe.d/timevisor.conf`"
    )]
    Fixed,
    /// Who needs it cannot be noted.
    #[error("cannot note who needs KVM's force_emulation_prefix")]
    Note(#[source] io::Error),
    /// Another failure.
    #[error("{PARAMETER}")]
    Io(#[source] io::Error),
}

/// Whether the switch is on.
///
/// # Errors
/// When there is no such switch.
pub fn forced_emulation() -> Result<bool, PrefixError> {
    read(Path::new(PARAMETER))
}

pub(super) fn read(path: &Path) -> Result<bool, PrefixError> {
    let text = fs::read_to_string(path).map_err(explain)?;
    // A bool until 6.1, then a bit mask in which 1 is the prefix.
    Ok(match text.trim() {
        "Y" => true,
        "N" => false,
        number => number.parse::<u32>().unwrap_or(0) & 1 != 0,
    })
}

pub(super) fn write(path: &Path, on: bool) -> Result<(), PrefixError> {
    // Check the mode: root could open the file, but the kernel would refuse the write.
    use std::os::unix::fs::PermissionsExt as _;
    if fs::metadata(path).map_err(explain)?.permissions().mode() & 0o222 == 0 {
        return Err(PrefixError::Fixed);
    }
    fs::write(path, if on { "1" } else { "0" }).map_err(explain)
}

fn explain(error: io::Error) -> PrefixError {
    match error.kind() {
        io::ErrorKind::NotFound => PrefixError::Absent,
        io::ErrorKind::PermissionDenied => PrefixError::Fixed,
        _ => PrefixError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn both_forms_of_the_parameter() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("parameter");
        assert!(matches!(read(&path), Err(PrefixError::Absent)));
        assert!(matches!(write(&path, true), Err(PrefixError::Absent)));
        for (text, on) in
            [("Y\n", true), ("N\n", false), ("1\n", true), ("0\n", false), ("3\n", true)]
        {
            fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap(), on, "{text}");
        }
        write(&path, true).unwrap();
        assert!(read(&path).unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(write(&path, false), Err(PrefixError::Fixed)));
    }
}
