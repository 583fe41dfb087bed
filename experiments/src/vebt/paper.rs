//! The results in the paper's text (its figures contain more).

/// Figure 5, at 2.13 GHz: what is read, and the latency given in the text.
pub(super) const LATENCY: [(&str, &str); 4] = [
    ("TSC by rdtsc, native", "about 80 cycles (38 ns)"),
    ("TSC by the kernel's access, native", "about 320 cycles (150 ns)"),
    ("Xen Clocksource, Dom0", "250 ns"),
    ("HPET, Dom0", "740 ns, IQR 72 cycles (34 ns); native IQR 40 cycles (19 ns)"),
];

/// Figure 2.
pub(super) const SIDE: &str =
    "RADclock and ntpd in parallel on Dom0: IQR of the error about 10 us for each";

/// Figure 3.
pub(super) const SAWTOOTH: &str =
    "dependent clock without a rate: errors of milliseconds; the host's own clock: IQR 10 us";

/// Figure 11.
pub(super) const MIGRATION: &str = "dependent RADclock: steps of some us; independent ntpd (poll 16 s): -1 to 27 s wrong, for more than 15 min, \
     an hour to converge";

/// Figure 4.
pub(super) const CHURN: &str = "independent ntpd on DomU that chooses its poll, beside guests that come and go: errors of several ms";

/// Figure 7.
pub(super) const COUNTERS: &str =
    "RADclocks in two guests, by the Xen Clocksource and by HPET: medians and IQRs nearly the same";

/// Figure 8 and table 1.
pub(super) const IDLE: &str = "RADclock's IQR nearly the same in C0 to C3 (figure 8); 95 to 98 % of the time in the deepest state allowed \
     (table 1)";

/// Figures 6 and 9.
pub(super) const NOISE: &str = "RTThost from C0 to C3: 20 us more in the median, the same minimum; with more guests median and IQR grow, in every \
     guest more than on Dom0";

/// Figure 10: through the XenStore.
pub(super) const UPDATE: &str =
    "1.2 ms in the median from the host's daemon to a guest's, through the XenStore (figure 10)";
