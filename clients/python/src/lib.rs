//! `timevisor._timevisor`: the Rust client (clients/rust) as a Python extension module.
//!
//! | module | owns |
//! | --- | --- |
//! | `client` | `connect`, `Client`: page, channel, timelines |
//! | `binding` | `Binding`: a requirement in force |
//! | `timeline` | `Timeline`: read, convert, compare, begin waits |
//! | `elapsed` | `Elapsed`: how long something has been running |
//! | `reading` | `Reading` |
//! | `recording` | `Recorder`, `Recording`, `PacketStamps` |
//! | `requirement` | `Requirement` |
//! | `wait` | blocking without the GIL, descriptors, `Cancel` |
//! | `pins` | `PinEvents`, `OutputLine`, `PtpPins`: events at pins, outputs at a time |
//! | `group` | `Group`: members that act together at a time |
//! | `manual` | `Clock`, hand-driven, and `Bus`, in memory, for tests |
//! | `arguments` | instants and spans out of Python's integers; floats refused |
//! | `words` | the dataclasses and enums of `timevisor._words`, filled |
//! | `records` | those that contain a `Reading` or a `Requirement` |
//! | `unhurried` | handles that are dropped without the GIL |
//! | `errors` | the client's errors as the exceptions of `timevisor._errors` |
//!
//! Names, types and documentation that users see are in python/timevisor; `_timevisor.pyi` is this
//! module's. Nothing here keeps state between calls, or installs a signal handler, except for SIGBUS
//! where a program names a page file (`survive_truncation`).
//!
//! What it does not do: asyncio. That is python/timevisor/aio.py, on the descriptors of `wait`.
#![forbid(unsafe_code)]

mod arguments;
mod binding;
mod client;
mod elapsed;
mod errors;
mod group;
mod manual;
mod pins;
mod reading;
mod recording;
mod records;
mod requirement;
mod timeline;
mod unhurried;
mod wait;
mod words;

#[pyo3::pymodule(gil_used = false)]
mod _timevisor {
    #[pymodule_export]
    use crate::binding::Binding;
    #[pymodule_export]
    use crate::client::{Client, connect, survive_truncation};
    #[pymodule_export]
    use crate::elapsed::Elapsed;
    #[pymodule_export]
    use crate::group::{Group, GroupWait, Messages, Pending, Proposals, Reports};
    #[pymodule_export]
    use crate::manual::{Bus, Clock};
    #[pymodule_export]
    use crate::pins::{OutputFd, OutputLine, PinEvents, PtpPins};
    #[pymodule_export]
    use crate::reading::Reading;
    #[pymodule_export]
    use crate::recording::{PacketStamps, Recorder, Recording};
    #[pymodule_export]
    use crate::requirement::Requirement;
    #[pymodule_export]
    use crate::timeline::Timeline;
    #[pymodule_export]
    use crate::wait::{AtFd, Cancel, Periodic, WaitFd, Watch, When};
}
