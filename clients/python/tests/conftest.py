"""What the tests share. A wait that never ends ends the run, with all threads' stacks: pyproject.toml."""

from __future__ import annotations

import os

import pytest

from timevisor import Reading, Timeline
from timevisor.manual import Clock


@pytest.fixture
def clock() -> Clock:
    """Stands at 1 s, right to 50 ns."""
    clock = Clock(1_000_000_000)
    clock.set_error(50)
    return clock


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    return clock.timeline()


@pytest.fixture
def now(timeline: Timeline) -> Reading:
    return timeline.now()


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
