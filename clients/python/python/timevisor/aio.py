"""The waits for asyncio: no thread, one descriptor in the running loop per wait.

    await aio.wait_until(tai, t_ns)
    async with aio.periodic(tai, 100_000_000) as ticks:
        async for tick in ticks: ...
    await aio.wait_for(group, 2)
    async for message in aio.inbox(group.subscribe("poses")): ...

Cancelling a task takes its descriptor out of the loop. For time-outs use ``asyncio.wait_for`` or ``asyncio.timeout``. Calls
that ask timevisord or a bus (``bind``, ``update``, ``unbind``, ``timelines``, ``join``, ``leave``) block:
``await asyncio.to_thread(client.bind, ...)``.

What it does not do: hold the loop's other tasks off. Lateness is as good as the loop is quick.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, Optional, Protocol, Sequence, Type, TypeVar, cast

from ._errors import Left
from ._group_words import Outcome
from ._timevisor import Group, OutputLine, Pending, Timeline, When
from ._words import AtOutcome, Changed, Event, PinEvent, Span, Tick, Waited

__all__ = [
    "Stream",
    "at",
    "barrier",
    "decided",
    "inbox",
    "line_events",
    "outcome",
    "output_at",
    "periodic",
    "propose",
    "ptp_events",
    "sleep",
    "wait_for",
    "wait_for_names",
    "wait_met",
    "wait_past",
    "wait_surely_before",
    "wait_until",
    "watch",
]

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class _Source(Protocol[_T_co]):
    """What the extension module's ``WaitFd``, ``AtFd``, ``Periodic``, ``Watch`` and a group's have in common."""

    def fileno(self) -> int: ...
    def on_ready(self) -> Optional[_T_co]: ...
    def close(self) -> None: ...


async def wait_until(timeline: Timeline, t_ns: int, *, spin_ns: Optional[Span] = None) -> Waited:
    """Waits until the estimate has reached ``t_ns``. ``spin_ns`` blocks the loop that close to the end."""
    return await _once(timeline.wait_fd(When.until(t_ns), spin_ns=spin_ns))


async def wait_past(timeline: Timeline, t_ns: int, *, spin_ns: Optional[Span] = None) -> Waited:
    """Waits until ``t_ns`` has surely passed on every right clock."""
    return await _once(timeline.wait_fd(When.past(t_ns), spin_ns=spin_ns))


async def wait_surely_before(
    timeline: Timeline, t_ns: int, lead_ns: Span, *, spin_ns: Optional[Span] = None
) -> Waited:
    """Waits until ``lead_ns`` before the last moment that is surely before ``t_ns``; TooLateError where that has gone by. The
    lead has to cover what the loop's other tasks take, too."""
    return await _once(timeline.wait_fd(When.surely_before(t_ns, lead_ns), spin_ns=spin_ns))


async def sleep(timeline: Timeline, span_ns: Span, *, spin_ns: Optional[Span] = None) -> Waited:
    """Sleeps for this long on this timeline."""
    return await _once(timeline.wait_fd(When.sleep(span_ns), spin_ns=spin_ns))


async def wait_met(timeline: Timeline) -> Waited:
    """Waits until the time is known and meets the handle's requirement."""
    return await _once(timeline.wait_fd(When.met()))


async def at(
    timeline: Timeline,
    t_ns: int,
    *,
    latest_ns: int,
    max_error_ns: Optional[Span] = None,
    spin_ns: Optional[Span] = None,
) -> AtOutcome:
    """As ``Timeline.at``."""
    return await _once(timeline.at_fd(t_ns, latest_ns=latest_ns, max_error_ns=max_error_ns, spin_ns=spin_ns))


def periodic(timeline: Timeline, period_ns: Span, phase_ns: int = 0, missed: str = "skip") -> Stream[Tick]:
    """As ``Timeline.periodic``, for ``async for``."""
    return Stream(timeline.periodic(period_ns, phase_ns, missed))


def watch(timeline: Timeline) -> Stream[Event]:
    """As ``Timeline.watch``, for ``async for``."""
    return Stream(timeline.watch())


def line_events(timeline: Timeline, chip: str, line: int, edges: str = "both") -> Stream[PinEvent]:
    """As ``Timeline.line_events``, for ``async for``. The longer an edge waits for its task, the wider its reading."""
    return Stream(timeline.line_events(chip, line, edges))


async def ptp_events(timeline: Timeline, device: str, channel: int, edges: str = "both") -> Stream[PinEvent]:
    """As ``Timeline.ptp_events``: ``async for event in await ptp_events(...)``. To compare the clocks first takes 0.1 s, in
    another thread. Not tested on hardware."""
    return Stream(await asyncio.to_thread(timeline.ptp_events, device, channel, edges))


async def output_at(
    output: OutputLine,
    timeline: Timeline,
    t_ns: int,
    active: bool,
    *,
    late_at_most_ns: Optional[Span] = None,
    spin_ns: Optional[Span] = None,
) -> Changed:
    """As ``OutputLine.at``. Cancelling the task leaves the line as it is."""
    return await _once(output.at_fd(timeline, t_ns, active, late_at_most_ns=late_at_most_ns, spin_ns=spin_ns))


async def wait_for(group: Group, count: int) -> None:
    """Waits until so many members are there, this one included, whose clocks meet their requirements."""
    await _once(group.wait_for_fd(count))


async def wait_for_names(group: Group, names: Sequence[str]) -> None:
    """Waits until these members are there, whose clocks meet their requirements."""
    await _once(group.wait_for_names_fd(names))


async def barrier(group: Group, name: str, parties: int) -> int:
    """As ``Group.barrier``. If the task is cancelled, this member does not wait there any more; a release that it has accepted
    already goes on without it."""
    return cast(int, await _once(group.barrier_fd(name, parties)))


async def propose(
    group: Group,
    at_ns: int,
    payload: bytes = b"",
    *,
    members: Optional[Sequence[str]] = None,
    late_at_most_ns: Optional[Span] = None,
) -> Outcome:
    """Proposes as ``Group.propose`` does, and waits for the outcome. Cancelling the task does not take the proposal back."""
    return await outcome(group.propose(at_ns, payload, members=members, late_at_most_ns=late_at_most_ns))


async def decided(pending: Pending) -> bool:
    """Waits until a proposal is decided: True if everybody is to fire."""
    return cast(bool, await _once(pending.decided_fd()))


async def outcome(pending: Pending) -> Outcome:
    """Waits for a proposal's outcome."""
    return cast(Outcome, await _once(pending.wait_fd()))


def inbox(entries: _Source[_T]) -> Stream[_T]:
    """What ``Group.subscribe``, ``watch`` and ``proposals`` return, for ``async for``. It ends when the member leaves."""
    return Stream(entries)


class Stream(Generic[_T_co]):
    """Ticks, events or a group's entries. Goes on after a cancelled or timed-out ``anext``; one task at a time."""

    def __init__(self, source: _Source[_T_co]) -> None:
        self._source = source
        self._busy = False

    def __aiter__(self) -> Stream[_T_co]:
        return self

    async def __anext__(self) -> _T_co:
        # A second reader of one descriptor would take the first one's place in the loop, which
        # would then sleep for ever.
        if self._busy:
            raise RuntimeError("another task is waiting on this stream; give each task its own")
        self._busy = True
        try:
            return await _outcome(self._source)
        except Left:
            raise StopAsyncIteration from None
        finally:
            self._busy = False

    async def __aenter__(self) -> Stream[_T_co]:
        return self

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Gives the descriptor back. Not while another task waits."""
        if self._busy:
            raise RuntimeError("a task is waiting on this stream; cancel it first")
        self._source.close()


async def _once(source: _Source[_T]) -> _T:
    try:
        return await _outcome(source)
    finally:
        source.close()


async def _outcome(source: _Source[_T]) -> _T:
    while True:
        outcome = source.on_ready()
        if outcome is not None:
            return outcome
        await _readable(source.fileno())


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _finish, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _finish(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
