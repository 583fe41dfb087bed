//! Converts requests and answers between the control protocol and crates/reservation.

use timevisor_linux::scheduling::Change;
use timevisor_protocols::control::{
    self, ErrorBody, ErrorCode, HostCore, MissedCause, MissedJob, ReserveApply, ReserveAudit,
    ReserveRow,
};
use timevisor_reservation::{Candidate, Claim, Guarantee, Promise, Reason, Refusal, Request, Row};
use timevisor_schedule::audit::{Cause, Stretch};

pub fn request(apply: &ReserveApply) -> Request {
    Request {
        vm: apply.vm.clone(),
        vcpu: apply.vcpu,
        budget: apply.budget_ns,
        at_most: apply.at_most_ns,
        deadline: apply.deadline_ns,
        period: apply.period_ns,
        promise: match apply.promise {
            control::Promise::Core => Promise::Core,
            control::Promise::Global => Promise::Global,
            control::Promise::Fifo => Promise::Fifo,
            control::Promise::Limit => Promise::Limit,
        },
        core: apply.core.map(|core| usize::try_from(core).unwrap_or(usize::MAX)),
        alone: apply.alone,
        dry_run: apply.dry_run,
    }
}

pub fn error(refusal: Refusal) -> ErrorBody {
    let code = match refusal.reason {
        Reason::BadRequest => ErrorCode::BadRequest,
        Reason::NotFound => ErrorCode::NotFound,
        Reason::AlreadyExists => ErrorCode::AlreadyExists,
        Reason::Unsupported => ErrorCode::Unsupported,
        Reason::Unavailable => ErrorCode::Unavailable,
        Reason::MakingRoom => ErrorCode::MakingRoom,
        Reason::Internal => ErrorCode::Internal,
    };
    ErrorBody { code, message: refusal.message, next_step: refusal.next_step }
}

pub fn row(of: Row<'_, Change>) -> ReserveRow {
    let held = of.held;
    let (promise, core) = match held.guarantee {
        Guarantee::Core(core) => (control::Promise::Core, u32::try_from(core).ok()),
        Guarantee::Global => (control::Promise::Global, None),
        Guarantee::Fifo => (control::Promise::Fifo, None),
        Guarantee::Limit => (control::Promise::Limit, None),
    };
    let audit = of.audit.map(|(tally, most_missing_ns)| ReserveAudit {
        satisfied: tally.satisfied,
        exhausted: tally.exhausted,
        broken: tally.broken,
        unclear: tally.unclear,
        most_missing_ns,
    });
    ReserveRow {
        vm: held.vm.clone(),
        vcpu: held.vcpu,
        tid: held.tid,
        promise,
        core,
        budget_ns: held.budget,
        soft_ns: held.soft,
        deadline_ns: held.deadline,
        period_ns: held.period,
        alone: held.alone,
        followed: held.followed,
        held_ns: of.age,
        ran_ns: of.ran,
        waited_ns: of.waited,
        audit,
        late: None,
        problem: of.problem,
    }
}

pub fn missed((cause, stretch): (Cause, Stretch)) -> MissedJob {
    let (cause, missing_ns) = match cause {
        Cause::HostBroke(missing) => (MissedCause::HostBroke, missing),
        Cause::GuestUnderDeclared => (MissedCause::GuestUnderDeclared, 0),
        Cause::GuestPolicy => (MissedCause::GuestPolicy, 0),
        Cause::Unclear => (MissedCause::Unclear, 0),
    };
    let (looked_at_ns, ran_ns, waited_ns) = (stretch.length, stretch.ran, stretch.waited);
    MissedJob { cause, looked_at_ns, ran_ns, waited_ns, missing_ns }
}

pub fn core(of: Candidate) -> HostCore {
    let number = |core: usize| u32::try_from(core).unwrap_or(u32::MAX);
    let core = of.core;
    HostCore {
        core: number(core.number),
        place: of.place.map(number),
        why_not: of.why_not,
        online: core.is_online,
        allowed: core.is_allowed,
        isolated: core.is_isolated,
        quiet: core.is_quiet,
        near: core.is_near,
        siblings: core.siblings.into_iter().map(number).collect(),
        cpuset: core.claim.map(|claim| match claim {
            Claim::Shared => "shared".to_owned(),
            Claim::Own(who) => who,
        }),
        reserved: of.reserved,
        left_ns: of.left,
    }
}
