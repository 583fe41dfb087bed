//! A scripted NTP server for the client's tests.

use timevisor_protocols::ntp::{LeapIndicator, Mode, NtpShort, NtpTimestamp, Packet, Request};
use timevisor_time::{Duration, Instant, Utc};

/// Ta and Tf of a request whose stamp is its id.
pub fn stamps(id: u64) -> (u64, u64) {
    (id * 1000, id * 1000 + 7)
}

/// UTC at monotonic zero in these tests.
pub(crate) fn utc(now: Duration) -> Instant<Utc> {
    Instant::from_unix_nanos(1_800_000_000_000_000_000) + now
}

pub(crate) fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

/// A good answer to `request`, stamped at `now`.
pub(crate) fn answer(request: &Request, now: Duration) -> Packet {
    let (asked, _) = Packet::parse(&request.bytes).expect("a request");
    Packet {
        leap: LeapIndicator::NoWarning,
        mode: Mode::Server,
        stratum: 2,
        precision: -23,
        root_delay: NtpShort::from_duration_ceil(Duration::from_micros(400)),
        root_dispersion: NtpShort::from_duration_ceil(Duration::from_micros(200)),
        reference_id: [192, 0, 2, 1],
        origin: asked.transmit,
        receive: NtpTimestamp::from_instant(utc(now)),
        transmit: NtpTimestamp::from_instant(utc(now + Duration::from_micros(20))),
        ..asked
    }
}

/// A kiss-o'-death for `request`.
pub(crate) fn kiss(request: &Request, code: [u8; 4], poll: i8) -> Packet {
    Packet {
        leap: LeapIndicator::Unsynchronized,
        stratum: 0,
        poll,
        reference_id: code,
        ..answer(request, Duration::ZERO)
    }
}
