"""The values that Timevisor answers with: frozen dataclasses and enums. The extension module makes them (src/words.rs)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Optional, Tuple, Union

if TYPE_CHECKING:
    from ._timevisor import Reading, Requirement

Span = Union[int, timedelta]
"""A span: int nanoseconds, or a timedelta (whole microseconds). Never negative, never a float."""


class _Word(str, enum.Enum):
    """An enum whose members are their words: they print, format and compare as such."""

    def __str__(self) -> str:
        return str.__str__(self)

    def __format__(self, spec: str) -> str:
        return str.__format__(self, spec)


class Status(_Word):
    """How far to trust a reading (docs/reference/statuses.md)."""

    UNKNOWN = "unknown"
    INITIALIZING = "initializing"
    SYNCHRONIZED = "synchronized"
    FREERUNNING = "freerunning"
    UNRELIABLE = "unreliable"


class Notice(_Word):
    """What the host announces of a coming disruption."""

    NONE = "none"
    SOON = "soon"
    IMMINENT = "imminent"


class Timescale(_Word):
    """What a reading's instants count."""

    UTC = "utc"
    TAI = "tai"
    LOCAL = "local"


class Epoch(_Word):
    """What a timeline counts from; ``LOCAL`` starts at 0 when it is made."""

    TAI = "tai"
    UTC = "utc"
    LOCAL = "local"


class Comparison(_Word):
    """An order that is certain, or not known."""

    BEFORE = "before"
    AFTER = "after"
    UNCERTAIN = "uncertain"


class MissedTicks(_Word):
    """What becomes of ticks whose time came before the program was back to wait for them."""

    SKIP = "skip"
    """They are dropped: the next tick is the first one that is not yet due."""
    CATCH_UP = "catch_up"
    """They come at once, one after the other, in order."""
    COALESCE = "coalesce"
    """Only the newest comes, at once."""


class Change(_Word):
    """What happened to a timeline."""

    MET = "met"
    """The handle's requirement is met now (said at the beginning, too)."""
    VIOLATED = "violated"
    """The handle's requirement is not met now (said at the beginning, too)."""
    HOLDOVER = "holdover"
    """The clock lost its references or its daemon: bounds hold and grow."""
    SYNCHRONIZED = "synchronized"
    """The clock follows its references again."""
    DISRUPTED = "disrupted"
    """The clock may have stepped."""


class Edge(_Word):
    """A change of a line, as its active state."""

    RISING = "rising"
    """It became active."""
    FALLING = "falling"
    """It became inactive."""


class Edges(_Word):
    """Which edges are events."""

    RISING = "rising"
    FALLING = "falling"
    BOTH = "both"


class PinFunction(_Word):
    """What a PTP pin is used for. Not tested on hardware."""

    NONE = "none"
    TIMESTAMP = "timestamp"
    """Its edges are stamped."""
    OUTPUT = "output"
    """A signal is made at it."""
    PHY_SYNC = "phy_sync"
    """Synchronizes the physical layer."""


@dataclass(frozen=True)
class Tried:
    """A place that was looked at and not taken."""

    place: str
    why: str


@dataclass(frozen=True)
class PageChoice:
    """The page that a client reads, and those that it passed over."""

    path: str
    passed_over: Tuple[Tried, ...]


@dataclass(frozen=True)
class ChannelChoice:
    """The channel that a client uses, and those that it passed over."""

    address: str
    tenant: str
    """The tenant that the server takes this client for: ``uid:1000``, ``vm:web``."""
    passed_over: Tuple[Tried, ...]


@dataclass(frozen=True)
class HostCpuTime:
    """The processor time that a vCPU has had since it began."""

    least_ns: int
    most_ns: int
    """2**64 - 1 where that is not known."""
    disruption: int
    """Compare two of them only if this is the same in both."""


@dataclass(frozen=True)
class Achieved:
    """What a timeline gives at a moment; None where that is not known."""

    below_ns: Optional[int]
    above_ns: Optional[int]
    estimated_error_ns: Optional[int]
    resolution_ns: Optional[int]


@dataclass(frozen=True)
class TimelineRow:
    """A timeline that a client may bind to."""

    name: str
    epoch: Epoch
    members: int
    """Bindings to it, of all tenants."""
    required: Optional[Requirement]
    """The tightest requirement."""
    achieved: Achieved
    temporary: bool
    """Made by a client, and gone with its last binding."""


@dataclass(frozen=True)
class Held:
    """The requirement is in force on the host."""


@dataclass(frozen=True)
class Lost:
    """The requirement is not in force on the host; the library states it again as soon as it can."""

    why: str


Lease = Union[Held, Lost]


@dataclass(frozen=True)
class MeasuredSpan:
    """How much true time went by between two stamps; below zero when the first one is the later one."""

    shortest_ns: int
    """No less than this, rounded down."""
    estimate_ns: int
    """The best guess, to the nearest ns: by the clock's mean rate around the stamps."""
    longest_ns: int
    """No more than this, rounded up."""
    status: Status
    """The least that the clock promised between the two."""


@dataclass(frozen=True)
class Segment:
    """What a recording knows without a disruption in between."""

    since: int
    """The first stamp that can be converted."""
    until: int
    """The last one."""
    publications: int
    disruption: int


@dataclass(frozen=True)
class Waited:
    """A wait that ended because its time had come."""

    lateness_ns: int
    """How far beyond the time that was waited for the reading is, never below 0: its estimate (``wait_past``: its earliest;
    ``wait_surely_before``: its latest + lead) less that time. 0 for ``wait_met``."""
    reading: Reading


@dataclass(frozen=True)
class Tick:
    """One tick of ``Timeline.periodic``."""

    scheduled_ns: int
    lateness_ns: int
    missed: int
    """Ticks between the last one and this one that do not come."""
    reading: Reading


@dataclass(frozen=True)
class Fired:
    """Do it now."""

    actual_ns: int
    error_ns: Optional[int]
    """True time is within this of ``actual_ns``; None: not known, or not to be relied on."""
    reading: Reading


@dataclass(frozen=True)
class TooLate:
    """Do not do it: it is later than the latest that was allowed."""

    by_ns: int
    reading: Reading


@dataclass(frozen=True)
class QotViolated:
    """Do not do it: the clock is not as good as it must be."""

    half_width_ns: Optional[int]
    """True time is within this of the estimate; None: not known, or not to be relied on."""
    reading: Reading


@dataclass(frozen=True)
class Disrupted:
    """Do not do it: the clock may have stepped since this began."""

    reading: Reading


AtOutcome = Union[Fired, TooLate, QotViolated, Disrupted]


@dataclass(frozen=True)
class Exceeded:
    """The bound does not hold now."""


@dataclass(frozen=True)
class Until:
    """The bound holds up to here."""

    estimate_ns: int
    counter: int


@dataclass(frozen=True)
class Unlimited:
    """The bound does not grow beyond it."""


ValidUntil = Union[Exceeded, Until, Unlimited]


@dataclass(frozen=True)
class PinEvent:
    """An edge at a pin."""

    edge: Optional[Edge]
    """None at a PTP clock, which does not say."""
    lost: int
    """So many edges between the last event and this one were not delivered, at least. Always 0 at a PTP clock."""
    first: int
    """The counter, no later than the stamp."""
    last: int
    """The counter, no earlier than the stamp."""
    reading: Reading
    """When it was stamped. The longer the event waited to be read, the wider: +-0.25 ms for each millisecond at a GPIO line."""


@dataclass(frozen=True)
class Changed:
    """An output that has changed."""

    lateness_ns: int
    """The estimate when the line had surely changed, less the time it was to change: 0 or more."""
    first: int
    """The counter, before it changed."""
    last: int
    """The counter, after it had changed."""
    reading: Reading
    """When it changed."""


@dataclass(frozen=True)
class Pulse:
    """A pulse that a PTP clock will make. Not tested on hardware."""

    device_ns: int
    """When it begins, by the PTP clock, ns of its own timescale."""
    first: int
    last: int
    reading: Reading
    """When it begins on the timeline, provided that nobody sets the PTP clock and the timeline is not disrupted before."""


@dataclass(frozen=True)
class Pin:
    """A pin of a PTP clock. Not tested on hardware."""

    name: str
    index: int
    function: Optional[PinFunction]
    """None: one that this library does not know."""
    channel: int
    """The channel of that function."""


@dataclass(frozen=True)
class Event:
    """A change and what is known at that moment."""

    change: Change
    valid_until: ValidUntil
    """Until when the requirement stays met if nothing new is learned."""
    reading: Reading
