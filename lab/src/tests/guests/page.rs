//! A page file for tests that run without the daemon.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::qemu::NVDIMM_FILE_SIZE;

/// The minimum that the driver accepts (include/uapi/linux/vmclock-abi.h): the header with the
/// status "initializing".
///
/// `generation` is the VM generation counter, which tells pages apart. Returns `path`.
pub(crate) fn write_minimal(path: &Path, generation: u64) -> anyhow::Result<PathBuf> {
    let mut header = [0_u8; 0x70];
    header[0x00..0x04].copy_from_slice(b"VCLK");
    header[0x04..0x08].copy_from_slice(&4096_u32.to_le_bytes());
    header[0x08..0x0a].copy_from_slice(&1_u16.to_le_bytes());
    header[0x0a] = 1; // counter: x86 TSC
    header[0x0b] = 1; // timescale: TAI
    header[0x18] = 1; // flags: TAI offset valid, without which Linux before 7.0 makes no PTP clock
    header[0x22] = 1; // status: initializing
    header[0x24] = 37; // TAI - UTC in seconds
    header[0x68..0x70].copy_from_slice(&generation.to_le_bytes());
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    file.set_len(NVDIMM_FILE_SIZE)?;
    file.write_all_at(&header, 0)?;
    Ok(path.to_owned())
}
