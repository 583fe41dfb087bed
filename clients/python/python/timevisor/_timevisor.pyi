"""The extension module (src/). Spans are int nanoseconds or timedelta; see ``timevisor`` for units."""

import os
from types import TracebackType
from typing import Iterator, List, Optional, Sequence, Tuple, Type, Union, final

from ._group_words import Info, MemberId, Message, Outcome, ProposalId, Proposed, Reported
from ._words import (
    Achieved,
    AtOutcome,
    Changed,
    ChannelChoice,
    Comparison,
    Epoch,
    Event,
    HostCpuTime,
    Lease,
    MeasuredSpan,
    Notice,
    PageChoice,
    Pin,
    PinEvent,
    Pulse,
    Segment,
    Span,
    Status,
    Tick,
    TimelineRow,
    Timescale,
    ValidUntil,
    Waited,
)

__all__ = [
    "AtFd",
    "Binding",
    "Bus",
    "Cancel",
    "Client",
    "Clock",
    "Elapsed",
    "Group",
    "GroupWait",
    "Messages",
    "OutputFd",
    "OutputLine",
    "PacketStamps",
    "Pending",
    "Periodic",
    "PinEvents",
    "Proposals",
    "PtpPins",
    "Reading",
    "Recorder",
    "Recording",
    "Reports",
    "Requirement",
    "Timeline",
    "WaitFd",
    "Watch",
    "When",
    "connect",
    "survive_truncation",
]

_Path = Union[str, os.PathLike[str]]

def connect(
    page: Optional[_Path] = None,
    channel: Optional[_Path] = None,
    *,
    name: Optional[str] = None,
    timeout_ns: Optional[Span] = None,
) -> Client:
    """Finds the clock page, or opens ``page``: a page file, a vmclock device below /dev, or a PCI resource below /sys.

    ``channel``: where requirements go (a socket, a virtio-serial port, or ``vsock:CID:PORT``); opened at the first binding.
    ``name``: what the operator sees; the script's name by default. ``timeout_ns``: how long timevisord may take to answer; 3 s
    by default. Naming a ``page`` calls ``survive_truncation``: the file's owner may truncate it.

    Raises NoPage.
    """

def survive_truncation() -> None:
    """From now on, in the whole process, reading a page whose file was truncated raises PageUnusable.

    It would otherwise end the process by SIGBUS. Installs a handler of SIGBUS that deals with faults inside of clock pages only,
    and passes everything else on to the action that was there before (``faulthandler``'s, for instance).

    Raises OSError if the kernel refuses.
    """

@final
class Client:
    """Reads timelines, and states requirements of them. For any thread."""

    @property
    def page(self) -> PageChoice:
        """Which page is read, and why others are not."""
    @property
    def channel(self) -> Optional[ChannelChoice]:
        """Which channel is used, and why others are not; None before the first binding."""
    def timeline(self, name: str) -> Timeline:
        """Opens a timeline of the page for reading only: sends no message and requires nothing.

        Raises NotFound, PageUnusable.
        """
    def bind(
        self,
        name: str,
        requirement: Optional[Requirement] = None,
        *,
        best_effort: bool = False,
        create: Optional[str] = None,
    ) -> Binding:
        """Binds to a timeline and has the host meet a requirement for as long as the binding lives.

        ``best_effort``: also if it cannot be met; readings then say so. ``create``: an ``Epoch`` or its word; makes the
        timeline where there is none of this name.

        Raises CannotBeMet, NoChannel, NotFound, Invalid, Refused, ChannelFailed, TimedOut, PageUnusable.
        """
    def join(
        self,
        group: str,
        member: str,
        requirement: Optional[Requirement] = None,
        *,
        timeline: str = "tai",
        bus: Optional[Union[_Path, Bus]] = None,
        authority: Optional[_Path] = None,
        key: Optional[Union[str, bytes]] = None,
        lease_ns: Optional[Span] = None,
    ) -> Group:
        """Joins a group as ``member``. The host meets the requirement for as long as the membership lives.

        ``timeline``: the group's. ``bus``: the socket of timevisor-bus, or ``tls://HOST:PORT`` with ``authority``, a PEM file
        with who signed its certificate, or that certificate, or a ``manual.Bus``; by default ``TIMEVISOR_BUS``, then timevisor-bus.socket in
        ``XDG_RUNTIME_DIR``, then /run/timevisor-bus/socket. ``key``: the text of the group's key file, if it has a key.
        ``lease_ns``: after so long without a sign of this program the others count it as gone; 3 s by default.

        Raises NoBus, Refused (``code``: ``name_taken``, ``key``, ``timeline``, ``full``), TimedOut, Invalid, KernelRefused, and
        what ``bind`` raises.
        """
    def timelines(self) -> List[TimelineRow]:
        """What this client may bind to. Raises as ``bind``."""
    def host_cpu_time(self, vcpu: int) -> Optional[HostCpuTime]:
        """How much processor time the host has given a vCPU of the VM that this program runs in; None: not known, and on a host.

        A guest's own clocks count what its vCPU had to wait for, too. The account moves every 100 ms.

        Raises PageUnusable, WriterStalled.
        """
    def notice(self) -> Notice:
        """What the host announces: that this VM will be disrupted (moved, saved, stopped), or that this begins.

        Cheap; ask as often as you like. Raises PageUnusable.
        """
    def vm_generation(self) -> Optional[int]:
        """The VM generation counter: another number tells that this VM was loaded from a saved state (a snapshot, a clone), so that
        what must be unique has to be made anew. A live migration keeps it. None where nobody counts, and until timevisord has
        noticed that the VM was loaded.

        Raises PageUnusable.
        """
@final
class Elapsed:
    """How long something has been running, also over a migration of its VM, and over a checkpoint of its process that is restored on
    another host. For any thread.

    ``timeline``: ``tai``. ``exclude_blackouts``: without the time in which CLOCK_MONOTONIC_RAW stood still: in a guest over a
    migration, in a container that CRIU has restored.

    Raises Unknown (the time is not known yet), Invalid (another timeline), and what reading raises.
    """

    def __new__(cls, timeline: Timeline, *, exclude_blackouts: bool = False) -> Elapsed: ...
    @staticmethod
    def resume(timeline: Timeline, saved: str) -> Elapsed:
        """Goes on with an age that ``save`` returned, here or on another host. Raises Invalid."""
    def now(self) -> Reading:
        """The age, in nanoseconds since it began. Never before an earlier one; unknown after a disruption, until the time is known
        again."""
    def save(self) -> str:
        """As text, for a file or another machine: at most 1024 bytes of ASCII in one line."""


class Timeline:
    """A handle to one timeline, for any thread. Reading it needs no system call, nearly always.

    Reading raises WriterStalled, OutOfOrder and Gone. Waits let other threads run, and end with KeyboardInterrupt on Ctrl-C. They take
    ``spin_ns`` (do not sleep this close to the end), ``timeout_ns`` (TimedOut) and ``cancel`` (Cancelled), and raise
    DisruptedError, Unknown, Unreliable, OutOfRange, KernelRefused, and what reading raises.
    """

    @property
    def name(self) -> str: ...
    def now(self) -> Reading: ...
    def stamp(self) -> int:
        """The counter, to be converted later: the cheapest stamp there is, in ticks."""
    def convert(self, stamp: int) -> Reading:
        """The time at which the counter was at ``stamp``. Raises TooOld, Unobserved, Unknown, Contradiction."""
    def convert_between(self, first: int, last: int) -> Reading:
        """The time of something that happened while the counter went from ``first`` to ``last``, such as a packet."""
    def span(self, from_stamp: int, to_stamp: int) -> MeasuredSpan:
        """How much true time went by between two stamps: never wider than the difference of two conversions, and much narrower
        for short spans.

        Raises TooOld, Unobserved, AcrossDisruption, Unknown, Contradiction.
        """
    def record_to(self, path: _Path) -> Recorder:
        """Records the timeline from now on into a file, so that a ``Recording`` converts stamps of any age. A file that is there
        already is continued.

        Raises RecordingUnusable, KernelRefused.
        """
    def packet_stamps(self) -> PacketStamps:
        """Begins to watch CLOCK_REALTIME, so that the kernel's stamps of packets can be placed on the counter. Call it before the
        socket is opened.

        Raises PageUnusable (a clock for tests), Unknown, KernelRefused.
        """
    def line_events(
        self, chip: _Path, line: int, edges: str = "both", *, cancel: Optional[Cancel] = None
    ) -> PinEvents:
        """Edges of a GPIO line of a chip such as ``/dev/gpiochip0``, from now on. The kernel stamps them in its interrupt handler:
        after the edge, by the interrupt's latency.

        ``edges``: an ``Edges`` or its word. ``cancel`` is for its use as an iterator.
        Raises PinUnusable, PageUnusable (a clock for tests), and what reading raises.
        """
    def ptp_events(
        self, device: _Path, channel: int, edges: str = "both", *, cancel: Optional[Cancel] = None
    ) -> PinEvents:
        """Edges at a channel of a PTP clock such as ``/dev/ptp0``, which stamps them itself. Not tested on hardware. The pin must
        have been given to the channel (``PtpPins.set_pin``); the clock must not be set meanwhile.

        Raises as ``line_events``.
        """
    def observe(self) -> None:
        """Records the present publication for later conversions. Call it every few seconds if you only take stamps."""
    def compare_to(self, t_ns: int) -> Comparison:
        """Is it surely before ``t_ns`` now, surely after it, or is that not known?"""
    def is_surely_before(self, t_ns: int) -> bool:
        """``t_ns`` has surely not come yet: latest < t."""
    def is_surely_past(self, t_ns: int) -> bool:
        """``t_ns`` has surely passed: earliest > t."""
    def valid_until(self, half_width_ns: Span) -> ValidUntil:
        """Until when true time stays within this of the estimate if nothing new is learned."""
    def with_requirement(self, requirement: Requirement) -> Timeline:
        """The same timeline, judged by another requirement. Nobody is told; to have the host meet it, bind."""
    def wait_until(
        self,
        t_ns: int,
        *,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Waited:
        """Waits until the estimate has reached ``t_ns``."""
    def wait_past(
        self,
        t_ns: int,
        *,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Waited:
        """Waits until ``t_ns`` has surely passed on every right clock: earliest > t (Spanner's commit-wait)."""
    def wait_surely_before(
        self,
        t_ns: int,
        lead_ns: Span,
        *,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Waited:
        """Waits until ``lead_ns`` before the last moment that is surely before ``t_ns`` on every right clock, to do then what must
        be done before it: until latest + lead >= t. The reading then has latest < t; otherwise it raises TooLateError.

        ``lead_ns``: what the program needs to wake up (50 to 100 us) and for its work; above 0.
        """
    def sleep(
        self,
        span_ns: Span,
        *,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Waited:
        """Sleeps for this long on this timeline."""
    def wait_met(self, timeout_ns: Optional[Span] = None, *, cancel: Optional[Cancel] = None) -> Waited:
        """Waits until the time is known and meets the handle's requirement; disruptions do not end this wait."""
    def wait_fd(self, when: When, *, spin_ns: Optional[Span] = None) -> WaitFd:
        """The same waits as a descriptor for an event loop."""
    def at(
        self,
        t_ns: int,
        *,
        latest_ns: int,
        max_error_ns: Optional[Span] = None,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> AtOutcome:
        """Waits until the estimate has reached ``t_ns``, provided that the clock is then within ``max_error_ns`` and that it is
        not yet later than ``latest_ns``; both are checked now, too."""
    def at_fd(
        self,
        t_ns: int,
        *,
        latest_ns: int,
        max_error_ns: Optional[Span] = None,
        spin_ns: Optional[Span] = None,
    ) -> AtFd:
        """The same as a descriptor for an event loop."""
    def periodic(
        self,
        period_ns: Span,
        phase_ns: int = 0,
        missed: str = "skip",
        *,
        spin_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Periodic:
        """Every period of the timeline, at ``phase_ns`` and multiples of the period before and after it.

        ``missed``: a ``MissedTicks`` or its word. ``spin_ns`` and ``cancel`` are for its use as an iterator.
        """
    def watch(self, *, cancel: Optional[Cancel] = None) -> Watch:
        """What happens to the timeline and to its requirement, from now on."""

@final
class Binding(Timeline):
    """A timeline with a requirement in force, as a context manager: leaving it withdraws the requirement. So does the end of
    the program, however it ends. The timeline can still be read afterwards."""

    @property
    def epoch(self) -> Epoch: ...
    @property
    def achieved(self) -> Achieved:
        """What the timeline gave at the bind or the last update."""
    @property
    def lease(self) -> Lease:
        """Whether the requirement is in force on the host now. It is told again by itself after a lost connection."""
    def update(self, requirement: Optional[Requirement], *, best_effort: bool = False) -> Achieved:
        """Changes the requirement; None drops it. If the host refuses, the old one stays in force."""
    def unbind(self) -> None:
        """Withdraws the requirement and waits for the host's answer. A second time does nothing."""
    def __enter__(self) -> Binding: ...
    def __exit__(
        self,
        exception: Optional[Type[BaseException]],
        _value: Optional[BaseException],
        _traceback: Optional[TracebackType],
    ) -> None: ...

@final
class Recorder:
    """Appends what a timeline's page says to a file, as a context manager: leaving it closes the file."""

    def observe(self) -> bool:
        """Looks at the page, and appends what it says if that is new. Call it about every 100 ms.

        Publications that are missed for up to a minute make conversions wider. After longer, stamps from inside the gap are
        refused (Unobserved), and a span across it is only the difference of two conversions.
        """
    def close(self) -> None:
        """Looks once more, and hands everything to the disk. A second time does nothing."""
    def __enter__(self) -> Recorder: ...
    def __exit__(
        self,
        _exception: Optional[Type[BaseException]],
        _value: Optional[BaseException],
        _traceback: Optional[TracebackType],
    ) -> None: ...

@final
class Recording:
    """A timeline's past out of a file, on any machine; it needs no page. Raises RecordingUnusable, KernelRefused."""

    def __new__(cls, path: _Path) -> Recording: ...
    @property
    def name(self) -> str:
        """The timeline's."""
    @property
    def is_torn(self) -> bool:
        """The last records are incomplete, and were left out."""
    @property
    def segments(self) -> List[Segment]:
        """What can be converted, in the order of recording."""
    def convert(self, stamp: int) -> Reading:
        """The time at which the counter was at ``stamp``.

        Raises TooOld, TooNew, Unobserved, AcrossDisruption, Ambiguous, Contradiction.
        """
    def convert_between(self, first: int, last: int) -> Reading:
        """The time of something that happened while the counter went from ``first`` to ``last``."""
    def span(self, from_stamp: int, to_stamp: int) -> MeasuredSpan:
        """How much true time went by between two stamps."""

@final
class PacketStamps:
    """The kernel's software stamps of packets (SO_TIMESTAMPING, SO_TIMESTAMPNS) as counter values. For any thread."""

    def stamp_of(self, realtime_ns: int) -> Tuple[int, int]:
        """The counter values between which the kernel stamped a packet: first, last, for ``convert_between``. Call it soon: a
        stamp that is 1 ms old is known to 0.25 ms.

        Raises ClockWasSet, OutOfRange.
        """

@final
class Reading:
    """True time was between earliest and latest when the counter was at ``counter``. Never changes."""

    @property
    def earliest_ns(self) -> int:
        """True time is not before this, rounded down. -(2^63 - 1) when nothing is known."""
    @property
    def estimate_ns(self) -> int:
        """The best guess, rounded down. 0 when nothing is known."""
    @property
    def latest_ns(self) -> int:
        """True time is not after this, rounded up. 2^63 - 1 when nothing is known."""
    @property
    def below_ns(self) -> Optional[int]:
        """How far true time may be before the estimate; None when nothing is known."""
    @property
    def above_ns(self) -> Optional[int]:
        """How far true time may be after the estimate; None when nothing is known."""
    @property
    def half_width_ns(self) -> Optional[int]:
        """The larger of the two."""
    @property
    def estimated_error_ns(self) -> Optional[int]:
        """One sigma of the estimate, not a bound; None when it is not known."""
    @property
    def status(self) -> Status: ...
    @property
    def timescale(self) -> Timescale: ...
    @property
    def met(self) -> bool:
        """Whether it meets the handle's own requirement; True without one."""
    @property
    def is_known(self) -> bool: ...
    @property
    def counter(self) -> int:
        """The stamp that it is valid for, ticks."""
    @property
    def disruption(self) -> int:
        """Changes when the clock may have stepped."""
    @property
    def tai_offset(self) -> Optional[int]:
        """TAI - UTC in seconds, where known."""
    def compare_to(self, t_ns: int) -> Comparison:
        """Was this moment surely before ``t_ns``, surely after it, or is that not known?"""
    def compare(self, other: Reading) -> Comparison:
        """Was this moment surely before that of ``other``, surely after it, or is that not known?"""
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Requirement:
    """How far true time may be from the estimate, and how surely. Raises Invalid where that means nothing."""

    @staticmethod
    def within(half_width_ns: Span) -> Requirement:
        """True time is within this of the estimate, by the hard bounds."""
    @staticmethod
    def between(below_ns: Span, above_ns: Span) -> Requirement:
        """True time is at most this much before and after the estimate, by the hard bounds."""
    def with_resolution(self, resolution_ns: Span) -> Requirement:
        """The clock must also tell instants apart that are this far from each other."""
    def with_probability(self, probability: float) -> Requirement:
        """By the estimated error with this probability (0.5 <= p < 1) instead of by the hard bounds."""
    @property
    def below_ns(self) -> int: ...
    @property
    def above_ns(self) -> int: ...
    @property
    def resolution_ns(self) -> Optional[int]: ...
    @property
    def probability(self) -> Optional[float]: ...
    def __eq__(self, value: object, /) -> bool: ...

@final
class When:
    """What to wait for."""

    @staticmethod
    def until(t_ns: int) -> When:
        """The estimate has reached this."""
    @staticmethod
    def past(t_ns: int) -> When:
        """This has surely passed: earliest is after it."""
    @staticmethod
    def surely_before(t_ns: int, lead_ns: Span) -> When:
        """This long before the last moment that is surely before it: latest + lead >= t > latest."""
    @staticmethod
    def sleep(span_ns: Span) -> When:
        """This long on the timeline, counted from the beginning of the wait."""
    @staticmethod
    def met() -> When:
        """The time is known and meets the handle's requirement."""
    def __eq__(self, value: object, /) -> bool: ...

@final
class Cancel:
    """Ends waits from another thread. Once cancelled it stays so."""

    def __new__(cls) -> Cancel: ...
    def cancel(self) -> None:
        """Ends all waits that were given this, now and later. Allowed in a signal handler."""
    def fileno(self) -> int:
        """Readable once cancelled."""

@final
class WaitFd:
    """A wait for an event loop: call ``on_ready`` once, then whenever the descriptor is readable."""

    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[Waited]:
        """Looks whether the time has come; None: not yet, or already over."""
    def close(self) -> None:
        """Ends the wait."""

@final
class AtFd:
    """An action's time for an event loop: call ``on_ready`` once, then whenever the descriptor is readable."""

    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[AtOutcome]:
        """Looks whether there is an outcome; None: not yet, or already over."""
    def close(self) -> None:
        """Ends the wait."""

@final
class Periodic:
    """Ticks for ever: an iterator, ``tick``, or a descriptor for an event loop. One thread at a time."""

    def __iter__(self) -> Iterator[Tick]: ...
    def __next__(self) -> Tick: ...
    def tick(
        self,
        *,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Tick:
        """Waits for the next tick. After a disruption it fails once, and starts over on the grid."""
    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[Tick]:
        """Looks whether a tick is due; None: not yet."""
    def close(self) -> None: ...

@final
class Watch:
    """Changes for ever: an iterator, ``event``, or a descriptor for an event loop. One thread at a time."""

    def __iter__(self) -> Iterator[Event]: ...
    def __next__(self) -> Event: ...
    def event(self, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None) -> Event:
        """Waits for the next change."""
    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[Event]:
        """Looks whether something happened; None: nothing."""
    def close(self) -> None: ...

@final
class PinEvents:
    """Edges for ever: an iterator, ``event``, or a descriptor for an event loop. One thread at a time.

    Raises Unplaced for an edge whose time is not known; later ones may be known again. Raises PinUnusable when the device is gone.
    """

    def __iter__(self) -> Iterator[PinEvent]: ...
    def __next__(self) -> PinEvent: ...
    def event(self, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None) -> PinEvent:
        """Waits for the next edge."""
    def fileno(self) -> int:
        """Readable while there are edges."""
    def on_ready(self) -> Optional[PinEvent]:
        """Takes the next edge; None: there is none."""
    def close(self) -> None:
        """Gives the line back."""

@final
class OutputLine:
    """A GPIO line as an output that begins active or not; given back when this is dropped. For any thread. Raises PinUnusable."""

    def __new__(cls, chip: _Path, line: int, active: bool = False) -> OutputLine: ...
    def set(self, active: bool) -> None:
        """Makes it active or inactive now."""
    def get(self) -> bool:
        """Whether it is active."""
    def at(
        self,
        timeline: Timeline,
        t_ns: int,
        active: bool,
        *,
        late_at_most_ns: Optional[Span] = None,
        spin_ns: Optional[Span] = None,
        timeout_ns: Optional[Span] = None,
        cancel: Optional[Cancel] = None,
    ) -> Changed:
        """Waits until the estimate has reached ``t_ns``, and then makes it active or inactive.

        Does so only if the clock meets the handle's requirement, now and then, was not disrupted, and it is not later than
        ``late_at_most_ns`` after ``t_ns`` (10 ms by default). The line stays as it is if this raises TooLateError (also where
        ``t_ns`` has come already), NotMet, DisruptedError, or what a wait raises; it has changed if this raises Unplaced.
        """
    def at_fd(
        self,
        timeline: Timeline,
        t_ns: int,
        active: bool,
        *,
        late_at_most_ns: Optional[Span] = None,
        spin_ns: Optional[Span] = None,
    ) -> OutputFd:
        """The same as a descriptor for an event loop."""

@final
class OutputFd:
    """An output's time for an event loop: call ``on_ready`` once, then whenever the descriptor is readable."""

    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[Changed]:
        """Changes the line if its time has come; None: not yet, or already over."""
    def close(self) -> None:
        """Leaves the line as it is."""

@final
class PtpPins:
    """The pins of a PTP clock such as ``/dev/ptp0``. Not tested on hardware. For any thread. Raises PinUnusable."""

    def __new__(cls, device: _Path) -> PtpPins: ...
    @property
    def count(self) -> int:
        """How many pins have a function that can be chosen. Not tested on hardware."""
    def pin(self, index: int) -> Pin:
        """A pin, counted from 0. Not tested on hardware."""
    def set_pin(self, index: int, function: str, channel: int) -> None:
        """Uses a pin for a channel of a function: a ``PinFunction`` or its word. Not tested on hardware."""
    def pulse_at(self, timeline: Timeline, channel: int, t_ns: int, width_ns: Span) -> Pulse:
        """Has an output's channel make one pulse, which begins when the timeline's estimate is ``t_ns``, as far as can be told now.
        Not tested on hardware.

        Raises TooLateError, NotMet, OutOfRange; Unplaced when ``t_ns`` may have come before the clock was told.
        """
    def end_output(self, channel: int) -> None:
        """Ends what an output's channel does, or is to do. Not tested on hardware."""

@final
class Clock:
    """A clock that stands still until it is moved. It starts synchronized and right to 1 ns."""

    def __new__(cls, now_ns: int, timescale: str = "tai") -> Clock: ...
    def timeline(self) -> Timeline:
        """A handle, as to a real timeline."""
    @property
    def now_ns(self) -> Optional[int]:
        """Where it stands; None after ``forget``."""
    def advance(self, span_ns: Span) -> None:
        """Time goes by, and with it the counter (a tick is a nanosecond)."""
    def set_error(self, half_width_ns: Span) -> None:
        """True time is within this of the estimate, on either side; at least 1 ns."""
    def set_errors(self, below_ns: Span, above_ns: Span) -> None:
        """True time is at most so much before and after the estimate; at least 1 ns each."""
    def set_growth_ppb(self, ppb: int) -> None:
        """The bounds move out at this rate as time goes by, parts per billion."""
    def set_estimated_error(self, sigma_ns: Span) -> None:
        """One sigma of the estimate."""
    def set_status(self, status: str) -> None:
        """What the clock says of itself: a ``Status`` or its word."""
    def step(self, to_ns: int) -> None:
        """The clock steps, ahead or back, and signals a disruption."""
    def forget(self) -> None:
        """Nothing is known any more; a disruption. ``step`` ends it."""

@final
class Bus:
    """A bus in this process, for tests: no timevisor-bus runs. Give it as ``bus=``. It ends with the last member, and has no
    keys. Leases and faults count this machine's real time."""

    def __new__(cls) -> Bus: ...
    def lose(self, per_mille: int, seed: int = 0) -> None:
        """From now on so many of a thousand messages are lost, each for each receiver; which ones, ``seed`` decides."""
    def delay(self, by_ns: Span) -> None:
        """From now on messages come so much later."""
    def cut(self, member: str) -> None:
        """From now on nothing comes from this member or to it. After its lease the others hear that it has gone."""
    def heal(self) -> None:
        """Nobody is cut off any more, nothing is lost and nothing is late."""
    def restart(self) -> None:
        """Ends all connections, as a bus does that restarts: members join again by themselves. What it kept is forgotten."""

@final
class Group:
    """A member of a group, as a context manager: leaving it leaves the group. For any thread.

    Waits let other threads run, and end with KeyboardInterrupt on Ctrl-C. They take ``timeout_ns`` (TimedOut) and ``cancel``
    (Cancelled). After ``leave`` everything raises Left.
    """

    @staticmethod
    def join(
        timeline: Timeline,
        group: str,
        member: str,
        requirement: Optional[Requirement] = None,
        *,
        bus: Optional[Union[_Path, Bus]] = None,
        authority: Optional[_Path] = None,
        key: Optional[Union[str, bytes]] = None,
        lease_ns: Optional[Span] = None,
    ) -> Group:
        """As ``Client.join``, with any timeline, such as that of a ``manual.Clock``. The timeline's name is the group's; the host is
        not told the requirement."""
    @property
    def id(self) -> MemberId:
        """Who this member is."""
    def members(self) -> List[Info]:
        """All members as far as is known, this one included, in the order of their names."""
    def watch(self) -> Reports:
        """What happens to the group and its messages, from now on."""
    def wait_for(self, count: int, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None) -> None:
        """Waits until so many members are there, this one included, whose clocks meet their requirements."""
    def wait_for_names(
        self, names: Sequence[str], *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None
    ) -> None:
        """Waits until these members are there, whose clocks meet their requirements."""
    def wait_for_fd(self, count: int) -> GroupWait:
        """The same as a descriptor for an event loop; it ends with True."""
    def wait_for_names_fd(self, names: Sequence[str]) -> GroupWait:
        """The same as a descriptor for an event loop; it ends with True."""
    def publish(self, topic: str, payload: bytes) -> None:
        """Publishes a message of at most 1 MiB with the time of now. Raises Disconnected, TooLong, Invalid."""
    def subscribe(
        self, topic: str, order: str = "arrival", *, history: int = 0, hold_ns: Optional[Span] = None
    ) -> Messages:
        """Gets a topic's messages, those that were published before first: ``history`` of them at most.

        ``order``: an ``Order`` or its word. ``hold_ns``: with ``time``, how long a silent member holds up others; 500 ms by
        default. Raises Invalid.
        """
    def accept(self, accept: str) -> None:
        """Which proposals of others are accepted from now on: an ``Accept`` or its word; ``nothing`` at first."""
    def proposals(self) -> Proposals:
        """Proposals of others, to be answered, where ``ask`` was said; and from now on what is to be done because of proposals, and
        what came of them."""
    def answer(self, id: ProposalId, accepts: bool) -> None:
        """Answers a proposal."""
    def propose(
        self,
        at_ns: int,
        payload: bytes = b"",
        *,
        members: Optional[Sequence[str]] = None,
        late_at_most_ns: Optional[Span] = None,
    ) -> Pending:
        """Proposes that all members, or those of these names, fire at a time of the timeline.

        Who wakes up later than ``late_at_most_ns`` after it does not fire; 10 ms by default.
        Raises CannotPropose, NoMember, TooLong.
        """
    def barrier(
        self, name: str, parties: int, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None
    ) -> int:
        """Waits at a barrier until so many members have arrived. All are released at one time.

        Returns how late this member surely was, ns. ``Split`` (``watch``) says if not all of them were released together.
        Raises WaitsAlready, Invalid.
        """
    def barrier_fd(self, name: str, parties: int) -> GroupWait:
        """The same as a descriptor for an event loop. Closed before the release, this member does not wait any more."""
    def stand(self, office: str, voters: Sequence[str], term_ns: Span) -> None:
        """Wants to lead: ``voters`` are the names of the members that vote, and a lease is this long. Raises Invalid."""
    def resign(self, office: str) -> None:
        """Does not want to lead any more."""
    def leads(self, office: str) -> bool:
        """Whether this member leads now. Nobody else does at the same time, as long as bounds hold."""
    def leave(self) -> None:
        """Leaves, and waits until the bus has been told. Waits and inboxes of the group end. A second time does nothing."""
    def __enter__(self) -> Group: ...
    def __exit__(
        self,
        _exception: Optional[Type[BaseException]],
        _value: Optional[BaseException],
        _traceback: Optional[TracebackType],
    ) -> None: ...

@final
class Pending:
    """A proposal that was made."""

    @property
    def id(self) -> ProposalId: ...
    def decided(self, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None) -> bool:
        """Waits until it is decided: True if everybody is to fire."""
    def wait(self, *, timeout_ns: Optional[Span] = None, cancel: Optional[Cancel] = None) -> Outcome:
        """Waits for the outcome. With ``unknown`` members it may be corrected later (``Group.proposals``)."""
    def decided_fd(self) -> GroupWait:
        """``decided`` as a descriptor for an event loop."""
    def wait_fd(self) -> GroupWait:
        """``wait`` as a descriptor for an event loop."""

@final
class GroupWait:
    """A wait for an event loop: when the descriptor is readable, call ``on_ready``. Closing it ends the wait."""

    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[Union[bool, int, Outcome]]:
        """Looks whether it has happened; None: not yet, poll again. Raises Left."""
    def close(self) -> None: ...

@final
class Messages:
    """A topic's messages, oldest first: an iterator, ``get``, or a descriptor for an event loop. One thread at a time.

    It ends when the member leaves. Of more than 65536 entries that nobody takes the oldest are dropped.
    """

    def __iter__(self) -> Iterator[Message]: ...
    def __next__(self) -> Message: ...
    def get(self, timeout_ns: Optional[Span] = None, *, cancel: Optional[Cancel] = None) -> Message:
        """Waits for the next entry. Raises TimedOut, Cancelled, Left."""
    def fileno(self) -> int:
        """Readable while there are entries, and after the end."""
    def on_ready(self) -> Optional[Message]:
        """Takes the next entry; None: there is none, poll again. Raises Left."""
    def dropped(self) -> int:
        """How many entries were dropped since the last call."""
    def close(self) -> None: ...

@final
class Reports:
    """What happens to the group and its messages: an iterator, ``get``, or a descriptor for an event loop. One thread at a time.

    It ends when the member leaves. Of more than 65536 entries that nobody takes the oldest are dropped.
    """

    def __iter__(self) -> Iterator[Reported]: ...
    def __next__(self) -> Reported: ...
    def get(self, timeout_ns: Optional[Span] = None, *, cancel: Optional[Cancel] = None) -> Reported:
        """Waits for the next entry. Raises TimedOut, Cancelled, Left."""
    def fileno(self) -> int:
        """Readable while there are entries, and after the end."""
    def on_ready(self) -> Optional[Reported]:
        """Takes the next entry; None: there is none, poll again. Raises Left."""
    def dropped(self) -> int:
        """How many entries were dropped since the last call."""
    def close(self) -> None: ...

@final
class Proposals:
    """What happens to proposals: an iterator, ``get``, or a descriptor for an event loop. One thread at a time.

    It ends when the member leaves. Of more than 65536 entries that nobody takes the oldest are dropped.
    """

    def __iter__(self) -> Iterator[Proposed]: ...
    def __next__(self) -> Proposed: ...
    def get(self, timeout_ns: Optional[Span] = None, *, cancel: Optional[Cancel] = None) -> Proposed:
        """Waits for the next entry. Raises TimedOut, Cancelled, Left."""
    def fileno(self) -> int:
        """Readable while there are entries, and after the end."""
    def on_ready(self) -> Optional[Proposed]:
        """Takes the next entry; None: there is none, poll again. Raises Left."""
    def dropped(self) -> int:
        """How many entries were dropped since the last call."""
    def close(self) -> None: ...
