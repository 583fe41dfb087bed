"""Readings, conversions and comparisons: values and their types."""

from __future__ import annotations

from datetime import timedelta

import pytest

import timevisor
from timevisor import Comparison, Reading, Requirement, Status, Timeline, Timescale
from timevisor.manual import Clock


def test_a_reading_is_made_of_ints(now: Reading) -> None:
    assert (now.earliest_ns, now.estimate_ns, now.latest_ns) == (999_999_950, 1_000_000_000, 1_000_000_050)
    assert (now.below_ns, now.above_ns, now.half_width_ns, now.estimated_error_ns) == (50, 50, 50, 1)
    for name in dir(now):
        if not name.startswith("_"):
            assert not isinstance(getattr(now, name), float), name
    assert type(now.estimate_ns) is type(now.counter) is type(now.half_width_ns) is int


def test_instants_beyond_what_a_float_holds_are_exact() -> None:
    t_ns = 1_795_000_000_123_456_789
    assert int(float(t_ns)) != t_ns
    assert Clock(t_ns).timeline().now().estimate_ns == t_ns


def test_words_are_enums_that_print_as_words(now: Reading) -> None:
    assert now.status is Status.SYNCHRONIZED and now.timescale is Timescale.TAI
    assert f"{now.status} {now.status!s:>14}" == "synchronized   synchronized"
    word: str = now.status
    assert word == "synchronized"


def test_every_status_of_the_client_has_its_member(clock: Clock, timeline: Timeline) -> None:
    for status in Status:
        clock.set_status(status)
        assert timeline.now().status is status
    with pytest.raises(ValueError, match="'fine' is no status: give one of unknown, .*, unreliable"):
        clock.set_status("fine")


def test_readings_never_change_and_can_be_keys(clock: Clock, timeline: Timeline, now: Reading) -> None:
    with pytest.raises(AttributeError):
        now.met = False  # type: ignore[misc]
    same = timeline.now()
    clock.advance(1)
    later = timeline.now()
    assert same == now != later
    assert len({same, now, later}) == 2


def test_nothing_known_is_none_and_excludes_nothing(clock: Clock, timeline: Timeline) -> None:
    clock.forget()
    reading = timeline.now()
    assert not reading.is_known and reading.status is Status.UNKNOWN
    assert (reading.below_ns, reading.above_ns, reading.half_width_ns, reading.estimated_error_ns) == (None,) * 4
    assert (reading.earliest_ns, reading.latest_ns) == (-(2**63) + 1, 2**63 - 1)
    assert timeline.compare_to(0) is Comparison.UNCERTAIN
    assert clock.now_ns is None


def test_orders_are_certain_or_not_known(clock: Clock, timeline: Timeline, now: Reading) -> None:
    assert timeline.compare_to(1_000_000_051) is Comparison.BEFORE
    assert timeline.compare_to(1_000_000_050) is Comparison.UNCERTAIN
    assert timeline.compare_to(999_999_949) is Comparison.AFTER
    assert timeline.is_surely_before(1_000_000_051) and not timeline.is_surely_before(1_000_000_050)
    assert timeline.is_surely_past(999_999_949) and not timeline.is_surely_past(999_999_950)
    clock.advance(101)
    assert now.compare(timeline.now()) is Comparison.BEFORE
    assert timeline.now().compare(now) is Comparison.AFTER


def test_a_stamp_is_converted_with_what_is_known_later(clock: Clock, timeline: Timeline) -> None:
    clock.step(0)
    stamp = timeline.stamp()
    timeline.observe()
    clock.advance(timedelta(seconds=1))
    clock.set_error(10)
    then = timeline.convert(stamp)
    assert (then.estimate_ns, then.counter) == (0, stamp)
    # 50 ns then, 10 ns now; each bound may be rounded outward once more on the way back.
    assert -11 <= then.earliest_ns <= -10 and 10 <= then.latest_ns <= 11
    with pytest.raises(timevisor.TooOld) as error:
        timeline.convert(stamp - 1_000_000_000)
    assert error.value.since == stamp


def test_a_requirement_is_judged_by_every_reading(clock: Clock, timeline: Timeline) -> None:
    judged = timeline.with_requirement(Requirement.within(timedelta(microseconds=1)))
    assert judged.now().met
    clock.set_error(1_001)
    assert not judged.now().met and timeline.now().met


def test_requirements_say_what_they_are() -> None:
    whole = Requirement.between(50, timedelta(milliseconds=1)).with_resolution(10).with_probability(0.99)
    assert (whole.below_ns, whole.above_ns, whole.resolution_ns, whole.probability) == (50, 1_000_000, 10, 0.99)
    assert repr(whole) == "Requirement.between(50, 1000000).with_resolution(10).with_probability(0.99)"
    assert whole != Requirement.between(50, 1_000_000)
    assert Requirement.within(5) == Requirement.between(5, 5)


def test_until_when_a_bound_holds(clock: Clock, timeline: Timeline) -> None:
    assert timeline.valid_until(49) == timevisor.Exceeded()
    assert timeline.valid_until(50) == timevisor.Unlimited()
    clock.set_growth_ppb(1_000)
    found = timeline.valid_until(60)
    assert isinstance(found, timevisor.Until)
    # 10 ns at 1000 ppb are 10 ms; rounding costs less than 2 ns, 2 ms of it.
    assert 8_000_000 <= found.estimate_ns - 1_000_000_000 <= 10_000_000
    assert found.counter - timeline.stamp() == pytest.approx(found.estimate_ns - 1_000_000_000, abs=2)


def test_an_age_goes_on_from_what_was_saved(clock: Clock, timeline: Timeline) -> None:
    age = timevisor.Elapsed(timeline)
    clock.advance(2_000_000_000)
    now = age.now()
    assert now.is_known and now.earliest_ns <= 2_000_000_000 <= now.latest_ns
    assert now.timescale is timevisor.Timescale.LOCAL
    saved = age.save()
    clock.advance(1_000_000_000)
    again = timevisor.Elapsed.resume(timeline, saved).now()
    assert again.earliest_ns <= 3_000_000_000 <= again.latest_ns
    with pytest.raises(timevisor.Invalid, match="not a saved age"):
        timevisor.Elapsed.resume(timeline, saved[:-1] + "x")
    clock.forget()
    with pytest.raises(timevisor.Unknown):
        timevisor.Elapsed(timeline, exclude_blackouts=True)
    assert not age.now().is_known
