//! The directory with plugins' files: read when it is needed, so that a file counts from the next
//! attachment on.
//!
//! Behavior: `*.toml` files count, in the order of their names. A file is believed if it is a
//! regular file of root's or of this process' user that nobody else may write
//! ([`timevisor_linux::state_file`]); likewise the directory. A file that is not believed, or not
//! sound, is reported, and the others count.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind};
use std::path::Path;

use timevisor_linux::state_file::{self, Distrust};

use super::compile::Plugin;
use super::error::{Fault, PluginError};
use super::limits;
use crate::registry::GUEST_SYSTEMS;

/// The directory that is used when none is configured.
pub const DEFAULT: &str = "/etc/timevisor/introspection.d";

/// What is in a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plugins {
    /// The plugins, in the order in which they are tried.
    pub all: Vec<Plugin>,
    /// The files that cannot be used.
    pub broken: Vec<PluginError>,
}

/// Reads all files of a directory. There are no plugins in one that does not exist.
#[must_use]
pub fn read(directory: &Path) -> Plugins {
    let mut plugins = Plugins::default();
    let names = match names(directory) {
        Ok(names) => names,
        Err(fault) => {
            plugins.broken.push(fault.of(&directory.display().to_string()));
            return plugins;
        }
    };
    for name in names {
        let path = directory.join(&name);
        match read_file(&path).and_then(|plugin| plugins.is_new(plugin)) {
            Ok(plugin) => plugins.all.push(plugin),
            Err(error) => plugins.broken.push(error),
        }
    }
    plugins
}

/// Reads one file.
///
/// # Errors
/// Why it is not believed, or the first thing that is wrong with it.
fn read_file(path: &Path) -> Result<Plugin, PluginError> {
    let bytes = state_file::read(path, limits::FILE).map_err(|error| unreadable(path, &error))?;
    parse(path, bytes)
}

fn parse(path: &Path, bytes: Vec<u8>) -> Result<Plugin, PluginError> {
    let file = path.display().to_string();
    let text = String::from_utf8(bytes)
        .map_err(|_| Fault::new("the file", "it is not UTF-8", "write it as text").of(&file))?;
    Plugin::parse(&file, &text)
}

/// Why a file is not read. People write these files, so nothing is to be removed.
fn unreadable(path: &Path, error: &Error) -> PluginError {
    let file = path.display().to_string();
    let usual = "it has to be a regular file of root's that nobody else may write";
    let (problem, step) = match Distrust::of(error) {
        Some(Distrust::Directory) => {
            ("it is a directory".to_owned(), "put a file there".to_owned())
        }
        Some(Distrust::Owner(user)) => {
            (format!("it belongs to user {user}"), format!("`chown root {file}`"))
        }
        Some(Distrust::Writable) => {
            ("group or others may write it".to_owned(), format!("`chmod 0644 {file}`"))
        }
        Some(Distrust::Long(most)) => (
            format!("it has more than {most} bytes"),
            "describe one guest system in a file".to_owned(),
        ),
        Some(Distrust::NotRegular) => ("it is not a regular file".to_owned(), usual.to_owned()),
        None if path.is_symlink() => {
            ("it is a symbolic link".to_owned(), "put the file itself there".to_owned())
        }
        None if error.kind() == ErrorKind::NotFound => {
            ("there is no such file".to_owned(), "give the path of one".to_owned())
        }
        _ => (error.to_string(), usual.to_owned()),
    };
    Fault::new("the file", problem, step).of(&file)
}

/// Reads one file, as if it were alone in a directory, and says who owns it. It may be anybody's:
/// people write it before root installs it.
///
/// # Errors
/// Why it is not believed, or the first thing that is wrong with it; or its name is that of a
/// built-in guest system.
pub fn check_file(path: &Path) -> Result<(Plugin, u32), PluginError> {
    let read = state_file::read_of_anybody(path, limits::FILE);
    let (bytes, owner) = read.map_err(|error| unreadable(path, &error))?;
    let plugin = Plugins::default().is_new(parse(path, bytes)?)?;
    Ok((plugin, owner))
}

fn names(directory: &Path) -> Result<BTreeSet<std::ffi::OsString>, Fault> {
    let fault = |error: std::io::Error| {
        Fault::new("the directory", error.to_string(), "make it root's, with mode 0755")
    };
    match state_file::check_directory(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        checked => checked.map_err(fault)?,
    }
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        if Path::new(&name).extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        names.insert(name);
        if names.len() > limits::FILES {
            let problem = format!("it has more than {} files .toml", limits::FILES);
            return Err(Fault::new("the directory", problem, "remove some"));
        }
    }
    Ok(names)
}

impl Plugins {
    /// Refuses a name that is taken: events could not be told apart.
    fn is_new(&self, plugin: Plugin) -> Result<Plugin, PluginError> {
        let is = |other: &str| other.eq_ignore_ascii_case(&plugin.name);
        let built_in = GUEST_SYSTEMS.iter().any(|system| is(system.name));
        let earlier = self.all.iter().find(|other| is(&other.name));
        let by = match (built_in, earlier) {
            (false, None) => return Ok(plugin),
            (true, _) => "a built-in guest system",
            (false, Some(other)) => other.file.as_str(),
        };
        let problem = format!("{:?} is the name of {by}", plugin.name);
        Err(Fault::new("name", problem, "give it another name, or remove a file").of(&plugin.file))
    }
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
