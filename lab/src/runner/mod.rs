//! Runs tests side by side, each in its own process and namespaces, and prints one line for each
//! verdict.
//!
//! | file | owns |
//! | --- | --- |
//! | `schedule.rs` | when each test starts; repeats of late tests; progress lines |
//! | `isolated.rs` | a test's process: namespaces, verdict, end |
//! | `evidence.rs` | the ends of a failed test's logs, for a CI that keeps only what is printed |
//! | `prepare.rs` | what the runner itself builds and fetches beforehand |
//! | `results.rs` | target/results/lab.json; the durations of the last run |

mod evidence;
mod isolated;
mod prepare;
mod results;
mod schedule;

use std::path::Path;

pub use isolated::{check_undivided, run_one};
pub use results::Times;

use serde_json::{Value, json};

use crate::interrupt::{self, Late};
use crate::scenario::{self, Test};
use crate::tests::FAMILIES;

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Ok,
    /// A wait timed out ([`crate::interrupt::Late`]).
    Late,
    /// It failed for any other reason.
    Failed,
}

impl Verdict {
    /// The verdict as printed.
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

/// How a test ended, and its message: what it measured, or what is wrong.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The message.
    pub text: String,
}

impl Outcome {
    /// The outcome for `result`.
    #[must_use]
    pub fn of(result: &anyhow::Result<String>) -> Self {
        match result {
            Ok(measured) => Self { verdict: Verdict::Ok, text: measured.clone() },
            Err(error) => {
                let verdict = if error.is::<Late>() { Verdict::Late } else { Verdict::Failed };
                Self { verdict, text: format!("{error:#}") }
            }
        }
    }

    /// One line of JSON, to pass it to another process.
    #[must_use]
    pub fn line(&self) -> String {
        json!({ "verdict": self.verdict.word(), "text": self.text }).to_string()
    }

    /// Parses a line from [`Self::line`].
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let verdict = Verdict::parse(value["verdict"].as_str()?)?;
        Some(Self { verdict, text: value["text"].as_str()?.to_owned() })
    }

    /// Converts it back to the result that it was made from.
    ///
    /// # Errors
    /// Unless the verdict is [`Verdict::Ok`]; the error of a late test has the mark [`Late`].
    pub fn into_result(self) -> anyhow::Result<String> {
        match self.verdict {
            Verdict::Ok => Ok(self.text),
            Verdict::Late => {
                // The text ends with the mark's own message.
                let said = self.text.strip_suffix(&format!(": {Late}")).unwrap_or(&self.text);
                Err(anyhow::Error::new(Late).context(said.to_owned()))
            }
            Verdict::Failed => Err(anyhow::Error::msg(self.text)),
        }
    }
}

/// Prepares and runs `tests`; prints the verdicts and a summary, and writes
/// target/results/lab.json. Returns true if all passed.
///
/// # Errors
/// When not root, or when a program does not build or an artifact cannot be fetched.
pub fn run(tests: &[Test], lab_dir: &Path, kvm_usable: bool) -> anyhow::Result<bool> {
    isolated::check_possible()?;
    isolated::check_undivided()?;
    prepare::prepare(tests, lab_dir)?;
    let times = Times::last();
    let starter = isolated::Starter::new(lab_dir, kvm_usable)?;
    let ran = schedule::run(tests, &starter, |test| times.seconds(test));
    results::write(&ran, |name| scenario::family_of(FAMILIES, name))?;
    Ok(schedule::print_sum(&ran, tests.len()) && !interrupt::requested())
}

#[cfg(test)]
mod tests {
    use anyhow::{Error, anyhow};

    use super::*;

    #[test]
    fn an_outcome_survives_the_way_to_another_process() {
        let late = Error::new(Late).context("the guest's \"boot\"");
        for (result, verdict) in [
            (Ok("3 samples".to_owned()), Verdict::Ok),
            (Err(late), Verdict::Late),
            (Err(anyhow!("20 us wrong").context("the page")), Verdict::Failed),
        ] {
            let outcome = Outcome::of(&result);
            let line = outcome.line();
            assert!(!line.contains('\n'));
            let there = Outcome::parse(&line).unwrap();
            assert_eq!((there.verdict, &there.text), (verdict, &outcome.text));
            let again = Outcome::of(&there.into_result());
            assert_eq!((again.verdict, again.text), (verdict, outcome.text));
        }
        assert!(Outcome::parse("no JSON").is_none());
    }
}
