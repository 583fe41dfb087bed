//! How a guest's counter follows from the host's: `guest = ratio * host + offset`.
//!
//! | module | owns |
//! | --- | --- |
//! | `mapping.rs` | [`CounterMapping`], and [`MappingSource`] for both accelerators |
//! | [`kvm`] | [`KvmMapping`]: the TSC offset and ratio of every vCPU, from debugfs |
//! | [`tcg`] | [`TcgMapping`]: QEMU's offset, from its memory |
//!
//! A mapping is exact until a stop, cont, migration, restore or host suspend changes it. Read it
//! again after every QMP event, where possible before the vCPUs run. What it does not do: watch for
//! those events.

pub mod kvm;
mod mapping;
pub mod tcg;

pub use kvm::KvmMapping;
pub use mapping::{CounterMapping, MappingError, MappingSource};
pub use tcg::TcgMapping;

use timevisor_linux::process::Process;

use crate::qemu::Accelerator;

/// The source for the accelerator of this QEMU's process. `icount`: it runs with `-icount`.
///
/// # Errors
/// As the source's own constructor.
pub fn source(
    process: Process,
    accelerator: Accelerator,
    icount: bool,
) -> Result<Box<dyn MappingSource + Send>, MappingError> {
    Ok(match accelerator {
        Accelerator::Kvm => Box::new(KvmMapping::new(kvm::DEBUGFS, process.pid())?),
        Accelerator::Tcg if icount => return Err(MappingError::Icount),
        Accelerator::Tcg => Box::new(TcgMapping::attach(process)?),
    })
}
