//! The context of the results: the conditions of a run, tables as text, files in target/results.

use std::fs;
use std::sync::OnceLock;

use serde_json::{Value, json};
use timevisor_lab::programs;

use super::catalog::Experiment;
use super::statistics::{Summary, quantile};
use super::watch::{CLOCKS, Clock, Sample};

/// Prints what is about to be measured, and the limitations of this machine.
pub(super) fn conditions(experiment: &Experiment, minutes: u32) {
    println!("{}: {}", experiment.name, experiment.about);
    println!(
        "  measures for {minutes} min; {} processors, load average {}",
        processors(),
        load_average()
    );
    if kvm() {
        println!("  Guests run under KVM.");
    } else {
        println!(
            "  Guests are emulated (TCG): every instruction of theirs costs several of ours, and each guest is a busy thread\n  \
             of this machine while it does anything."
        );
    }
    println!(
        "  Nothing here is measured by hardware: no PTP stamps, no outside observer. Truth is this machine's CLOCK_REALTIME,\n  \
         which the server serves and nobody steers. Compare the rows of one run with each other, and ratios with the\n  \
         paper's; absolute figures are this machine's."
    );
}

/// The existence of /dev/kvm proves nothing.
pub(super) fn kvm() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| timevisor_linux::kvm::usable().is_ok())
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Writes target/results/NAME.json; the last row describes the conditions.
pub(super) fn write(name: &str, rows: Vec<Value>) -> anyhow::Result<()> {
    println!("load average at the end: {}", load_average());
    write_quietly(name, rows)
}

/// The same in the middle of a run.
pub(super) fn write_quietly(name: &str, mut rows: Vec<Value>) -> anyhow::Result<()> {
    rows.push(json!({"row": "conditions", "accelerator": if kvm() { "kvm" } else { "tcg" }, "processors": processors(),
                     "load_average_at_the_end": load_average()}));
    programs::write_result(name, &rows)
}

/// All samples as CSV, for anyone who wants to draw other pictures.
pub(super) fn csv(samples: &[Sample]) -> String {
    let mut text = "clock,at_s,error_us,earliest_us,latest_us,uncertainty_us\n".to_owned();
    for s in samples {
        text += &format!(
            "{},{:.3},{:.3},{:.3},{:.3},{:.3}\n",
            s.clock.id(),
            s.at_s,
            s.error_us,
            s.earliest_us,
            s.latest_us,
            s.uncertainty_us
        );
    }
    text
}

/// One clock's results over a span.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accuracy {
    pub(super) clock: Clock,
    pub(super) error: Summary,
    /// Median and largest half-width, us.
    pub(super) half_width_us: (f64, f64),
    /// Number of samples whose bounds contained the truth.
    pub(super) held: usize,
    /// Median uncertainty, us.
    pub(super) uncertainty_us: f64,
}

impl Accuracy {
    /// Results of every clock, in the order of [`CLOCKS`].
    pub(super) fn of_all(samples: &[Sample]) -> Vec<Self> {
        CLOCKS.iter().map(|clock| Self::of(*clock, samples)).collect()
    }

    fn of(clock: Clock, samples: &[Sample]) -> Self {
        let own = || samples.iter().filter(|s| s.clock == clock);
        let all = |of: fn(&Sample) -> f64| own().map(of).collect::<Vec<_>>();
        let widths = all(Sample::half_width_us);
        Self {
            clock,
            error: Summary::of(&all(|s| s.error_us)),
            half_width_us: (quantile(&widths, 0.5), quantile(&widths, 1.0)),
            held: own().filter(|s| s.holds()).count(),
            uncertainty_us: quantile(&all(|s| s.uncertainty_us), 0.5),
        }
    }

    /// The header of [`Self::line`].
    pub(super) const HEAD: &str = "clock                           n     mean       sd   median      p99      max  half-width   widest  held the truth";

    /// A row of text.
    pub(super) fn line(&self) -> String {
        let e = &self.error;
        format!(
            "{:<28} {:>4} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>11.2} {:>8.2}  {:>4} of {}",
            self.clock.title(),
            e.count,
            e.mean,
            e.sd,
            e.median,
            e.p99,
            e.max,
            self.half_width_us.0,
            self.half_width_us.1,
            self.held,
            e.count
        )
    }

    /// The row for a result file.
    pub(super) fn json(&self) -> Value {
        json!({"clock": self.clock.id(), "error": self.error.json(), "half_width_median_us": self.half_width_us.0,
               "half_width_max_us": self.half_width_us.1, "held_the_truth": self.held,
               "truth_uncertainty_us": self.uncertainty_us})
    }
}
