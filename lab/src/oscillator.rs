//! Another oscillator for a host of the lab: lab/oscillator/oscillator.c before its processes.
//!
//! All hosts of the lab are one machine with one TSC. Processes that are started through this read
//! another counter, with a rate, a start and a wander of its own, as on another machine; what was
//! true at one of its values is still known.

use std::f64::consts::TAU;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::command;
use crate::programs;
use crate::scenario::Context;

/// A rescaled TSC.
#[derive(Debug, Clone)]
pub struct Oscillator {
    library: PathBuf,
    parameters: Parameters,
}

/// How it differs from the machine's.
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// Ticks that it is faster, in 10^9.
    pub ppb: i64,
    /// Its value at TSC 0.
    pub offset: i64,
    /// Its rate swings by so much, ppb.
    pub amplitude_ppb: f64,
    /// In so many ticks of the TSC.
    pub period: f64,
}

impl Oscillator {
    /// Compiles the library.
    ///
    /// # Errors
    /// When there is no C compiler.
    pub fn new(ctx: &Context, parameters: Parameters) -> anyhow::Result<Self> {
        let source = programs::workspace()?.join("lab/oscillator/oscillator.c");
        let library = ctx.path("oscillator.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
        command::output(compiler.arg(&library).arg(source).arg("-lm"))?;
        Ok(Self { library, parameters })
    }

    /// As [`command::tethered`]; `program` must be linked dynamically and start no other program.
    pub fn tethered(&self, program: impl AsRef<OsStr>) -> Command {
        // env comes last: a process that has begun to trap cannot execute another program, which
        // reads the TSC before its libraries are there.
        let mut command = command::tethered("env");
        let Parameters { ppb, offset, amplitude_ppb, period } = self.parameters;
        command
            .arg(format!("LD_PRELOAD={}", self.library.display()))
            .arg(format!("LAB_OSCILLATOR={ppb} {offset} {amplitude_ppb} {period}"))
            .arg(program);
        command
    }

    /// What it counts at this value of the TSC.
    pub fn counter(&self, tsc: u64) -> u64 {
        tsc.wrapping_add_signed(self.parameters.ahead(tsc))
    }

    /// The TSC when this counter had a value: oscillator.c's formula, solved by repetition.
    pub fn tsc(&self, counter: u64) -> u64 {
        self.parameters.tsc(counter)
    }
}

impl Parameters {
    /// What the counter is ahead of the TSC.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a swing has few ticks, a rate's share of 2^63 ticks fits"
    )]
    fn ahead(&self, tsc: u64) -> i64 {
        // Below 0 on the way to the inverse.
        let tsc = tsc.cast_signed();
        let turns = (tsc as f64 % self.period) / self.period;
        let swing = self.amplitude_ppb * 1e-9 * self.period / TAU * (TAU * turns).sin();
        let rate = i128::from(tsc) * i128::from(self.ppb) / 1_000_000_000;
        rate as i64 + self.offset + swing as i64
    }

    fn tsc(&self, counter: u64) -> u64 {
        // Each round is closer by the rate's difference: a tick after four where that is 10^-4.
        (0..32).fold(counter, |tsc, _| counter.wrapping_add_signed(-self.ahead(tsc)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse() {
        for (ppb, offset) in
            [(40_000, 7_000_000_000_000), (-35_000, 0), (0, 5), (250_000_000, 1 << 50)]
        {
            let of = Parameters { ppb, offset, amplitude_ppb: 20.0, period: 6e11 };
            for tsc in [0, 1, 3_107_924_350_272, 1 << 45, u64::from(u32::MAX)] {
                let counter = tsc.wrapping_add_signed(of.ahead(tsc));
                let error = of.tsc(counter).abs_diff(tsc);
                assert!(error <= 1, "{ppb}: {tsc} came back {error} ticks away");
            }
        }
    }
}
