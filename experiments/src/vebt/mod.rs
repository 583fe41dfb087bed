//! T. Broomhead, L. Cremean, J. Ridoux, D. Veitch, "Virtualize everything but time" (OSDI 2010),
//! with Timevisor's page in place of their dependent RADclock.
//!
//! | file | owns |
//! | --- | --- |
//! | `side.rs` | figure 2: several daemons side by side on one host |
//! | `sawtooth.rs` | figure 3: a dependent clock without a rate |
//! | `churn.rs` | figure 4: a clock kept inside a guest while other guests come and go |
//! | `latency.rs` | figure 5: accesses to counters and clocks |
//! | `noise.rs` | figures 6 and 9: what the host adds to an exchange, by load |
//! | `idle.rs` | figures 6 and 8, table 1: a processor without work halts, polls or spins |
//! | `counters.rs` | figure 7: clocks inside two guests, by the TSC and by the HPET |
//! | `update.rs` | figure 10: from the host's write to a guest's read |
//! | `migration.rs` | figure 11: the page and a chronyd inside the guest, over migrations |
//! | `hosts.rs` | figure 11, bottom: the hosts' own clocks meanwhile |
//! | `look.rs` | a page compared with the truth, and a table's row |
//! | `beside.rs`, `busy.rs` | a chronyd and busy programs on the host |
//! | `paper.rs` | the paper's published results |
//!
//! Not included: C-states below the halt of a virtual machine's processor, Xen, an HPET read
//! natively, a DAG card as the external observer, and days of samples.

mod beside;
mod busy;
pub(super) mod churn;
pub(super) mod counters;
mod hosts;
pub(super) mod idle;
pub(super) mod latency;
mod look;
pub(super) mod migration;
pub(super) mod noise;
mod paper;
pub(super) mod sawtooth;
pub(super) mod side;
pub(super) mod update;
