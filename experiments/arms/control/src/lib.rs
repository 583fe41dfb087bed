//! Planner and controllers of two arms that carry one part: QuartzV's case (section III). The plant is
//! in the folder above.
//!
//! The planner publishes where each arm shall be at which time of the group's timeline, 0.6 s ahead. Each
//! controller samples that at `now()`, 500 times a second, so a cycle that is late is late and not
//! wrong. Nothing else coordinates them. A controller whose clock is not known well enough any more sends
//! nothing, whereupon the plant's drives hold; the other one hears of it and holds, too. When both clocks are good
//! again, all three agree on a time from which the motion goes on ([`start`]).
//!
//! | file | owns |
//! | --- | --- |
//! | `plan.rs` | plan.json, one cycle as waypoints |
//! | `horizon.rs` | the waypoints that a controller has got, and samples of them |
//! | `start.rs` | from when on the plan is followed: approach, ramp, and plan time by the clock |
//! | `approach.rs` | from where an arm stands to where the plan is, by rsruckig |
//! | `controller.rs` | one arm: stands, moves, holds; pure |
//! | `planner.rs` | what is published, and when a start is proposed; pure |
//! | `message.rs` | what they say to each other |
//! | `wire.rs` | the plant's datagrams |
//! | `clock.rs` | the timeline, or for comparison a clock without bounds |
//! | `talk.rs` | the group's side of both programs |

#![forbid(unsafe_code)]

pub mod approach;
pub mod clock;
pub mod controller;
pub mod horizon;
pub mod message;
pub mod plan;
pub mod planner;
pub mod start;
pub mod talk;
pub mod wire;
