//! What goes wrong, and when.

use std::time::Duration;

use timevisor_lab::ntp_impostor::Impostor;
use timevisor_time::Duration as Span;

use super::cell::{A, B, Cell, Mode};

/// Something that goes wrong.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// Whose host or program, unless it is the planner's.
    pub(super) arm: usize,
    what: What,
    pub(super) lasts: Duration,
    /// The pictures show this one.
    pub(super) is_shown: bool,
}

enum What {
    Nothing,
    /// The server that the arm's host asks does not answer any more.
    Silence,
    /// That server is ahead by so many us.
    Push(i64),
    /// The planner's messages are late by so many ms.
    Late(u32),
    /// The controller is killed, and started again afterwards.
    Killed,
    /// The planner's guest moves to another host.
    Moved,
    /// Other programs keep all processors busy.
    Busy,
}

const fn fault(name: &'static str, what: What) -> Fault {
    Fault { name, arm: B, what, lasts: Duration::from_secs(8), is_shown: false }
}

/// Busy programs again, when nothing is reserved.
pub(super) const UNRESERVED: Fault = Fault { arm: A, ..fault("busy, not reserved", What::Busy) };

/// Those with all programs on hosts.
pub(super) const ON_HOSTS: &[Fault] = &[
    fault("none", What::Nothing),
    Fault { lasts: Duration::from_secs(60), ..fault("reference fails", What::Silence) },
    fault("clock pushed by 0.1 ms", What::Push(100)),
    fault("clock pushed by 1 ms", What::Push(1_000)),
    fault("clock pushed by 3 ms", What::Push(3_000)),
    Fault { is_shown: true, ..fault("clock pushed by 10 ms", What::Push(10_000)) },
    fault("clock pushed by -10 ms", What::Push(-10_000)),
    fault("clock pushed by 200 ms", What::Push(200_000)),
    fault("planner late by 0.3 s", What::Late(300)),
    fault("planner late by 1 s", What::Late(1_000)),
    fault("controller killed", What::Killed),
];

/// Those with the planner and controller a in guests.
pub(super) const IN_GUESTS: &[Fault] = &[
    fault("none", What::Nothing),
    Fault { arm: A, ..fault("beside busy programs", What::Busy) },
    fault("planner's VM migrates", What::Moved),
    Fault { lasts: Duration::from_secs(60), arm: A, ..fault("a's reference fails", What::Silence) },
    Fault { arm: A, ..fault("a's clock pushed by 1 ms", What::Push(1_000)) },
    Fault { arm: A, ..fault("a's clock pushed by 10 ms", What::Push(10_000)) },
    fault("b's clock pushed by 10 ms", What::Push(10_000)),
    fault("b's clock pushed by 200 ms", What::Push(200_000)),
    fault("planner late by 1 s", What::Late(1_000)),
    Fault { arm: A, ..fault("a's controller killed", What::Killed) },
    fault("b's controller killed", What::Killed),
    fault("planner's VM migrates back", What::Moved),
];

impl Fault {
    pub(super) fn inject(&self, cell: &mut Cell) -> anyhow::Result<()> {
        match self.what {
            What::Nothing => Ok(()),
            What::Silence => {
                cell.servers[self.arm].become_one(|_| Vec::new());
                Ok(())
            }
            What::Push(us) => {
                cell.servers[self.arm].lie(Span::from_micros(us));
                Ok(())
            }
            What::Late(ms) => cell.make_planner_late(ms),
            What::Killed => cell.kill_controller(self.arm),
            What::Moved => cell.migrate(),
            What::Busy => cell.make_busy(),
        }
    }

    pub(super) fn relieve(&self, cell: &mut Cell, mode: Mode) -> anyhow::Result<()> {
        match self.what {
            What::Nothing | What::Moved => Ok(()),
            What::Silence | What::Push(_) => {
                honest(&cell.servers[self.arm]);
                Ok(())
            }
            What::Late(_) => cell.make_planner_late(0),
            What::Busy => cell.end_busy(),
            What::Killed => cell.start_controller(self.arm, mode),
        }
    }
}

fn honest(server: &Impostor) {
    server.become_one(|answer| vec![answer.to_bytes().to_vec()]);
}
