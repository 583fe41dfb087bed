//! [`Tried`]: a place that was tried and not used, and why.

use std::path::Path;

/// A place that was tried and not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// A path, or what was looked for.
    pub place: String,
    /// Why it was not used.
    pub why: String,
}

impl Tried {
    pub(crate) fn new(place: &impl ToString, why: &impl ToString) -> Self {
        Self { place: place.to_string(), why: why.to_string() }
    }

    pub(crate) fn because(place: &Path, why: &dyn core::error::Error) -> Self {
        let mut text = why.to_string();
        let mut inner = why.source();
        while let Some(cause) = inner {
            text = format!("{text}: {cause}");
            inner = cause.source();
        }
        Self { place: place.display().to_string(), why: text }
    }

    pub(crate) fn list(tried: &[Self]) -> String {
        let each: Vec<String> = tried.iter().map(|t| format!("{}: {}", t.place, t.why)).collect();
        each.join("; ")
    }
}
