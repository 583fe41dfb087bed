//! RVEC's published results: mean and standard deviation, us, on a Xeon E5410 at 2.33 GHz.

/// Table 1: a clock read in the middle of 5,000 arithmetic instructions.
pub(super) const TABLE_1: [(&str, f64, f64); 5] = [
    ("Base", 10.063, 0.762),
    ("TSC", 10.320, 0.701),
    ("MONOTONIC", 10.638, 0.652),
    ("PROCESS_CPUTIME", 10.571, 0.627),
    ("elapsed", 10.483, 0.623),
];

/// Table 2: the same instructions timed by each clock, and whether the program moves between cores.
pub(super) const TABLE_2: [(&str, bool, f64, f64); 5] = [
    ("TSC", false, 9.989, 0.668),
    ("MONOTONIC", false, 10.307, 1.033),
    ("PROCESS_CPUTIME", false, 10.221, 1.058),
    ("elapsed", false, 10.262, 1.047),
    ("elapsed", true, 10.323, 1.007),
];

/// Table 3: RVEC under frequency changes, without and with moves.
pub(super) const TABLE_3: [(f64, f64); 2] = [(30.652, 2.331), (30.803, 2.267)];

/// Table 4: the number of discarded measurements out of 100 of Memperf, and its standard deviation
/// over the runs.
pub(super) const TABLE_4: [(&str, f64, f64); 3] =
    [("RDTSC", 5.10, 0.79), ("RDTSC, moves", 53.15, 9.16), ("RVEC, moves", 5.15, 0.99)];
