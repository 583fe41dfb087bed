//! Hard bounds (docs/explanation/bounds.md).
//!
//! | module | owns |
//! | --- | --- |
//! | [`level1`] | [`Bounds`]: the best fact of each kind, aged at the limits of the rate |
//! | [`polygon`] | [`polygon::Polygon`]: all (offset, rate) pairs that are possible |
//! | [`level2`] | [`level2::Level2`]: polygons for several wander bounds at once |
//! | [`wander`] | [`wander::Wander`]: which wander bound is in force |
//! | [`guard`] | [`guard::Guard`]: notices that an assumption failed before the truth leaves |
//! | [`lookback`] | [`lookback::Lookback`]: notices that a clock began to run differently |
//! | [`cold`] | [`cold::ColdGuard`]: notices a counter beyond the stated limits before a rate is proven |
//! | [`hard`] | [`HardBounds`]: all of it for one reference |
//!
//! What it does not do: estimate. Estimators only choose coordinates and tell how much the
//! oscillator wanders.

pub mod cold;
pub mod guard;
pub mod hard;
pub mod level1;
pub mod level2;
pub mod lookback;
pub mod polygon;
pub mod wander;

pub use hard::{HardBounds, Outcome};
pub use level1::{Bounds, Contradiction};
pub use level2::Segment;
pub use lookback::Opinion;
