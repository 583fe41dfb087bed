//! Whose quota a binding uses, and which page its member reads. Both come from the socket, never
//! from the payload.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The owner of a session: the unit of quotas and of visibility.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tenant {
    /// A user of the host (`SO_PEERCRED`).
    User(u32),
    /// A whole VM, by its name. Its users are the guest's concern.
    Vm(Arc<str>),
}

/// Whose pages a session reads.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// The host's file, for programs on the host and in containers.
    Host,
    /// A VM's page.
    Vm(Arc<str>),
}

/// A string that does not name a tenant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is no tenant; write uid:1000 for a user of the host or vm:web for a VM")]
pub struct InvalidTenant(String);

impl Tenant {
    /// A VM by its name.
    #[must_use]
    pub fn vm(name: &str) -> Self {
        Self::Vm(name.into())
    }
}

impl Owner {
    /// A VM's page by its name.
    #[must_use]
    pub fn vm(name: &str) -> Self {
        Self::Vm(name.into())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid:{uid}"),
            Self::Vm(name) => write!(f, "vm:{name}"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Vm(name) => write!(f, "vm:{name}"),
        }
    }
}

impl FromStr for Tenant {
    type Err = InvalidTenant;

    fn from_str(text: &str) -> Result<Self, InvalidTenant> {
        let user = text.strip_prefix("uid:").and_then(|uid| uid.parse().ok()).map(Self::User);
        let vm = || text.strip_prefix("vm:").filter(|name| !name.is_empty()).map(Self::vm);
        user.or_else(vm).ok_or_else(|| InvalidTenant(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_back() {
        for text in ["uid:0", "uid:1000", "vm:web"] {
            assert_eq!(text.parse::<Tenant>().unwrap().to_string(), text);
        }
        for text in ["", "1000", "uid:", "uid:-1", "uid:4294967296", "vm:", "web"] {
            assert_eq!(text.parse::<Tenant>(), Err(InvalidTenant(text.to_owned())));
        }
        assert_eq!(Owner::Host.to_string(), "host");
        assert_eq!(Owner::vm("web").to_string(), "vm:web");
    }
}
