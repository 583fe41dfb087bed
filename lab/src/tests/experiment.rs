//! The experiments' machinery, briefly: four clocks, one truth.

use crate::experiments;
use crate::scenario::Context;

pub(super) fn quartzv(ctx: &Context) -> anyhow::Result<String> {
    experiments::smoke(ctx)
}

/// A dependent clock without a rate, briefly.
pub(super) fn sawtooth(ctx: &Context) -> anyhow::Result<String> {
    experiments::sawtooth_smoke(ctx)
}
