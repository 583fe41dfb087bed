//! Structures and enumerations of pins. Every structure begins with its size; see `memory`.

use core::ffi::c_char;

use crate::memory::Shared;
use crate::types::timevisor_reading;

/// Room for a PTP pin's name, and the zero byte at the end.
pub const TIMEVISOR_PIN_NAME_SIZE: usize = 64;

/// Edges of a line: rising is from inactive to active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_edge {
    /// Of an event at a PTP clock: it does not say.
    Unknown = 0,
    /// It became active.
    Rising = 1,
    /// It became inactive.
    Falling = 2,
    /// Either: to ask for.
    Both = 3,
}

/// What a PTP pin is used for. Not tested on hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_pin_function {
    /// Something that this library does not know.
    Unknown = -1,
    /// Nothing.
    None = 0,
    /// Its edges are stamped.
    Timestamp = 1,
    /// A signal is made at it.
    Output = 2,
    /// Synchronizes the physical layer.
    PhySync = 3,
}

/// An edge at a pin.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_pin_event {
    /// sizeof(timevisor_pin_event)
    pub struct_size: u32,
    /// A timevisor_edge.
    pub edge: i32,
    /// So many edges between the last event and this one were not delivered, at least: the kernel's
    /// buffer (1024 events) was full, or it took two edges for one. Always 0 at a PTP clock.
    pub lost: u32,
    /// 1: an edge came, whose time may be unknown; 0: none came.
    pub came: u32,
    /// The counter, no later than the stamp; 0 when the event's time is not known.
    pub first: u64,
    /// The counter, no earlier than the stamp; 0 when the event's time is not known.
    pub last: u64,
    /// NULL, or where to put when it was stamped. The longer the event waited to be read, the wider
    /// this is: +-0.25 ms for each millisecond at a GPIO line.
    pub reading: *mut timevisor_reading,
}

/// What became of an output that was to change at a time.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_changed {
    /// sizeof(timevisor_changed)
    pub struct_size: u32,
    /// A timevisor_outcome, the same as what the function returns.
    pub outcome: i32,
    /// The estimate when the line had surely changed, less its time: 0 or more.
    pub lateness_ns: i64,
    /// TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    pub too_late_by_ns: i64,
    /// The counter, before it changed; 0 when it did not.
    pub first: u64,
    /// The counter, after it had changed; 0 when it did not.
    pub last: u64,
    /// NULL, or where to put when it changed; when it did not, the reading because of which.
    pub reading: *mut timevisor_reading,
}

/// A pulse that a PTP clock will make. Not tested on hardware.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_pulse {
    /// sizeof(timevisor_pulse)
    pub struct_size: u32,
    /// A timevisor_outcome, the same as what the function returns.
    pub outcome: i32,
    /// When it begins, by the PTP clock, ns of its own timescale.
    pub device_ns: i64,
    /// TIMEVISOR_OUTCOME_TOO_LATE: by how much. Otherwise 0.
    pub too_late_by_ns: i64,
    /// The counter, no later than that.
    pub first: u64,
    /// The counter, no earlier than that.
    pub last: u64,
    /// NULL, or where to put when it begins on the timeline; where it was refused, the reading
    /// because of which.
    pub reading: *mut timevisor_reading,
}

/// A pin of a PTP clock. Not tested on hardware.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_ptp_pin {
    /// sizeof(timevisor_ptp_pin)
    pub struct_size: u32,
    /// A timevisor_pin_function.
    pub function: i32,
    /// The channel of that function.
    pub channel: u32,
    /// 0
    pub reserved: u32,
    /// The driver's name for it.
    pub name: [c_char; TIMEVISOR_PIN_NAME_SIZE],
}

macro_rules! shared {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), begins with struct_size, has numbers and raw pointers only; the sizes
        // below add up.
        unsafe impl Shared for $name {}
    )*};
}

shared! {
    timevisor_pin_event timevisor_changed timevisor_pulse timevisor_ptp_pin
}

/// The sizes of version 0 on 64-bit machines: what older programs pass, and proof that there is no
/// padding.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<timevisor_pin_event>() == 4 * 4 + 2 * 8 + 8);
    assert!(size_of::<timevisor_changed>() == 2 * 4 + 4 * 8 + 8);
    assert!(size_of::<timevisor_pulse>() == 2 * 4 + 4 * 8 + 8);
    assert!(size_of::<timevisor_ptp_pin>() == 4 * 4 + TIMEVISOR_PIN_NAME_SIZE);
};
