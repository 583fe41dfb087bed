//! Guest systems that a file describes: support that is added at run time, without compiling
//! anything. docs/reference/introspection-plugins.md has every key of such a file, and
//! docs/how-to/write-introspection-plugin.md shows how to write one.
//!
//! | file | owns |
//! | --- | --- |
//! | `directory.rs` | the directory with files |
//! | `file.rs` | the keys of a file, as they are written |
//! | `compile.rs` | a file checked as a whole: [`Plugin`] |
//! | `note.rs` | the note by which a guest is recognized, and numbers from it |
//! | `reads.rs` | what is read at a point |
//! | `tasks.rs` | who a task of an event is |
//! | `values.rs` | other values of an event |
//! | `guest.rs` | a recognized guest, and its events: [`Described`] |
//! | `limits.rs` | what a file may be at most |
//! | `error.rs` | what is wrong with a file |
//!
//! A file is its operator's and is checked once, when it is read. What a guest writes is believed
//! nowhere: an event needs bounded work, and no number of the guest's is used as a place or a size.
//!
//! What it does not do: run code of the plugin's, recognize a guest without its ELF file, walk
//! lists or page tables, or find tasks that began before the attachment.

mod compile;
mod directory;
mod error;
mod file;
mod guest;
mod limits;
mod note;
mod reads;
mod tasks;
mod values;

pub use compile::Plugin;
pub use directory::{DEFAULT as DEFAULT_DIRECTORY, Plugins, check_file, read as read_directory};
pub use error::PluginError;
pub use guest::Described;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod same_tests;
#[cfg(test)]
mod tests;
