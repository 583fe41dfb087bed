//! What goes wrong, and when.

use std::fs;
use std::time::Duration;

use timevisor_lab::ntp_impostor::Impostor;
use timevisor_time::Duration as Span;

use super::cell::{B, Cell, Mode};

/// Something that goes wrong, always with arm b or with the planner.
pub(super) struct Fault {
    pub(super) name: &'static str,
    what: What,
    pub(super) lasts: Duration,
    /// The pictures show this one.
    pub(super) is_shown: bool,
}

enum What {
    Nothing,
    /// The server that arm b's host asks does not answer any more.
    Silence,
    /// That server is ahead by so many us.
    Push(i64),
    /// The planner's messages are late by so many ms.
    Late(u32),
    /// The controller is killed, and started again afterwards.
    Killed,
}

const fn fault(name: &'static str, what: What) -> Fault {
    Fault { name, what, lasts: Duration::from_secs(8), is_shown: false }
}

/// All of them.
pub(super) const ALL: &[Fault] = &[
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

impl Fault {
    pub(super) fn inject(&self, cell: &mut Cell) -> anyhow::Result<()> {
        match self.what {
            What::Nothing => {}
            What::Silence => cell.servers[B].become_one(|_| Vec::new()),
            What::Push(us) => cell.servers[B].lie(Span::from_micros(us)),
            What::Late(ms) => fs::write(&cell.late, ms.to_string())?,
            What::Killed => cell.kill_controller(B),
        }
        Ok(())
    }

    pub(super) fn relieve(&self, cell: &mut Cell, mode: Mode) -> anyhow::Result<()> {
        match self.what {
            What::Nothing => Ok(()),
            What::Silence | What::Push(_) => {
                honest(&cell.servers[B]);
                Ok(())
            }
            What::Late(_) => Ok(fs::write(&cell.late, "0")?),
            What::Killed => cell.start_controller(B, mode),
        }
    }
}

fn honest(server: &Impostor) {
    server.become_one(|answer| vec![answer.to_bytes().to_vec()]);
}
