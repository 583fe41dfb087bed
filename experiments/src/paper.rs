//! QuartzV's published results: D'Souza and Rajkumar, "QuartzV: Bringing Quality of Time to Virtual
//! Machines", section V.
//!
//! They were measured on a quad-core i7 with KVM, PTP with hardware timestamps, and a DAG card as
//! the external observer. Table I lists means over 1000 repetitions of a million reads.

/// A row of table I, ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Latency {
    pub(super) clock: &'static str,
    pub(super) min: f64,
    pub(super) mean: f64,
    pub(super) sd: f64,
}

const fn row(clock: &'static str, min: f64, mean: f64, sd: f64) -> Latency {
    Latency { clock, min, mean, sd }
}

/// The name of the page's row; in the paper this is the timeline clock.
pub(super) const PAGE: &str = "page";

/// Table I: native, in a VM with the page (kvm-clock), and in a VM with an emulated HPET.
pub(super) const TABLE_1: [[Latency; 4]; 3] = [
    [
        row("TSC", 4.0, 7.41, 59.55),
        row("CLOCK_REALTIME", 13.0, 26.19, 172.44),
        row("CLOCK_MONOTONIC", 13.0, 18.41, 95.74),
        row(PAGE, 16.0, 32.01, 123.69),
    ],
    [
        row("TSC", 4.0, 8.28, 88.75),
        row("CLOCK_REALTIME", 31.0, 40.46, 246.47),
        row("CLOCK_MONOTONIC", 31.0, 34.79, 233.83),
        row(PAGE, 54.0, 60.71, 242.34),
    ],
    [
        row("TSC", 4.0, 8.19, 95.18),
        row("CLOCK_REALTIME", 1785.0, 2038.02, 9721.72),
        row("CLOCK_MONOTONIC", 1786.0, 2022.13, 8912.25),
        row(PAGE, 1892.0, 2435.64, 9512.45),
    ],
];

/// Figures 8 and 9: mean and standard deviation of the error, us: native, para-virtual and fully
/// virtual.
pub(super) const ERRORS: [(f64, f64); 3] = [(24.28, 5.05), (26.12, 5.12), (70.23, 128.28)];
