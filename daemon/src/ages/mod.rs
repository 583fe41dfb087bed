//! Ages of threads on a host whose counter is not invariant: loads RVEC's BPF programs
//! (crates/linux/src/bpf), gives threads of other processes their records, and compares the ages
//! with CLOCK_MONOTONIC_RAW.
//!
//! | file | owns |
//! | --- | --- |
//! | this one | when there is such a service; what the event loop knows of it |
//! | `service.rs` | the thread `ages`: starts the programs, answers, compares |
//! | `clients.rs` | connections, their limits and their threads |
//! | `comparison.rs` | how far ages and CLOCK_MONOTONIC_RAW are apart |
//!
//! All of it runs in a thread of its own, so neither loading the programs nor a client delays the
//! clock. What it does not do: count the page's time. That stays CLOCK_MONOTONIC_RAW's
//! (docs/decisions/0061-rvec-counts-ages-bounds-count-monotonic-raw.md).

#[cfg(target_arch = "x86_64")]
mod clients;
#[cfg(target_arch = "x86_64")]
mod comparison;
mod service;
#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use timevisor_clock_page::{Counter as _, CounterId};
use timevisor_linux::event_fd::EventFd;
use timevisor_protocols::control::ThreadAges;

use self::service::Service;
use crate::clock::HostClock;
use crate::config::{Config, CounterChoice};

/// Parts per million by which ages and CLOCK_MONOTONIC_RAW may part within a second, or since the
/// start. A P-state that nobody reports changes a frequency by 100 MHz, which is 2 % of 5 GHz; what
/// moves cost even an emulated processor is below half a percent.
const LIMIT_PPM: f64 = 10_000.0;

/// What the service says of itself.
type Told = Arc<Mutex<ThreadAges>>;

fn starting(reason: &str) -> ThreadAges {
    ThreadAges {
        state: "starting".to_owned(),
        source: "monotonic-raw".to_owned(),
        reason: reason.to_owned(),
        threads: 0,
        moves: 0,
        frequency_changes: 0,
        events_missed: 0,
        apart_ppm: None,
        last_apart_ppm: None,
        worst_apart_ppm: None,
        limit_ppm: LIMIT_PPM,
    }
}

/// The service, as the event loop sees it.
pub struct Ages {
    told: Told,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Ages {
    /// Starts it, where CLOCK_MONOTONIC_RAW was chosen because the counter is not invariant.
    /// Elsewhere nothing is started.
    pub fn start(config: &Config, clock: &HostClock) -> Result<Option<Self>> {
        let raw = clock.counter.id() == CounterId::MonotonicRaw;
        if !raw || config.counter != CounterChoice::Auto {
            return Ok(None);
        }
        let told = Arc::new(Mutex::new(starting(&clock.counter_reason)));
        let stop = Arc::new(EventFd::new().context("cannot start counting ages")?);
        let service = Service {
            directory: config.run_directory.clone(),
            counter: clock.counter,
            why: clock.counter_reason.clone(),
            told: Arc::clone(&told),
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("ages".to_owned());
        let thread =
            thread.spawn(move || service.run()).context("cannot start counting ages of threads")?;
        Ok(Some(Self { told, stop, thread: Some(thread) }))
    }

    /// What `timevisor status` shows.
    pub fn report(&self) -> ThreadAges {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends it, which tells all readers.
    pub fn stop(&mut self) {
        let _ = self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
