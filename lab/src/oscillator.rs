//! Gives a host of the lab another oscillator: lab/oscillator/oscillator.c is preloaded into its
//! processes.
//!
//! All hosts of the lab are one machine with one TSC. Processes that are started through this
//! module read a different counter, with its own rate, start and wander, as on another machine. The
//! true time at each of its values is still known.

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

/// How it differs from the machine's TSC.
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// How much faster it is, in ticks per 10^9.
    pub ppb: i64,
    /// Its value at TSC 0.
    pub offset: i64,
    /// Amplitude of its rate's oscillation, ppb.
    pub amplitude_ppb: f64,
    /// Period of that oscillation, in ticks of the TSC.
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

    /// As [`command::tethered`]; `program` must be linked dynamically. Programs that it starts by
    /// posix_spawn(3) have the same counter.
    pub fn tethered(&self, program: impl AsRef<OsStr>) -> Command {
        // env comes last: a process that has begun to trap cannot execute another program, because
        // that program would read the TSC before its libraries are loaded.
        let mut command = command::tethered("env");
        let Parameters { ppb, offset, amplitude_ppb, period } = self.parameters;
        command
            .arg(format!("LD_PRELOAD={}", self.library.display()))
            .arg(format!("LAB_OSCILLATOR={ppb} {offset} {amplitude_ppb} {period}"))
            .arg(program);
        command
    }

    /// The counter's value at this value of the TSC.
    pub fn counter(&self, tsc: u64) -> u64 {
        tsc.wrapping_add_signed(self.parameters.ahead(tsc))
    }

    /// The TSC at which this counter had a value: the inverse of oscillator.c's formula, found by
    /// iteration.
    pub fn tsc(&self, counter: u64) -> u64 {
        self.parameters.tsc(counter)
    }
}

impl Parameters {
    /// How far the counter is ahead of the TSC.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a swing has few ticks, a rate's share of 2^63 ticks fits"
    )]
    fn ahead(&self, tsc: u64) -> i64 {
        // Negative values occur while the inverse is computed.
        let tsc = tsc.cast_signed();
        let turns = (tsc as f64 % self.period) / self.period;
        let swing = self.amplitude_ppb * 1e-9 * self.period / TAU * (TAU * turns).sin();
        let rate = i128::from(tsc) * i128::from(self.ppb) / 1_000_000_000;
        rate as i64 + self.offset + swing as i64
    }

    fn tsc(&self, counter: u64) -> u64 {
        // Each iteration multiplies the error by the rate difference: if that is 10^-4, a tick is
        // left after four.
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
