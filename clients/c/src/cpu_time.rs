//! [`timevisor_read_host_cpu_time`]: how much processor time a VM's vCPUs have had.

use core::ffi::c_int;

use timevisor::HostCpuTime;

use crate::client::timevisor_client;
use crate::error::{Failure, guard};
use crate::memory::{InOut, handle};
use crate::types::timevisor_host_cpu_time;

/// How much processor time the host has given vCPU `vcpu` of the VM that this program runs in,
/// since the vCPU began there. A guest's own clocks also count the time in which its vCPU waited.
/// The account is updated every 100 ms.
///
/// Returns 0; -ENODATA: not known, and on a host's own page; -ENXIO, -EIO: the page cannot be read;
/// -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_read_host_cpu_time(
    client: Option<&timevisor_client>,
    vcpu: usize,
    mut time: InOut<'_, timevisor_host_cpu_time>,
) -> c_int {
    guard(|| {
        let found = handle(client, "client")?.host_cpu_time(vcpu)?;
        let found = found.ok_or_else(|| {
            let text = format!(
                "the page says nothing of vCPU {vcpu}; inside a VM, does timevisord on the host serve it (`timevisor vm list`)?"
            );
            Failure::new(libc::ENODATA, text)
        })?;
        time.fill(|time| {
            time.set(&found);
            Ok(())
        })?;
        Ok(0)
    })
}

impl timevisor_host_cpu_time {
    pub(crate) fn set(&mut self, found: &HostCpuTime) {
        (self.least_ns, self.most_ns) = (found.least_ns, found.most_ns);
        self.disruption = found.disruption;
    }
}
