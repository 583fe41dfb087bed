//! Ta and Tf of an exchange over UDP: the counter around it, moved closer to the wire by the kernel's
//! stamps as far as the brackets around the exchange prove that.

use timevisor_linux::clock::Bracket;
use timevisor_linux::stamps::{KERNEL_SLEW_LIMIT, StampMap};
use timevisor_time::{Instant, Utc};

use super::Surroundings;

/// Readings per bracket; the narrowest one is used.
pub(super) const BRACKET_TRIES: usize = 3;

/// Our clocks when a request was sent: the counter before it, a bracket, and the kernel's time
/// stamp if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) ta: u64,
    pub(super) before: Bracket,
    pub(super) stamp: Option<Instant<Utc>>,
}

/// Our clocks when a datagram had arrived: the counter, a bracket, and the kernel's time stamp if there
/// is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) tf: u64,
    pub(super) after: Bracket,
    pub(super) stamp: Option<Instant<Utc>>,
}

/// Computes Ta and Tf, and narrows them by the kernel's time stamps where these exist.
pub(super) fn narrowed(sent: &Sent, arrival: &Arrival, around: &Surroundings<'_>) -> (u64, u64) {
    let Arrival { tf, after, stamp } = *arrival;
    if sent.stamp.is_none() && stamp.is_none() {
        return (sent.ta, tf);
    }
    let (period, error) = around.calibration;
    let Some(map) = StampMap::new(sent.before, after, period, KERNEL_SLEW_LIMIT.plus(error)) else {
        return (sent.ta, tf);
    };
    let send = sent.stamp.and_then(|stamp| map.send_bound(stamp)).unwrap_or(sent.ta);
    let receive = stamp.and_then(|stamp| map.receive_bound(stamp)).unwrap_or(tf);
    let (ta, earlier) = (sent.ta.max(send), tf.min(receive));
    if ta <= earlier { (ta, earlier) } else { (sent.ta, tf) }
}
