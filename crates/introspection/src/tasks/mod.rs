//! The real-time tasks of a guest.
//!
//! | module | owns |
//! | --- | --- |
//! | [`event`] | what a trap point told, and what it means |
//! | [`table`] | the tasks that events told of |
//! | [`initial_scan`] | the tasks that began before the trap points were set |
//! | [`demand`] | what these tasks need of a vCPU |

pub mod demand;
pub mod event;
pub mod initial_scan;
pub mod table;
