//! T. Broomhead, L. Cremean, J. Ridoux, D. Veitch, "Virtualize everything but time" (OSDI 2010),
//! with Timevisor's page in place of their dependent RADclock.
//!
//! | file | owns |
//! | --- | --- |
//! | `migration.rs` | figure 11: the page and a chronyd inside the guest, over migrations |
//! | `sawtooth.rs` | figure 3: a dependent clock without a rate |
//! | `latency.rs` | figure 5: accesses to counters and clocks |
//! | `noise.rs` | figures 6 and 9: what the host adds to an exchange, by load |
//! | `update.rs` | figure 10: from the host's write to a guest's read |
//! | `paper.rs` | the paper's published results |
//!
//! Not included: C-states (figure 8 and the steps of figure 6), Xen, an HPET read natively, a DAG
//! card as the external observer, and days of samples.

pub(super) mod latency;
pub(super) mod migration;
pub(super) mod noise;
mod paper;
pub(super) mod sawtooth;
pub(super) mod update;
