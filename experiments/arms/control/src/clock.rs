//! What a controller samples: the timeline, or, to compare, a clock without bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timevisor::{Status, Timeline};

use crate::controller::Clock;

/// TAI is ahead of UTC by this (since 2017).
const TAI_NS: i64 = 37_000_000_000;
/// How often a naive clock asks its server.
const ASK: Duration = Duration::from_secs(1);

/// A clock.
#[derive(Debug)]
pub enum Source {
    /// A timeline with a requirement: its readings say whether they meet it.
    Timeline(Timeline),
    /// What the last answer of a server said, as plain SNTP clients do; nothing tells that it is wrong.
    Naive(Arc<AtomicI64>),
}

impl Source {
    /// A clock that follows this server (RFC 4330), whatever it says.
    ///
    /// # Errors
    /// When the server does not answer, or there can be no thread.
    pub fn naive(server: &str) -> anyhow::Result<Self> {
        let server = server.to_owned();
        let offset = Arc::new(AtomicI64::new(ask(&server)?));
        let shared = Arc::clone(&offset);
        std::thread::Builder::new().name("sntp".to_owned()).spawn(move || {
            loop {
                std::thread::sleep(ASK);
                if let Ok(found) = ask(&server) {
                    shared.store(found, Ordering::Relaxed);
                }
            }
        })?;
        Ok(Self::Naive(offset))
    }

    /// The clock now; `None` where it is not known.
    #[must_use]
    pub fn read(&self) -> Option<Clock> {
        match self {
            Self::Timeline(timeline) => {
                let reading = timeline.now().ok().filter(timevisor::Reading::is_known)?;
                let is_good =
                    matches!(reading.status(), Status::Synchronized | Status::FreeRunning);
                Some(Clock {
                    now_ns: reading.estimate_ns(),
                    met: is_good && reading.met(),
                    disruption: reading.disruption(),
                })
            }
            Self::Naive(offset) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
                let now = i64::try_from(now.as_nanos()).ok()? + TAI_NS;
                Some(Clock {
                    now_ns: now + offset.load(Ordering::Relaxed),
                    met: true,
                    disruption: 0,
                })
            }
        }
    }
}

fn ask(server: &str) -> anyhow::Result<i64> {
    let found = rsntp::SntpClient::new().synchronize(server)?.clock_offset();
    let size = i64::try_from(found.abs_as_std_duration()?.as_nanos())?;
    Ok(size * i64::from(found.signum()))
}
