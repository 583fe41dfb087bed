//! Figures that others reached on the recorded traces: constants, not measured here.
//!
//! Source: the README beside the recorded traces. chrony: git 8f2db839 under clknetsim 134028fb,
//! minpoll 4 maxpoll 4, on the identical frequency paths and delays; error at 1 Hz and claimed
//! bound (|system time| + root delay / 2 + root dispersion, which is also the formula of
//! ClockBound's README, at chrony's own 1 ppm) every 5 s, both after 2 h. RADclock:
//! RADicalsync/RADclock 0d9a4c87, dead replay, read as K + p T - theta. Values are per seed, 1
//! and 2.

/// chronyd, polling every 16 s.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chrony {
    pub(crate) rms_us: [f64; 2],
    pub(crate) p99_us: [f64; 2],
    pub(crate) max_us: [f64; 2],
    pub(crate) median_bound_us: [f64; 2],
    pub(crate) coverage: [f64; 2],
}

/// RMS errors of other estimators, us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rms {
    pub(crate) last_sample: [f64; 2],
    pub(crate) radclock_good: [f64; 2],
    pub(crate) radclock_poor: [f64; 2],
}

/// What is published about a condition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    condition: &'static str,
    pub(crate) chrony: Chrony,
    pub(crate) rms: Option<Rms>,
}

/// For people: how large a set of seeds' RMS is when they are pooled.
pub(crate) fn pooled(rms: [f64; 2]) -> f64 {
    (rms.iter().map(|rms| rms * rms).sum::<f64>() / 2.0).sqrt()
}

/// What is published about `condition`, if anything.
pub(crate) fn of(condition: &str) -> Option<&'static Published> {
    ALL.iter().find(|published| published.condition == condition)
}

const ALL: [Published; 8] = [
    Published {
        condition: "a_lan",
        chrony: Chrony {
            rms_us: [3.88, 3.71],
            p99_us: [11.70, 8.92],
            max_us: [16.37, 22.61],
            median_bound_us: [47.7, 48.0],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [14.24, 14.10],
            radclock_good: [13.15, 14.78],
            radclock_poor: [4.10, 4.55],
        }),
    },
    Published {
        condition: "b_wan",
        chrony: Chrony {
            rms_us: [50.03, 53.85],
            p99_us: [135.15, 149.14],
            max_us: [560.36, 461.76],
            median_bound_us: [10_204.5, 10_204.8],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [352.40, 349.87],
            radclock_good: [24.39, 30.80],
            radclock_poor: [51.54, 55.03],
        }),
    },
    Published {
        condition: "c_wander",
        chrony: Chrony {
            rms_us: [9.61, 9.87],
            p99_us: [26.64, 28.07],
            max_us: [54.77, 47.10],
            median_bound_us: [53.0, 53.1],
            coverage: [0.99924, 1.0],
        },
        rms: Some(Rms {
            last_sample: [24.66, 22.15],
            radclock_good: [129.90, 147.10],
            radclock_poor: [22.85, 30.42],
        }),
    },
    Published {
        condition: "d_burst",
        chrony: Chrony {
            rms_us: [4.27, 4.06],
            p99_us: [13.13, 10.26],
            max_us: [17.92, 26.50],
            median_bound_us: [48.8, 49.0],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [162.59, 161.87],
            radclock_good: [13.21, 14.86],
            radclock_poor: [4.32, 4.71],
        }),
    },
    Published {
        condition: "e_route",
        chrony: Chrony {
            rms_us: [105.55, 109.38],
            p99_us: [157.88, 157.65],
            max_us: [162.69, 162.59],
            median_bound_us: [190.0, 190.1],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [112.97, 112.94],
            radclock_good: [112.09, 114.71],
            radclock_poor: [110.84, 111.94],
        }),
    },
    Published {
        condition: "e_route_after",
        chrony: Chrony {
            rms_us: [144.41, 149.62],
            p99_us: [158.88, 158.35],
            max_us: [162.69, 162.59],
            median_bound_us: [198.3, 198.0],
            coverage: [1.0, 1.0],
        },
        rms: None,
    },
    Published {
        condition: "f_vm",
        chrony: Chrony {
            rms_us: [4.03, 4.07],
            p99_us: [10.61, 9.99],
            max_us: [14.56, 22.76],
            median_bound_us: [48.6, 49.3],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [985.50, 991.51],
            radclock_good: [13.06, 14.40],
            radclock_poor: [4.45, 4.76],
        }),
    },
    Published {
        condition: "g_sine",
        chrony: Chrony {
            rms_us: [7.92, 7.76],
            p99_us: [19.39, 20.91],
            max_us: [49.04, 35.55],
            median_bound_us: [52.1, 52.3],
            coverage: [1.0, 1.0],
        },
        rms: Some(Rms {
            last_sample: [14.56, 14.46],
            radclock_good: [148.21, 148.09],
            radclock_poor: [30.34, 30.37],
        }),
    },
];
