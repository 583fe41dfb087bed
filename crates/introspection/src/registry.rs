//! The one table of guest systems. Names, help texts, the table in docs/reference/introspection.md
//! and dispatch come from it.
//!
//! To add a guest system at run time, add a file to the directory of [`crate::os::described`]. To
//! build one in, add a folder to `os/` and a line to [`GUEST_SYSTEMS`].

use core::fmt;

use crate::memory::GuestMemory;
use crate::os::described::{PluginError, Plugins};
use crate::os::freertos::{self, FreeRtos};
use crate::os::guest_os::GuestOs;
use crate::os::linux;
use crate::os::segments::{self, Segments};
use crate::symbols::image::Image;

/// One kind of guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestSystem {
    /// Its name.
    pub name: &'static str,
    /// The versions that are supported, and those that were tested.
    pub versions: &'static str,
    /// How it is recognized.
    pub recognized_by: RecognizedBy,
}

/// Finds the kernels of one kind that are in memory, or says what is missing.
pub type ProbeMemory = fn(&dyn GuestMemory) -> Result<Vec<Box<dyn GuestOs>>, String>;

/// Recognizes a guest by its file, or says what is missing.
pub type ProbeImage = fn(&Image<'_>) -> Result<Box<dyn GuestOs>, String>;

/// How a guest system is recognized.
#[derive(Clone, Copy, Debug)]
pub enum RecognizedBy {
    /// By its memory alone. Returns every kernel of this kind that is in memory: an earlier kernel
    /// may still be there.
    Memory(ProbeMemory),
    /// By the ELF file that the operator supplies. The caller checks that the guest runs this file.
    Image {
        /// The type of our note in such a file.
        note: u32,
        /// Recognizes it.
        probe: ProbeImage,
    },
}

/// All guest systems, in the order in which they are tried.
pub const GUEST_SYSTEMS: &[GuestSystem] = &[
    GuestSystem {
        name: "Linux",
        versions: "5.18 and later with kallsyms and BTF; tested with 6.1, 6.12 and 7.3",
        recognized_by: RecognizedBy::Memory(linux::probe),
    },
    GuestSystem {
        name: "FreeRTOS",
        versions: "for x86 in a flat address space of 32 bits, with the note of plugins/freertos; tested with 11.2.0",
        recognized_by: RecognizedBy::Image {
            note: freertos::NOTE,
            probe: |image| Ok(Box::new(FreeRtos::new(image)?)),
        },
    },
    GuestSystem {
        name: "real-time segments",
        versions: "of x86 programs in one flat address space with plugins/segments; tested with 32 bits",
        recognized_by: RecognizedBy::Image {
            note: segments::NOTE,
            probe: |image| Ok(Box::new(Segments::new(image)?)),
        },
    },
];

/// Why a guest is not of this kind.
#[derive(Debug, thiserror::Error)]
#[error("not {name} {versions}: {reason}")]
pub struct NotThis {
    /// [`GuestSystem::name`].
    pub name: String,
    /// [`GuestSystem::versions`].
    pub versions: String,
    /// What is missing.
    pub reason: String,
    /// The image has this guest system's note, so something else is wrong with it.
    pub has_note: bool,
}

/// Why no guest system knows an image: the text in one line, or each reason by itself, the likeliest
/// first.
#[derive(Debug)]
pub struct NotKnown {
    /// The reasons.
    pub reasons: Vec<String>,
}

impl NotKnown {
    /// The guest system whose note was found comes first, because it is the one that was meant. Then
    /// come files, which somebody has written for this guest, and then those that are built in.
    fn new(built_in: Vec<NotThis>, described: Vec<NotThis>, broken: &[PluginError]) -> Self {
        let all = described.into_iter().chain(built_in);
        let (meant, others): (Vec<_>, Vec<_>) = all.partition(|not| not.has_note);
        let broken = broken.iter().map(|error| format!("a broken plugin: {error}"));
        let meant = meant.iter().map(ToString::to_string);
        let others = others.iter().map(ToString::to_string);
        Self { reasons: meant.chain(broken).chain(others).collect() }
    }
}

impl fmt::Display for NotKnown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))
    }
}

impl core::error::Error for NotKnown {}

/// Recognizes the guest in this memory. Returns several kernels where an earlier one is still in
/// memory.
///
/// # Errors
/// When no guest system matches: for each one, the reason.
pub fn probe(memory: &dyn GuestMemory) -> Result<Vec<Box<dyn GuestOs>>, Vec<NotThis>> {
    first(|by| match by {
        RecognizedBy::Memory(probe) => Some(probe(memory).map_err(|why| (why, false))),
        RecognizedBy::Image { .. } => None,
    })
}

/// Recognizes the guest by the file that its operator supplies, as a built-in guest system.
///
/// # Errors
/// When no guest system matches: for each one, the reason.
pub fn probe_image(image: &Image<'_>) -> Result<Box<dyn GuestOs>, Vec<NotThis>> {
    first(|by| match by {
        RecognizedBy::Image { note, probe } => Some(probe(image).map_err(|why| {
            let has_note = image.note(note).is_ok_and(|note| note.is_some());
            (why, has_note)
        })),
        RecognizedBy::Memory(_) => None,
    })
}

/// Recognizes the guest by the file that its operator supplies: as a built-in guest system, or else
/// as the first one that a plugin's file describes.
///
/// # Errors
/// When no guest system matches: which files are broken, and for each guest system, the reason.
pub fn probe_image_or_plugin(
    image: &Image<'_>,
    plugins: &Plugins,
) -> Result<Box<dyn GuestOs>, NotKnown> {
    let built_in = match probe_image(image) {
        Ok(guest) => return Ok(guest),
        Err(reasons) => reasons,
    };
    let mut described = Vec::new();
    for plugin in &plugins.all {
        match plugin.guest(image) {
            Ok(guest) => return Ok(Box::new(guest)),
            Err(reason) => {
                let (name, versions) = (plugin.name.clone(), plugin.supports.clone());
                let has_note = plugin.has_note(image);
                described.push(NotThis { name, versions, reason, has_note });
            }
        }
    }
    Err(NotKnown::new(built_in, described, &plugins.broken))
}

/// What is missing, and whether the image has the note.
type Missing = (String, bool);

fn first<T>(probe: impl Fn(RecognizedBy) -> Option<Result<T, Missing>>) -> Result<T, Vec<NotThis>> {
    let mut reasons = Vec::new();
    for system in GUEST_SYSTEMS {
        match probe(system.recognized_by) {
            Some(Ok(guest)) => return Ok(guest),
            Some(Err((reason, has_note))) => {
                let (name, versions) = (system.name.to_owned(), system.versions.to_owned());
                reasons.push(NotThis { name, versions, reason, has_note });
            }
            None => {}
        }
    }
    Err(reasons)
}

/// The names of the guest systems that need a file, for help texts: `A and B`.
#[must_use]
pub fn names_with_image() -> String {
    let all = GUEST_SYSTEMS.iter();
    let named = all.filter(|system| matches!(system.recognized_by, RecognizedBy::Image { .. }));
    named.map(|system| system.name).collect::<Vec<_>>().join(" and ")
}

/// The table of guest systems in Markdown, as in docs/reference/introspection.md.
#[must_use]
pub fn table() -> String {
    let mut out = "| guest system | versions | recognized by |\n| --- | --- | --- |\n".to_owned();
    for GuestSystem { name, versions, recognized_by } in GUEST_SYSTEMS {
        let by = match recognized_by {
            RecognizedBy::Memory(_) => "its memory",
            RecognizedBy::Image { .. } => "its ELF file, `--image`",
        };
        out += &format!("| {name} | {versions} | {by} |\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_this_table() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/introspection.md");
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(&table()), "docs/reference/introspection.md lacks:\n{}", table());
    }

    #[test]
    fn names_are_distinct_and_help_names_those_with_a_file() {
        let names: std::collections::BTreeSet<_> = GUEST_SYSTEMS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), GUEST_SYSTEMS.len());
        assert_eq!(names_with_image(), "FreeRTOS and real-time segments");
    }
}
