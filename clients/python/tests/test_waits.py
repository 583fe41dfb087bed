"""Waits on a hand-driven clock that another thread moves."""

from __future__ import annotations

import select
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from typing import Callable, Iterator, TypeVar

import pytest

import timevisor
from timevisor import Cancel, Change, MissedTicks, Requirement, Timeline, When
from timevisor.manual import Clock

T = TypeVar("T")


@pytest.fixture
def start() -> Iterator[Callable[[Callable[[], T]], Future[T]]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def test_wait_until_and_past_and_sleep(clock: Clock, timeline: Timeline, start: Callable[..., Future[timevisor.Waited]]) -> None:
    waits = [
        start(timeline.wait_until, 1_000_000_500),
        start(timeline.wait_past, 1_000_000_449),
        start(timeline.sleep, timedelta(microseconds=0)),
    ]
    assert waits[2].result().lateness_ns == 0
    clock.advance(499)
    assert not waits[0].done() and not waits[1].done()
    clock.advance(4)
    # Earliest is 50 ns behind the estimate: 453 > 449.
    assert [waits[0].result().lateness_ns, waits[1].result().lateness_ns] == [3, 4]
    assert waits[0].result().reading.estimate_ns == 1_000_000_503


def test_wait_surely_before(clock: Clock, timeline: Timeline, start: Callable[..., Future[timevisor.Waited]]) -> None:
    t = 1_000_001_000
    wait = start(timeline.wait_surely_before, t, 100)
    with pytest.raises(timevisor.TimedOut):
        timeline.wait_surely_before(t, 949, timeout_ns=0)
    assert timeline.wait_surely_before(t, 950, spin_ns=0).lateness_ns == 0
    clock.advance(853)
    waited = wait.result()
    # Latest is 50 ns ahead of the estimate.
    assert (waited.lateness_ns, waited.reading.latest_ns) == (3, t - 97)
    clock.advance(96)
    assert timeline.wait_surely_before(t, 1).reading.compare_to(t) is timevisor.Comparison.BEFORE
    for by_ns in (0, 1):
        clock.advance(1)
        with pytest.raises(timevisor.TooLateError, match=f"up to {by_ns} ns ago; leave undone") as error:
            timeline.wait_surely_before(t, 1_000)
        assert (error.value.by_ns, error.value.reading.latest_ns) == (by_ns, t + by_ns)
        assert isinstance(error.value, timevisor.TimevisorError)
    with pytest.raises(timevisor.OutOfRange, match="a lead of zero"):
        timeline.wait_surely_before(t + 1_000, 0)


def test_wait_surely_before_as_a_descriptor(clock: Clock, timeline: Timeline) -> None:
    when = When.surely_before(1_000_001_900, timedelta(microseconds=1))
    assert repr(when) == "When.surely_before(1000001900, 1000)" and when == When.surely_before(1_000_001_900, 1_000)
    one, other = timeline.wait_fd(when), timeline.wait_fd(when)
    assert one.on_ready() is None and other.on_ready() is None
    clock.advance(851)
    waited = one.on_ready()
    assert waited is not None and waited.lateness_ns == 1
    clock.set_error(1_050)
    with pytest.raises(timevisor.TooLateError) as error:
        other.on_ready()
    assert error.value.by_ns == 1
    assert other.on_ready() is None, "it is over"


def test_wait_met_outlasts_disruptions(clock: Clock, timeline: Timeline, start: Callable[..., Future[timevisor.Waited]]) -> None:
    judged = timeline.with_requirement(Requirement.within(10))
    wait = start(judged.wait_met)
    clock.step(5)
    clock.forget()
    assert not wait.done()
    clock.step(7)
    clock.set_error(10)
    assert wait.result().reading.met


def test_a_disruption_ends_a_wait_with_the_first_reading_after(
    clock: Clock, timeline: Timeline, start: Callable[..., Future[timevisor.Waited]]
) -> None:
    waits: list[Callable[[int], timevisor.Waited]] = [
        timeline.wait_until,
        timeline.wait_past,
        lambda t_ns: timeline.wait_surely_before(t_ns, 10),
    ]
    for wait in waits:
        waiting = start(wait, 2_000_000_000)
        # It may have begun or not: step until it has noticed.
        while not waiting.done():
            clock.step(5)
        with pytest.raises(timevisor.DisruptedError, match="decide whether the time is still right") as error:
            waiting.result()
        assert error.value.reading.estimate_ns == 5
        clock.step(1_000_000_000)


def test_time_outs(timeline: Timeline) -> None:
    calls: list[Callable[[], object]] = [
        lambda: timeline.wait_until(2_000_000_000, timeout_ns=1_000_000),
        lambda: timeline.wait_past(2_000_000_000, timeout_ns=timedelta(milliseconds=1)),
        lambda: timeline.wait_surely_before(2_000_000_000, 100, timeout_ns=1_000_000),
        lambda: timeline.sleep(10, timeout_ns=0),
        lambda: timeline.with_requirement(Requirement.within(1)).wait_met(1_000_000),
        lambda: timeline.at(2_000_000_000, latest_ns=2_000_000_000, timeout_ns=1_000_000),
        lambda: timeline.periodic(1_000).tick(timeout_ns=1_000_000),
        lambda: timeline.watch().event(timeout_ns=1_000_000),
    ]
    for call in calls:
        with pytest.raises(timevisor.TimedOut, match="; wait again") as error:
            call()
        assert isinstance(error.value, TimeoutError)


def test_cancel_ends_every_kind_of_wait(timeline: Timeline, start: Callable[..., Future[object]]) -> None:
    cancel = Cancel()
    later = 2_000_000_000
    waits = [
        start(timeline.wait_until, later, cancel=cancel),
        start(timeline.wait_past, later, cancel=cancel),
        start(timeline.wait_surely_before, later, 100, cancel=cancel),
        start(timeline.sleep, later, cancel=cancel),
        start(timeline.with_requirement(Requirement.within(1)).wait_met, cancel=cancel),
        start(timeline.at, later, latest_ns=later, cancel=cancel),
        start(next, timeline.periodic(1_000, cancel=cancel)),
        start(timeline.periodic(1_000).tick, cancel=cancel),
        start(next, timeline.watch(cancel=cancel)),
        start(timeline.watch().event, cancel=cancel),
    ]
    assert not select.select([cancel], [], [], 0)[0]
    cancel.cancel()
    for wait in waits:
        with pytest.raises(timevisor.Cancelled, match="with another Cancel"):
            wait.result()
    assert select.select([cancel], [], [], 0)[0]
    with pytest.raises(timevisor.Cancelled):
        timeline.wait_until(later, cancel=cancel)
    assert timeline.wait_until(0, cancel=cancel).lateness_ns == 1_000_000_000, "what is due is not cancelled"


def test_waits_that_cannot_begin(clock: Clock, timeline: Timeline) -> None:
    with pytest.raises(timevisor.OutOfRange, match="a period is at least 1 ns"):
        timeline.periodic(0)
    with pytest.raises(ValueError, match="before the time itself"):
        timeline.at(10, latest_ns=9)
    clock.set_status("unreliable")
    with pytest.raises(timevisor.Unreliable) as error:
        timeline.wait_past(2_000_000_000)
    assert error.value.reading == timeline.now()
    with pytest.raises(timevisor.Unreliable):
        timeline.wait_surely_before(2_000_000_000, 100)
    clock.forget()
    with pytest.raises(timevisor.Unknown, match="wait_met"):
        timeline.wait_until(0)


def outcome(at: timevisor.AtOutcome) -> tuple[str, object]:
    """By kind and figure, through the types that mypy checks for completeness."""
    if isinstance(at, timevisor.Fired):
        return "fired", (at.actual_ns, at.error_ns)
    if isinstance(at, timevisor.TooLate):
        return "too late", at.by_ns
    if isinstance(at, timevisor.QotViolated):
        return "violated", at.half_width_ns
    return "disrupted", at.reading.estimate_ns


def test_an_action_is_done_in_time_and_well_or_not_at_all(
    clock: Clock, timeline: Timeline, start: Callable[..., Future[timevisor.AtOutcome]]
) -> None:
    t = 1_000_001_000
    assert outcome(timeline.at(5, latest_ns=999_999_990)) == ("too late", 10)
    assert outcome(timeline.at(t, latest_ns=t, max_error_ns=49)) == ("violated", 50)
    wait = start(timeline.at, t, latest_ns=t + 5, max_error_ns=50)
    clock.advance(1_002)
    assert outcome(wait.result()) == ("fired", (t + 2, 50))
    fd = timeline.at_fd(t + 10, latest_ns=t + 10)
    assert fd.on_ready() is None
    clock.step(t + 10)
    found = fd.on_ready()
    assert found is not None and outcome(found) == ("disrupted", t + 10)
    assert fd.on_ready() is None, "there is one outcome"
    clock.set_status("unreliable")
    assert outcome(timeline.at(0, latest_ns=2 * t, max_error_ns=1_000)) == ("violated", None)
    assert outcome(timeline.at(0, latest_ns=2 * t)) == ("fired", (t + 10, None))


def test_ticks_on_the_grid(clock: Clock, timeline: Timeline) -> None:
    policies = [MissedTicks.SKIP, MissedTicks.CATCH_UP, MissedTicks.COALESCE]
    all_ticks = [timeline.periodic(1_000, 7, missed) for missed in policies]
    for ticks in all_ticks:
        assert ticks.on_ready() is None
    clock.advance(1_010)
    firsts = [next(ticks) for ticks in all_ticks]
    assert [(t.scheduled_ns, t.lateness_ns, t.missed) for t in firsts[:2]] == [(1_000_000_007, 1_003, 0)] * 2
    assert (firsts[2].scheduled_ns, firsts[2].lateness_ns, firsts[2].missed) == (1_000_001_007, 3, 1)
    clock.advance(2_000)
    caught_up = list(islice(all_ticks[1], 3))
    assert [t.scheduled_ns - 1_000_000_000 for t in caught_up] == [1_007, 2_007, 3_007]
    assert all_ticks[0].on_ready() is None
    clock.advance(1_000)
    skipped = all_ticks[0].tick(spin_ns=0)
    assert (skipped.scheduled_ns, skipped.missed) == (1_000_004_007, 3)


def test_ticks_go_on_after_a_disruption(clock: Clock, timeline: Timeline) -> None:
    ticks = timeline.periodic(1_000)
    assert ticks.on_ready() is None
    clock.step(10_500)
    with pytest.raises(timevisor.DisruptedError):
        ticks.tick()
    assert ticks.on_ready() is None
    clock.advance(600)
    assert next(ticks).scheduled_ns == 11_000


def test_a_watch_tells_changes_in_order(clock: Clock, timeline: Timeline) -> None:
    watch = timeline.with_requirement(Requirement.within(60)).watch()
    seen = [watch.event()]
    changes: list[Callable[[], None]] = [
        lambda: clock.set_error(61),
        lambda: clock.set_status("freerunning"),
        lambda: clock.step(0),
    ]
    for change in changes:
        change()
        seen.append(next(watch))
    assert [event.change for event in seen] == [Change.MET, Change.VIOLATED, Change.HOLDOVER, Change.DISRUPTED]
    assert seen[0].valid_until == timevisor.Unlimited() and seen[1].valid_until == timevisor.Exceeded()


def test_a_descriptor_is_readable_when_it_is_time_to_look(clock: Clock, timeline: Timeline) -> None:
    wait = timeline.wait_fd(When.until(1_000_001_000))
    assert wait.on_ready() is None
    assert not select.select([wait], [], [], 0)[0]
    clock.advance(1_001)
    assert select.select([wait], [], [], 0)[0]
    waited = wait.on_ready()
    assert waited is not None and waited.lateness_ns == 1
    assert wait.on_ready() is None and not select.select([wait], [], [], 0)[0]
    wait.close()
    wait.close()
    uses: list[Callable[[], object]] = [wait.fileno, wait.on_ready]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_two_threads_do_not_share_a_stream(timeline: Timeline, start: Callable[..., Future[timevisor.Tick]]) -> None:
    cancel = Cancel()
    ticks = timeline.periodic(1_000)
    waiting = start(ticks.tick, cancel=cancel)
    while True:
        try:
            ticks.on_ready()
        except RuntimeError as error:
            assert "another thread is waiting on it" in str(error)
            break
    assert ticks.fileno() >= 0
    with pytest.raises(RuntimeError):
        ticks.close()
    cancel.cancel()
    with pytest.raises(timevisor.Cancelled):
        waiting.result()
    ticks.close()
