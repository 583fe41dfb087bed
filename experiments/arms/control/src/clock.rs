//! What a controller samples: the timeline, or, to compare, a clock without bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timevisor::{ReadError, Status, Timeline};

use crate::controller::Clock;

/// TAI is ahead of UTC by this (since 2017).
const TAI_NS: i64 = 37_000_000_000;
/// How often a naive clock asks its server.
const ASK: Duration = Duration::from_secs(1);

/// Programs with a real-time priority can keep timevisord from ending an update, if they fill its processor.
#[derive(Clone, Copy, Debug)]
pub struct Interrupted;

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
    ///
    /// # Errors
    /// When the page's writer has not ended an update for 200 ms: it has died, or it is kept from running.
    pub fn read(&self) -> Result<Option<Clock>, Interrupted> {
        Ok(match self {
            Self::Timeline(timeline) => {
                let reading = match timeline.now() {
                    Ok(reading) if reading.is_known() => reading,
                    Err(ReadError::WriterStalled) => return Err(Interrupted),
                    _ => return Ok(None),
                };
                let is_good =
                    matches!(reading.status(), Status::Synchronized | Status::FreeRunning);
                Some(Clock {
                    now_ns: reading.estimate_ns(),
                    met: is_good && reading.met(),
                    disruption: reading.disruption(),
                })
            }
            Self::Naive(offset) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
                let now = now.and_then(|it| i64::try_from(it.as_nanos()).ok());
                now.map(|now| Clock {
                    now_ns: now + TAI_NS + offset.load(Ordering::Relaxed),
                    met: true,
                    disruption: 0,
                })
            }
        })
    }
}

fn ask(server: &str) -> anyhow::Result<i64> {
    let found = rsntp::SntpClient::new().synchronize(server)?.clock_offset();
    let size = i64::try_from(found.abs_as_std_duration()?.as_nanos())?;
    Ok(size * i64::from(found.signum()))
}
