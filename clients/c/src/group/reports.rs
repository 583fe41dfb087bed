//! [`timevisor_group_watch`]: what happens to a group and its messages.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::c_int;
use std::ffi::CString;

use timevisor::group::{Gone, Reported};

use super::conversions::{NO_NAME, name, timeout};
use super::inbox::Entries;
use super::member::{group_of, timevisor_group};
use super::types::{timevisor_gone, timevisor_report, timevisor_report_kind as Kind};
use crate::error::{Failure, guard};
use crate::memory::{InOut, Out, give, handle};
use crate::pending::Pending;

/// What happens to a group. One thread at a time. Of more than 65536 reports that nobody takes the
/// oldest are dropped.
pub struct timevisor_group_watch {
    pending: Pending<Held>,
}

struct Held {
    entries: Entries<Reported>,
    /// What the bus said in the last report.
    text: CString,
}

/// Begins to watch a group and its messages.
///
/// Returns 0; -EMFILE and the like: no descriptors; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_start(
    group: Option<&timevisor_group>,
    watch: Out<'_, *mut timevisor_group_watch>,
) -> c_int {
    guard(|| {
        give(watch, || {
            let entries = Entries::begin(group_of(group)?.watch())?;
            let pending = Pending::new(Held { entries, text: CString::default() });
            Ok(timevisor_group_watch { pending })
        })
    })
}

/// Waits for the next report. `report` may be NULL.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns as timevisor_subscription_next. Blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_next(
    watch: Option<&timevisor_group_watch>,
    timeout_ns: i64,
    mut report: InOut<'_, timevisor_report>,
) -> c_int {
    guard(|| {
        report.check()?;
        let timeout = timeout(timeout_ns)?;
        handle(watch, "watch")?.pending.with(|held| {
            let Held { entries, text } = held;
            entries.next(timeout, |found| tell(&mut report, found, text))
        })
    })
}

/// The descriptor to poll: see timevisor_subscription_fd.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_fd(watch: Option<&timevisor_group_watch>) -> c_int {
    guard(|| Ok(handle(watch, "watch")?.pending.fd()))
}

/// Takes the next report; never blocks. `report` may be NULL.
///
/// Returns 0; -EAGAIN: there is none, poll again; otherwise as timevisor_subscription_next.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_on_ready(
    watch: Option<&timevisor_group_watch>,
    mut report: InOut<'_, timevisor_report>,
) -> c_int {
    guard(|| {
        report.check()?;
        handle(watch, "watch")?.pending.with(|held| {
            let Held { entries, text } = held;
            entries.on_ready(|found| tell(&mut report, found, text))
        })
    })
}

/// How many reports were dropped since the last call, because nobody took them. -EBUSY, -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_dropped(watch: Option<&timevisor_group_watch>) -> c_int {
    guard(|| handle(watch, "watch")?.pending.with(|held| Ok(held.entries.dropped())))
}

/// Ends the watch. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_watch_free(watch: Option<Box<timevisor_group_watch>>) {
    drop(watch);
}

impl std::os::fd::AsFd for Held {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.entries.as_fd()
    }
}

fn tell(
    to: &mut InOut<'_, timevisor_report>,
    found: &Reported,
    text: &mut CString,
) -> Result<(), Failure> {
    *text = match found {
        Reported::Refused(said) => CString::new(said.as_str()).unwrap_or_default(),
        _ => CString::default(),
    };
    to.fill_if_wanted(|to| {
        *to = timevisor_report {
            struct_size: to.struct_size,
            kind: 0,
            member: NO_NAME,
            incarnation: 0,
            subject: NO_NAME,
            count: 0,
            others: 0,
            ns: 0,
            why: 0,
            met: 0,
            text: text.as_ptr(),
        };
        to.set(found);
        Ok(())
    })
}

impl timevisor_report {
    fn set(&mut self, found: &Reported) {
        let kind = match found {
            Reported::Present(info) => {
                self.member = name(&info.who.name);
                (self.incarnation, self.met) = (info.who.incarnation, info.met.into());
                Kind::Present
            }
            Reported::Gone(who, why) => {
                self.about(who);
                self.why = gone(*why) as i32;
                Kind::Gone
            }
            Reported::Lost { from, topic, count } => {
                from.iter().for_each(|from| self.about(from));
                self.subject = topic.map_or(NO_NAME, |topic| name(topic.as_str()));
                self.count = *count;
                Kind::Lost
            }
            Reported::FromTheFuture { from, by_ns } => {
                self.about(from);
                self.ns = *by_ns;
                Kind::FromTheFuture
            }
            Reported::AnotherOrigin(from) => {
                self.about(from);
                Kind::AnotherOrigin
            }
            Reported::Split { barrier, fired, quiet } => {
                self.subject = name(barrier.as_str());
                (self.count, self.others) = (*fired as u64, *quiet as u64);
                Kind::Split
            }
            Reported::Disconnected => Kind::Disconnected,
            Reported::Connected => Kind::Connected,
            Reported::Refused(_) => Kind::Refused,
            Reported::Leads { office, until_ns } => {
                (self.subject, self.ns) = (name(office.as_str()), *until_ns);
                Kind::Leads
            }
            Reported::LeadsNoMore(office) => {
                self.subject = name(office.as_str());
                Kind::LeadsNoMore
            }
            Reported::HistoryIncomplete { topic, dropped } => {
                (self.subject, self.count) = (name(topic.as_str()), *dropped);
                Kind::HistoryIncomplete
            }
        };
        self.kind = kind as i32;
    }

    fn about(&mut self, who: &timevisor::group::Id) {
        (self.member, self.incarnation) = (name(who.name.as_str()), who.incarnation);
    }
}

fn gone(why: Gone) -> timevisor_gone {
    match why {
        Gone::Left => timevisor_gone::Left,
        Gone::Disconnected => timevisor_gone::Disconnected,
        Gone::Silent => timevisor_gone::Silent,
        Gone::Unheard => timevisor_gone::Unheard,
        Gone::Twice => timevisor_gone::Twice,
    }
}
