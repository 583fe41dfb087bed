//! [`timevisor_read_notice`], [`timevisor_read_vm_generation`]: what the host says of disruptions
//! of a VM.

use core::ffi::c_int;

use timevisor::Notice;

use crate::client::timevisor_client;
use crate::error::{Failure, guard};
use crate::memory::{Number, handle};
use crate::types::timevisor_notice;

/// What the host announces: a timevisor_notice. Cheap; ask as often as you like.
///
/// Returns that number; -ENXIO: the page cannot be read; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_read_notice(client: Option<&timevisor_client>) -> c_int {
    guard(|| {
        let notice = match handle(client, "client")?.client().notice()? {
            Notice::None => timevisor_notice::None,
            Notice::Soon => timevisor_notice::Soon,
            Notice::Imminent => timevisor_notice::Imminent,
        };
        Ok(notice as c_int)
    })
}

/// The VM generation counter: another number tells that this VM was loaded from a saved state (a
/// snapshot, a clone), so that what must be unique has to be made anew. A live migration keeps it.
/// NULL is allowed.
///
/// Returns 0; -ENODATA: nobody counts here, or timevisord has not noticed yet that the VM was
/// loaded; -ENXIO: the page cannot be read; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_read_vm_generation(
    client: Option<&timevisor_client>,
    generation: Number<'_, u64>,
) -> c_int {
    guard(|| {
        let found = handle(client, "client")?.client().vm_generation()?;
        let found = found.ok_or_else(|| {
            let text = "the page has no VM generation counter; QEMU's vmclock device has one, if timevisord serves it";
            Failure::new(libc::ENODATA, text.to_owned())
        })?;
        generation.write(found);
        Ok(0)
    })
}
