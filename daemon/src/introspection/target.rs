//! Where a VM's memory is, and how its calls can be trapped.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use timevisor_guests::qemu::{Accelerator, Qemu};
use timevisor_introspection::backend::kvm::trap::Trap;
use timevisor_introspection::memory::ram::{InProcess, Machine, Ram, RamLayout, bases};
use timevisor_linux::process::{Process, ProcessMemory};
use timevisor_protocols::control::IntrospectBackend;

use super::in_place::Prefixes;
use super::known::Known;
use crate::config::KvmChoice;

/// How calls are trapped.
#[derive(Clone)]
pub enum Way {
    /// QEMU emulates the guest, and has our plugin: its socket.
    Plugin(PathBuf),
    /// The guest runs under KVM.
    Kvm {
        trap: Trap,
        /// By whoever attached, and not by the configuration.
        asked: bool,
    },
    /// QEMU's gdb stub: its socket.
    Gdb(PathBuf),
}

/// What all attachments of this daemon have in common.
#[derive(Clone)]
pub struct Common {
    pub prefixes: Arc<Prefixes>,
    /// What was found in VMs before.
    pub known: Arc<Known>,
    /// How guests under KVM are trapped where nobody says how.
    pub automatic: KvmChoice,
}

impl Way {
    /// As users name it, and why this one.
    pub fn name(&self) -> (&'static str, &'static str) {
        match self {
            Self::Plugin(_) => ("tcg", "QEMU emulates this guest, and has our plugin"),
            Self::Kvm { trap, asked } => {
                let name = if *trap == Trap::Prefix { "kvm" } else { "port" };
                let why = if *asked {
                    "it was asked for, and the guest runs under KVM"
                } else {
                    "the guest runs under KVM, and this is configured for such guests (introspection.kvm)"
                };
                (name, why)
            }
            Self::Gdb(_) => {
                ("gdb", "it was asked for, for debugging: the VM stands still at every event")
            }
        }
    }

    /// As it can be asked for.
    pub fn backend(&self) -> IntrospectBackend {
        match self {
            Self::Plugin(_) => IntrospectBackend::Tcg,
            Self::Gdb(_) => IntrospectBackend::Gdb,
            Self::Kvm { trap: Trap::Prefix, .. } => IntrospectBackend::Kvm,
            Self::Kvm { trap: Trap::Port, .. } => IntrospectBackend::Port,
        }
    }

    /// Why the VM must not leave this host, if so.
    pub fn holds(&self) -> Option<&'static str> {
        match self {
            Self::Plugin(_) | Self::Gdb(_) => None,
            Self::Kvm { trap: Trap::Prefix, .. } => Some(
                "KVM's prefix is in its code, which no other host knows; `timevisor introspect detach` first",
            ),
            Self::Kvm { trap: Trap::Port, .. } => Some(
                "trap points are in its code, and no other host takes them away; `timevisor introspect detach` first",
            ),
        }
    }
}

/// What is known before anything is read.
pub struct Target {
    pub process: Process,
    pub way: Way,
    /// The file that its operator gave: its kernel with symbols.
    pub image: Option<PathBuf>,
    /// Every system call is to be trapped, too.
    pub every_system_call: bool,
    pub layout: RamLayout,
    pub bytes: u64,
    pub common: Common,
}

/// What is wrong, and the next step.
pub type Refusal = (String, &'static str);

impl Target {
    /// From QEMU's command line; `backend` is what was asked for.
    pub fn of(
        qemu: &Qemu,
        backend: Option<IntrospectBackend>,
        common: &Common,
    ) -> Result<Self, Refusal> {
        use IntrospectBackend::{Gdb, Kvm, Port, Tcg};
        let line = &qemu.command_line;
        let way = match (qemu.accelerator, backend) {
            (_, Some(Gdb)) => {
                let socket = line.gdb.as_ref().filter(|path| path.is_absolute()).ok_or((
                    "its QEMU has no gdb stub at a Unix socket".to_owned(),
                    "start it with `-gdb unix:PATH,server=on,wait=off`, an absolute path",
                ))?;
                Way::Gdb(socket.clone())
            }
            (Accelerator::Kvm, _) => under_kvm(backend, common.automatic)?,
            (Accelerator::Tcg, Some(Kvm | Port)) => {
                let text = "QEMU emulates it: there is no KVM to watch".to_owned();
                return Err((text, "leave `--backend` out, or use `--backend tcg`"));
            }
            (Accelerator::Tcg, None | Some(Tcg)) => {
                let socket = line.introspection_socket().ok_or((
                    "its QEMU was started without our plugin".to_owned(),
                    "start it with `-plugin libtimevisor-introspect.so,socket=PATH`: docs/how-to/introspect.md",
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
            .map_err(|error| (error.to_string(), "see docs/how-to/introspect.md"))?;
        let (process, common) = (qemu.process, common.clone());
        Ok(Self { process, way, image: None, every_system_call: false, layout, bytes, common })
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

/// How a guest under KVM is trapped: as somebody asked, or as it is configured.
fn under_kvm(backend: Option<IntrospectBackend>, automatic: KvmChoice) -> Result<Way, Refusal> {
    use IntrospectBackend::{Gdb, Kvm, Port, Tcg};
    match (backend, automatic) {
        (Some(Kvm), _) => Ok(Way::Kvm { trap: Trap::Prefix, asked: true }),
        (Some(Port), _) => Ok(Way::Kvm { trap: Trap::Port, asked: true }),
        (None, KvmChoice::Prefix) => Ok(Way::Kvm { trap: Trap::Prefix, asked: false }),
        (None, KvmChoice::Port) => Ok(Way::Kvm { trap: Trap::Port, asked: false }),
        (None, KvmChoice::Off) | (Some(Tcg | Gdb), _) => Err((
            "it runs under KVM".to_owned(),
            "`--backend port` does it, or `--backend kvm`, which costs the guest less, and lets every guest of this host reach KVM's instruction \
             emulator; both are experimental: docs/how-to/introspect-kvm.md",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_kvm_nothing_is_done_that_nobody_asked_for() {
        use IntrospectBackend::{Kvm, Port, Tcg};
        let told = |backend, automatic| {
            under_kvm(backend, automatic).ok().map(|way| (way.backend(), way.name().1))
        };
        assert!(told(None, KvmChoice::Off).is_none());
        assert!(told(Some(Tcg), KvmChoice::Port).is_none());
        let (port, why) = told(None, KvmChoice::Port).unwrap();
        assert!(port == Port && why.contains("introspection.kvm"));
        let (kvm, why) = told(Some(Kvm), KvmChoice::Port).unwrap();
        assert!(kvm == Kvm && why.contains("asked for"));
        assert_eq!(told(Some(Port), KvmChoice::Off).unwrap().0, Port);
        assert_eq!(told(None, KvmChoice::Prefix).unwrap().0, Kvm);
    }
}
