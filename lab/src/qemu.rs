//! The QEMU binaries that the lab can use, and the ways in which a page reaches a guest.
//!
//! Nothing is started here; see [`crate::builder`].

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command;

/// The guest physical address at which the nvdimm delivery places its page: QEMU's region for memory
/// devices starts at 4 GiB if the guest has less than 2.75 GiB, and 16 GiB of it are for DIMMs.
pub const NVDIMM_ADDRESS: u64 = 0x5_0000_0000;

/// Size of the file behind an nvdimm page; QEMU requires a multiple of 2 MiB.
pub const NVDIMM_FILE_SIZE: u64 = 2 << 20;

/// A QEMU that runs x86-64 guests.
#[derive(Debug, Clone)]
pub struct Qemu {
    pub(crate) binary: PathBuf,
    pub(crate) firmware: Vec<PathBuf>,
    pub(crate) modules: Option<PathBuf>,
    /// Major and minor version.
    pub version: (u32, u32),
}

impl Qemu {
    /// The system's own QEMU.
    ///
    /// # Errors
    /// When none is installed.
    pub fn system() -> anyhow::Result<Self> {
        Self::probe("qemu-system-x86_64".into(), Vec::new(), None)
            .context("install the package qemu-system-x86 and run again")
    }

    /// A QEMU unpacked from Debian's packages below `root`.
    ///
    /// # Errors
    /// When it does not run; it needs the shared libraries that the system's own QEMU package
    /// installs.
    pub fn unpacked(root: &Path) -> anyhow::Result<Self> {
        let share = root.join("usr/share");
        let modules = root.join("usr/lib/x86_64-linux-gnu/qemu");
        let firmware = vec![share.join("qemu"), share.join("seabios")];
        Self::probe(root.join("usr/bin/qemu-system-x86_64"), firmware, Some(modules)).context(
            "the unpacked QEMU does not run; its libraries come with the package qemu-system-x86",
        )
    }

    fn probe(
        binary: PathBuf,
        firmware: Vec<PathBuf>,
        modules: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        let text = command::output(Command::new(&binary).arg("--version"))?;
        let version = parse_version(&text).with_context(|| format!("odd QEMU version: {text}"))?;
        Ok(Self { binary, firmware, modules, version })
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// How the page reaches the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Not at all.
    None,
    /// QEMU's own vmclock device (10.0 or newer); the page is a memfd of the QEMU process.
    VmclockDevice,
    /// A read-only nvdimm at a fixed address, described by an ACPI table.
    Nvdimm {
        /// The page file, [`NVDIMM_FILE_SIZE`] long.
        page: PathBuf,
        /// The compiled table.
        ssdt: PathBuf,
        /// Guest physical address, also in the table; see [`NVDIMM_ADDRESS`].
        address: u64,
    },
}

impl Delivery {
    /// What the delivery adds to QEMU's -machine option.
    pub(crate) fn machine(&self) -> &'static str {
        match self {
            Self::None => "",
            Self::VmclockDevice => ",aux-ram-share=on",
            Self::Nvdimm { .. } => ",nvdimm=on",
        }
    }

    /// What the delivery adds to QEMU's -m option, for a guest with `mib` MiB.
    pub(crate) fn memory(&self, mib: u32) -> String {
        match self {
            Self::None | Self::VmclockDevice => String::new(),
            Self::Nvdimm { .. } => format!(",slots=9,maxmem={}M", mib + 17 * 1024),
        }
    }

    /// The delivery's own options and their values.
    pub(crate) fn options(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::None => Vec::new(),
            Self::VmclockDevice => vec![("-device", "vmclock".into())],
            Self::Nvdimm { page, ssdt, address } => {
                let backend = format!(
                    "memory-backend-file,id=vmclock,share=on,readonly=on,size={NVDIMM_FILE_SIZE},mem-path={}",
                    page.display()
                );
                let device = format!("nvdimm,memdev=vmclock,unarmed=on,addr={address:#x}");
                let table = format!("file={}", ssdt.display());
                vec![("-object", backend), ("-device", device), ("-acpitable", table)]
            }
        }
    }
}
