"""What can go wrong; every text says what to do next. The extension module raises them (src/errors.rs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

if TYPE_CHECKING:
    from ._timevisor import Reading
    from ._words import Achieved, Edge, Tried


class TimevisorError(Exception):
    """Everything that this package raises, except for wrong arguments (TypeError, ValueError, OverflowError)."""


class NoPage(TimevisorError):
    """``connect``: there is no clock page."""

    tried: Tuple[Tried, ...]


class NotFound(TimevisorError):
    """There is no timeline of this name."""


class PageUnusable(TimevisorError):
    """The page that the timeline is on cannot be read here, or not any more: its file was truncated."""


class WriterStalled(TimevisorError):
    """The page's writer died inside an update."""


class OutOfOrder(TimevisorError):
    """The page is damaged: its estimate lies outside of its bounds."""


class Gone(TimevisorError):
    """The timeline has ended, and its place on the page was given to another."""


class Unknown(TimevisorError):
    """The time is not known."""


class Unreliable(TimevisorError):
    """The bounds must not be relied on, and this needs them."""

    reading: Reading


class TooOld(TimevisorError):
    """A stamp from before the last disruption or the opening of the handle, or older than what the handle remembers."""

    since: int
    """The oldest stamp that can be converted."""


class TooNew(TimevisorError):
    """A stamp from after the last moment that was recorded."""

    until: int
    """The newest stamp that can be converted."""


class Unobserved(TimevisorError):
    """Nobody watched the clock for more than a minute before and after the stamp."""

    since: int
    """The last publication before the stamp expired there."""
    until: int
    """The next publication began there."""


class AcrossDisruption(TimevisorError):
    """The clock was disrupted between two stamps, or where a stamp is in a recording."""

    since: int
    """The first stamp after the disruption that can be converted."""


class Ambiguous(TimevisorError):
    """The counter was at this stamp more than once in the recording."""


class RecordingUnusable(TimevisorError):
    """The file is no recording, damaged, of another version or timeline, or in use; or the recorder was closed."""


class ClockWasSet(TimevisorError):
    """CLOCK_REALTIME was set, so earlier stamps of packets mean nothing."""


class Contradiction(TimevisorError):
    """Published bounds of a stamp exclude each other."""


class DisruptedError(TimevisorError):
    """The clock may have stepped during the wait."""

    reading: Reading
    """The first one after."""


class PinUnusable(TimevisorError):
    """A chip, line, PTP clock, pin or channel cannot be used; or a line does not take its value."""


class Unplaced(TimevisorError):
    """There was an event at a pin, or an output has changed, but when is not known."""

    edge: Optional[Edge]
    """Of the event; None for an output, and at a PTP clock."""
    lost: int
    """As ``PinEvent.lost``."""


class NotMet(TimevisorError):
    """An output was not changed, because the clock does not meet the handle's requirement or must not be relied on."""

    reading: Reading


class TooLateError(TimevisorError):
    """``wait_surely_before``: it is not surely before the time any more. An output: its time has come already, so that it was not
    changed."""

    by_ns: int
    """How far the reading's latest (for an output: its estimate) is beyond the time: 0 or more."""
    reading: Reading


class Cancelled(TimevisorError):
    """``Cancel.cancel`` was called."""


class TimedOut(TimevisorError, TimeoutError):
    """The time-out passed first."""


class OutOfRange(TimevisorError, ValueError):
    """A period of zero, a time beyond the range, or a last stamp before the first."""


class KernelRefused(TimevisorError, OSError):
    """A descriptor could not be made or waited for, or a file not be used."""


class Invalid(TimevisorError, ValueError):
    """A requirement that makes no sense, an invalid timeline name, or text that is not a saved age."""


class NoChannel(TimevisorError):
    """Nobody takes requirements here. Reading works without: ``Client.timeline``."""

    tried: Tuple[Tried, ...]


class CannotBeMet(TimevisorError):
    """The requirement cannot be met."""

    achievable: Achieved


class Refused(TimevisorError):
    """timevisord refused for another reason, or a bus does not let this member join."""

    code: str
    """``exists``, ``quota``, ``rate_limited``, ``unavailable``, ...; of a bus ``name_taken``, ``key``, ``timeline``, ``full``, ..."""


class ChannelFailed(TimevisorError):
    """The channel to timevisord failed; the next call tries again."""


class Withdrawn(TimevisorError):
    """The binding was given back with ``unbind`` or by leaving its ``with`` block."""


class NoBus(TimevisorError):
    """``join``: no timevisor-bus answers."""

    tried: Tuple[Tried, ...]


class Disconnected(TimevisorError):
    """The bus is not connected; the library connects again by itself."""


class Left(TimevisorError):
    """This member has left its group."""


class NoMember(TimevisorError):
    """The group has no member of this name."""


class WaitsAlready(TimevisorError):
    """This member waits at this barrier already."""


class CannotPropose(TimevisorError):
    """The time is too close, the clock not good enough, or the proposer not among the members that are to fire."""


class TooLong(TimevisorError, ValueError):
    """A payload of more than 1 MiB."""
