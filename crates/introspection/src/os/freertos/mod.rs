//! FreeRTOS on x86 in one flat address space (port GCC/IA32_flat); tested with 11.2.0. It has
//! neither symbols nor types in memory, so the user supplies its ELF file. A note in that file,
//! written by plugins/freertos, holds the offsets.
//!
//! | file | owns |
//! | --- | --- |
//! | `note.rs` | the kernel's version and offsets, from its note |
//! | `points.rs` | which functions are trapped, and what is read there |
//! | `decode.rs` | bytes into events |
//!
//! A task's `tid` is the address of its control block, which is also its handle in the guest; a
//! later task may get the same address. There are no processes, so `pid` is 0. Priorities are those
//! of FreeRTOS.
//!
//! What it does not do: multi-core kernels, kernels with MPU wrappers, jobs that end by waiting for
//! a queue or notification, inherited priorities.

mod decode;
mod note;
mod points;

use crate::backend::RawEvent;
use crate::os::guest_os::{DecodeError, GuestOs};
use crate::point::Point;
use crate::symbols::image::Image;
use crate::tasks::event::Event;
use crate::tasks::table::Tasks;

pub use note::{KIND as NOTE, Note};

/// The FreeRTOS kernel of a guest.
#[derive(Debug)]
pub struct FreeRtos {
    note: Note,
    points: Vec<Point>,
    tasks: Tasks,
}

impl FreeRtos {
    /// Recognizes the kernel by the file that the guest runs.
    ///
    /// # Errors
    /// What the file lacks.
    pub fn new(image: &Image<'_>) -> Result<Self, String> {
        let note = image.note(note::KIND).map_err(|e| e.to_string())?;
        let note = note.ok_or(
            "the image has no note of it; build it with plugins/freertos (docs/how-to/introspect-rtos.md), and keep sections .note.* \
             when linking",
        )?;
        let note = Note::parse(note)?;
        if image.is_wide() {
            return Err("it is for 64 bits, and its note says 32".to_owned());
        }
        let points = points::all(image, &note).map_err(|e| e.to_string())?;
        Ok(Self { note, points, tasks: Tasks::default() })
    }
}

impl GuestOs for FreeRtos {
    fn name(&self) -> String {
        let [major, minor, build] = self.note.version;
        format!("FreeRTOS {major}.{minor}.{build}")
    }

    fn points(&self) -> &[Point] {
        &self.points
    }

    fn event(&self, raw: &RawEvent) -> Result<Event, DecodeError> {
        decode::event(raw, &self.points, &self.note)
    }

    fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    fn tasks_mut(&mut self) -> &mut Tasks {
        &mut self.tasks
    }
}

#[cfg(test)]
mod tests;
