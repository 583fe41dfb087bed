"""Pins where there are none: what is refused, and how. The lab test pins-gpio has a simulated chip."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from timevisor import (
    Edges,
    KernelRefused,
    NotMet,
    OutputLine,
    PageUnusable,
    PinFunction,
    PinUnusable,
    PtpPins,
    Timeline,
    TimevisorError,
    TooLateError,
    Unplaced,
    aio,
    connect,
)


def test_a_clock_for_tests_has_no_pins(timeline: Timeline) -> None:
    with pytest.raises(PageUnusable, match="clock for tests"):
        timeline.line_events("/dev/null", 0, Edges.BOTH)
    with pytest.raises(ValueError, match="'up' is no edge: give 'rising', 'falling' or 'both'"):
        timeline.line_events("/dev/null", 0, "up")
    with pytest.raises(PinUnusable, match="/dev/ptpN for PTP pins"):
        timeline.ptp_events(Path("/dev/null"), 0)


def test_what_is_no_chip_says_what_to_give(run_directory: Path) -> None:
    tai = connect(run_directory / "clock").timeline("tai")
    with pytest.raises(PinUnusable, match="/dev/null does not give events of line 7: .*/dev/gpiochipN"):
        tai.line_events("/dev/null", 7, "rising")
    with pytest.raises(PinUnusable, match="no such device"):
        tai.line_events("/nonexistent", 7)
    with pytest.raises(PinUnusable, match="give line 7"):
        OutputLine("/dev/null", 7, True)
    with pytest.raises(PinUnusable, match="/dev/ptpN"):
        PtpPins("/dev/null")


def test_asyncio_has_them_too(run_directory: Path) -> None:
    tai = connect(run_directory / "clock").timeline("tai")

    async def whole() -> None:
        with pytest.raises(PinUnusable, match="give events of line 0"):
            aio.line_events(tai, "/dev/null", 0)
        with pytest.raises(PinUnusable, match="/dev/ptpN"):
            await aio.ptp_events(tai, "/dev/null", 0)

    asyncio.run(whole())


def test_words_and_exceptions() -> None:
    assert [str(word) for word in PinFunction] == ["none", "timestamp", "output", "phy_sync"]
    for error in (NotMet, PinUnusable, TooLateError, Unplaced, KernelRefused):
        assert issubclass(error, TimevisorError)
