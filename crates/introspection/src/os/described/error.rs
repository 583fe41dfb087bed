//! Why a plugin's file cannot be used.

/// Characters of each part of a message.
const LONGEST: usize = 500;

/// What is wrong with a file, where, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}: {key}: {problem}; {next_step}")]
pub struct PluginError {
    /// The file's name.
    pub file: String,
    /// The key, from the top of the file on, or the line.
    pub key: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub next_step: String,
}

/// A [`PluginError`] without its file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) key: String,
    pub(super) problem: String,
    pub(super) next_step: String,
}

impl Fault {
    pub(super) fn new(
        key: impl Into<String>,
        problem: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        Self { key: key.into(), problem: problem.into(), next_step: next_step.into() }
    }

    pub(super) fn of(self, file: &str) -> PluginError {
        let Self { key, problem, next_step } = self;
        let [file, key, problem, next_step] =
            [file, &key, &problem, &next_step].map(one_short_line);
        PluginError { file, key, problem, next_step }
    }
}

/// Messages quote the file, whose characters may act on a terminal as long as it is not checked.
fn one_short_line(text: &str) -> String {
    let shown = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().take(LONGEST).map(shown).collect()
}

/// Fails with this key, problem and next step unless the condition holds.
pub(super) fn ensure(
    holds: bool,
    key: &str,
    problem: impl FnOnce() -> String,
    next_step: &str,
) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault::new(key, problem(), next_step)) }
}
