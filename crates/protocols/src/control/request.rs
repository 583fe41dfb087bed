//! The requests of the command line to the daemon.
//!
//! Unknown fields are refused, so that a misspelt option is not silently ignored.
//!
//! What it does not do: check that a VM exists or that a socket can be opened. The daemon reports
//! that.

use serde::{Deserialize, Serialize};

use super::birth::ElapsedSince;
use super::introspect::{IntrospectAttach, IntrospectTrace, IntrospectVm};
use super::reserve::{ReserveApply, ReserveCores, ReserveMissed, ReserveMove, ReserveRelease};
use super::sources::{ClientsQuery, SourceAdd, SourceNames};
use super::words::{Notice, TimeType};

/// The longest VM name in bytes; names become file names.
pub const MAX_NAME_LEN: usize = 64;

/// One request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The daemon's state: answered by [`super::Status`].
    Status,
    /// The host's time: answered by [`super::Now`].
    Now,
    /// The references in detail: answered by [`super::Sources`].
    Sources,
    /// What references answered lately: answered by [`super::Exchanges`].
    Exchanges,
    /// The clock behind them: answered by [`super::Tracking`].
    Tracking,
    /// The NTP server's clients: answered by [`super::Clients`].
    Clients(ClientsQuery),
    /// The clusters of this host: answered by [`super::Clusters`].
    Clusters,
    /// Add a reference: answered by [`super::Changed`], like the five that follow.
    SourceAdd(SourceAdd),
    /// Remove references, with what they said.
    SourceRemove(SourceNames),
    /// Ask references now, NTP servers several times.
    SourceBurst(SourceNames),
    /// Ask references no more until they are online again. What they said stays true.
    SourceOffline(SourceNames),
    /// Ask references again.
    SourceOnline(SourceNames),
    /// Read the configuration again.
    Reload,
    /// All timelines: answered by [`super::Timelines`].
    Timelines,
    /// All VMs: answered by [`super::VmList`].
    VmList,
    /// Serve a VM: answered by its [`super::VmRow`].
    VmAdd(VmAdd),
    /// Stop serving a VM: answered by [`super::VmRemoved`].
    VmRemove(VmRemove),
    /// Make the files that a new VM's command line needs: answered by [`super::VmPrepared`].
    VmPrepare(VmPrepare),
    /// Send a VM to another host, or cancel that: answered by its [`super::VmRow`] once QEMU has
    /// the command.
    VmMigrate(VmMigrate),
    /// Tell a VM's guest of a coming disruption, or take that back: answered by its
    /// [`super::VmRow`].
    VmNotice(VmNotice),
    /// Reserve processor time for a vCPU: answered by [`super::Reservations`], like the two that
    /// follow.
    ReserveApply(ReserveApply),
    /// Move a reservation to another core: answered by [`super::Reservations`], too.
    ReserveMove(ReserveMove),
    /// Give a reservation back.
    ReserveRelease(ReserveRelease),
    /// List the reservations.
    ReserveList,
    /// Ask why a job was late: answered by [`super::MissedJob`].
    ReserveMissed(ReserveMissed),
    /// Ask which cores could serve a vCPU: answered by [`super::HostCores`].
    ReserveCores(ReserveCores),
    /// Observe a VM's real-time tasks: answered by [`super::Introspections`], like the two that
    /// follow.
    IntrospectAttach(IntrospectAttach),
    /// Stop observing.
    IntrospectDetach(IntrospectVm),
    /// List the observed VMs.
    IntrospectList,
    /// Ask for a VM's events: answered by [`super::IntrospectEvents`].
    IntrospectTrace(IntrospectTrace),
    /// Ask where plugins are: answered by [`super::IntrospectPlugins`].
    IntrospectPlugins,
}

/// A request that only reads, and that takes no arguments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Question {
    /// [`Request::Status`].
    Status,
    /// [`Request::Sources`].
    Sources,
    /// [`Request::Tracking`].
    Tracking,
    /// [`Request::Clusters`].
    Clusters,
    /// [`Request::Timelines`].
    Timelines,
    /// [`Request::VmList`].
    VmList,
    /// [`Request::ReserveList`].
    ReserveList,
    /// [`Request::IntrospectList`].
    IntrospectList,
    /// [`Request::Exchanges`].
    Exchanges,
}

impl Question {
    /// All of them, in the order of the enum: the position of each is `question as usize`.
    pub const ALL: [Self; 9] = [
        Self::Status,
        Self::Sources,
        Self::Tracking,
        Self::Clusters,
        Self::Timelines,
        Self::VmList,
        Self::ReserveList,
        Self::IntrospectList,
        Self::Exchanges,
    ];

    /// Those that timevisor-observe asks all the time, in the same order: all that tell of a state.
    pub const OBSERVED: [Self; 8] = {
        let [a, b, c, d, e, f, g, h, Self::Exchanges] = Self::ALL else { panic!() };
        [a, b, c, d, e, f, g, h]
    };

    /// The request that asks it.
    #[must_use]
    pub const fn request(self) -> Request {
        match self {
            Self::Status => Request::Status,
            Self::Sources => Request::Sources,
            Self::Tracking => Request::Tracking,
            Self::Clusters => Request::Clusters,
            Self::Timelines => Request::Timelines,
            Self::VmList => Request::VmList,
            Self::ReserveList => Request::ReserveList,
            Self::IntrospectList => Request::IntrospectList,
            Self::Exchanges => Request::Exchanges,
        }
    }

    /// Its name in messages and metrics, such as `vm_list`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Sources => "sources",
            Self::Tracking => "tracking",
            Self::Clusters => "clusters",
            Self::Timelines => "timelines",
            Self::VmList => "vm_list",
            Self::ReserveList => "reserve_list",
            Self::IntrospectList => "introspect_list",
            Self::Exchanges => "exchanges",
        }
    }
}

/// Names a running QEMU process by its QMP socket, its process id, or both.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmAdd {
    /// Path of a QMP Unix socket for our use alone (QEMU serves one client per socket).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qmp: Option<String>,
    /// Process id of QEMU; absent: found through `qmp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The VM's name; absent: QEMU's `-name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The page's timescale; absent: the configured default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_type: Option<TimeType>,
    /// Start the vCPUs (`cont`) once the page is filled.
    #[serde(default)]
    pub resume: bool,
    /// Wait for the VM's migration at this address, in QEMU's notation (`tcp:0:4444`, `unix:PATH`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incoming: Option<String>,
    /// The VM's birth instant as its last host printed it, if its page does not migrate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_since: Option<ElapsedSince>,
}

/// Names a VM and its destination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmMigrate {
    /// As `vm list` shows it.
    pub name: String,
    /// The destination's address, in QEMU's notation; absent: cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// How long the guest is told before the migration begins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drain_seconds: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// Names a VM, and what its guest is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmNotice {
    /// As `vm list` shows it.
    pub name: String,
    /// The notice.
    pub notice: Notice,
}

/// Names a VM that is being served.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmRemove {
    /// As `vm list` shows it.
    pub name: String,
}

/// Binds a VM's name to its owner, and asks for a page file and an SSDT, for delivery through a
/// read-only nvdimm.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmPrepare {
    /// The name under which the VM will be added.
    pub name: String,
    /// The page's timescale.
    pub time_type: TimeType,
    /// The user id to whom the VM belongs; root without it.
    #[serde(default)]
    pub user: u32,
    /// Where this user runs the VM.
    #[serde(default)]
    pub user_namespace: UserNamespace,
    /// Whether files are needed: QEMU's vmclock device has none.
    #[serde(default = "yes")]
    pub files: bool,
    /// Where the table says that the page is, guest-physical; absent: at 4 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
}

const fn yes() -> bool {
    true
}

/// A user namespace, as seen by the daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserNamespace {
    /// The daemon's own.
    #[default]
    Own,
    /// Any other one: a container of some kind.
    Other,
}

/// A name that no VM can have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// The name is empty or longer than [`MAX_NAME_LEN`].
    #[error("a VM name of {len} bytes; use 1 to {MAX_NAME_LEN}")]
    Length {
        /// Its length.
        len: usize,
    },
    /// The name would be hidden, or look like an option.
    #[error("VM name {name:?} starts with {first:?}; start it with a letter, a digit or '_'")]
    Start {
        /// The name.
        name: String,
        /// Its first character.
        first: char,
    },
    /// A character is outside `A-Z a-z 0-9 . _ -`.
    #[error("VM name {name:?} contains {character:?}; use letters, digits, '.', '_' and '-' only")]
    Character {
        /// The name.
        name: String,
        /// The first refused character.
        character: char,
    },
}

/// Checks that `name` is safe as a file name and as a command-line argument.
///
/// # Errors
/// The first broken rule.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() || name.len() > MAX_NAME_LEN {
        return Err(NameError::Length { len: name.len() });
    }
    let allowed = |c: &char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(c);
    if let Some(character) = name.chars().find(|c| !allowed(c)) {
        return Err(NameError::Character { name: name.to_owned(), character });
    }
    match name.chars().next() {
        Some(first @ ('.' | '-')) => Err(NameError::Start { name: name.to_owned(), first }),
        _ => Ok(()),
    }
}

/// An id for a VM of this name: the name itself where [`check_name`] takes it, else what is left of
/// it with a mark that two different names do not share.
#[must_use]
pub fn id_of(name: &str) -> String {
    if check_name(name).is_ok() {
        return name.to_owned();
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || ['.', '_'].contains(&c);
    let words = name.split(|c| !allowed(c)).filter(|word| !word.is_empty());
    let readable = words.collect::<Vec<_>>().join("-");
    let readable = readable.trim_start_matches(['.', '-']);
    // FNV-1a (draft-eastlake-fnv-17), folded to 32 bits.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mark = (hash ^ hash >> 32) & 0xffff_ffff;
    let readable = readable.get(..readable.len().min(MAX_NAME_LEN - 9)).unwrap_or_default();
    let readable = if readable.is_empty() { "vm" } else { readable };
    format!("{readable}-{mark:08x}")
}

impl Request {
    /// Returns the question that a member of the group `timevisor` may ask, too; `None` for
    /// requests that are root's: those that change something, and those that tell of others than
    /// this host and its VMs (an NTP server's clients, events in guests).
    #[must_use]
    pub const fn question(&self) -> Option<Question> {
        Some(match self {
            Self::Status => Question::Status,
            Self::Sources => Question::Sources,
            Self::Tracking => Question::Tracking,
            Self::Clusters => Question::Clusters,
            Self::Timelines => Question::Timelines,
            Self::VmList => Question::VmList,
            Self::ReserveList => Question::ReserveList,
            Self::IntrospectList => Question::IntrospectList,
            Self::Exchanges => Question::Exchanges,
            _ => return None,
        })
    }

    /// Checks what the types cannot: every VM name in the request.
    ///
    /// # Errors
    /// What [`check_name`] finds.
    pub fn check(&self) -> Result<(), NameError> {
        match self {
            Self::VmAdd(VmAdd { name: Some(name), .. })
            | Self::VmRemove(VmRemove { name })
            | Self::VmMigrate(VmMigrate { name, .. })
            | Self::VmNotice(VmNotice { name, .. })
            | Self::VmPrepare(VmPrepare { name, .. })
            | Self::ReserveApply(ReserveApply { vm: name, .. })
            | Self::ReserveMissed(ReserveMissed { vm: name, .. })
            | Self::ReserveMove(ReserveMove { vm: name, .. })
            | Self::IntrospectAttach(IntrospectAttach { vm: name, .. })
            | Self::IntrospectDetach(IntrospectVm { vm: name })
            | Self::IntrospectTrace(IntrospectTrace { vm: name, .. })
            | Self::ReserveCores(ReserveCores { vm: Some(name), .. })
            | Self::ReserveRelease(ReserveRelease { vm: Some(name), .. }) => check_name(name),
            Self::Status
            | Self::Now
            | Self::Sources
            | Self::Exchanges
            | Self::Tracking
            | Self::Clients(_)
            | Self::Clusters
            | Self::SourceAdd(_)
            | Self::SourceRemove(_)
            | Self::SourceBurst(_)
            | Self::SourceOffline(_)
            | Self::SourceOnline(_)
            | Self::Reload
            | Self::Timelines
            | Self::VmList
            | Self::ReserveList
            | Self::IntrospectList
            | Self::IntrospectPlugins
            | Self::VmAdd(VmAdd { name: None, .. })
            | Self::ReserveCores(ReserveCores { vm: None, .. })
            | Self::ReserveRelease(ReserveRelease { vm: None, .. }) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_name_has_an_id() {
        assert_eq!(id_of("web-1"), "web-1");
        let windows = id_of("Windows 10");
        assert!(windows.starts_with("Windows-10-") && windows != id_of("Windows  10"), "{windows}");
        assert!(id_of("..").starts_with("vm-") && id_of("").starts_with("vm-"));
        let long = "é".repeat(300) + &"x".repeat(300);
        for name in ["Windows 10", "../../etc", "-rf", "日本", "a/b", "", "\n", &long] {
            assert_eq!(check_name(&id_of(name)), Ok(()), "{name}");
        }
    }

    #[test]
    fn names_that_could_escape_a_directory_are_refused() {
        for bad in [
            "",
            "..",
            ".",
            ".hidden",
            "-rf",
            "a/b",
            "../x",
            "a b",
            "a\0",
            "a\n",
            "é",
            &"x".repeat(65),
        ] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["vm1", "db-01.example_x", "9", &"x".repeat(64)] {
            assert_eq!(check_name(good), Ok(()));
        }
    }

    #[test]
    fn a_question_is_the_request_of_its_name() {
        for (place, question) in Question::ALL.into_iter().enumerate() {
            assert_eq!(question as usize, place);
            assert_eq!(question.request().question(), Some(question));
            let sent = serde_json::to_string(&question.request()).unwrap();
            assert_eq!(sent, format!("\"{}\"", question.name()));
        }
        let others = [
            Request::Reload,
            Request::Now,
            Request::IntrospectPlugins,
            Request::Clients(ClientsQuery::default()),
            Request::VmAdd(VmAdd::default()),
            Request::ReserveRelease(ReserveRelease::default()),
            Request::IntrospectTrace(IntrospectTrace { vm: "a".to_owned(), from: None }),
        ];
        assert!(others.iter().all(|request| request.question().is_none()));
    }

    #[test]
    fn every_request_with_a_name_is_checked() {
        let name = || "../../etc".to_owned();
        let requests = [
            Request::VmAdd(VmAdd { name: Some(name()), ..VmAdd::default() }),
            Request::VmRemove(VmRemove { name: name() }),
            Request::VmNotice(VmNotice { name: name(), notice: Notice::Soon }),
            Request::VmPrepare(VmPrepare {
                name: name(),
                time_type: TimeType::Tai,
                user: 0,
                user_namespace: UserNamespace::Own,
                files: true,
                address: None,
            }),
        ];
        for request in requests {
            assert_eq!(request.check(), Err(NameError::Character { name: name(), character: '/' }));
        }
        assert_eq!(Request::VmAdd(VmAdd::default()).check(), Ok(()));
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_one_path_component(name in "\\PC{0,70}") {
            if check_name(&name).is_ok() {
                let path = std::path::Path::new("/base").join(&name);
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("/base")));
                prop_assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(name.as_str()));
            }
        }
    }
}
