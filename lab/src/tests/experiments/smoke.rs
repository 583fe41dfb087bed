//! The experiments' machinery, briefly: four clocks, one truth.

use crate::experiments;
use crate::scenario::Context;

pub(crate) fn quartzv(ctx: &Context) -> anyhow::Result<String> {
    experiments::smoke(ctx)
}

/// A dependent clock without a rate, briefly.
pub(crate) fn sawtooth(ctx: &Context) -> anyhow::Result<String> {
    experiments::sawtooth_smoke(ctx)
}
