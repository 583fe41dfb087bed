//! wip
#![cfg_attr(not(test), no_std)]
pub mod counter;
pub use counter::{Counter, CounterId};
