//! A guest moves between two timevisords, each with its own server, run directory and name for the
//! guest ([`crate::migration`]).
//!
//! | file | owns |
//! | --- | --- |
//! | `carried.rs` | its age, its timescale, and what its programs require |
//! | `cut.rs` | moves while the connection to QEMU's monitor is lost |
//! | `generation.rs` | the VM generation counter: kept by a move, changed by a load |
//! | `late.rs` | a destination whose daemon starts when the guest is there |
//! | `load.rs` | moves of a busy guest between busy hosts |
//! | `postcopy.rs` | a guest that runs before its memory is there |
//! | `stays.rs` | migrations that fail or are cancelled |
//! | `turns.rs` | three hosts in a ring, back at once, late, cancelled, from a dead daemon |
//! | `unprepared.rs` | destinations that do not know the time, or nothing of Timevisor |

mod carried;
mod cut;
mod generation;
mod late;
mod load;
mod postcopy;
mod stays;
mod turns;
mod unprepared;

use anyhow::Context as _;

use crate::client::Way;
use crate::migration::journey::{Course, text};
use crate::migration::pair::Hosts;
use crate::qemu::Qemu;
use crate::scenario::Context;

pub(crate) use self::carried::carried;
pub(crate) use self::cut::cut;
pub(crate) use self::generation::generation;
pub(crate) use self::late::late_daemon;
pub(crate) use self::load::loaded;
pub(crate) use self::postcopy::postcopy;
pub(crate) use self::stays::stays;
pub(crate) use self::turns::turns;
pub(crate) use self::unprepared::{no_time, no_timevisor};

const KERNEL: &str = "trixie-backports";
/// There and back, twice.
const MOVES: usize = 4;

pub(crate) fn there_and_back(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::new(ctx)?;
    let cases =
        [(Way::Vmclock, ctx.qemu_10()?), (Way::Nvdimm, ctx.qemu()?), (Way::Nvdimm, ctx.qemu_10()?)];
    every_way(ctx, &hosts, &cases)
}

/// The same between hosts whose counters differ in rate, start and wander.
pub(crate) fn oscillators(ctx: &Context) -> anyhow::Result<String> {
    let hosts = Hosts::apart(ctx)?;
    every_way(ctx, &hosts, &[(Way::Vmclock, ctx.qemu_10()?), (Way::Nvdimm, ctx.qemu()?)])
}

fn every_way(ctx: &Context, hosts: &Hosts, cases: &[(Way, Qemu)]) -> anyhow::Result<String> {
    let mut told = Vec::new();
    for (number, (way, qemu)) in cases.iter().enumerate() {
        let name =
            format!("{way:?} under QEMU {}.{}", qemu.version.0, qemu.version.1).to_lowercase();
        let course = Course { ctx, hosts, way: *way, qemu, number, moves: MOVES };
        let moves = course.travel(&|_, launch| Ok(launch), &mut |_, _, _| Ok(()));
        told.push(format!("{name}: {}", text(&moves.with_context(|| name.clone())?)));
    }
    Ok(told.join("; "))
}
