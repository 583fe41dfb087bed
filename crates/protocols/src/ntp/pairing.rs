//! Which answer belongs to which request: cookies, the request in flight, those that have ended, and
//! the last exchange for the interleaved mode.

use std::collections::VecDeque;

use timevisor_time::Duration;

use super::client::{Exchange, Outcome};
use super::format::NtpTimestamp;
use super::response::Response;

/// How many ended requests are remembered, to tell late and duplicate answers from forged ones.
const REMEMBERED: usize = 16;

/// The possible origin fields of an answer to one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cookies {
    /// The request's transmit field: a basic answer.
    pub(super) basic: NtpTimestamp,
    /// The request's receive field: an interleaved answer. Zero (which matches nothing) in a basic
    /// request.
    pub(super) interleaved: NtpTimestamp,
}

impl Cookies {
    pub(super) fn has(&self, origin: NtpTimestamp) -> bool {
        !origin.is_zero() && (self.basic == origin || self.interleaved == origin)
    }
}

#[derive(Clone, Debug)]
pub(super) struct InFlight<S> {
    pub(super) id: u64,
    pub(super) cookies: Cookies,
    pub(super) deadline: Duration,
    /// It carries the field of [`precise`].
    pub(super) precise: bool,
    /// The caller's stamp, once it is reported.
    pub(super) stamp: Option<S>,
}

/// The last answered exchange, kept for the interleaved mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    pub(super) exchange: Response,
    /// The name by which the server knows it: its receive stamp as it was on the wire.
    pub(super) name: NtpTimestamp,
    /// Our Ta and Tf; `None` if the caller reported no stamp.
    pub(super) stamps: Option<(u64, u64)>,
    /// True if it was handed to the estimator already, from a basic answer.
    pub(super) used: bool,
}

impl Last {
    /// Pairs our stamps with the server's.
    pub(super) fn outcome(&self, response: Response, answered: u64) -> Outcome {
        match self.stamps {
            Some((ta, tf)) => Outcome::Exchange(Exchange { ta, tf, response }),
            None => Outcome::Kept { answered },
        }
    }
}

/// Cookies of ended requests, the newest first, and whether an answer ended them.
#[derive(Clone, Debug, Default)]
pub(super) struct Past(VecDeque<(Cookies, bool)>);

impl Past {
    pub(super) fn push(&mut self, cookies: Cookies, answered: bool) {
        self.0.truncate(REMEMBERED - 1);
        self.0.push_front((cookies, answered));
    }

    /// Whether the ended request with this cookie was answered; `None` if there is none.
    pub(super) fn was_answered(&self, origin: NtpTimestamp) -> Option<bool> {
        self.0.iter().find(|(cookies, _)| cookies.has(origin)).map(|(_, answered)| *answered)
    }

    /// Makes the cookies from `random`, skipping zero ("no time") and the remembered cookies, so
    /// that even a broken generator cannot make an old answer match a new request. The second
    /// cookie follows from the first; both leave in one packet, so anyone who has seen one has seen
    /// both.
    pub(super) fn fresh(&self, random: u64, interleaved: bool) -> Cookies {
        let mut basic = random;
        loop {
            let second = if interleaved { scrambled(basic) } else { 0 };
            let cookies = Cookies {
                basic: NtpTimestamp::from_bits(basic),
                interleaved: NtpTimestamp::from_bits(second),
            };
            let known = |c: NtpTimestamp| self.0.iter().any(|(past, _)| past.has(c));
            let usable = basic != 0 && !known(cookies.basic) && !known(cookies.interleaved);
            if usable && basic != second && !(interleaved && second == 0) {
                return cookies;
            }
            basic = basic.wrapping_add(1);
        }
    }
}

/// A bijective mix of 64 bits (the finalizer of splitmix64): different first cookies give different
/// second cookies.
const fn scrambled(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
