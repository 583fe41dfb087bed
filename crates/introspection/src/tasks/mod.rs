//! The real-time tasks of a guest.
//!
//! | module | owns |
//! | --- | --- |
//! | [`event`] | events, decoded |
//! | [`table`] | the tasks that events have reported |
//! | [`initial_scan`] | the tasks that started before the trap points were set |
//! | [`history`] | the latest events |
//! | [`report`] | when tasks and demand are reported again |
//! | [`late`] | which of their jobs were late |
//! | [`demand`] | what these tasks need of a vCPU |
//! | [`follow`] | how a reservation follows this demand |

pub mod demand;
pub mod event;
pub mod follow;
pub mod history;
pub mod initial_scan;
pub mod late;
pub mod report;
pub mod table;
