//! A VM to introspect: the location of its memory, and the backend that traps its calls.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result, ensure};
use timevisor_guests::qemu::{Accelerator, Qemu};
use timevisor_introspection::backend::choice::{Choice, NoBackend, Offers};
use timevisor_introspection::backend::kvm::trap::Trap;
use timevisor_introspection::memory::ram::{InProcess, Machine, Ram, RamLayout, bases};
use timevisor_linux::process::{Process, ProcessMemory};
use timevisor_protocols::control::IntrospectBackend;

use super::in_place::Prefixes;
use super::known::Known;
use super::stamps::Stamps;
use crate::config::KvmChoice;

/// What all sessions of an introspector share.
#[derive(Clone)]
pub struct Common {
    pub prefixes: Arc<Prefixes>,
    /// Kernels found by earlier attachments.
    pub known: Arc<Known>,
    /// The broken plugins, as the log has them.
    pub broken: Arc<Mutex<String>>,
    /// When events happened.
    pub stamps: Arc<OnceLock<Option<Stamps>>>,
}

/// A VM to introspect, before any of its memory is read.
pub struct Target {
    pub process: Process,
    pub choice: Choice,
    /// The ELF file that the user names: the program that runs in the guest, with symbols.
    pub image: Option<PathBuf>,
    /// The directory with files that describe guest systems.
    pub plugins: PathBuf,
    /// Trap every system call as well.
    pub every_system_call: bool,
    pub layout: RamLayout,
    pub bytes: u64,
}

impl Target {
    /// From QEMU's command line; `asked` is the backend that the user requests, `automatic` how guests
    /// under KVM are trapped without one.
    pub fn new(
        qemu: &Qemu,
        asked: Option<IntrospectBackend>,
        automatic: KvmChoice,
    ) -> Result<Self, NoBackend> {
        let line = &qemu.command_line;
        let offers = Offers {
            kvm: qemu.accelerator == Accelerator::Kvm,
            plugin: line.introspection_socket(),
            gdb: line.gdb.clone(),
        };
        let configured = match automatic {
            KvmChoice::Off => None,
            KvmChoice::Prefix => Some(Trap::Prefix),
            KvmChoice::Port => Some(Trap::Port),
        };
        let choice = Choice::new(offers, asked, configured)?;
        let bytes = line.memory_bytes();
        let machine = line.machine_type.as_deref().unwrap_or("pc");
        let layout = Machine::parse(machine)
            .and_then(|machine| RamLayout::new(machine, bytes, line.ram_below_4g))
            .map_err(|error| {
                let next_step = "see docs/how-to/introspect.md";
                NoBackend { problem: error.to_string(), next_step }
            })?;
        let process = qemu.process;
        let (image, plugins) = (None, PathBuf::new());
        Ok(Self { process, choice, image, plugins, every_system_call: false, layout, bytes })
    }

    /// The mappings of QEMU whose size equals the guest's memory, each with its address.
    pub fn memories(&self) -> Result<Vec<(Ram<InProcess>, u64)>> {
        let bases = bases(&self.process.maps()?, self.bytes);
        ensure!(!bases.is_empty(), "QEMU has no memory of the guest's size, {} bytes", self.bytes);
        let open = |base| {
            let memory = ProcessMemory::open(self.process).context("QEMU's memory")?;
            Ok((Ram::new(self.layout.clone(), InProcess { memory, base }), base))
        };
        bases.into_iter().map(open).collect()
    }
}
