//! D. Dutra, L. Whately, C. Amorim, "A highly effective system clock for energy-efficient computer
//! systems" (RVEC and HPGC), sections 5.1 to 5.3, with the timeline `elapsed` in place of RVEC.
//!
//! | file | owns |
//! | --- | --- |
//! | `times.rs` | tables 1 and 2, figure 2: an arithmetic program, timed |
//! | `steps.rs` | figure 3: every reading is later than the one before |
//! | `moved.rs`, `worker.rs` | table 4: a benchmark that moves between hosts during measurements |
//! | `paper.rs` | the paper's published results |
//!
//! Not included: table 3 (the lab test `elapsed-bpf` has it with announced frequencies, because that of a
//! virtual machine's processors cannot be changed on request), OpenVZ, Memperf (table 4 describes the
//! substitute), and HPGC (sections 5.4 and 5.5: the lab tests `cluster-three` and `cluster-thousand`).

mod moved;
mod paper;
mod steps;
mod times;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use timevisor_lab::chronyd::Chronyd;
use timevisor_lab::command::{self, Tethered};
use timevisor_lab::host::{Host, ntp_reference};
use timevisor_lab::interrupt;
use timevisor_lab::scenario::Context;

use crate::report;

const NAME: &str = "rvec-tables";
const PROGRAM: &str = "lab-rvec";

/// `span` applies to tables 1 and 2; figure 3 and table 4 have fixed numbers of measurements.
pub(super) fn run(ctx: &Context, span: Duration) -> anyhow::Result<()> {
    let mut rows = {
        let setting = Setting::new(ctx)?;
        let mut rows = times::run(&setting, span)?;
        rows.extend(steps::run(&setting)?);
        rows
    };
    println!(
        "\ntable 3 (changes of a processor's frequency): not possible here; paper: RVEC {:.1} +- {:.1} us, with moves {:.1} +- {:.1}",
        paper::TABLE_3[0].0,
        paper::TABLE_3[0].1,
        paper::TABLE_3[1].0,
        paper::TABLE_3[1].1
    );
    rows.extend(moved::run(ctx)?);
    report::write(NAME, rows)
}

/// A host with a program bound to `elapsed`, so that the timeline is on its page.
struct Setting {
    // Dropped in this order.
    _bound: Tethered,
    host: Host,
    _server: Chronyd,
    program: PathBuf,
}

impl Setting {
    fn new(ctx: &Context) -> anyhow::Result<Self> {
        let server = ctx.chronyd("server")?;
        let mut host = Host::new(ctx)?;
        let reference = ntp_reference(&server.address().ip().to_string());
        host.start(&format!("[guests]\ndiscover = false\n{reference}"))?;
        host.wait_synchronized(500)?;
        let mut command = command::tethered(host.cli_program());
        command.arg("--run-directory").arg(host.directory()).args(["elapsed", "--every", "5"]);
        let mut bound =
            Tethered::spawn(&mut command, "timevisor elapsed", &ctx.path("elapsed.log"))?;
        interrupt::sleep(Duration::from_secs(2))?;
        bound.check_alive()?;
        let program = ctx.program("timevisor-lab-guest", PROGRAM)?;
        Ok(Self { _bound: bound, host, _server: server, program })
    }

    /// The page's path.
    fn page(&self) -> String {
        self.host.directory().join("clock").display().to_string()
    }
}
