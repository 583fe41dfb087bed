//! Who may be served as which VM: a VM belongs to somebody.
//!
//! A name is bound to an [`Owner`] by root: by the configuration, or by preparing the VM
//! (`timevisor vm args`). A process is served under a bound name only if the kernel says that it
//! belongs to that owner. Names that are bound to nobody are for whom [`Discover`] says.
//!
//! Pure. The facts about a process ([`Claimant`]) come from the kernel; its name is its own claim,
//! and decides nothing by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
pub use timevisor_protocols::control::UserNamespace;

/// To whom a VM belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// The user id, as the daemon's user namespace knows it.
    pub uid: u32,
    /// Where this user runs the VM.
    #[serde(default)]
    pub namespace: UserNamespace,
}

impl Owner {
    /// The host's root.
    pub const ROOT: Self = Self::user(0);

    /// A user of this host.
    #[must_use]
    pub const fn user(uid: u32) -> Self {
        Self { uid, namespace: UserNamespace::Own }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace {
            UserNamespace::Own => write!(f, "user {}", self.uid),
            UserNamespace::Other => write!(f, "user {} in another user namespace", self.uid),
        }
    }
}

/// What the kernel says about a process that wants to be a VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claimant {
    /// Its user, if its real, effective, saved and file system user are the same.
    pub uid: Option<u32>,
    /// Where it runs.
    pub namespace: UserNamespace,
    /// Its program got more rights at its start than its starter had (set-user-id): what it was
    /// told, and the files it was given, are from somebody else.
    pub gained_rights: bool,
}

impl Claimant {
    /// To whom the process belongs.
    fn owner(&self) -> Result<Owner, Reason> {
        if self.gained_rights {
            return Err(Reason::GainedRights);
        }
        let uid = self.uid.ok_or(Reason::SeveralUsers)?;
        Ok(Owner { uid, namespace: self.namespace })
    }
}

/// `[guests] discover`: whose QEMU processes are served under names that are bound to nobody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Discover {
    /// Nothing is looked for: VMs are added by hand.
    Nothing,
    /// Nobody's: only VMs that root prepared or configured.
    #[default]
    Prepared,
    /// Root's.
    Root,
    /// These users'.
    Users(BTreeSet<u32>),
    /// Everybody's.
    All,
}

impl Discover {
    /// Whether this owner's processes are served under names that are bound to nobody.
    fn includes(&self, owner: Owner) -> bool {
        match self {
            Self::Nothing | Self::Prepared => false,
            Self::Root => owner == Owner::ROOT,
            Self::Users(users) => {
                owner.namespace == UserNamespace::Own && users.contains(&owner.uid)
            }
            Self::All => true,
        }
    }
}

impl Discover {
    /// What is trusted, in one sentence for the administrator.
    #[must_use]
    pub fn trusts(&self) -> String {
        match self {
            Self::Nothing => {
                "no VM is looked for (discover = false); `timevisor vm add` serves one".to_owned()
            }
            Self::Prepared => "VMs are served whose name was prepared (`timevisor vm args`) or configured, \
                               if they run as the user to whom that name belongs (discover = \"prepared\")"
                .to_owned(),
            Self::Root => "besides prepared VMs, root's are served (discover = \"root\"): every process with \
                           user id 0 is trusted to say which VM it is, in containers without a user \
                           namespace, too"
                .to_owned(),
            Self::Users(users) => {
                let users: Vec<String> = users.iter().map(u32::to_string).collect();
                format!(
                    "besides prepared VMs, those of users {} are served (discover = [...]): their processes \
                     are trusted to say which VM they are, for all names that belong to nobody",
                    users.join(", ")
                )
            }
            Self::All => "besides prepared VMs, everybody's are served (discover = \"all\"): any user of this \
                          host can claim any name that belongs to nobody, and is believed"
                .to_owned(),
        }
    }
}

/// How a name got its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `[guests.vm.NAME] user`.
    Configured,
    /// `timevisor vm args`.
    Prepared,
    /// `[[guests.vm.NAME.reserve]]` without a user: what root reserves is for root's VM.
    Reserved,
}

/// Why a process is not served under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// The name belongs to somebody else.
    #[error("the name belongs to {owner}, the process to {claimant}")]
    NotTheOwner {
        /// To whom the name belongs.
        owner: Owner,
        /// By what.
        source_of_owner: Source,
        /// To whom the process belongs.
        claimant: Owner,
    },
    /// Nobody has prepared the name, and this owner's VMs are not discovered.
    #[error("nobody has prepared this name for {0}")]
    NotPrepared(Owner),
    /// No name is bound to this owner, and this owner's VMs are not discovered.
    #[error("no VM was prepared for {0}")]
    Stranger(Owner),
    /// Its user ids differ.
    #[error("it runs with several user ids")]
    SeveralUsers,
    /// Its program is set-user-id or has file capabilities.
    #[error("its program got more rights than its starter has (set-user-id or file capabilities)")]
    GainedRights,
}

impl Reason {
    /// What root can do if the process is to be served under this name.
    #[must_use]
    pub fn next_step(&self, name: &str) -> String {
        let prepare = |owner: &Owner| match owner.namespace {
            UserNamespace::Own => format!("timevisor vm args --name {name} --user {}", owner.uid),
            UserNamespace::Other => {
                format!(
                    "timevisor vm args --name {name} --user {} --user-namespace other",
                    owner.uid
                )
            }
        };
        match self {
            Self::NotTheOwner { source_of_owner: Source::Configured, claimant, .. } => {
                format!("if it is to be served, change [guests.vm.{name}] user to {}", claimant.uid)
            }
            Self::NotTheOwner { claimant: owner, .. } => {
                format!("if it is to be served: `{}`", prepare(owner))
            }
            Self::NotPrepared(owner) | Self::Stranger(owner) => {
                format!("if it is to be served: `{}`, or see [guests] discover", prepare(owner))
            }
            Self::SeveralUsers | Self::GainedRights => {
                "start QEMU as the user to whom the VM belongs, without set-user-id".to_owned()
            }
        }
    }
}

/// Who owns which name, and who may be served without owning one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// `[guests] discover`.
    pub discover: Discover,
    /// `[guests.vm.NAME] user`.
    pub configured: BTreeMap<String, Owner>,
    /// Names that were prepared, and for whom.
    pub prepared: BTreeMap<String, Owner>,
    /// Names with a configured reservation.
    pub reserved: BTreeSet<String>,
}

impl Rules {
    /// The owner of a name. The configuration takes precedence over what was prepared.
    #[must_use]
    pub fn owner_of(&self, name: &str) -> Option<(Owner, Source)> {
        let configured = self.configured.get(name).map(|owner| (*owner, Source::Configured));
        let prepared = || self.prepared.get(name).map(|owner| (*owner, Source::Prepared));
        let reserved = || self.reserved.contains(name).then_some((Owner::ROOT, Source::Reserved));
        configured.or_else(prepared).or_else(reserved)
    }

    /// Whether processes with this user id can be served at all. Nothing else of a process for which
    /// it is false need be looked at.
    #[must_use]
    pub fn may_own(&self, uid: u32) -> bool {
        let bound = self.configured.values().chain(self.prepared.values());
        let any = Owner { uid, namespace: UserNamespace::Other };
        self.discover.includes(Owner::user(uid))
            || self.discover.includes(any)
            || bound.into_iter().any(|owner| owner.uid == uid)
            || (uid == 0 && !self.reserved.is_empty())
    }

    /// Judges a process that discovery has found and that claims `name`.
    ///
    /// # Errors
    /// Why it must not be served.
    pub fn discovered(&self, claimant: &Claimant, name: &str) -> Result<Owner, Reason> {
        let owner = self.added(claimant, name)?;
        if self.owner_of(name).is_none() && !self.discover.includes(owner) {
            return Err(if self.may_own(owner.uid) {
                Reason::NotPrepared(owner)
            } else {
                Reason::Stranger(owner)
            });
        }
        Ok(owner)
    }

    /// Judges a process that root adds as `name`: a name that is bound to nobody is then its
    /// owner's.
    ///
    /// # Errors
    /// As [`Self::discovered`].
    pub fn added(&self, claimant: &Claimant, name: &str) -> Result<Owner, Reason> {
        let claimant = claimant.owner()?;
        match self.owner_of(name) {
            Some((owner, source_of_owner)) if owner != claimant => {
                Err(Reason::NotTheOwner { owner, source_of_owner, claimant })
            }
            _ => Ok(claimant),
        }
    }
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
