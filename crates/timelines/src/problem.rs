//! All refusals: each says what is wrong and what to do next.

use timevisor_protocols::channel::{Achieved, InvalidRequirement, Problem, ProblemCode};

use crate::name::{InvalidName, TimelineName};
use crate::tenant::Owner;

fn problem(code: ProblemCode, message: String, next_step: &str) -> Problem {
    Problem { code, message, next_step: next_step.to_owned(), achievable: None }
}

pub(crate) fn name(text: &str, error: InvalidName) -> Problem {
    let message = format!("timeline {text:?}: {error}");
    let next = "use 1 to 32 of A-Z a-z 0-9 . _ -, not beginning with . or -";
    problem(ProblemCode::BadRequest, message, next)
}

pub(crate) fn requirement(error: InvalidRequirement) -> Problem {
    problem(ProblemCode::BadRequest, error.to_string(), "correct the requirement")
}

pub(crate) fn no_session(session: u64) -> Problem {
    problem(ProblemCode::Session, format!("there is no session {session}"), "send hello first")
}

pub(crate) fn session_taken(session: u64) -> Problem {
    problem(ProblemCode::Session, format!("session {session} is open already"), "connect again")
}

pub(crate) fn no_pages(owner: &Owner) -> Problem {
    let next = "have the VM served (timevisor vm add) and connect again";
    problem(ProblemCode::Unavailable, format!("{owner} has no clock page"), next)
}

pub(crate) fn no_timeline(name: TimelineName) -> Problem {
    let next = "see the list of timelines, or set create to make one";
    problem(ProblemCode::NotFound, format!("there is no timeline {name}"), next)
}

pub(crate) fn no_binding(binding: u64) -> Problem {
    let message = format!("this session has no binding {binding}");
    problem(ProblemCode::NotFound, message, "use the number that bound gave")
}

pub(crate) fn other_epoch(name: TimelineName) -> Problem {
    let message = format!("timeline {name} exists with another epoch");
    problem(ProblemCode::Exists, message, "bind without create, or choose another name")
}

/// The operator assigned the name to other tenants. It is no secret that the name is taken; only
/// binding to it is not allowed.
pub(crate) fn reserved(name: TimelineName) -> Problem {
    let message = format!("the name {name} is reserved by the host's operator");
    problem(ProblemCode::Exists, message, "choose another name")
}

pub(crate) fn cannot_be_met(name: TimelineName, achievable: Achieved) -> Problem {
    let message = format!("timeline {name} cannot meet this requirement");
    let next = "ask for what is achievable, or set best_effort and look at each reading";
    Problem { achievable: Some(achievable), ..problem(ProblemCode::CannotBeMet, message, next) }
}

pub(crate) fn bindings_quota(limit: u32) -> Problem {
    let message = format!("the limit of {limit} bindings is reached");
    problem(ProblemCode::Quota, message, "unbind some, or share one binding within a program")
}

pub(crate) fn timelines_quota(limit: u32) -> Problem {
    let message = format!("the limit of {limit} timelines per tenant is reached");
    problem(ProblemCode::Quota, message, "unbind from others first")
}

pub(crate) fn page_full(owner: &Owner) -> Problem {
    let message = format!("no entry is free on the clock page of {owner}");
    let next = "try again in some seconds, or bind to a timeline that is in use already";
    problem(ProblemCode::Unavailable, message, next)
}
