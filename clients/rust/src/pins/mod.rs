//! Events at pins, and outputs at a time: GPIO lines and the pins of PTP clocks.
//!
//! | module | owns |
//! | --- | --- |
//! | [`events`] | [`PinEvents`]: edges as readings of a timeline; iterator and descriptor |
//! | `place` | the kernel's and a PTP clock's stamps on the timeline's counter |
//! | [`output`] | [`OutputLine`]: a GPIO line that changes at a time, or not at all |
//! | [`ptp`] | [`PtpPins`]: functions of pins, and a pulse at a time; **not tested on hardware** |
//! | `error` | [`PinError`] |
//!
//! The moment of an event at a GPIO line is that of the kernel's stamp, in the interrupt handler.
//! The edge came before it, by the interrupt's latency: microseconds, and in a guest as long as its
//! virtual processor did not run. No program can know that from the stamp.
//!
//! What it does not do: several lines at once, debouncing, bias, drive, polarity.

mod error;
pub mod events;
pub mod output;
mod place;
pub mod ptp;

pub use self::error::{PinError, Unplaced};
pub use self::events::{PinEvent, PinEvents};
pub use self::output::{Changed, OutputFd, OutputLine};
pub use self::ptp::{PtpPins, Pulse};

pub use timevisor_linux::gpio::{Edge, Edges};
pub use timevisor_linux::phc::pins::{Pin, PinFunction};
