//! Searches by bisection: the last number that fits, the minimum sufficient budget.

use crate::supply::Supply;

/// Searches from `fitting`, which fits, towards `not`, which does not, for the last number that
/// fits.
#[must_use]
pub fn last_that_fits(mut fitting: u64, mut not: u64, mut fits: impl FnMut(u64) -> bool) -> u64 {
    while fitting.abs_diff(not) > 1 {
        let middle = fitting.midpoint(not);
        if fits(middle) {
            fitting = middle;
        } else {
            not = middle;
        }
    }
    fitting
}

/// The minimum budget up to `most` with which this much work is supplied in time; `not` is too
/// little.
pub(crate) fn least_for<S: Supply>(
    work: u64,
    by: u64,
    not: u64,
    most: u64,
    supply: &impl Fn(u64) -> Option<S>,
) -> Option<u64> {
    let enough = |budget| supply(budget).is_some_and(|supply| supply.time_for(work) <= by);
    enough(most).then(|| last_that_fits(most, not, enough))
}
