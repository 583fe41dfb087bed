//! [`timevisor_group`]: a member of a group; who else is there; waiting for each other; leaders.
#![expect(non_camel_case_types, reason = "these are names of C")]

use core::ffi::{c_char, c_int};

use std::path::Path;
use timevisor::Timeline;

use timevisor::group::{Accept, BusAddress, Group, Info, JoinOptions, Secret};

use super::conversions::{name, texts, timeout};
use super::types::{timevisor_accept, timevisor_join_options, timevisor_member};
use crate::client::{Process, timevisor_client};
use crate::conversions::{no_such, reserved};
use crate::error::{Failure, guard};
use crate::memory::{In, InOut, Number, Out, Text, give, handle, ns, span};
use crate::timeline::timevisor_timeline;
use crate::types::{TIMEVISOR_UNKNOWN_NS, timevisor_requirement};

/// A member of a group. For any number of threads at once. A thread of the library holds the
/// connection to the bus, answers other members and wakes up when something is due.
///
/// After a fork the child must not use the parent's membership, but join again: there, calls fail with
/// -ENOTCONN, and leaving does nothing.
pub struct timevisor_group {
    group: Group,
    process: Process,
}

impl timevisor_group {
    fn new(group: Group) -> Self {
        Self { group, process: Process::this() }
    }
}

/// The group behind a handle, in the process that joined it.
pub(super) fn group_of(given: Option<&timevisor_group>) -> Result<&Group, Failure> {
    let given = handle(given, "group")?;
    given.process.check()?;
    Ok(&given.group)
}

/// Joins a group as `member`. options->requirement is stated to the host, for as long as the
/// membership lives.
///
/// options: how to join, or NULL.
/// Returns 0; -ENOTCONN: there is no bus (timevisor_last_error says where it was looked for), or nobody
/// takes requirements; -EEXIST: the group has a member of this name; -EACCES: the key does not match,
/// or there is none; -EXDEV: the group is on another timeline; -EUSERS: the bus has no room; -EPROTO:
/// the bus is of another version; -ETIMEDOUT: it does not answer; -EINVAL: also a name that cannot be
/// one, and a text that is no key; otherwise as timevisor_bind. Any thread; waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_join(
    client: Option<&timevisor_client>,
    group: Text<'_>,
    member: Text<'_>,
    options: In<'_, timevisor_join_options>,
    joined: Out<'_, *mut timevisor_group>,
) -> c_int {
    guard(|| {
        give(joined, || {
            let client = handle(client, "client")?;
            client.process.check()?;
            let options = to_rust(&options, None)?;
            let (group, member) = (group.require("group")?, member.require("member")?);
            Ok(timevisor_group::new(client.client().join_with(group, member, &options)?))
        })
    })
}

/// Joins a group with any timeline, such as that of a manual clock. The timeline's name is the
/// group's. options->requirement is not stated to the host.
///
/// Returns as timevisor_group_join. The timeline may be freed before the group is left. Any thread;
/// waits for the answer.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_join_on(
    timeline: Option<&timevisor_timeline>,
    group: Text<'_>,
    member: Text<'_>,
    options: In<'_, timevisor_join_options>,
    joined: Out<'_, *mut timevisor_group>,
) -> c_int {
    guard(|| {
        give(joined, || {
            let timeline = &handle(timeline, "timeline")?.timeline;
            let options = to_rust(&options, Some(timeline))?;
            let (group, member) = (group.require("group")?, member.require("member")?);
            Ok(timevisor_group::new(Group::join(timeline, group, member, &options)?))
        })
    })
}

/// Leaves, waits until the bus has been told, and frees the handle. Subscriptions and the like end; they
/// must still be freed. NULL is allowed. Not while another thread uses the handle.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_leave(group: Option<Box<timevisor_group>>) {
    Process::free(group, |group| group.process);
}

/// The members of a group as they were when it was asked. For any number of threads at once.
pub struct timevisor_member_list {
    members: Vec<Info>,
}

/// All members as far as is known, this one included, in the order of their names.
///
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_members(
    group: Option<&timevisor_group>,
    list: Out<'_, *mut timevisor_member_list>,
) -> c_int {
    guard(|| give(list, || Ok(timevisor_member_list { members: group_of(group)?.members() })))
}

/// How many there are; 0 if the list is NULL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_member_list_count(list: Option<&timevisor_member_list>) -> usize {
    list.map_or(0, |list| list.members.len())
}

/// One of them.
///
/// Returns 0; -ENOENT: there are not so many; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_member_list_get(
    list: Option<&timevisor_member_list>,
    index: usize,
    mut member: InOut<'_, timevisor_member>,
) -> c_int {
    guard(|| {
        let members = &handle(list, "list")?.members;
        let found = members.get(index).ok_or_else(|| {
            let text = format!("there are {} members; index {index}", members.len());
            Failure::new(libc::ENOENT, text)
        })?;
        member.fill(|member| {
            member.set(found);
            Ok(())
        })?;
        Ok(0)
    })
}

/// Frees a list. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_member_list_free(list: Option<Box<timevisor_member_list>>) {
    drop(list);
}

/// Waits until so many members are there, this one included, whose clocks meet their requirements.
///
/// timeout_ns: give up after this long; 0: never.
/// Returns 0; -ETIMEDOUT; -EINVAL. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_wait_for(
    group: Option<&timevisor_group>,
    count: usize,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        group_of(group)?.wait_for(count, timeout(timeout_ns)?)?;
        Ok(0)
    })
}

/// Waits until the members of these names are there, whose clocks meet their requirements.
///
/// names: an array of `count` names.
/// Returns as timevisor_group_wait_for. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_wait_for_names(
    group: Option<&timevisor_group>,
    names: *const *const c_char,
    count: usize,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller says that the array has so many texts, and leaves them alone.
        let names = unsafe { texts(names, count)? };
        group_of(group)?.wait_for_names(&names, timeout(timeout_ns)?)?;
        Ok(0)
    })
}

/// Waits at a barrier until so many members have arrived. All are released at one time. If not all of
/// them were, a TIMEVISOR_REPORT_KIND_SPLIT says so.
///
/// timeout_ns: give up after this long; 0: never. late_ns: how late this member surely was, or NULL.
/// Returns 0; -ETIMEDOUT: it does not wait there any more; -EBUSY: another thread waits there;
/// -EINVAL. Any thread; blocks.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_barrier(
    group: Option<&timevisor_group>,
    barrier: Text<'_>,
    parties: u32,
    timeout_ns: i64,
    late_ns: Number<'_, i64>,
) -> c_int {
    guard(|| {
        let barrier = barrier.require("barrier")?;
        let late = group_of(group)?.barrier(barrier, parties, timeout(timeout_ns)?)?;
        late_ns.write(i64::try_from(late.as_nanos()).unwrap_or(i64::MAX));
        Ok(0)
    })
}

/// Which proposals of others are accepted from now on: a timevisor_accept.
///
/// Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_accept(group: Option<&timevisor_group>, accept: c_int) -> c_int {
    const NOTHING: c_int = timevisor_accept::Nothing as c_int;
    const ALL: c_int = timevisor_accept::All as c_int;
    const ASK: c_int = timevisor_accept::Ask as c_int;
    guard(|| {
        let accept = match accept {
            NOTHING => Accept::Nothing,
            ALL => Accept::All,
            ASK => Accept::Ask,
            _ => return Err(no_such("timevisor_accept", accept)),
        };
        group_of(group)?.accept(accept);
        Ok(0)
    })
}

/// Wants to lead an office. TIMEVISOR_REPORT_KIND_LEADS says when it does.
///
/// voters: an array of the names of the `count` members that vote, the same for all candidates.
/// term_ns: how long a lease is.
/// Returns 0; -EINVAL: also when nobody can be elected by this. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_stand(
    group: Option<&timevisor_group>,
    office: Text<'_>,
    voters: *const *const c_char,
    count: usize,
    term_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller says that the array has so many texts, and leaves them alone.
        let voters = unsafe { texts(voters, count)? };
        let term = span(term_ns, "term_ns")?;
        group_of(group)?.stand(office.require("office")?, &voters, term)?;
        Ok(0)
    })
}

/// Does not want to lead any more. Returns 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_resign(
    group: Option<&timevisor_group>,
    office: Text<'_>,
) -> c_int {
    guard(|| {
        group_of(group)?.resign(office.require("office")?);
        Ok(0)
    })
}

/// Whether this member leads now. Nobody else does at the same time, as long as bounds hold.
///
/// Returns 1 or 0; -EINVAL. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn timevisor_group_leads(
    group: Option<&timevisor_group>,
    office: Text<'_>,
) -> c_int {
    guard(|| Ok(group_of(group)?.leads(office.require("office")?).into()))
}

fn to_rust(
    options: &In<'_, timevisor_join_options>,
    on: Option<&Timeline>,
) -> Result<JoinOptions, Failure> {
    let mut rust = JoinOptions::default();
    if let Some(timeline) = on {
        timeline.name().clone_into(&mut rust.timeline);
    }
    let Some(given) = options.get()? else { return Ok(rust) };
    reserved(given.reserved)?;
    // SAFETY: from a structure of the caller's; the header has the same rules for them as for
    // arguments.
    let ([timeline, bus, authority, key], requirement) = unsafe {
        let texts =
            [given.timeline, given.bus, given.authority, given.key].map(|text| Text::new(text));
        (texts, In::new(given.requirement))
    };
    match (timeline.get("timeline")?, on) {
        (Some(_), Some(_)) => {
            let text = "options.timeline must be NULL where a timeline is given";
            return Err(Failure::invalid(text));
        }
        (Some(timeline), None) => timeline.clone_into(&mut rust.timeline),
        (None, _) => {}
    }
    let authority = authority.get("authority")?.map(Path::new);
    rust.bus = bus.get("bus")?.map(|at| BusAddress::parse(at, authority)).transpose()?;
    // SAFETY: as for the texts.
    if let Some(manual) = unsafe { given.manual_bus.as_ref() } {
        if rust.bus.is_some() || authority.is_some() {
            let text = "options.bus and authority must be NULL where manual_bus is given";
            return Err(Failure::invalid(text));
        }
        rust.bus = Some(manual.bus.clone().into());
    }
    rust.key = key.get("key")?.map(|key| Secret::parse(key.as_bytes())).transpose()?;
    rust.requirement = timevisor_requirement::read(&requirement)?;
    if given.lease_ns != 0 {
        rust.lease = span(given.lease_ns, "lease_ns")?;
    }
    Ok(rust)
}

impl timevisor_member {
    fn set(&mut self, from: &Info) {
        let unknown = (TIMEVISOR_UNKNOWN_NS, TIMEVISOR_UNKNOWN_NS);
        let needs = from.requirement.map_or(unknown, |it| (ns(it.below_ns), ns(it.above_ns)));
        let gives = from.achieved.map_or(unknown, |it| (ns(it.below_ns), ns(it.above_ns)));
        *self = Self {
            struct_size: self.struct_size,
            met: i32::from(from.met),
            name: name(&from.who.name),
            incarnation: from.who.incarnation,
            needs_below_ns: needs.0,
            needs_above_ns: needs.1,
            below_ns: gives.0,
            above_ns: gives.1,
        };
    }
}
