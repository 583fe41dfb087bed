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
    #[arg(long, conflicts_with = "check")]
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
        let plugin = described::check_file(file)?;
        print!("{}", soundness(&plugin));
        if let Some(image) = &options.image {
            print!("{}", trap_points(&plugin, image)?);
        }
        return Ok(());
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

fn soundness(plugin: &Plugin) -> String {
    let Plugin { name, version, supports, file, .. } = plugin;
    format!("{file}: sound; {name} {supports}, file version {version}\n")
}

fn trap_points(plugin: &Plugin, path: &Path) -> Result<String> {
    let named = || path.display().to_string();
    let bytes = std::fs::read(path).with_context(named)?;
    let image = Image::parse(&bytes).with_context(named)?;
    let guest = plugin.guest(&image).map_err(|why| Error::msg(why).context(named()))?;
    let mut out = format!("{}: {}\n", path.display(), guest.name());
    for point in guest.points() {
        out += &format!("    {:#x} {}\n", point.address, point.symbol);
    }
    Ok(out)
}

fn rows(plugins: &described::Plugins) -> Vec<Row> {
    let built_in = GUEST_SYSTEMS.iter().map(|system| Row {
        name: Some(system.name.to_owned()),
        version: None,
        supports: Some(system.versions.to_owned()),
        recognized_by: Some(match system.recognized_by {
            RecognizedBy::Memory(_) => "memory",
            RecognizedBy::Image(_) => "image",
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
}
