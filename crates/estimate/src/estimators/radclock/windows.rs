//! Windows in stamps and thresholds in seconds, which are derived from the parameters as in
//! RADclock.

use timevisor_time::Duration;

use super::parameters::RadclockParameters;

/// A change of route must exceed this many stamping limits; RADclock's `Eshift`.
const SHIFT: f64 = 10.0;
/// Stamps for the global period must be better than this many stamping limits; `Ep`.
const PERIOD_POINT: f64 = 3.0;
/// A period with an error below this fraction of the rate error bound is always good enough to
/// track; `Ep_qual`.
const PERIOD_QUALITY: f64 = 0.2;
/// A period that moves by more than this many rate error bounds is rejected; `Ep_sanity`,
/// `Eplocal_sanity`.
const PERIOD_SANITY: f64 = 3.0;
/// The best stamp in the window must be within this many `Eoffset` for a new offset;
/// `Eoffset_qual`.
const OFFSET_QUALITY: f64 = 3.0;
/// An offset that moves by more than this many stamping limits ...
const OFFSET_SANITY: f64 = 100.0;
/// ... and this many rate error bounds times the gap is rejected.
const OFFSET_SANITY_RATE: f64 = 20.0;
/// Factors for the thresholds of a far reference: shift, offset quality, local quality.
const FAR: [f64; 3] = [3.0, 2.0, 2.0];
/// RADclock's rate for converting `Eshift` into a time: how long a drift of 1e-7 takes to
/// accumulate it.
const SHIFT_RATE: f64 = 1e-7;

/// Windows, in stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Windows {
    pub(super) history: u64,
    pub(super) shift: u64,
    pub(super) offset: u64,
    pub(super) local: u64,
    /// Width of the far and near windows of the local period.
    pub(super) local_ends: u64,
    pub(super) warmup: u64,
}

impl Windows {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive stamp counts; a float-to-integer `as` saturates"
    )]
    pub(super) fn new(p: &RadclockParameters) -> Self {
        let stamps = |span: f64| span / p.poll.as_secs_f64();
        let limit = p.stamping_limit.as_secs_f64();
        let shift = (stamps(SHIFT * limit / SHIFT_RATE).ceil() as u64).max(p.shift_stamps);
        let offset = (stamps(p.constant_rate_scale.as_secs_f64()) as u64).max(2);
        let local = (offset * 5).max(4);
        let whole_local = local + local / (p.local_ratio / 2).max(1);
        let warmup = p.warmup_stamps.max(offset).max(shift).max(whole_local);
        let mut history = stamps(p.history.as_secs_f64()) as u64;
        if warmup + shift > history / 2 {
            history = 3 * (2 * (warmup + shift) + 1);
        }
        Self { history, shift, offset, local, local_ends: (local / p.local_ratio).max(4), warmup }
    }
}

/// Thresholds, in seconds or as ratios.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Thresholds {
    pub(super) shift: Duration,
    pub(super) period_point: f64,
    pub(super) period_quality: f64,
    pub(super) period_sanity: f64,
    pub(super) local_quality: f64,
    pub(super) offset_width: f64,
    pub(super) offset_quality: f64,
    pub(super) offset_sanity: f64,
    pub(super) offset_sanity_rate: f64,
    pub(super) ageing: f64,
    pub(super) rate_error: f64,
}

impl Thresholds {
    pub(super) fn new(p: &RadclockParameters) -> Self {
        let limit = p.stamping_limit.as_secs_f64();
        let rate_error = p.rate_error_bound.ppb() * 1e-9;
        let offset_width = p.offset_ratio * limit;
        Self {
            shift: Duration::from_secs_f64(SHIFT * limit),
            period_point: PERIOD_POINT * limit,
            period_quality: PERIOD_QUALITY * rate_error,
            period_sanity: PERIOD_SANITY * rate_error,
            local_quality: p.local_quality.ppb() * 1e-9,
            offset_width,
            offset_quality: OFFSET_QUALITY * offset_width,
            offset_sanity: OFFSET_SANITY * limit,
            offset_sanity_rate: OFFSET_SANITY_RATE * rate_error,
            ageing: p.ageing_rate.ppb() * 1e-9,
            rate_error,
        }
    }

    /// Called once, at the end of the warmup, when the distance of the reference is known.
    pub(super) fn calibrate(&mut self, minimum: Duration, p: &RadclockParameters) {
        if minimum >= p.far_round_trip {
            let [shift, offset, local] = FAR;
            self.shift = Duration::from_secs_f64(shift * self.shift.as_secs_f64());
            self.offset_quality *= offset;
            self.local_quality *= local;
        }
    }
}
