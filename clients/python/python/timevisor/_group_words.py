"""What groups answer with: frozen dataclasses and enums. The extension module makes them (src/group/records.rs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple, Union

from ._words import _Word


class Order(_Word):
    """The order in which messages are given."""

    ARRIVAL = "arrival"
    """As they come."""
    TIME = "time"
    """A message is given when every member's clock has surely passed it, or when it has been held for so long."""


class Accept(_Word):
    """Which proposals of others a member accepts."""

    ALL = "all"
    NOTHING = "nothing"
    """So it is until something else is said."""
    ASK = "ask"
    """The program decides: ``Group.proposals`` gives them, ``Group.answer`` answers."""


class WhyGone(_Word):
    """Why a member has gone."""

    LEFT = "left"
    DISCONNECTED = "disconnected"
    """Its connection ended."""
    SILENT = "silent"
    """It was silent for longer than its lease."""
    UNHEARD = "unheard"
    """Its bus is not heard any more."""
    TWICE = "twice"
    """Another host has a member of this name, too, and keeps it."""


class Why(_Word):
    """Why a member did not fire."""

    REJECTED = "rejected"
    """It voted against it, so nobody has fired."""
    ABORTED = "aborted"
    """It knows that the proposer gave up, so nobody has fired."""
    UNDECIDED = "undecided"
    """It voted for it and did not learn the decision in time. Others may have fired."""
    LATE = "late"
    """It woke up too late."""
    CLOCK = "clock"
    """Its clock did not meet its requirement, or had another origin."""


@dataclass(frozen=True)
class MemberId:
    """A member's name and which incarnation of it."""

    name: str
    incarnation: int
    """Drawn at random when it joined."""


@dataclass(frozen=True)
class Sides:
    """How far time may be before, and after, the estimate."""

    below_ns: int
    above_ns: int


@dataclass(frozen=True)
class Info:
    """What everybody in a group knows about a member."""

    who: MemberId
    requirement: Optional[Sides]
    """What it needs."""
    achieved: Optional[Sides]
    """What its page gave when it last said so."""
    met: bool
    """Whether that was enough."""


@dataclass(frozen=True)
class Stamp:
    """When a message was sent, as its sender's page said."""

    earliest_ns: int
    latest_ns: int
    origin: int
    """Which clock that was. Stamps of different origins have no order."""


@dataclass(frozen=True)
class Message:
    """A message of a topic."""

    sender: MemberId
    sequence: int
    """Counts the sender's messages on this topic."""
    stamp: Optional[Stamp]
    """None: the sender did not know the time."""
    late_ns: int
    """How much later one that was given before it surely was sent; 0 in the order of arrival."""
    unheard: Tuple[MemberId, ...]
    """Members that may still send something older. Empty in the order of arrival."""
    is_old: bool
    """It was published before this member subscribed."""
    payload: bytes


@dataclass(frozen=True)
class Present:
    """A member joined, or its clock began or ceased to meet its requirement."""

    info: Info


@dataclass(frozen=True)
class Gone:
    """A member has gone."""

    who: MemberId
    why: WhyGone


@dataclass(frozen=True)
class Lost:
    """Messages were lost on the way."""

    sender: Optional[MemberId]
    """Whose; None: this program took them too slowly from the bus."""
    topic: Optional[str]
    """None: not known, or of those by which members agree."""
    count: int


@dataclass(frozen=True)
class FromTheFuture:
    """A member's stamp surely lies in our future: its clock or ours is wrong."""

    sender: MemberId
    by_ns: int
    """By how much at least."""


@dataclass(frozen=True)
class AnotherOrigin:
    """A member's stamp is of another origin of the timeline."""

    sender: MemberId


@dataclass(frozen=True)
class Split:
    """Not everybody who waited at a barrier was released together."""

    barrier: str
    fired: int
    """How many were released."""
    quiet: int
    """How many were not: they wait on."""


@dataclass(frozen=True)
class Disconnected:
    """The connection to the bus is lost. The library connects again."""


@dataclass(frozen=True)
class Connected:
    """The connection to the bus is there again."""


@dataclass(frozen=True)
class Refused:
    """The bus refuses to let this member join again, for now."""

    text: str


@dataclass(frozen=True)
class Leads:
    """This member leads an office."""

    office: str
    until_ns: int
    """It leads while its latest is before this."""


@dataclass(frozen=True)
class LeadsNoMore:
    """This member does not lead an office any more."""

    office: str


@dataclass(frozen=True)
class HistoryIncomplete:
    """Old messages of a topic were asked for that the bus had not kept."""

    topic: str
    dropped: int
    """How many at least."""


Reported = Union[
    Present,
    Gone,
    Lost,
    FromTheFuture,
    AnotherOrigin,
    Split,
    Disconnected,
    Connected,
    Refused,
    Leads,
    LeadsNoMore,
    HistoryIncomplete,
]
"""What ``Group.watch`` tells."""


@dataclass(frozen=True)
class ProposalId:
    """Which proposal."""

    proposer: MemberId
    number: int
    """Which of its proposals."""


@dataclass(frozen=True)
class Proposal:
    """What to do, when, and with whom."""

    id: ProposalId
    at_ns: int
    """When everybody fires."""
    origin: int
    """Which clock that is a time of."""
    decide_by_ns: int
    """The proposer commits surely before this, or never."""
    late_at_most_ns: int
    """A member whose wake-up is surely later than this after ``at_ns`` does not fire."""
    participants: Tuple[MemberId, ...]
    """Who fires, the proposer included."""
    payload: bytes


@dataclass(frozen=True)
class Asked:
    """Somebody asks for an answer: ``Group.answer(asked.proposal.id, True)``."""

    proposal: Proposal


@dataclass(frozen=True)
class Decided:
    """Everybody fires, or nobody."""

    id: ProposalId
    commits: bool


@dataclass(frozen=True)
class Fire:
    """It is time."""

    id: ProposalId
    earliest_ns: int
    """What the page says."""
    latest_ns: int
    late_ns: int
    """How late it surely is."""
    payload: bytes


@dataclass(frozen=True)
class Fired:
    """A member fired, and what its page said when it did."""

    who: MemberId
    earliest_ns: int
    latest_ns: int


@dataclass(frozen=True)
class Quiet:
    """A member did not fire and never will."""

    who: MemberId
    why: Why


@dataclass(frozen=True)
class Outcome:
    """Who fired and who did not, as far as this member knows. What it lists is certain."""

    id: ProposalId
    fired: Tuple[Fired, ...]
    quiet: Tuple[Quiet, ...]
    unknown: Tuple[MemberId, ...]
    """Who was not heard."""
    agreed: Optional[bool]
    """True: all fired. False: nobody did. None: they differ, or it is not known."""


Proposed = Union[Asked, Decided, Fire, Outcome]
"""What ``Group.proposals`` tells."""
