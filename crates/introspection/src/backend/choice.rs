//! Which backend traps the calls of a VM: the one that its user requests, or one that is known to
//! work.

use std::path::PathBuf;

use timevisor_protocols::control::IntrospectBackend;

use super::kvm::trap::Trap;

/// How the calls of a VM are trapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// QEMU emulates the guest and has our plugin, which listens on this socket.
    Plugin(PathBuf),
    /// The guest runs under KVM.
    Kvm {
        /// The instruction that replaces a NOP.
        trap: Trap,
        /// Whether a user requested it; otherwise the configuration did.
        asked: bool,
    },
    /// QEMU's gdb stub, which listens on this socket.
    Gdb(PathBuf),
}

/// What QEMU's command line offers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Offers {
    /// The guest runs under KVM; otherwise QEMU emulates it.
    pub kvm: bool,
    /// The socket of our plugin.
    pub plugin: Option<PathBuf>,
    /// The socket of the gdb stub.
    pub gdb: Option<PathBuf>,
}

/// Why no backend can trap this VM's calls.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{problem}; {next_step}")]
pub struct NoBackend {
    /// The problem.
    pub problem: String,
    /// What its user can do.
    pub next_step: &'static str,
}

impl NoBackend {
    fn new(problem: impl Into<String>, next_step: &'static str) -> Self {
        Self { problem: problem.into(), next_step }
    }
}

impl Choice {
    /// Chooses a backend. `asked` is what the user requests; `configured` is the trap that the
    /// configuration names for guests under KVM.
    ///
    /// # Errors
    /// When the VM does not offer the requested backend, or nothing was requested and no backend is
    /// known to work.
    pub fn new(
        offers: Offers,
        asked: Option<IntrospectBackend>,
        configured: Option<Trap>,
    ) -> Result<Self, NoBackend> {
        use IntrospectBackend::{Gdb, Kvm, Port, Tcg};
        match (offers.kvm, asked) {
            (_, Some(Gdb)) => {
                let socket = offers.gdb.filter(|path| path.is_absolute());
                socket.map(Self::Gdb).ok_or_else(|| {
                    NoBackend::new(
                        "its QEMU has no gdb stub at a Unix socket",
                        "start it with `-gdb unix:PATH,server=on,wait=off`, an absolute path",
                    )
                })
            }
            (true, _) => under_kvm(asked, configured),
            (false, Some(Kvm | Port)) => Err(NoBackend::new(
                "QEMU emulates it: there is no KVM to watch",
                "leave `--backend` out, or use `--backend tcg`",
            )),
            (false, None | Some(Tcg)) => {
                let socket = offers.plugin.ok_or_else(|| {
                    NoBackend::new(
                        "its QEMU was started without our plugin",
                        "start it with `-plugin libtimevisor-introspect.so,socket=PATH`: docs/how-to/introspect.md",
                    )
                })?;
                // A relative path is relative to QEMU's working directory, which differs from ours.
                if !socket.is_absolute() {
                    let problem = format!("where {} is, is not known", socket.display());
                    let next_step = "give the plugin's socket as an absolute path";
                    return Err(NoBackend::new(problem, next_step));
                }
                Ok(Self::Plugin(socket))
            }
        }
    }

    /// Its name for users, and why it was chosen.
    #[must_use]
    pub const fn name(&self) -> (&'static str, &'static str) {
        match self {
            Self::Plugin(_) => ("tcg", "QEMU emulates this guest, and has our plugin"),
            Self::Kvm { trap, asked } => {
                let name = match trap {
                    Trap::Prefix => "kvm",
                    Trap::Port => "port",
                };
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

    /// Its name in a request.
    #[must_use]
    pub const fn backend(&self) -> IntrospectBackend {
        match self {
            Self::Plugin(_) => IntrospectBackend::Tcg,
            Self::Gdb(_) => IntrospectBackend::Gdb,
            Self::Kvm { trap: Trap::Prefix, .. } => IntrospectBackend::Kvm,
            Self::Kvm { trap: Trap::Port, .. } => IntrospectBackend::Port,
        }
    }

    /// Why the VM must not migrate while it is trapped; `None` if it may.
    #[must_use]
    pub const fn holds(&self) -> Option<&'static str> {
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

fn under_kvm(
    asked: Option<IntrospectBackend>,
    configured: Option<Trap>,
) -> Result<Choice, NoBackend> {
    use IntrospectBackend::{Gdb, Kvm, Port, Tcg};
    match (asked, configured) {
        (Some(Kvm), _) => Ok(Choice::Kvm { trap: Trap::Prefix, asked: true }),
        (Some(Port), _) => Ok(Choice::Kvm { trap: Trap::Port, asked: true }),
        (None, Some(trap)) => Ok(Choice::Kvm { trap, asked: false }),
        (None, None) | (Some(Tcg | Gdb), _) => Err(NoBackend::new(
            "it runs under KVM",
            "`--backend port` does it, or `--backend kvm`, which costs the guest less, and lets every guest of this host reach KVM's instruction \
             emulator; both are experimental: docs/how-to/introspect-kvm.md",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use IntrospectBackend::{Gdb, Kvm, Port, Tcg};

    fn refused(offers: Offers, asked: Option<IntrospectBackend>) -> String {
        Choice::new(offers, asked, None).unwrap_err().to_string()
    }

    #[test]
    fn under_kvm_nothing_is_done_that_nobody_asked_for() {
        let told = |asked, configured| {
            let choice = Choice::new(Offers { kvm: true, ..Offers::default() }, asked, configured);
            choice.ok().map(|choice| (choice.backend(), choice.name().1))
        };
        assert!(told(None, None).is_none());
        assert!(told(Some(Tcg), Some(Trap::Port)).is_none());
        let (port, why) = told(None, Some(Trap::Port)).unwrap();
        assert!(port == Port && why.contains("introspection.kvm"));
        let (kvm, why) = told(Some(Kvm), Some(Trap::Port)).unwrap();
        assert!(kvm == Kvm && why.contains("asked for"));
        assert_eq!(told(Some(Port), None).unwrap().0, Port);
        assert_eq!(told(None, Some(Trap::Prefix)).unwrap().0, Kvm);
    }

    #[test]
    fn an_emulated_guest_needs_the_plugin_at_an_absolute_path() {
        let with = |plugin: &str| Offers { plugin: Some(plugin.into()), ..Offers::default() };
        for asked in [None, Some(Tcg)] {
            let chosen = Choice::new(with("/run/p"), asked, Some(Trap::Port));
            assert_eq!(chosen, Ok(Choice::Plugin("/run/p".into())));
        }
        assert!(refused(with("p"), None).contains("absolute path"));
        assert!(refused(Offers::default(), None).contains("without our plugin"));
        assert!(refused(with("/run/p"), Some(Kvm)).contains("no KVM to watch"));
    }

    #[test]
    fn gdb_is_only_for_those_who_ask() {
        for kvm in [false, true] {
            let with = |path: &str| Offers { kvm, gdb: Some(path.into()), plugin: None };
            let chosen = Choice::new(with("/run/g"), Some(Gdb), None);
            assert_eq!(chosen, Ok(Choice::Gdb("/run/g".into())));
            assert!(refused(with("g"), Some(Gdb)).contains("gdb stub"));
            assert!(Choice::new(with("/run/g"), None, None).is_err());
        }
    }

    #[test]
    fn only_changed_code_keeps_a_vm_on_its_host() {
        assert_eq!(Choice::Plugin("/p".into()).holds(), None);
        assert_eq!(Choice::Gdb("/g".into()).holds(), None);
        for trap in [Trap::Prefix, Trap::Port] {
            assert!(
                Choice::Kvm { trap, asked: true }.holds().is_some_and(|w| w.contains("detach"))
            );
        }
    }
}
