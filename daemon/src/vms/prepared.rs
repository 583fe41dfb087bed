//! VMs that root has prepared by `timevisor vm args`: to whom their names belong, and the page files
//! of those that have not started yet. The pages are valid from the start, because a guest's driver
//! reads the counter and the timescale only when it probes.
//!
//! The run directory is empty after a reboot. What was prepared is remembered in the state directory,
//! and made again before anybody can start a VM.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use timevisor_clock_page::PageWriter;
use timevisor_guests::acpi::ssdt;
use timevisor_guests::delivery::PageFiles;
use timevisor_guests::host::{HostIdentity, identity};
use timevisor_guests::owner::Owner;
use timevisor_linux::page::WritePage;
use timevisor_linux::process::Process;
use timevisor_linux::state_file::{self, Readers};
use timevisor_protocols::control::{TimeType, VmPrepare, request::check_name};

pub struct Prepared {
    directory: PathBuf,
    /// Pages that we hold until their VM starts.
    held: BTreeMap<String, PageWriter<WritePage>>,
    /// Who may run which VM.
    owners: BTreeMap<String, Owner>,
    memory: Memory,
    /// Remembered VMs whose files were not made since the boot.
    missing: Vec<VmPrepare>,
}

/// The files of a prepared VM.
pub struct Files {
    /// The page and its table, where QEMU's device does not make the page.
    pub page: Option<(PathBuf, PathBuf)>,
    /// The folder for the VM's sockets.
    pub monitor: PathBuf,
}

impl Prepared {
    /// `state` is the folder that outlives a reboot, if there is one.
    pub fn in_directory(directory: &Path, state: Option<&Path>) -> Self {
        let mut owners = noted_owners(directory);
        let memory = Memory::new(state);
        let mut missing = memory.all();
        missing.retain(|vm| !directory.join(&vm.name).join(OWNER).exists());
        // The names are not free until the files are made.
        owners.extend(missing.iter().map(|vm| (vm.name.clone(), owner(vm))));
        Self { directory: directory.to_owned(), held: BTreeMap::new(), owners, memory, missing }
    }

    /// Whether a remembered VM waits for its files.
    pub fn is_missing_some(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Makes the files of remembered VMs, as after a reboot. Returns the names of those that were
    /// made, and why others were not.
    pub fn restore(&mut self, host: HostIdentity) -> (Vec<String>, Vec<String>) {
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for vm in std::mem::take(&mut self.missing) {
            match self.make(&vm, host) {
                Ok(_) => made.push(vm.name),
                Err(error) => {
                    failed.push(format!("VM {} cannot start yet: {error:#}", vm.name));
                    self.missing.push(vm);
                }
            }
        }
        (made, failed)
    }

    /// The owners of the prepared names.
    pub fn owners(&self) -> &BTreeMap<String, Owner> {
        &self.owners
    }

    /// Notes to whom the name belongs, makes the VM's files, and remembers them.
    pub fn prepare(&mut self, prepare: &VmPrepare, host: HostIdentity) -> Result<Files> {
        let files = self.make(prepare, host)?;
        self.missing.retain(|vm| vm.name != prepare.name);
        self.memory.keep(prepare)?;
        Ok(files)
    }

    fn make(&mut self, prepare: &VmPrepare, host: HostIdentity) -> Result<Files> {
        let page = if prepare.files { Some(self.make_page(prepare, host)?) } else { None };
        let monitor = self.bind(prepare)?;
        Ok(Files { page, monitor })
    }

    /// Notes to whom the name belongs, and makes the folder for the VM's sockets.
    fn bind(&mut self, prepare: &VmPrepare) -> Result<PathBuf> {
        let folder = PageFiles::new(&self.directory).folder(&prepare.name)?;
        let monitor = folder.join(MONITOR);
        open_to(prepare.user, &folder, &monitor).with_context(|| {
            format!("cannot make {}; run timevisord as root", monitor.display())
        })?;
        let owner = owner(prepare);
        state_file::write(&folder.join(OWNER), &serde_json::to_vec(&owner)?, Readers::Owner)
            .context("cannot note the owner")?;
        self.owners.insert(prepare.name.clone(), owner);
        Ok(monitor)
    }

    /// Creates or replaces the page, with its table.
    fn make_page(&mut self, prepare: &VmPrepare, host: HostIdentity) -> Result<(PathBuf, PathBuf)> {
        let VmPrepare { name, time_type, .. } = prepare;
        let time_type = *time_type;
        if host.tai_offset.is_none() && time_type == TimeType::Tai {
            bail!(
                "TAI - UTC is not known, and guest kernels before 7.0 refuse a TAI page without it; see `timevisor status`"
            );
        }
        self.held.remove(name);
        let pages = PageFiles::new(&self.directory);
        let mapping = pages.prepare(name)?;
        // What it says of a birth is nobody's.
        let _ = fs::remove_file(pages.folder(name)?.join(PROCESS));
        let writer = PageWriter::take_over(
            WritePage::new(mapping)?,
            identity(name, super::timescale(time_type), host),
            host.tai_offset,
        );
        let folder = pages.folder(name)?;
        let table = folder.join("vmclock.aml");
        let address = prepare.address.unwrap_or(DEFAULT_ADDRESS);
        state_file::write(&table, &ssdt(address), Readers::All)
            .with_context(|| format!("cannot write {}", table.display()))?;
        let note = serde_json::to_vec(&time_type)?;
        state_file::write(&folder.join("time_type"), &note, Readers::Owner)
            .context("cannot note the time type")?;
        self.held.insert(name.clone(), writer);
        Ok((pages.path(name)?, table))
    }

    /// Releases a page so that its VM can be attached.
    pub fn release(&mut self, name: &str) {
        self.held.remove(name);
    }

    /// The timescale of a prepared page, even if an earlier daemon prepared it.
    pub fn time_type(&self, name: &str) -> Option<TimeType> {
        let folder = PageFiles::new(&self.directory).folder(name).ok()?;
        let note = state_file::read(&folder.join("time_type"), MOST_NOTE_BYTES).ok()?;
        serde_json::from_slice(&note).ok()
    }

    /// Notes that this process uses the page of a folder. Returns whether another one did before, whose
    /// the content is: the note outlives the daemon.
    pub fn becomes_the_page_of(&self, name: &str, process: &Process) -> bool {
        let Ok(folder) = PageFiles::new(&self.directory).folder(name) else { return true };
        let file = folder.join(PROCESS);
        let is = process.started().map(|started| (process.pid(), started));
        let note = state_file::read(&file, MOST_NOTE_BYTES).ok();
        let noted: Option<(u32, u64)> = note.and_then(|note| serde_json::from_slice(&note).ok());
        if noted.is_some() && noted == is {
            return false;
        }
        let write = || {
            let note = serde_json::to_vec(&is).map_err(io::Error::from)?;
            state_file::write(&file, &note, Readers::Owner)
        };
        if let Err(error) = write() {
            tracing::warn!("cannot note whose page this is in {}: {error}", file.display());
        }
        true
    }

    /// Removes a VM's files; returns false if there are none.
    pub fn remove(&mut self, name: &str) -> Result<bool> {
        self.held.remove(name);
        self.missing.retain(|vm| vm.name != name);
        let folder = PageFiles::new(&self.directory).folder(name)?;
        let was_remembered = self.memory.forget(name)?;
        if !folder.exists() {
            let was_bound = self.owners.remove(name).is_some();
            return Ok(was_remembered || was_bound);
        }
        self.owners.remove(name);
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
        Ok(true)
    }
}

fn owner(prepare: &VmPrepare) -> Owner {
    Owner { uid: prepare.user, namespace: prepare.user_namespace }
}

/// Lets QEMU's user read the VM's folder, whatever our umask, and make its sockets in a folder of its
/// own: in the VM's folder itself it could replace the page.
fn open_to(user: u32, folder: &Path, monitor: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(monitor)?;
    for readable in folder.parent().into_iter().chain([folder]) {
        fs::set_permissions(readable, fs::Permissions::from_mode(0o755))?;
    }
    fs::set_permissions(monitor, fs::Permissions::from_mode(0o700))?;
    if fs::symlink_metadata(monitor)?.uid() == user {
        return Ok(());
    }
    chown(monitor, Some(user), None)
}

/// The requests that made what is prepared, one file a VM.
struct Memory {
    folder: Option<PathBuf>,
}

impl Memory {
    fn new(state: Option<&Path>) -> Self {
        Self { folder: state.map(|state| state.join("vms")) }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    fn keep(&self, prepare: &VmPrepare) -> Result<()> {
        let Some(file) = self.file(&prepare.name) else { return Ok(()) };
        let keep = || {
            let folder = file.parent().unwrap_or(Path::new("/"));
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            state_file::write_durably(&file, &serde_json::to_vec(prepare)?, Readers::Owner)
        };
        keep().with_context(|| format!("cannot remember it over a reboot in {}", file.display()))
    }

    fn forget(&self, name: &str) -> Result<bool> {
        let Some(file) = self.file(name) else { return Ok(false) };
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot remove {}", file.display())),
        }
    }

    fn all(&self) -> Vec<VmPrepare> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
        let mut all: Vec<VmPrepare> = files.filter_map(|file| read(&file.ok()?.path())).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// A remembered request; a file that is damaged is told and left.
fn read(file: &Path) -> Option<VmPrepare> {
    if file.extension().is_none_or(|extension| extension != "json") {
        return None;
    }
    let read = || -> Result<VmPrepare> {
        let vm: VmPrepare = serde_json::from_slice(&state_file::read(file, MOST_MEMORY_BYTES)?)?;
        check_name(&vm.name)?;
        ensure!(file.file_stem().is_some_and(|stem| stem == vm.name.as_str()), "of VM {}", vm.name);
        Ok(vm)
    };
    read()
        .inspect_err(|error| {
            tracing::warn!(
                "{} is not understood ({error:#}): that VM cannot start; prepare it again with `timevisor vm args`",
                file.display()
            );
        })
        .ok()
}

/// The first address above memory for VMs with up to 2 GiB; `timevisor vm args` computes others.
const DEFAULT_ADDRESS: u64 = 0x1_0000_0000;
/// A time type is one word, an owner a number and a word.
const MOST_NOTE_BYTES: u64 = 64;
/// A request is a name, an address and some words.
const MOST_MEMORY_BYTES: u64 = 4096;
/// The file that says which process used the page last: its number and its start.
const PROCESS: &str = "process";
/// The file that says to whom the name of its folder belongs.
const OWNER: &str = "owner";
/// The folder for the sockets of a VM, its user's.
const MONITOR: &str = "monitor";

/// The owners that an earlier daemon noted.
fn noted_owners(directory: &Path) -> BTreeMap<String, Owner> {
    let Ok(folders) = fs::read_dir(directory) else { return BTreeMap::new() };
    let names = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let owner = noted_owner(&directory.join(&name)).unwrap_or_else(|error| {
                tracing::warn!(
                    "VM {name} belongs to nobody: its owner is not understood ({error}); \
                     prepare it again with `timevisor vm args`"
                );
                None
            });
            Some((name, owner?))
        })
        .collect()
}

fn noted_owner(folder: &Path) -> io::Result<Option<Owner>> {
    match state_file::read(&folder.join(OWNER), MOST_NOTE_BYTES) {
        Ok(note) => Ok(Some(serde_json::from_slice(&note)?)),
        // Prepared by a version that did not note the owner. It gave the folder of the QMP socket to
        // the user who was to run QEMU.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let monitor = fs::symlink_metadata(folder.join(MONITOR)).ok();
            Ok(monitor.filter(fs::Metadata::is_dir).map(|folder| Owner::user(folder.uid())))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timevisor_protocols::control::UserNamespace;

    fn host() -> HostIdentity {
        let counter = timevisor_clock_page::CounterId::X86Tsc;
        HostIdentity { id: [7; 16], counter, epoch: 1, tai_offset: Some(37) }
    }

    /// By us, because only root may give a folder to somebody else.
    fn request(name: &str, files: bool) -> VmPrepare {
        let user = fs::metadata("/proc/self").unwrap().uid();
        VmPrepare {
            name: name.to_owned(),
            time_type: TimeType::Utc,
            user,
            user_namespace: UserNamespace::Other,
            files,
            address: Some(0x5_0000_0000),
        }
    }

    #[test]
    fn a_name_stays_with_its_owner_across_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let vms = directory.path().join("vms");
        let mut prepared = Prepared::in_directory(&vms, None);
        assert!(prepared.owners().is_empty());
        prepared.prepare(&request("web", false), host()).unwrap();
        prepared.prepare(&request("gone", false), host()).unwrap();
        assert!(prepared.remove("gone").unwrap() && !prepared.remove("gone").unwrap());
        let note = |text: &str| fs::write(vms.join("web/owner"), text).unwrap();
        note(r#"{"uid":4002,"namespace":"other"}"#);
        // Of an earlier version.
        let old = vms.join("old/monitor");
        fs::create_dir_all(&old).unwrap();
        let us = fs::metadata(&old).unwrap().uid();
        // What is damaged binds nobody.
        fs::create_dir_all(vms.join("odd")).unwrap();
        fs::write(vms.join("odd/owner"), "{").unwrap();
        let web = Owner { uid: 4002, namespace: UserNamespace::Other };
        let expected = [("old".to_owned(), Owner::user(us)), ("web".to_owned(), web)];
        let mut later = Prepared::in_directory(&vms, None);
        assert_eq!(later.owners(), &expected.into());
        later.remove("web").unwrap();
        assert_eq!(later.owners().len(), 1);
    }

    #[test]
    fn only_the_folder_for_sockets_is_the_users() {
        let directory = tempfile::tempdir().unwrap();
        let vms = directory.path().join("vms");
        let mut prepared = Prepared::in_directory(&vms, None);
        let monitor = prepared.prepare(&request("web", true), host()).unwrap().monitor;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(monitor, vms.join("web/monitor"));
        assert_eq!((mode(&monitor), mode(&vms.join("web")), mode(&vms)), (0o700, 0o755, 0o755));
        assert_eq!(mode(&vms.join("web/vmclock.aml")), 0o644);
        assert_eq!(mode(&vms.join("web/owner")), 0o600);
    }

    #[test]
    fn what_was_prepared_is_there_again_after_a_reboot() {
        let folder = tempfile::tempdir().unwrap();
        let (run, state) = (folder.path().join("run/vms"), folder.path().join("lib"));
        let mut prepared = Prepared::in_directory(&run, Some(&state));
        let files = prepared.prepare(&request("web", true), host()).unwrap();
        let (page, table) = files.page.unwrap();
        let (before, named) = (fs::read(&table).unwrap(), fs::read(&page).unwrap());
        prepared.prepare(&request("device", false), host()).unwrap();
        prepared.prepare(&request("gone", true), host()).unwrap();
        assert!(prepared.remove("gone").unwrap());
        drop(prepared);
        // A restart finds its files and makes none.
        let mut prepared = Prepared::in_directory(&run, Some(&state));
        assert!(!prepared.is_missing_some());
        drop(prepared);

        fs::remove_dir_all(&run).unwrap();
        fs::write(state.join("vms/odd.json"), "{").unwrap();
        fs::copy(state.join("vms/web.json"), state.join("vms/other.json")).unwrap();
        prepared = Prepared::in_directory(&run, Some(&state));
        let names: Vec<_> = prepared.owners().keys().cloned().collect();
        assert_eq!(names, ["device", "web"], "they are bound before there are files");
        // At boot TAI - UTC may not be known yet.
        let (made, failed) = prepared.restore(host());
        assert_eq!(
            (made.as_slice(), failed.len()),
            (&["device".to_owned(), "web".to_owned()][..], 0)
        );
        assert!(!prepared.is_missing_some());
        assert_eq!(
            (fs::read(&table).unwrap(), fs::read(&page).unwrap().len()),
            (before, named.len())
        );
        assert!(run.join("device/monitor").is_dir() && run.join("web/monitor").is_dir());
        assert_eq!(prepared.time_type("web"), Some(TimeType::Utc));
        // Removed before its files are made.
        fs::remove_dir_all(&run).unwrap();
        prepared = Prepared::in_directory(&run, Some(&state));
        assert!(prepared.remove("web").unwrap());
        assert_eq!(prepared.restore(host()).0, ["device"]);
        assert!(!prepared.remove("web").unwrap());
    }

    #[test]
    fn a_damaged_note_of_a_preparation_is_told_and_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.json");
        let valid = serde_json::to_vec(&request("web", true)).unwrap();
        crate::mutation::each(&valid, 2000, |bytes| {
            fs::write(&file, bytes).unwrap();
            let found = read(&file);
            assert!(found.is_none_or(|vm| vm.name == "web"), "it cannot become another VM's");
            assert_eq!(fs::read(&file).unwrap(), bytes);
        });
    }

    #[test]
    fn a_page_that_cannot_be_made_yet_is_made_later() {
        let folder = tempfile::tempdir().unwrap();
        let (run, state) = (folder.path().join("run/vms"), folder.path().join("lib"));
        let tai = VmPrepare { time_type: TimeType::Tai, ..request("web", true) };
        Prepared::in_directory(&run, Some(&state)).prepare(&tai, host()).unwrap();
        fs::remove_dir_all(&run).unwrap();
        let mut prepared = Prepared::in_directory(&run, Some(&state));
        let (made, failed) = prepared.restore(HostIdentity { tai_offset: None, ..host() });
        assert!(made.is_empty() && failed[0].contains("TAI - UTC is not known"), "{failed:?}");
        assert!(prepared.is_missing_some() && prepared.owners().contains_key("web"));
        assert_eq!(prepared.restore(host()), (vec!["web".to_owned()], vec![]));
    }
}
