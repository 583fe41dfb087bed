//! Simulated and recorded worlds for the code that production runs.
#![forbid(unsafe_code)]
