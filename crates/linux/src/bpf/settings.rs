//! Sizes of the settings in bpf/introspect.h.

/// Bytes of `struct target`.
pub const TARGET: usize = 144;
/// Bytes of `struct point`.
pub const POINT: usize = 272;
/// Maximum number of points.
pub const POINTS: usize = 32;
/// Bytes of the settings: target, addresses and points.
pub(super) const SETTINGS: usize = TARGET + POINTS * (8 + POINT);
