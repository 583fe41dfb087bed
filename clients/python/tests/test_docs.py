"""docs/reference/clients/python.md: its first program is examples/first.py, its words exist, its asyncio example runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import timevisor
from timevisor import Timeline, aio
from timevisor.manual import Clock

ROOM = Path(__file__).resolve().parent.parent
PAGE = (ROOM.parent.parent / "docs/reference/clients/python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_first_program_is_the_example() -> None:
    assert BLOCKS[0] == (ROOM / "examples/first.py").read_text()


def test_every_exported_word_is_on_the_page() -> None:
    missing = [word for word in timevisor.__all__ if not re.search(rf"\b{word}\b", PAGE)]
    assert missing == []


def test_the_asyncio_example_runs() -> None:
    """On a clock that a task moves, in place of the client's timeline."""
    clock = Clock(0)
    names: dict[str, object] = {}
    exec(compile(BLOCKS[1], "python.md", "exec"), names)
    example = names["ticker"]

    async def drive() -> list[int]:
        running = asyncio.ensure_future(example(clock.timeline()))  # type: ignore[operator]
        while not running.done():
            clock.advance(50_000_000)
            for _ in range(5):  # enough for the task to look before time goes on
                await asyncio.sleep(0)
        return list(running.result())

    assert asyncio.run(drive()) == [100_000_000, 200_000_000, 300_000_000]
    assert isinstance(clock.timeline(), Timeline) and aio.__all__


def test_a_test_on_a_hand_driven_clock_runs() -> None:
    exec(compile(BLOCKS[2], "python.md", "exec"), {"__name__": "example"})
