//! How long one read of the clock takes, ours beside the processor's, the kernel's, quanta's and
//! ClockBound's.
//!
//! Method: QuartzV (D'Souza and Rajkumar), table I: a million reads of every clock. One read is
//! about as long as the granule of many TSCs, so batches are timed instead of single differences;
//! the candidates take turns, block by block, so that a noisy second hits all of them. Limitations:
//! x86-64 only; one thread, warm caches, no writer publishing meanwhile.
#[cfg(target_arch = "x86_64")]
mod candidates;
#[cfg(target_arch = "x86_64")]
mod clockbound;
#[cfg(target_arch = "x86_64")]
mod page;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod timing;

#[cfg(target_arch = "x86_64")]
fn main() -> anyhow::Result<std::process::ExitCode> {
    run::run()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> anyhow::Result<()> {
    anyhow::bail!("bench-read compares with rdtsc, which only x86-64 has")
}
