//! The dataclasses and enums of python/timevisor/_group_words.py, made from the client's values.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyModule, PyTuple};
use timevisor::group::{
    Gone, Id, Info, Message, Outcome, Proposal, ProposalId, Proposed, Reported, Sides, Why,
};
use timevisor::{Interval, Local};

use crate::words::Object;

/// An instance of one of the classes, or a member (by value) of one of the enums.
fn make<'py>(py: Python<'py>, class: &str, fields: impl PyCallArgs<'py>) -> Object<'py> {
    static WORDS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let import = || py.import("timevisor._group_words").map(Bound::unbind);
    WORDS.get_or_try_init(py, import)?.bind(py).getattr(class)?.call1(fields)
}

pub fn id(py: Python<'_>, id: Id) -> Object<'_> {
    make(py, "MemberId", (id.name.as_str(), id.incarnation))
}

pub fn info<'py>(py: Python<'py>, info: &Info) -> Object<'py> {
    let who = make(py, "MemberId", (&info.who.name, info.who.incarnation))?;
    let (requirement, achieved) = (sides(py, info.requirement)?, sides(py, info.achieved)?);
    make(py, "Info", (who, requirement, achieved, info.met))
}

pub fn proposal_id(py: Python<'_>, found: ProposalId) -> Object<'_> {
    make(py, "ProposalId", (id(py, found.proposer)?, found.number))
}

pub fn message(py: Python<'_>, message: Message) -> Object<'_> {
    let Message { from, sequence, stamp, late_ns, unheard, is_old, payload } = message;
    let stamp = match stamp {
        Some(stamp) => {
            let (earliest_ns, latest_ns) = ends(&stamp.interval);
            Some(make(py, "Stamp", (earliest_ns, latest_ns, stamp.origin))?)
        }
        None => None,
    };
    let (sender, unheard) = (id(py, from)?, ids(py, &unheard)?);
    let payload = PyBytes::new(py, &payload);
    make(py, "Message", (sender, sequence, stamp, late_ns, unheard, is_old, payload))
}

pub fn reported(py: Python<'_>, reported: Reported) -> Object<'_> {
    match reported {
        Reported::Present(found) => make(py, "Present", (info(py, &found)?,)),
        Reported::Gone(who, why) => {
            let why = match why {
                Gone::Left => "left",
                Gone::Disconnected => "disconnected",
                Gone::Silent => "silent",
                Gone::Unheard => "unheard",
                Gone::Twice => "twice",
            };
            make(py, "Gone", (id(py, who)?, make(py, "WhyGone", (why,))?))
        }
        Reported::Lost { from, topic, count } => {
            let sender = from.map(|from| id(py, from)).transpose()?;
            make(py, "Lost", (sender, topic.map(|topic| topic.to_string()), count))
        }
        Reported::FromTheFuture { from, by_ns } => {
            make(py, "FromTheFuture", (id(py, from)?, by_ns))
        }
        Reported::AnotherOrigin(from) => make(py, "AnotherOrigin", (id(py, from)?,)),
        Reported::Split { barrier, fired, quiet } => {
            make(py, "Split", (barrier.as_str(), fired, quiet))
        }
        Reported::Disconnected => make(py, "Disconnected", ()),
        Reported::Connected => make(py, "Connected", ()),
        Reported::Refused(text) => make(py, "Refused", (text,)),
        Reported::Leads { office, until_ns } => make(py, "Leads", (office.as_str(), until_ns)),
        Reported::LeadsNoMore(office) => make(py, "LeadsNoMore", (office.as_str(),)),
        Reported::HistoryIncomplete { topic, dropped } => {
            make(py, "HistoryIncomplete", (topic.as_str(), dropped))
        }
    }
}

pub fn proposed(py: Python<'_>, proposed: Proposed) -> Object<'_> {
    match proposed {
        Proposed::Asked(found) => make(py, "Asked", (proposal(py, &found)?,)),
        Proposed::Decided(id, commits) => make(py, "Decided", (proposal_id(py, id)?, commits)),
        Proposed::Fire { id, interval, late_ns, payload } => {
            let (earliest_ns, latest_ns) = ends(&interval);
            let payload = PyBytes::new(py, &payload);
            make(py, "Fire", (proposal_id(py, id)?, earliest_ns, latest_ns, late_ns, payload))
        }
        Proposed::Outcome(found) => outcome(py, &found),
    }
}

pub fn outcome<'py>(py: Python<'py>, outcome: &Outcome) -> Object<'py> {
    let fired: PyResult<Vec<_>> = outcome
        .fired
        .iter()
        .map(|(who, interval)| {
            let (earliest_ns, latest_ns) = ends(interval);
            make(py, "Fired", (id(py, *who)?, earliest_ns, latest_ns))
        })
        .collect();
    let quiet: PyResult<Vec<_>> = outcome
        .quiet
        .iter()
        .map(|(who, why)| make(py, "Quiet", (id(py, *who)?, make(py, "Why", (word(*why),))?)))
        .collect();
    let (fired, quiet) = (PyTuple::new(py, fired?)?, PyTuple::new(py, quiet?)?);
    let unknown = ids(py, &outcome.unknown)?;
    let fields = (proposal_id(py, outcome.id)?, fired, quiet, unknown, outcome.agreed());
    make(py, "Outcome", fields)
}

fn proposal<'py>(py: Python<'py>, found: &Proposal) -> Object<'py> {
    let participants = ids(py, &found.participants)?;
    let payload = PyBytes::new(py, &found.payload);
    let (at_ns, decide_by_ns) = (found.at.floor_nanos(), found.decide_by.floor_nanos());
    let late_at_most_ns = found.late_at_most.ceil_nanos();
    let fields = (
        proposal_id(py, found.id)?,
        at_ns,
        found.origin,
        decide_by_ns,
        late_at_most_ns,
        participants,
        payload,
    );
    make(py, "Proposal", fields)
}

fn sides(py: Python<'_>, sides: Option<Sides>) -> PyResult<Option<Bound<'_, PyAny>>> {
    sides.map(|sides| make(py, "Sides", (sides.below_ns, sides.above_ns))).transpose()
}

fn ids<'py>(py: Python<'py>, all: &[Id]) -> PyResult<Bound<'py, PyTuple>> {
    let each: PyResult<Vec<_>> = all.iter().map(|who| id(py, *who)).collect();
    PyTuple::new(py, each?)
}

/// Rounded outwards.
fn ends(interval: &Interval<Local>) -> (i64, i64) {
    (interval.earliest().floor_nanos(), interval.latest().ceil_nanos())
}

fn word(why: Why) -> &'static str {
    match why {
        Why::Rejected => "rejected",
        Why::Aborted => "aborted",
        Why::Undecided => "undecided",
        Why::Late => "late",
        Why::Clock => "clock",
    }
}
