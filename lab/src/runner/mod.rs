//! Runs tests side by side, each in a process and namespaces of its own, and prints one line for
//! each verdict.
//!
//! | file | owns |
//! | --- | --- |
//! | `schedule.rs` | which test starts when; late ones again; lines of progress |
//! | `isolated.rs` | a test's process: namespaces, verdict, end |
//! | `prepare.rs` | what is built and fetched before, by the runner itself |
//! | `results.rs` | target/results/lab.json; the times of the last run |

mod isolated;
mod prepare;
mod results;
mod schedule;

use std::path::Path;

pub use isolated::run_one;
pub use results::Times;

use crate::interrupt;
use crate::scenario::{self, Test};
use crate::tests::FAMILIES;

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Ok,
    /// A wait ended ([`crate::interrupt::Late`]).
    Late,
    /// Anything else.
    Failed,
}

impl Verdict {
    /// As printed.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Late => "LATE",
            Self::Failed => "FAILED",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Ok, Self::Late, Self::Failed].into_iter().find(|verdict| verdict.word() == word)
    }
}

/// How a test ended, and what it says: what it measured, or what is wrong.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How.
    pub verdict: Verdict,
    /// In words.
    pub text: String,
}

/// Prepares and runs `tests`; prints verdicts and the sum, and writes target/results/lab.json. True
/// when all passed.
///
/// # Errors
/// When not root, or when a program does not build or an artifact cannot be fetched.
pub fn run(tests: &[Test], lab_dir: &Path, kvm_usable: bool) -> anyhow::Result<bool> {
    isolated::check_possible()?;
    prepare::prepare(tests, lab_dir)?;
    let times = Times::last();
    let starter = isolated::Starter::new(lab_dir, kvm_usable)?;
    let ran = schedule::run(tests, &starter, |test| times.seconds(test));
    results::write(&ran, |name| scenario::family_of(FAMILIES, name))?;
    Ok(schedule::print_sum(&ran, tests.len()) && !interrupt::requested())
}
