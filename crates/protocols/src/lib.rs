//! Timevisor's protocols, sans-IO: they take bytes and the current time, and return actions.
//!
//! | module | owns |
//! | --- | --- |
//! | [`ntp`] | NTPv4 packets and the state machine of one server association |
//! | [`nts`] | keys, cookies and authentication around it |
//! | [`channel`] | timelines, requirements and bindings: between applications (including those in guests) and the daemon |
//! | [`bus`] | groups, members and their messages: between programs and timevisor-bus |
//! | [`bytes`] | fields of binary formats of our own |
//! | [`ages`] | how a process gets the age of a thread |
//! | [`chrony`] | the request that `chronyc tracking` sends to chronyd, and the reply |
//! | [`clockbound`] | the shared memory that clients of AWS ClockBound read |
//! | [`ptp`] | PTP management messages, as exchanged with ptp4l |
//! | [`qmp`] | the QEMU machine protocol: session, events, run state, and the dialogue that a helper holds |
//! | [`control`] | the messages between the command line and the daemon |
//! | [`visits`] | what a server of a cluster said once, for a host that runs without a network |
//! | [`line`](mod@line) | splitting a byte stream into lines of bounded length |
//!
//! What it does not do: open sockets, read clocks, draw random numbers, start threads, or judge how
//! good a server's time is. The caller passes `now` and randomness in, sends the bytes that come
//! out, and hands accepted responses to the estimator. The daemon and the simulator drive the same
//! code.
#![forbid(unsafe_code)]

pub mod ages;
pub mod bus;
pub mod bytes;
pub mod channel;
pub mod chrony;
pub mod clockbound;
pub mod control;
pub mod line;
pub mod ntp;
pub mod nts;
pub mod ptp;
pub mod qmp;
pub mod visits;
