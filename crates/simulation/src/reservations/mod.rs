//! Reservations of processor time, simulated to the nanosecond: what `timevisor-schedule` predicts,
//! compared with what happens.
//!
//! | module | owns |
//! | --- | --- |
//! | [`sets`] | [`sets::Case`]: random tasks |
//! | [`releases`] | [`releases::Plan`]: when jobs are released |
//! | [`guest`] | [`guest::Guest`]: the scheduler inside a reservation |
//! | [`windows`] | supplies as defined by theory |
//! | [`server`] | [`server::Server`]: one reservation as SCHED_DEADLINE implements it |
//! | [`processor`] | several of them on a core, by earliest deadline first |
//! | [`global`] | a guest that schedules over several vCPUs by itself |
//! | [`rivals`] | [`rivals::Rivals`]: the others on the core |
//! | [`claims`] | [`claims::Claim`]: each kind of supply that the analysis knows |
//! | [`attacks`] | attempts to break one |
//! | [`crashes`] | the state machine of reservations on a host whose daemon is killed at any moment |
//! | [`mod@examine`] | one case under one claim |
//! | [`tally`] | [`tally::Tally`]: many of them |
//!
//! What it does not do: charge for switches and interrupts (the analysis adds them to costs), or
//! imitate any measured workload. Fixed-point rounding of the kernel is imitated where budgets depend
//! on it.

pub mod attacks;
pub mod claims;
pub mod crashes;
pub mod examine;
pub mod global;
pub mod guest;
pub mod processor;
pub mod releases;
pub mod rivals;
pub mod server;
pub mod sets;
pub mod tally;
pub mod windows;

pub use claims::Claim;
pub use examine::examine;
pub use sets::Case;
pub use tally::Tally;

/// Examines the cases of these seeds under all claims. `budgets` selects those for which to also
/// search for the simulator's minimum budgets, which takes ten times as long.
#[must_use]
pub fn cross_check(seeds: impl IntoIterator<Item = u64>, budgets: impl Fn(u64) -> bool) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let case = Case::random(seed);
        for claim in Claim::ALL {
            if let Some(examined) = examine(&case, claim, budgets(seed)) {
                tally.add(&case, claim, &examined);
            }
        }
    }
    tally
}

#[cfg(test)]
mod tests;
