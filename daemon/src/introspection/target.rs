//! Where a VM's memory and its QEMU's plugin are.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use timevisor_guests::introspection::ram::{InProcess, Machine, Ram, RamLayout, bases};
use timevisor_guests::qemu::{Accelerator, Qemu};
use timevisor_linux::process::{Process, ProcessMemory};

/// What is known before anything is read.
pub struct Target {
    pub process: Process,
    pub socket: PathBuf,
    layout: RamLayout,
    bytes: u64,
}

impl Target {
    /// From QEMU's command line.
    pub fn of(qemu: &Qemu) -> Result<Self, (String, &'static str)> {
        if qemu.accelerator == Accelerator::Kvm {
            return Err((
                "it runs under KVM, for which there is no way to introspect yet".to_owned(),
                "guests that QEMU emulates can be introspected: docs/introspection.md",
            ));
        }
        let line = &qemu.command_line;
        let socket = line.introspection_socket().ok_or((
            "its QEMU was started without our plugin".to_owned(),
            "start it with `-plugin libtimevisor-introspect.so,socket=PATH`: docs/introspection.md",
        ))?;
        // Where QEMU's directory is not ours, neither is a path that begins there.
        let relative = "give the plugin's socket as an absolute path";
        if !socket.is_absolute() {
            return Err((format!("where {} is, is not known", socket.display()), relative));
        }
        let bytes = line.memory_bytes();
        let machine = line.machine_type.as_deref().unwrap_or("pc");
        let layout = Machine::parse(machine)
            .and_then(|machine| RamLayout::new(machine, bytes, line.ram_below_4g))
            .map_err(|error| (error.to_string(), "see docs/introspection.md"))?;
        Ok(Self { process: qemu.process, socket, layout, bytes })
    }

    /// Every part of QEMU's memory that may be the guest's: of its size.
    pub fn memories(&self) -> Result<Vec<Ram<InProcess>>> {
        let bases = bases(&self.process.maps()?, self.bytes);
        ensure!(!bases.is_empty(), "QEMU has no memory of the guest's size, {} bytes", self.bytes);
        let open = |base| {
            let memory = ProcessMemory::open(self.process).context("QEMU's memory")?;
            Ok(Ram::new(self.layout.clone(), InProcess { memory, base }))
        };
        bases.into_iter().map(open).collect()
    }
}
