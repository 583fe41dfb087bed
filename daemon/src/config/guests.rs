//! `[guests]`: which VMs are served, and on which timescale.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration as StdDuration;

use anyhow::{Context, Result, ensure};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use timevisor_guests::owner::{Discover, Owner};
use timevisor_linux::users;
use timevisor_protocols::control::{TimeType, UserNamespace};

use super::reserve::{self, ReserveConfig};

/// `[guests]`.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuestsConfig {
    /// Whose QEMU processes are served without being prepared or added.
    #[serde(deserialize_with = "discover")]
    pub discover: Discover,
    /// How often to look for them.
    #[serde(with = "humantime_serde")]
    pub discover_interval: StdDuration,
    /// The timescale of VMs' pages: TAI for guest kernels >= 7.0, UTC for older ones.
    pub time_type: TimeType,
    /// `[guests.vm.NAME]`.
    pub vm: BTreeMap<String, VmConfig>,
}

/// `[guests.vm.NAME]`: settings for a single VM.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmConfig {
    pub time_type: Option<TimeType>,
    /// To whom the VM belongs. It takes precedence over what `timevisor vm args` said.
    pub user: Option<User>,
    /// Where this user runs the VM.
    pub user_namespace: UserNamespace,
    /// `[[guests.vm.NAME.reserve]]`.
    pub reserve: Vec<ReserveConfig>,
}

impl Default for GuestsConfig {
    fn default() -> Self {
        Self {
            discover: Discover::Prepared,
            discover_interval: StdDuration::from_millis(500),
            time_type: TimeType::Tai,
            vm: BTreeMap::new(),
        }
    }
}

/// A user of this host, by id or by name.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a user id or the name of a user")]
pub enum User {
    Id(u32),
    Name(String),
}

impl User {
    /// The user id; `None` if nobody has this name.
    fn uid(&self) -> Option<u32> {
        match self {
            Self::Id(id) => Some(*id),
            Self::Name(name) => users::uid_of(name),
        }
    }

    fn checked(&self) -> Result<u32> {
        self.uid().with_context(|| format!("there is no user {self} in /etc/passwd; give a number"))
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// `discover` as it is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected \"prepared\", \"root\", \"all\", false or a list of users")]
enum Written {
    Switch(bool),
    Word(Word),
    Users(Vec<User>),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Prepared,
    Root,
    All,
}

fn discover<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Discover, D::Error> {
    Ok(match Written::deserialize(deserializer)? {
        Written::Switch(false) => Discover::Nothing,
        // The default of earlier versions in their configuration file: it stays the default.
        Written::Switch(true) | Written::Word(Word::Prepared) => Discover::Prepared,
        Written::Word(Word::Root) => Discover::Root,
        Written::Word(Word::All) => Discover::All,
        Written::Users(users) => {
            let uids: anyhow::Result<BTreeSet<u32>> = users.iter().map(User::checked).collect();
            Discover::Users(uids.map_err(|e| D::Error::custom(format!("guests.discover: {e}")))?)
        }
    })
}

impl GuestsConfig {
    /// The owners of names, as far as they are configured.
    pub fn owners(&self) -> BTreeMap<String, Owner> {
        let owner = |vm: &VmConfig| {
            Some(Owner { uid: vm.user.as_ref()?.uid()?, namespace: vm.user_namespace })
        };
        self.vm.iter().filter_map(|(name, vm)| Some((name.clone(), owner(vm)?))).collect()
    }

    /// Validates every key.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.discover_interval >= StdDuration::from_millis(10),
            "guests.discover_interval must be 10ms or more"
        );
        for (name, vm) in &self.vm {
            timevisor_protocols::control::request::check_name(name)
                .with_context(|| format!("[guests.vm.{name}]"))?;
            if let Some(user) = &vm.user {
                user.checked().with_context(|| format!("[guests.vm.{name}] user"))?;
            }
            ensure!(
                vm.user.is_some() || vm.user_namespace == UserNamespace::Own,
                "[guests.vm.{name}] user_namespace needs a user, too"
            );
            reserve::validate(&vm.reserve)
                .with_context(|| format!("[[guests.vm.{name}.reserve]]"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<GuestsConfig, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn discover_is_a_word_a_list_or_off() {
        let discover = |text: &str| parsed(&format!("discover = {text}")).unwrap().discover;
        assert_eq!(parsed("").unwrap().discover, Discover::Prepared);
        assert_eq!(discover("\"prepared\""), Discover::Prepared);
        assert_eq!(discover("true"), Discover::Prepared, "as earlier versions were configured");
        assert_eq!(discover("false"), Discover::Nothing);
        assert_eq!(discover("\"root\""), Discover::Root);
        assert_eq!(discover("\"all\""), Discover::All);
        assert_eq!(discover("[4001, \"root\"]"), Discover::Users([0, 4001].into()));
        for bad in ["\"everybody\"", "1", "[-1]", "[[1]]"] {
            let error = parsed(&format!("discover = {bad}")).unwrap_err().to_string();
            assert!(error.contains("\"prepared\", \"root\", \"all\", false or a list"), "{error}");
        }
        let unknown = parsed("discover = [\"no such user\"]").unwrap_err().to_string();
        assert!(unknown.contains("no user no such user"), "{unknown}");
    }

    #[test]
    fn a_name_has_the_owner_that_is_configured() {
        let config = parsed(
            "[vm.web]\nuser = \"root\"\n[vm.db]\nuser = 4001\nuser_namespace = \"other\"\n[vm.x]\n",
        );
        let config = config.unwrap();
        config.validate().unwrap();
        let db = Owner { uid: 4001, namespace: UserNamespace::Other };
        let expected = [("db".to_owned(), db), ("web".to_owned(), Owner::ROOT)];
        assert_eq!(config.owners(), expected.into());
        let nobody = parsed("[vm.web]\nuser = \"no such user\"").unwrap().validate();
        assert!(format!("{:#}", nobody.unwrap_err()).contains("[guests.vm.web] user"));
        let nowhere = parsed("[vm.web]\nuser_namespace = \"other\"").unwrap().validate();
        assert!(nowhere.unwrap_err().to_string().contains("needs a user"));
    }
}
