//! `timevisor introspect plugins`: which guest systems are known, and whether a plugin's file is
//! sound.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result};
use clap::Args;
use serde::Serialize;
use timevisor_introspection::os::described::{self, Plugin};
use timevisor_introspection::os::guest_os::GuestOs as _;
use timevisor_introspection::registry::{GUEST_SYSTEMS, RecognizedBy};
use timevisor_introspection::symbols::image::Image;
use timevisor_protocols::control::{Request, Response};

use crate::connection::{ask, unexpected};

#[derive(Args)]
pub struct Plugins {
    /// Only check this file, without timevisord; fails if it is not sound
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// With --check: also whether the plugin knows this ELF file, and where it would trap
    #[arg(long, value_name = "FILE", requires = "check")]
    image: Option<PathBuf>,
    /// JSON
    #[arg(long)]
    json: bool,
}

/// A guest system, or a file that describes none.
#[derive(Debug, Serialize)]
struct Row {
    /// Absent for a broken file.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The version of the file; absent if it is built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    supports: Option<String>,
    /// `memory` or `image`.
    #[serde(skip_serializing_if = "Option::is_none")]
    recognized_by: Option<&'static str>,
    /// Absent if it is built in.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// Why the file is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// The directory from which timevisord reads plugins.
pub fn directory(run_directory: &Path) -> Result<PathBuf> {
    match ask(run_directory, &Request::IntrospectPlugins)? {
        Response::IntrospectPlugins(answer) => Ok(answer.directory),
        response => Err(unexpected(&response)),
    }
}

pub fn run(run_directory: &Path, options: &Plugins) -> Result<()> {
    if let Some(file) = &options.check {
        return check(file, options.image.as_deref(), options.json);
    }
    let directory = directory(run_directory)?;
    let rows = rows(&described::read_directory(&directory));
    if options.json {
        println!("{}", serde_json::to_string(&rows)?);
    } else {
        rows.iter().for_each(|row| print!("{}", words(row)));
        println!("plugins are in {}", directory.display());
    }
    Ok(())
}

/// What `--check` found, as its JSON has it.
#[derive(Debug, Default, Serialize)]
struct Checked {
    file: String,
    /// Whether the file is sound and, with --image, the plugin knows the image.
    sound: bool,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    supports: Option<String>,
    /// The number of the user who owns the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<u32>,
    /// With --image: the guest's name, and where it would be trapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    points: Option<Vec<TrapPoint>>,
}

#[derive(Debug, Serialize)]
struct TrapPoint {
    symbol: String,
    address: u64,
}

/// Checks a file, and prints what was found also if it is not sound.
fn check(file: &Path, image: Option<&Path>, json: bool) -> Result<()> {
    let mut checked = Checked { file: file.display().to_string(), ..Checked::default() };
    let done = checked.look(file, image);
    checked.sound = done.is_ok();
    checked.problem = done.as_ref().err().map(|error| format!("{error:#}"));
    if json {
        println!("{}", serde_json::to_string(&checked)?);
    } else {
        print!("{}", checked.words(image));
    }
    done
}

impl Checked {
    fn look(&mut self, file: &Path, image: Option<&Path>) -> Result<()> {
        let (plugin, owner) = described::check_file(file)?;
        self.name = Some(plugin.name.clone());
        self.version = Some(plugin.version.clone());
        self.supports = Some(plugin.supports.clone());
        self.owner = Some(owner);
        image.map_or(Ok(()), |image| self.look_at_image(&plugin, image))
    }

    fn look_at_image(&mut self, plugin: &Plugin, path: &Path) -> Result<()> {
        let named = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(named)?;
        let image = Image::parse(&bytes).with_context(named)?;
        let guest = plugin.guest(&image).map_err(|why| Error::msg(why).context(named()))?;
        self.guest = Some(guest.name());
        let points = guest.points().iter();
        let points = points.map(|of| TrapPoint { symbol: of.symbol.clone(), address: of.address });
        self.points = Some(points.collect());
        Ok(())
    }

    /// Nothing of a file that is not sound: the command's error says what is wrong.
    fn words(&self, image: Option<&Path>) -> String {
        let (file, text) = (&self.file, |text: &Option<String>| text.clone().unwrap_or_default());
        let mut out = String::new();
        if let Some(name) = &self.name {
            let (supports, version) = (text(&self.supports), text(&self.version));
            out += &format!("{file}: sound; {name} {supports}, file version {version}\n");
        }
        if let Some(owner) = self.owner.filter(|owner| *owner != 0) {
            out += &format!(
                "note: it belongs to user {owner}; timevisord wants it to be root's: `sudo install -m 0644 {file}` into its directory does that\n"
            );
        }
        if let (Some(guest), Some(image)) = (&self.guest, image) {
            out += &format!("{}: {guest}\n", image.display());
        }
        for TrapPoint { symbol, address } in self.points.iter().flatten() {
            out += &format!("    {address:#x} {symbol}\n");
        }
        out
    }
}

fn rows(plugins: &described::Plugins) -> Vec<Row> {
    let built_in = GUEST_SYSTEMS.iter().map(|system| Row {
        name: Some(system.name.to_owned()),
        version: None,
        supports: Some(system.versions.to_owned()),
        recognized_by: Some(match system.recognized_by {
            RecognizedBy::Memory(_) => "memory",
            RecognizedBy::Image { .. } => "image",
        }),
        file: None,
        problem: None,
    });
    let described = plugins.all.iter().map(|plugin| Row {
        name: Some(plugin.name.clone()),
        version: Some(plugin.version.clone()),
        supports: Some(plugin.supports.clone()),
        recognized_by: Some("image"),
        file: Some(plugin.file.clone()),
        problem: None,
    });
    let broken = plugins.broken.iter().map(|error| Row {
        name: None,
        version: None,
        supports: None,
        recognized_by: None,
        file: Some(error.file.clone()),
        problem: Some(format!("{}: {}; {}", error.key, error.problem, error.next_step)),
    });
    built_in.chain(described).chain(broken).collect()
}

fn words(row: &Row) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match (&row.name, &row.file) {
        (Some(name), None) => format!("{name}  built in; {}\n", text(&row.supports)),
        (Some(name), Some(file)) => {
            format!("{name}  version {} of {file}; {}\n", text(&row.version), text(&row.supports))
        }
        (None, file) => format!("broken: {}: {}\n", text(file), text(&row.problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLUGIN: &str = include_str!("../../../plugins/segments/segments.toml");

    #[test]
    fn guest_systems_and_broken_files_in_words() {
        let good = Plugin::parse("/p/a.toml", PLUGIN).unwrap();
        let bad = Plugin::parse("/p/b.toml", "format = 7").unwrap_err();
        let rows = rows(&described::Plugins { all: vec![good], broken: vec![bad] });
        let told: String = rows.iter().map(words).collect();
        for line in [
            "FreeRTOS  built in; for x86 in a flat address space",
            "segments by a file  version 2 of /p/a.toml; of x86 programs",
            "broken: /p/b.toml: format: 7 is not known here; write `format = 1`",
        ] {
            assert!(told.contains(line), "{told}");
        }
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(
            (json[0]["recognized_by"].as_str(), json[0].get("file")),
            (Some("memory"), None)
        );
        assert_eq!(json[3]["file"], "/p/a.toml");
    }

    #[test]
    fn a_checked_file_in_json_and_in_words() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("robot.toml");
        std::fs::write(&path, PLUGIN).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode;
        std::fs::set_permissions(&path, mode(0o644)).unwrap();
        let mut checked = Checked { file: "robot.toml".to_owned(), ..Checked::default() };
        checked.look(&path, None).unwrap();
        let json = serde_json::to_value(&checked).unwrap();
        assert_eq!((json["version"].as_str(), json.get("guest")), (Some("2"), None));
        checked.owner = Some(0);
        let sound = "robot.toml: sound; segments by a file of x86 programs";
        assert!(checked.words(None).starts_with(sound) && !checked.words(None).contains("note:"));
        checked.owner = Some(1000);
        let words = checked.words(None);
        assert!(words.contains("note: it belongs to user 1000; timevisord wants"), "{words}");
        // An image that it does not know: the file's part stays, and the error says why.
        assert!(checked.look(&path, Some(&path)).is_err());
        assert!(checked.name.is_some() && checked.guest.is_none());
        std::fs::write(&path, "format = 7").unwrap();
        let mut broken = Checked::default();
        assert!(broken.look(&path, None).unwrap_err().to_string().contains("format: 7"));
        assert_eq!(broken.words(None), "");
    }
}
