//! Structures and enumerations of groups. Every structure begins with its size; see `memory`.

use core::ffi::{c_char, c_void};

use crate::manual::timevisor_manual_bus;
use crate::memory::Shared;
use crate::types::timevisor_requirement;

/// Room for a name of a group, member, topic, barrier or office: at most 32 bytes, and the zero byte
/// at the end.
pub const TIMEVISOR_NAME_SIZE: usize = 40;

/// A name in a structure.
pub(crate) type Name = [c_char; TIMEVISOR_NAME_SIZE];

/// The order in which messages are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_order {
    /// As they come.
    Arrival = 0,
    /// In the order of time: a message is given when every member's clock has surely passed it, or
    /// when it has been held for hold_ns.
    Time = 1,
}

/// Which proposals of others a member accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_accept {
    /// None; so it is until something else is said.
    Nothing = 0,
    /// All.
    All = 1,
    /// The program decides: timevisor_proposals_next gives them, timevisor_group_answer answers.
    Ask = 2,
}

/// What a timevisor_report says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_report_kind {
    /// A member joined, or its clock began or ceased to meet its requirement: member, met.
    Present = 0,
    /// A member has gone: member, why (a timevisor_gone).
    Gone = 1,
    /// Messages were lost on the way: member (whose; "": this program took them too slowly from the
    /// bus), subject (the topic; "": not known, or of those by which members agree), count.
    Lost = 2,
    /// A member's stamp surely lies in our future: its clock or ours is wrong: member, ns (by how
    /// much at least).
    FromTheFuture = 3,
    /// A member's stamp is of another origin of the timeline: member.
    AnotherOrigin = 4,
    /// Not everybody who waited at a barrier was released together: subject (the barrier), count (how
    /// many were released), others (how many wait on).
    Split = 5,
    /// The connection to the bus is lost. The library connects again.
    Disconnected = 6,
    /// It is there again.
    Connected = 7,
    /// The bus refuses to let this member join again, for now: text.
    Refused = 8,
    /// This member leads: subject (the office), ns (it leads while its latest is before this).
    Leads = 9,
    /// It leads no longer: subject (the office).
    LeadsNoMore = 10,
    /// Old messages were asked for that the bus had not kept: subject (the topic), count (at least).
    HistoryIncomplete = 11,
}

/// Why a member has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_gone {
    /// It left.
    Left = 1,
    /// Its connection ended.
    Disconnected = 2,
    /// It was silent for longer than its lease.
    Silent = 3,
    /// Its bus is not heard any more.
    Unheard = 4,
    /// Another host has a member of this name, too, and keeps it.
    Twice = 5,
}

/// What a timevisor_proposed says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_proposed_kind {
    /// Somebody asks for an answer: at_ns, late_ns (who wakes up surely later than this does not
    /// fire), payload.
    Asked = 0,
    /// It is decided: commits.
    Decided = 1,
    /// It is time: earliest_ns, latest_ns, late_ns (how late it surely is), payload.
    Fire = 2,
    /// Who fired and who did not: agreed, parts; timevisor_proposals_part has each.
    Outcome = 3,
}

/// What a member did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_part_kind {
    /// It was not heard.
    Unknown = 0,
    /// It fired.
    Fired = 1,
    /// It voted against it, so nobody has fired.
    Rejected = 2,
    /// It knows that the proposer gave up, so nobody has fired.
    Aborted = 3,
    /// It voted for it and did not learn the decision in time, and did not fire. Others may have.
    Undecided = 4,
    /// It woke up too late, and did not fire.
    Late = 5,
    /// Its clock did not meet its requirement, or had another origin. It did not fire.
    Clock = 6,
}

/// Whether all did the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub enum timevisor_agreement {
    /// Nobody fired.
    None = 0,
    /// All fired.
    All = 1,
    /// They differ, or it is not known.
    Open = 2,
}

/// How a member joins. TIMEVISOR_JOIN_OPTIONS_INIT: on timeline "tai", without a requirement or key.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_join_options {
    /// sizeof(timevisor_join_options)
    pub struct_size: u32,
    /// 0
    pub reserved: u32,
    /// The group's timeline. NULL: "tai"; with timevisor_group_join_on it must be NULL.
    pub timeline: *const c_char,
    /// What this member needs of it; NULL: nothing. timevisor_group_join has the host meet it.
    pub requirement: *const timevisor_requirement,
    /// Where the bus listens: a socket, or "tls://HOST:PORT". NULL: $TIMEVISOR_BUS, then
    /// timevisor-bus.socket in $XDG_RUNTIME_DIR, then /run/timevisor-bus/socket.
    pub bus: *const c_char,
    /// A PEM file with who signed the certificate of a bus on the network, or that certificate; NULL: the
    /// bus is a socket.
    pub authority: *const c_char,
    /// The text of the group's key file; NULL: the group has no key.
    pub key: *const c_char,
    /// After so long without a sign of this program the others count it as gone; 0: 3 s.
    pub lease_ns: i64,
    /// A bus for tests, instead of `bus`; NULL: none.
    pub manual_bus: *const timevisor_manual_bus,
}

/// What everybody in a group knows about a member.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_member {
    /// sizeof(timevisor_member)
    pub struct_size: u32,
    /// 1 if its page gave what it needs when it last said so, otherwise 0.
    pub met: i32,
    /// Its name.
    pub name: [c_char; TIMEVISOR_NAME_SIZE],
    /// Drawn at random when it joined.
    pub incarnation: u64,
    /// What it needs, before the estimate; TIMEVISOR_UNKNOWN_NS: nothing.
    pub needs_below_ns: i64,
    /// After the estimate.
    pub needs_above_ns: i64,
    /// What its page gave, before the estimate; TIMEVISOR_UNKNOWN_NS: nothing yet.
    pub below_ns: i64,
    /// After the estimate.
    pub above_ns: i64,
}

/// A message of a topic.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_message {
    /// sizeof(timevisor_message)
    pub struct_size: u32,
    /// 1 if it was published before this member subscribed, otherwise 0.
    pub is_old: i32,
    /// Who sent it.
    pub sender: [c_char; TIMEVISOR_NAME_SIZE],
    /// Which incarnation of the sender.
    pub incarnation: u64,
    /// Counts the sender's messages on this topic.
    pub sequence: u64,
    /// 1 if the sender knew the time, otherwise 0.
    pub stamped: i32,
    /// How many members may still send something older: timevisor_subscription_unheard has their names.
    /// 0 in the order of arrival.
    pub unheard: u32,
    /// When it was sent, as the sender's page said: not before this.
    pub earliest_ns: i64,
    /// Not after this.
    pub latest_ns: i64,
    /// Which clock that was: stamps of different origins have no order.
    pub origin: u64,
    /// How much later one that was given before it surely was sent; 0 in the order of arrival.
    pub late_ns: i64,
    /// What it says; valid until the next call for the same subscription. Never NULL.
    pub payload: *const c_void,
    /// How many bytes that has.
    pub length: u64,
}

/// What happened in a group. The kind says which fields are used; the others are 0 or "".
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_report {
    /// sizeof(timevisor_report)
    pub struct_size: u32,
    /// A timevisor_report_kind.
    pub kind: i32,
    /// A member's name.
    pub member: [c_char; TIMEVISOR_NAME_SIZE],
    /// Which incarnation of that member.
    pub incarnation: u64,
    /// The name of a topic, barrier or office.
    pub subject: [c_char; TIMEVISOR_NAME_SIZE],
    /// How many.
    pub count: u64,
    /// How many others.
    pub others: u64,
    /// An instant or a span.
    pub ns: i64,
    /// A timevisor_gone.
    pub why: i32,
    /// 1 if the member's clock meets its requirement.
    pub met: i32,
    /// What the bus says; valid until the next call for the same watch. Never NULL.
    pub text: *const c_char,
}

/// How to propose. TIMEVISOR_PROPOSE_OPTIONS_INIT: to all members, who may be 10 ms late.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_propose_options {
    /// sizeof(timevisor_propose_options)
    pub struct_size: u32,
    /// How many names there are; 0: all members.
    pub count: u32,
    /// The names of the members that are to fire, this one included.
    pub names: *const *const c_char,
    /// Who wakes up surely later than this does not fire; 0: 10 ms.
    pub late_at_most_ns: i64,
}

/// What happens to a proposal. The kind says which fields are used; the others are 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_proposed {
    /// sizeof(timevisor_proposed)
    pub struct_size: u32,
    /// A timevisor_proposed_kind.
    pub kind: i32,
    /// Who proposes.
    pub proposer: [c_char; TIMEVISOR_NAME_SIZE],
    /// Which incarnation of the proposer.
    pub incarnation: u64,
    /// Which of its proposals.
    pub number: u64,
    /// When everybody fires.
    pub at_ns: i64,
    /// What the page says: not before this.
    pub earliest_ns: i64,
    /// Not after this.
    pub latest_ns: i64,
    /// See the kind.
    pub late_ns: i64,
    /// 1: everybody fires; 0: nobody.
    pub commits: i32,
    /// A timevisor_agreement.
    pub agreed: i32,
    /// How many members the outcome has.
    pub parts: u64,
    /// The proposal's payload; valid until the next call for the same handle. Never NULL.
    pub payload: *const c_void,
    /// How many bytes that has.
    pub length: u64,
}

/// Who fired and who did not, as far as this member knows. What it lists is certain.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_group_outcome {
    /// sizeof(timevisor_group_outcome)
    pub struct_size: u32,
    /// A timevisor_agreement.
    pub agreed: i32,
    /// How many fired.
    pub fired: u32,
    /// How many did not, and never will.
    pub quiet: u32,
    /// How many were not heard.
    pub unknown: u32,
    /// 0
    pub reserved: u32,
}

/// What one member did.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct timevisor_part {
    /// sizeof(timevisor_part)
    pub struct_size: u32,
    /// A timevisor_part_kind.
    pub kind: i32,
    /// Its name.
    pub name: [c_char; TIMEVISOR_NAME_SIZE],
    /// Which incarnation.
    pub incarnation: u64,
    /// What its page said when it fired: not before this. Otherwise 0.
    pub earliest_ns: i64,
    /// Not after this. Otherwise 0.
    pub latest_ns: i64,
}

macro_rules! shared {
    ($($name:ident)*) => {$(
        // SAFETY: repr(C), begins with struct_size, has numbers, arrays of them and raw pointers only;
        // the sizes below add up.
        unsafe impl Shared for $name {}
    )*};
}

shared! {
    timevisor_join_options timevisor_member timevisor_message timevisor_report timevisor_propose_options timevisor_proposed
    timevisor_group_outcome timevisor_part
}

/// The sizes of version 0 on 64-bit machines, and proof that there is no padding.
#[cfg(target_pointer_width = "64")]
const _: () = {
    const NAME: usize = TIMEVISOR_NAME_SIZE;
    assert!(size_of::<timevisor_join_options>() == 2 * 4 + 7 * 8);
    assert!(size_of::<timevisor_member>() == 2 * 4 + NAME + 5 * 8);
    assert!(size_of::<timevisor_message>() == 2 * 4 + NAME + 2 * 8 + 2 * 4 + 6 * 8);
    assert!(size_of::<timevisor_report>() == 2 * 4 + NAME + 8 + NAME + 3 * 8 + 2 * 4 + 8);
    assert!(size_of::<timevisor_propose_options>() == 2 * 4 + 2 * 8);
    assert!(size_of::<timevisor_proposed>() == 2 * 4 + NAME + 6 * 8 + 2 * 4 + 3 * 8);
    assert!(size_of::<timevisor_group_outcome>() == 6 * 4);
    assert!(size_of::<timevisor_part>() == 2 * 4 + NAME + 3 * 8);
};
