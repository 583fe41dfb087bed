//! Publishing, and [`timevisor_subscription`]: a topic's messages.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{CStr, c_char, c_int, c_void};
use std::ffi::CString;

use timevisor::group::{Message, Order};

use super::conversions::{ends, name, timeout};
use super::inbox::Entries;
use super::member::{group_of, timevisor_group};
use super::types::{timevisor_message, timevisor_order};
use crate::conversions::no_such;
use crate::error::{Failure, guard};
use crate::memory::{InOut, Out, Text, bytes, give, handle, span};
use crate::pending::Pending;

/// Publishes a message of at most 1 MiB with the time of now. It is copied.
///
/// payload: `length` bytes; may be NULL if that is 0.
/// Returns 0; -EMSGSIZE: it is longer; -ENOTCONN: the bus is not connected, the library connects again;
/// -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_publish(
    group: Option<&timevisor_group>,
    topic: Text<'_>,
    payload: *const c_void,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller says that it has so many bytes, and leaves them alone.
        let payload = unsafe { bytes(payload, length)? };
        group_of(group)?.publish(topic.require("topic")?, payload)?;
        Ok(0)
    })
}

/// A topic's messages, oldest first. One thread at a time. Of more than 65536 that nobody takes the
/// oldest are dropped.
pub struct timevisor_subscription {
    pending: Pending<Held>,
}

struct Held {
    entries: Entries<Message>,
    /// The names of those that the last message has not heard of.
    unheard: Vec<CString>,
}

/// Gets a topic's messages, those that were published before first: `history` of them at most.
///
/// order: a timevisor_order. hold_ns: with TIMEVISOR_ORDER_TIME, how long a silent member holds up
/// others (0: 500 ms); otherwise 0.
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_subscribe(
    group: Option<&timevisor_group>,
    topic: Text<'_>,
    order: c_int,
    hold_ns: i64,
    history: u32,
    subscription: Out<'_, *mut timevisor_subscription>,
) -> c_int {
    guard(|| {
        give(subscription, || {
            let order = order_from(order, hold_ns)?;
            let inbox = group_of(group)?.subscribe(topic.require("topic")?, order, history)?;
            let entries = Entries::begin(inbox)?;
            let pending = Pending::new(Held { entries, unheard: Vec::new() });
            Ok(timevisor_subscription { pending })
        })
    })
}

/// Waits for the next message. `message` may be NULL.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns 0; -ETIMEDOUT; -ESHUTDOWN: the member has left, and there is none any more; -EBUSY: another
/// thread waits with this handle; -EINVAL. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_next(
    subscription: Option<&timevisor_subscription>,
    timeout_ns: i64,
    mut message: InOut<'_, timevisor_message>,
) -> c_int {
    guard(|| {
        message.check()?;
        let timeout = timeout(timeout_ns)?;
        handle(subscription, "subscription")?.pending.with(|held| {
            let code = held.entries.next(timeout, |found| tell(&mut message, found))?;
            held.name_unheard();
            Ok(code)
        })
    })
}

/// The descriptor to poll for reading; level-triggered: readable while there are messages, and after
/// the member has left. It belongs to the handle: do not read or close it. -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_fd(
    subscription: Option<&timevisor_subscription>,
) -> c_int {
    guard(|| Ok(handle(subscription, "subscription")?.pending.fd()))
}

/// Takes the next message; never blocks. `message` may be NULL.
///
/// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_subscription_next.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_on_ready(
    subscription: Option<&timevisor_subscription>,
    mut message: InOut<'_, timevisor_message>,
) -> c_int {
    guard(|| {
        message.check()?;
        handle(subscription, "subscription")?.pending.with(|held| {
            let code = held.entries.on_ready(|found| tell(&mut message, found))?;
            if code == 0 {
                held.name_unheard();
            }
            Ok(code)
        })
    })
}

/// The name of a member that may still send something older than the message that was given last; NULL
/// if there are not so many. Valid until the next message is taken. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_unheard(
    subscription: Option<&timevisor_subscription>,
    index: usize,
) -> *const c_char {
    let found = subscription.and_then(|subscription| {
        let look = |held: &mut Held| Ok(held.unheard.get(index).map(|name| name.as_ptr()));
        subscription.pending.with(look).ok().flatten()
    });
    found.unwrap_or(core::ptr::null())
}

/// How many messages were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_dropped(
    subscription: Option<&timevisor_subscription>,
) -> c_int {
    guard(|| handle(subscription, "subscription")?.pending.with(|held| Ok(held.entries.dropped())))
}

/// Ends a subscription. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_subscription_free(subscription: Option<Box<timevisor_subscription>>) {
    drop(subscription);
}

impl Held {
    fn name_unheard(&mut self) {
        let names = self.entries.last().into_iter().flat_map(|message| &message.unheard);
        self.unheard =
            names.map(|who| CString::new(who.name.as_str()).unwrap_or_default()).collect();
    }
}

impl std::os::fd::AsFd for Held {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.entries.as_fd()
    }
}

fn tell(to: &mut InOut<'_, timevisor_message>, found: &Message) -> Result<(), Failure> {
    let (earliest_ns, latest_ns) = found.stamp.map_or((0, 0), |stamp| ends(&stamp.interval));
    to.fill_if_wanted(|to| {
        *to = timevisor_message {
            struct_size: to.struct_size,
            is_old: found.is_old.into(),
            sender: name(found.from.name.as_str()),
            incarnation: found.from.incarnation,
            sequence: found.sequence,
            stamped: found.stamp.is_some().into(),
            unheard: u32::try_from(found.unheard.len()).unwrap_or(u32::MAX),
            earliest_ns,
            latest_ns,
            origin: found.stamp.map_or(0, |stamp| stamp.origin),
            late_ns: found.late_ns,
            payload: payload(&found.payload),
            length: found.payload.len() as u64,
        };
        Ok(())
    })
}

/// Never NULL.
pub(super) fn payload(bytes: &[u8]) -> *const c_void {
    const EMPTY: &CStr = c"";
    if bytes.is_empty() { EMPTY.as_ptr().cast() } else { bytes.as_ptr().cast() }
}

fn order_from(order: c_int, hold_ns: i64) -> Result<Order, Failure> {
    const ARRIVAL: c_int = timevisor_order::Arrival as c_int;
    const TIME: c_int = timevisor_order::Time as c_int;
    let hold = span(hold_ns, "hold_ns")?;
    match order {
        ARRIVAL if hold.is_zero() => Ok(Order::Arrival),
        ARRIVAL => Err(Failure::invalid("hold_ns is for TIMEVISOR_ORDER_TIME; give 0")),
        TIME if hold.is_zero() => Ok(Order::Time { hold: std::time::Duration::from_millis(500) }),
        TIME => Ok(Order::Time { hold }),
        _ => Err(no_such("timevisor_order", order)),
    }
}
