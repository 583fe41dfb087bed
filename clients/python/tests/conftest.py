"""What the tests share. A wait that never ends ends the run, with all threads' stacks: pyproject.toml."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Iterator

import pytest

from timevisor import Reading, Timeline
from timevisor.manual import Clock

DAEMON = os.environ.get("TIMEVISORD", "")
PATIENCE_S = 60


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


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a timevisord of our own, which $TIMEVISORD names (test.sh builds one)."""
    folder = tmp_path_factory.mktemp("timevisord")
    config = folder / "timevisord.toml"
    config.write_text(
        f'run_directory = "{folder}"\n'
        "[guests]\ndiscover = false\n"
        '[[reference]]\ntype = "system"\nassumed_max_error = "1ms"\n'
    )
    log = (folder / "log").open("w")
    daemon = subprocess.Popen([DAEMON, "--config", str(config)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (folder / "timelines").exists() or not (folder / "clock").exists():
            assert daemon.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield folder
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_S)


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))
