//! The experiments' machinery, briefly: four clocks, one truth.

use crate::experiments;
use crate::scenario::Context;

pub(super) fn quartzv(ctx: &Context) -> anyhow::Result<String> {
    experiments::smoke(ctx)
}
