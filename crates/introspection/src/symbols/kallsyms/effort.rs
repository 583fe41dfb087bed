//! How much work a search may be: a guest can write tables that almost fit, and fit almost everywhere.

use super::tables::Why;

/// Steps of one search, over all places that look like a table. A step is a name, a token or 64 bytes
/// of text. A kernel of 2026, with 200,000 names, takes about 600,000, and each leftover copy of its
/// tables as many; there may be 64.
const MOST: u64 = 64_000_000;

/// What is left of it.
#[derive(Debug)]
pub(super) struct Effort(u64);

impl Default for Effort {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Effort {
    /// Takes some steps; `None` once there are not that many left.
    pub(super) fn take(&mut self, steps: usize) -> Option<()> {
        self.0 = self.0.checked_sub(steps as u64).or_else(|| {
            self.0 = 0;
            None
        })?;
        Some(())
    }

    /// An error once there are none left.
    pub(super) fn check(&self) -> Result<(), Why> {
        if self.0 == 0 {
            return Err(
                "they take more work than any kernel's: somebody in the guest imitates them"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// How many were taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        MOST - self.0
    }
}
