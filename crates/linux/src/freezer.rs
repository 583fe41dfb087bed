//! Freezes and thaws control groups: all their processes stop and go on together.
//!
//! cgroup v2 has `cgroup.freeze` in each group (Linux 5.2). Where a group has none, the v1
//! hierarchy `freezer` is used. Limitation: in v1 a group exists only where somebody made it;
//! systemd makes none for its units there.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// How deep units are looked for: a user's service in a container lies seven groups deep.
const DEPTH: usize = 8;
/// How many groups are looked at.
const MOST_GROUPS: usize = 20_000;

/// Why a group cannot be frozen or thawed.
#[derive(Debug, thiserror::Error)]
pub enum FreezerError {
    /// No hierarchy with a freezer is mounted.
    #[error("no cgroup hierarchy that can freeze is mounted; mount cgroup2 at /sys/fs/cgroup")]
    NoHierarchy,
    /// There is no such group now.
    #[error("there is no cgroup or unit {0} now; is it running?")]
    NotFound(String),
    /// This process is in the group, and nobody would be left to thaw it.
    #[error(
        "{0} contains timevisor-guest itself, which then could not thaw it; hold another cgroup"
    )]
    Ourselves(String),
    /// The root, a relative path out of the hierarchy, or the like.
    #[error("{0:?} names no cgroup; give a path below /sys/fs/cgroup, or a unit's name")]
    Name(String),
    /// Another failure.
    #[error("{}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// The hierarchies of this machine that can freeze.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hierarchies {
    roots: Vec<Root>,
    /// This process's own group in each.
    own: Vec<PathBuf>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Root {
    path: PathBuf,
    unified: bool,
}

/// A group that exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    path: PathBuf,
    unified: bool,
}

impl Hierarchies {
    /// Finds where they are mounted.
    ///
    /// # Errors
    /// [`FreezerError::NoHierarchy`], or when /proc cannot be read.
    pub fn find() -> Result<Self, FreezerError> {
        let found = Self::of(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
        if found.roots.is_empty() { Err(FreezerError::NoHierarchy) } else { Ok(found) }
    }

    /// From the texts of /proc/self/mountinfo and /proc/self/cgroup.
    fn of(mountinfo: &str, cgroup: &str) -> Self {
        let roots: Vec<_> = mountinfo.lines().filter_map(root).collect();
        // v2 first: there units have groups.
        let (unified, old): (Vec<_>, Vec<_>) = roots.into_iter().partition(|root| root.unified);
        let roots: Vec<_> = unified.into_iter().chain(old).collect();
        let own = roots
            .iter()
            .filter_map(|root| {
                let group = cgroup.lines().find_map(|line| own_group(line, root.unified))?;
                Some(root.path.join(group.trim_start_matches('/')))
            })
            .collect();
        Self { roots, own }
    }

    /// The group with this name: a path in the hierarchy, with or without its mount point, or the
    /// name of a systemd unit, which may be anywhere. `.service` may be left out.
    ///
    /// # Errors
    /// [`FreezerError::NotFound`] while it does not exist, and for names that must not be frozen.
    pub fn group(&self, name: &str) -> Result<Group, FreezerError> {
        let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
        let path = Path::new(name);
        let has_name = path.components().any(|c| matches!(c, Component::Normal(_)));
        if !has_name || !path.components().all(plain) {
            return Err(FreezerError::Name(name.to_owned()));
        }
        let group = self.roots.iter().find_map(|root| {
            let path = if name.contains('/') {
                let inside = path.strip_prefix(&root.path).unwrap_or(path);
                let inside = inside.strip_prefix("/").unwrap_or(inside);
                let path = root.path.join(inside);
                (inside != Path::new("") && can_freeze(&path, root.unified)).then_some(path)
            } else {
                unit(root, name)
            };
            path.map(|path| Group { path, unified: root.unified })
        });
        let group = group.ok_or_else(|| FreezerError::NotFound(name.to_owned()))?;
        if self.own.iter().any(|own| own.starts_with(&group.path)) {
            return Err(FreezerError::Ourselves(group.path.display().to_string()));
        }
        Ok(group)
    }
}

impl Group {
    /// A group at a path that [`Self::path`] returned earlier; `None` if it is gone.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let found = |unified| can_freeze(path, unified);
        let unified = found(true);
        (unified || found(false)).then(|| Self { path: path.to_owned(), unified })
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it still exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        can_freeze(&self.path, self.unified)
    }

    /// Whether somebody has ordered it to freeze. The kernel stops its processes soon after, each
    /// at its next return to user space.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_frozen(&self) -> Result<bool, FreezerError> {
        let text = read(self.file())?;
        Ok(matches!(text.trim(), "1" | "FROZEN" | "FREEZING"))
    }

    /// Orders it to freeze.
    ///
    /// # Errors
    /// The kernel's.
    pub fn freeze(&self) -> Result<(), FreezerError> {
        self.write(if self.unified { "1" } else { "FROZEN" })
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn thaw(&self) -> Result<(), FreezerError> {
        self.write(if self.unified { "0" } else { "THAWED" })
    }

    fn file(&self) -> PathBuf {
        file(&self.path, self.unified)
    }

    fn write(&self, word: &str) -> Result<(), FreezerError> {
        let path = self.file();
        fs::write(&path, word).map_err(|source| FreezerError::Io { path, source })
    }
}

fn file(group: &Path, unified: bool) -> PathBuf {
    group.join(if unified { "cgroup.freeze" } else { "freezer.state" })
}

fn can_freeze(group: &Path, unified: bool) -> bool {
    file(group, unified).is_file()
}

fn read(path: impl AsRef<Path>) -> Result<String, FreezerError> {
    let path = path.as_ref();
    fs::read_to_string(path).map_err(|source| FreezerError::Io { path: path.to_owned(), source })
}

/// The hierarchy of a line of mountinfo (proc_pid_mountinfo(5)).
fn root(line: &str) -> Option<Root> {
    let (mount, kind) = line.split_once(" - ")?;
    let path = PathBuf::from(mount.split(' ').nth(4)?);
    let mut words = kind.split(' ');
    match words.next()? {
        "cgroup2" => Some(Root { path, unified: true }),
        "cgroup" if words.nth(1)?.split(',').any(|option| option == "freezer") => {
            Some(Root { path, unified: false })
        }
        _ => None,
    }
}

/// The group in a line of /proc/self/cgroup (cgroups(7)).
fn own_group(line: &str, unified: bool) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = if unified {
        number == "0" && controllers.is_empty()
    } else {
        controllers.split(',').any(|controller| controller == "freezer")
    };
    ours.then_some(group)
}

/// The group of a unit, the one nearest to the root.
fn unit(root: &Root, name: &str) -> Option<PathBuf> {
    let named = [name.to_owned(), format!("{name}.service")];
    let mut level = vec![root.path.clone()];
    let mut seen = 0;
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for directory in level {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                seen += 1;
                if seen > MOST_GROUPS {
                    return None;
                }
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                let is_named = named.iter().any(|name| entry.file_name() == name.as_str());
                if is_named && can_freeze(&entry.path(), root.unified) {
                    return Some(entry.path());
                }
                next.push(entry.path());
            }
        }
        level = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a hierarchy.
    fn hierarchy(groups: &[&str], unified: bool) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for group in groups {
            let path = folder.path().join(group);
            fs::create_dir_all(&path).unwrap();
            fs::write(file(&path, unified), if unified { "0\n" } else { "THAWED\n" }).unwrap();
        }
        let root = Root { path: folder.path().to_owned(), unified };
        (folder, root)
    }

    fn with(root: &Root, own: &str) -> Hierarchies {
        Hierarchies { roots: vec![root.clone()], own: vec![root.path.join(own)] }
    }

    #[test]
    fn hierarchies_are_found_where_they_are_mounted() {
        let mountinfo = "\
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/freezer rw shared:8 - cgroup cgroup rw,freezer
32 30 0:28 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let cgroup = "7:freezer:/\n4:cpu,cpuacct:/system.slice\n0::/system.slice/t.service\n";
        let found = Hierarchies::of(mountinfo, cgroup);
        let paths: Vec<_> =
            found.roots.iter().map(|r| (r.path.to_str().unwrap(), r.unified)).collect();
        assert_eq!(paths, [("/sys/fs/cgroup/unified", true), ("/sys/fs/cgroup/freezer", false)]);
        let own: Vec<_> = found.own.iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            own,
            ["/sys/fs/cgroup/unified/system.slice/t.service", "/sys/fs/cgroup/freezer/"]
        );
        assert_eq!(Hierarchies::of("", "").roots, []);
    }

    #[test]
    fn units_and_paths_are_found() {
        let groups = ["system.slice/db.service", "user.slice/u.slice/x.scope"];
        let (folder, root) = hierarchy(&groups, true);
        let all = with(&root, "system.slice/timevisor-guest.service");
        let full = folder.path().join(groups[0]);
        for name in
            ["db", "db.service", groups[0], "/system.slice/db.service", full.to_str().unwrap()]
        {
            assert_eq!(all.group(name).unwrap().path(), full, "{name}");
        }
        assert_eq!(all.group("x.scope").unwrap().path(), folder.path().join(groups[1]));
        for gone in ["web", "system.slice/web.service", "u.slice"] {
            assert!(matches!(all.group(gone), Err(FreezerError::NotFound(_))), "{gone}");
        }
        for bad in ["", "/", ".", "..", "../x", "/a/../b"] {
            assert!(matches!(all.group(bad), Err(FreezerError::Name(_))), "{bad}");
        }
    }

    #[test]
    fn nobody_freezes_himself() {
        let groups = ["system.slice", "system.slice/timevisor-guest.service", "system.slice/db"];
        let (_folder, root) = hierarchy(&groups, true);
        let all = with(&root, groups[1]);
        for name in ["timevisor-guest", "system.slice"] {
            assert!(matches!(all.group(name), Err(FreezerError::Ourselves(_))), "{name}");
        }
        assert!(all.group("db").is_ok());
    }

    #[test]
    fn both_kinds_are_frozen_and_thawed() {
        for unified in [true, false] {
            let (folder, root) = hierarchy(&["db"], unified);
            let group = with(&root, "").group("db");
            // In a hierarchy whose root is our own group, nothing above us is frozen.
            let group = group.unwrap();
            assert!(!group.is_frozen().unwrap() && group.exists());
            group.freeze().unwrap();
            assert!(group.is_frozen().unwrap());
            let again = Group::at(group.path()).unwrap();
            assert_eq!(again, group);
            again.thaw().unwrap();
            assert!(!group.is_frozen().unwrap());
            drop(folder);
            assert!(!group.exists() && Group::at(group.path()).is_none());
        }
    }
}
