//! The functions that are trapped. All of them take their arguments on the stack, above the return
//! address (cdecl).
//!
//! | point | function | why this one |
//! | --- | --- | --- |
//! | 1 | timevisor_task_created(tcb) | the kernel's hook (traceTASK_CREATE), which runs for every new task when its block is complete |
//! | 2 | xTaskDelayUntil(&previous, increment) | the end of a periodic task's job; vTaskDelayUntil is a macro for it |
//! | 3 | vTaskDelay(ticks) | the end of a job that is not periodic |
//! | 4 | vTaskPrioritySet(task, priority) | a task's own handle may be NULL |
//! | 5 | vTaskDelete(task) | the same |

use super::note::Note;
use crate::point::{Point, Read, Register, SLOT};
use crate::symbols::image::{Image, ImageError};

pub(super) const CREATE: u16 = 1;
pub(super) const UNTIL: u16 = 2;
pub(super) const DELAY: u16 = 3;
pub(super) const PRIORITY: u16 = 4;
pub(super) const DELETE: u16 = 5;

/// Number of initial reads of every point: the running task, its name, and whether the scheduler
/// runs.
pub(super) const OWN: usize = 3;

pub(super) fn all(image: &Image<'_>, note: &Note) -> Result<Vec<Point>, ImageError> {
    let own = [
        Read::absolute(image.address("pxCurrentTCB")?, 4),
        Read::from(0, note.name.into(), note.name_len),
        Read::absolute(image.address("xSchedulerRunning")?, 4),
    ];
    // Reads of the task whose control block is at the address in the first read after the common
    // ones.
    let target = u8::try_from(OWN).unwrap_or(u8::MAX);
    let name = Read::from(target, note.name.into(), note.name_len);
    let argument = |n: i64| Read::at(Register::Rsp, 4 + 4 * n, 4);
    let points: [(u16, &str, &[Read]); 5] = [
        (
            CREATE,
            "timevisor_task_created",
            &[argument(0), name, Read::from(target, note.priority.into(), 4)],
        ),
        (UNTIL, "xTaskDelayUntil", &[argument(0), argument(1), Read::from(target, 0, 4)]),
        (DELAY, "vTaskDelay", &[argument(0)]),
        (PRIORITY, "vTaskPrioritySet", &[argument(0), name, argument(1)]),
        (DELETE, "vTaskDelete", &[argument(0), name]),
    ];
    let point = |(id, symbol, more): (u16, &str, &[Read])| {
        Ok(Point {
            id,
            symbol: symbol.to_owned(),
            address: image.slot(symbol)?,
            expected: SLOT,
            reads: [&own, more].concat(),
            filter: None,
        })
    };
    points.into_iter().map(point).collect()
}
