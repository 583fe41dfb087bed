//! A virtual machine as an object: its process, the page it reads, and how its counter relates to
//! the host's.
//!
//! | module | owns |
//! | --- | --- |
//! | [`qemu`] | finding QEMU processes and their accelerator |
//! | [`owner`] | who may be served as which VM |
//! | [`command_line`] | what a QEMU was started with |
//! | [`counter_mapping`] | guest counter = ratio * host counter + offset, for KVM and TCG |
//! | [`examine`] | the same facts by way of a helper process: what others control may hang or lie |
//! | [`delivery`] | the page that a guest reads: the vmclock device, an nvdimm or an ivshmem device |
//! | [`entries`] | timelines as entries of a page |
//! | [`guest_clock`] | the host's lines as functions of a guest's counter |
//! | [`host`] | what the host gives each VM's page |
//! | [`vm`] | one VM that is served: what happens to its page when something happens to the VM |
//! | [`transit`] | a VM on its way between hosts: what each side does with its page |
//! | [`vcpus`] | which thread of a QEMU runs which vCPU |
//! | [`acpi`] | the SSDT that shows an nvdimm's page to a stock guest kernel |
//! | [`arguments`] | what to add to a QEMU command line or libvirt domain |
//!
//! What it does not do: know the time, speak QMP (timevisor-protocols), or start virtual machines.
#![forbid(unsafe_code)]

pub mod acpi;
pub mod arguments;
pub mod command_line;
pub mod counter_mapping;
pub mod delivery;
#[cfg(test)]
mod driver_tests;
pub mod entries;
pub mod examine;
pub mod guest_clock;
pub mod host;
pub mod owner;
pub mod qemu;
pub mod transit;
pub mod vcpus;
pub mod vm;
#[cfg(test)]
mod vm_tests;

pub use vm::Vm;
