"""What is taken for an instant or a span, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any, Callable

import pytest

import timevisor
from timevisor import Requirement, Timeline, When
from timevisor.manual import Clock


class Index:
    """As numpy's integers are."""

    def __index__(self) -> int:
        return 1_500


@pytest.mark.parametrize("span", [1_500_000, timedelta(milliseconds=1.5)])
def test_spans(span: timevisor.Span) -> None:
    assert Requirement.within(span).below_ns == 1_500_000


def test_days_count() -> None:
    assert Requirement.within(timedelta(days=2, seconds=3, microseconds=4)).below_ns == 172_803_000_004_000


def test_whatever_is_an_index_is_an_int(clock: Clock) -> None:
    clock.advance(Index())  # type: ignore[arg-type]
    assert clock.now_ns == 1_000_001_500


INSTANTS: list[Callable[[Timeline, Any], object]] = [
    lambda timeline, t: timeline.wait_until(t),
    lambda timeline, t: timeline.wait_past(t),
    lambda timeline, t: timeline.wait_surely_before(t, 1),
    lambda timeline, t: timeline.compare_to(t),
    lambda timeline, t: timeline.is_surely_past(t),
    lambda timeline, t: timeline.at(t, latest_ns=2_000_000_000),
    lambda timeline, t: timeline.periodic(1, t),
    lambda timeline, t: When.until(t),
    lambda timeline, t: Clock(t),
]
SPANS: list[Callable[[Timeline, Any], object]] = [
    lambda timeline, span: timeline.sleep(span),
    lambda timeline, span: timeline.wait_met(span),
    lambda timeline, span: timeline.wait_until(0, spin_ns=span),
    lambda timeline, span: timeline.wait_surely_before(2_000_000_000, span),
    lambda timeline, span: When.surely_before(0, span),
    lambda timeline, span: timeline.periodic(span),
    lambda timeline, span: timeline.valid_until(span),
    lambda timeline, span: Requirement.within(span),
    lambda timeline, span: timevisor.connect(timeout_ns=span),
]


@pytest.mark.parametrize("call", INSTANTS)
@pytest.mark.parametrize("wrong", [1e9, 0.0, "1", None, timedelta(0), Decimal(1)])
def test_instants_are_ints_only(timeline: Timeline, call: Callable[[Timeline, Any], object], wrong: object) -> None:
    with pytest.raises(TypeError, match="an int of nanoseconds since the timeline's epoch, not "):
        call(timeline, wrong)


@pytest.mark.parametrize("call", SPANS)
@pytest.mark.parametrize("wrong", [0.01, 1e7, "1", Decimal(1)])
def test_spans_are_never_floats(timeline: Timeline, call: Callable[[Timeline, Any], object], wrong: object) -> None:
    with pytest.raises(TypeError, match="an int of nanoseconds or a datetime.timedelta, not .*10_000_000"):
        call(timeline, wrong)


@pytest.mark.parametrize("call", SPANS)
@pytest.mark.parametrize("wrong", [-1, timedelta(microseconds=-1)])
def test_spans_are_not_negative(timeline: Timeline, call: Callable[[Timeline, Any], object], wrong: object) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        call(timeline, wrong)


def test_what_does_not_fit_into_64_bits_is_refused(timeline: Timeline) -> None:
    with pytest.raises(OverflowError, match="within 292 years"):
        timeline.compare_to(2**63)
    with pytest.raises(OverflowError, match="within 292 years"):
        timeline.sleep(2**63)


def test_wrong_words_are_answered_with_the_right_ones(timeline: Timeline) -> None:
    with pytest.raises(ValueError, match="'never' is no policy: give 'skip', 'catch_up' or 'coalesce'"):
        timeline.periodic(1, missed="never")
    with pytest.raises(ValueError, match="'gps' is no timescale: give 'tai', 'utc' or 'local'"):
        Clock(0, "gps")
    with pytest.raises(timevisor.Invalid, match="0.5 <= p < 1"):
        Requirement.within(1).with_probability(1)
