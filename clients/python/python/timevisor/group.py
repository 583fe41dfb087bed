"""Members that share a timeline, exchange messages and act together at a time.

    group = client.join("cell7", "arm-a", timevisor.Requirement.within(1_000_000))
    group.accept("all")
    group.wait_for(2, timeout_ns=10_000_000_000)
    at_ns = client.timeline("tai").now().latest_ns + 50_000_000
    outcome = group.propose(at_ns, b"grip").wait(timeout_ns=5_000_000_000)

A program joins a group under a name. A thread of the library holds the connection to the bus, answers other members and wakes
up when something is due. What members agree on, and what nobody can guarantee, is in docs/explanation/coordination.md.
"""

from ._group_words import (
    Accept,
    AnotherOrigin,
    Asked,
    Connected,
    Decided,
    Disconnected,
    Fire,
    Fired,
    FromTheFuture,
    Gone,
    HistoryIncomplete,
    Info,
    Leads,
    LeadsNoMore,
    Lost,
    MemberId,
    Message,
    Order,
    Outcome,
    Present,
    Proposal,
    ProposalId,
    Proposed,
    Quiet,
    Refused,
    Reported,
    Sides,
    Split,
    Stamp,
    Why,
    WhyGone,
)
from ._timevisor import Group, GroupWait, Messages, Pending, Proposals, Reports

__all__ = [
    "Accept",
    "AnotherOrigin",
    "Asked",
    "Connected",
    "Decided",
    "Disconnected",
    "Fire",
    "Fired",
    "FromTheFuture",
    "Gone",
    "Group",
    "GroupWait",
    "HistoryIncomplete",
    "Info",
    "Leads",
    "LeadsNoMore",
    "Lost",
    "MemberId",
    "Message",
    "Messages",
    "Order",
    "Outcome",
    "Pending",
    "Present",
    "Proposal",
    "ProposalId",
    "Proposals",
    "Proposed",
    "Quiet",
    "Refused",
    "Reported",
    "Reports",
    "Sides",
    "Split",
    "Stamp",
    "Why",
    "WhyGone",
]
