"""asyncio: values, cancellation, and what is left in the loop afterwards."""

from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, Coroutine, TypeVar

import pytest

import timevisor
from conftest import descriptors
from timevisor import Change, Fired, Requirement, Timeline, aio
from timevisor.manual import Clock

T = TypeVar("T")


def readers(loop: asyncio.AbstractEventLoop) -> int:
    """Descriptors that the loop waits for, besides its own."""
    return len(loop._selector.get_map())  # type: ignore[attr-defined]


def run(test: Callable[[], Coroutine[object, object, None]]) -> None:
    """Runs it; nothing may be left in the loop or open."""

    async def whole() -> None:
        await asyncio.sleep(0)
        in_loop, open_before = readers(asyncio.get_running_loop()), descriptors()
        await test()
        assert (readers(asyncio.get_running_loop()), descriptors()) == (in_loop, open_before)

    asyncio.run(whole())


async def begun() -> None:
    """Lets tasks run until they all wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def first(stream: aio.Stream[T]) -> T:
    async with stream:
        return await stream.__anext__()


def test_every_wait_ends_in_its_time(clock: Clock, timeline: Timeline) -> None:
    async def test() -> None:
        t = 1_000_001_000
        judged = timeline.with_requirement(Requirement.within(50))
        tasks: list[asyncio.Future[timevisor.Waited]] = [
            asyncio.ensure_future(aio.wait_until(timeline, t)),
            asyncio.ensure_future(aio.wait_past(timeline, t - 52)),
            asyncio.ensure_future(aio.sleep(timeline, 999)),
            asyncio.ensure_future(aio.wait_surely_before(timeline, t + 150, 101)),
        ]
        action = asyncio.ensure_future(aio.at(timeline, t, latest_ns=t + 10, max_error_ns=50))
        assert (await aio.wait_met(judged)).reading.met
        await begun()
        clock.advance(998)
        await begun()
        assert not action.done() and not any(task.done() for task in tasks)
        clock.advance(3)
        assert [waited.lateness_ns for waited in await asyncio.gather(*tasks)] == [1, 3, 2, 2]
        assert await action == Fired(t + 1, 50, timeline.now())

    run(test)


def test_the_loop_runs_while_a_task_waits(clock: Clock, timeline: Timeline) -> None:
    async def test() -> None:
        count = 0
        waiting = asyncio.ensure_future(aio.wait_until(timeline, 1_000_000_500))
        while not waiting.done():
            count += 1
            clock.advance(1)
            await asyncio.sleep(0)
        assert count >= 500 and waiting.result().lateness_ns <= 5

    run(test)


def test_cancelling_a_task_takes_the_descriptor_out_of_the_loop(timeline: Timeline) -> None:
    later = 2_000_000_000

    async def test() -> None:
        loop = asyncio.get_running_loop()
        in_loop = readers(loop)
        waits: list[Awaitable[object]] = [
            aio.wait_until(timeline, later),
            aio.wait_past(timeline, later),
            aio.wait_surely_before(timeline, later, 100),
            aio.sleep(timeline, later),
            aio.wait_met(timeline.with_requirement(Requirement.within(1))),
            aio.at(timeline, later, latest_ns=later),
            first(aio.periodic(timeline, 1_000)),
            first(aio.watch(timeline)),
        ]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await begun()
        assert readers(loop) == in_loop + len(tasks)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)

    run(test)


def test_errors_arrive_in_the_task(clock: Clock, timeline: Timeline) -> None:
    async def test() -> None:
        waiting = asyncio.ensure_future(aio.wait_until(timeline, 2_000_000_000))
        await begun()
        clock.step(5)
        with pytest.raises(timevisor.DisruptedError):
            await waiting
        before = asyncio.ensure_future(aio.wait_surely_before(timeline, 1_000, 100))
        await begun()
        clock.advance(945)
        with pytest.raises(timevisor.TooLateError) as error:
            await before
        assert (error.value.by_ns, error.value.reading) == (0, timeline.now())
        clock.forget()
        with pytest.raises(timevisor.Unknown):
            await aio.wait_until(timeline, 5)
        with pytest.raises(TypeError):
            await aio.wait_until(timeline, 5.0)  # type: ignore[arg-type]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.wait_met(timeline), 0.01)

    run(test)


def test_ticks_and_changes_as_async_iterators(clock: Clock, timeline: Timeline) -> None:
    async def test() -> None:
        async with aio.periodic(timeline, 1_000, missed="catch_up") as ticks:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(ticks.__anext__(), 0.01)
            clock.advance(3_001)
            seen = []
            async for tick in ticks:
                seen.append(tick.scheduled_ns - 1_000_000_000)
                if len(seen) == 3:
                    break
            assert seen == [1_000, 2_000, 3_000]
        with pytest.raises(ValueError, match="closed"):
            await ticks.__anext__()

        watch = aio.watch(timeline.with_requirement(Requirement.within(60)))
        assert (await watch.__anext__()).change is Change.MET
        following = asyncio.ensure_future(watch.__anext__())
        await begun()
        with pytest.raises(RuntimeError, match="another task is waiting on this stream"):
            await watch.__anext__()
        with pytest.raises(RuntimeError, match="cancel it first"):
            await watch.aclose()
        clock.set_error(61)
        assert (await following).change is Change.VIOLATED
        await watch.aclose()

    run(test)
