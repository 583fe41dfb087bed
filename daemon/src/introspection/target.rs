//! Where a VM's memory is, and how its calls can be trapped.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use timevisor_guests::introspection::ram::{InProcess, Machine, Ram, RamLayout, bases};
use timevisor_guests::qemu::{Accelerator, Qemu};
use timevisor_linux::process::{Process, ProcessMemory};
use timevisor_protocols::control::IntrospectBackend;

use super::in_place::Prefixes;

/// How calls are trapped.
#[derive(Clone)]
pub enum Way {
    /// QEMU emulates the guest, and has our plugin: its socket.
    Plugin(PathBuf),
    /// The guest runs under KVM.
    Kvm(Arc<Prefixes>),
    /// QEMU's gdb stub: its socket.
    Gdb(PathBuf),
}

impl Way {
    /// As users name it, and why this one.
    pub fn name(&self) -> (&'static str, &'static str) {
        match self {
            Self::Plugin(_) => ("tcg", "QEMU emulates this guest, and has our plugin"),
            Self::Kvm(_) => ("kvm", "it was asked for, and the guest runs under KVM"),
            Self::Gdb(_) => {
                ("gdb", "it was asked for, for debugging: the VM stands still at every event")
            }
        }
    }
}

/// What is known before anything is read.
pub struct Target {
    pub process: Process,
    pub way: Way,
    /// The file that its operator gave: its kernel with symbols.
    pub image: Option<PathBuf>,
    pub layout: RamLayout,
    pub bytes: u64,
}

/// What is wrong, and the next step.
pub type Refusal = (String, &'static str);

impl Target {
    /// From QEMU's command line; `backend` is what was asked for.
    pub fn of(
        qemu: &Qemu,
        backend: Option<IntrospectBackend>,
        prefixes: &Arc<Prefixes>,
    ) -> Result<Self, Refusal> {
        use IntrospectBackend::{Gdb, Kvm, Tcg};
        let line = &qemu.command_line;
        let way = match (qemu.accelerator, backend) {
            (_, Some(Gdb)) => {
                let socket = line.gdb.as_ref().filter(|path| path.is_absolute()).ok_or((
                    "its QEMU has no gdb stub at a Unix socket".to_owned(),
                    "start it with `-gdb unix:PATH,server=on,wait=off`, an absolute path",
                ))?;
                Way::Gdb(socket.clone())
            }
            (Accelerator::Kvm, Some(Kvm)) => Way::Kvm(Arc::clone(prefixes)),
            (Accelerator::Kvm, _) => {
                return Err((
                    "it runs under KVM".to_owned(),
                    "`--backend kvm` does it, which is experimental, and lets every guest of this host reach KVM's instruction emulator: \
                     docs/introspection.md",
                ));
            }
            (Accelerator::Tcg, Some(Kvm)) => {
                let text = "QEMU emulates it: there is no KVM to watch".to_owned();
                return Err((text, "leave `--backend` out, or use `--backend tcg`"));
            }
            (Accelerator::Tcg, None | Some(Tcg)) => {
                let socket = line.introspection_socket().ok_or((
                    "its QEMU was started without our plugin".to_owned(),
                    "start it with `-plugin libtimevisor-introspect.so,socket=PATH`: docs/introspection.md",
                ))?;
                // Where QEMU's directory is not ours, neither is a path that begins there.
                if !socket.is_absolute() {
                    let text = format!("where {} is, is not known", socket.display());
                    return Err((text, "give the plugin's socket as an absolute path"));
                }
                Way::Plugin(socket)
            }
        };
        let bytes = line.memory_bytes();
        let machine = line.machine_type.as_deref().unwrap_or("pc");
        let layout = Machine::parse(machine)
            .and_then(|machine| RamLayout::new(machine, bytes, line.ram_below_4g))
            .map_err(|error| (error.to_string(), "see docs/introspection.md"))?;
        Ok(Self { process: qemu.process, way, image: None, layout, bytes })
    }

    /// Every part of QEMU's memory that may be the guest's: of its size; and where it begins.
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
