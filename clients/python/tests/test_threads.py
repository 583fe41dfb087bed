"""The GIL, signals, and the end of the program while waits are under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import FrameType
from typing import Callable, Iterator, Optional

import pytest

import timevisor
from conftest import descriptors
from timevisor import Timeline
from timevisor.manual import Clock


def test_other_threads_run_while_one_waits(clock: Clock, timeline: Timeline) -> None:
    count = 0

    def work() -> None:
        nonlocal count
        # Each step is Python code; with the GIL held by the wait it would not get to the first one.
        while count < 10_000:
            count += 1
        clock.advance(5_000)

    worker = threading.Thread(target=work)
    worker.start()
    waited = timeline.wait_until(1_000_005_000)
    assert waited.lateness_ns == 0 and count == 10_000
    worker.join()


def test_one_handle_serves_many_threads(clock: Clock, timeline: Timeline) -> None:
    failures: list[str] = []

    def read() -> None:
        last = 0
        for _ in range(2_000):
            reading = timeline.now()
            if reading.estimate_ns < last or reading.half_width_ns != 50:
                failures.append(repr(reading))
            last = reading.estimate_ns

    def wait(t_ns: int) -> None:
        if timeline.wait_until(t_ns).reading.estimate_ns < t_ns:
            failures.append(f"too early for {t_ns}")

    threads = [threading.Thread(target=read) for _ in range(4)]
    threads += [threading.Thread(target=wait, args=(1_000_000_000 + 250 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(2_000):
        clock.advance(1)
    for thread in threads:
        thread.join()
    assert failures == []


class Alarm(Exception):
    pass


@pytest.fixture
def alarm() -> Iterator[list[int]]:
    """Raises in the main thread at the third SIGUSR1; counts them before."""
    seen: list[int] = []

    def handler(number: int, _frame: Optional[FrameType]) -> None:
        seen.append(number)
        if len(seen) == 3:
            raise Alarm

    before = signal.signal(signal.SIGUSR1, handler)
    yield seen
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", ["wait", "tick", "event"])
def test_signal_handlers_run_during_a_wait(timeline: Timeline, alarm: list[int], kind: str) -> None:
    waits: dict[str, Callable[[], object]] = {
        "wait": lambda: timeline.wait_until(2_000_000_000),
        "tick": lambda: next(timeline.periodic(1_000)),
        "event": lambda: next(timeline.watch()),
    }
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.002):
            # To this thread, so that the wait is not interrupted by it and has to look by itself.
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    # Handlers that return do not end the wait: it goes on until the third raises. (More may come
    # before `over`.)
    with pytest.raises(Alarm):
        waits[kind]()
    over.set()
    sender.join()


def run(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


IN_A_THREAD = """
ready()
clock.timeline().wait_until(10**18)
"""
IN_A_LOOP = """
async def main():
    asyncio.get_running_loop().call_soon(ready)  # when this task waits
    await aio.wait_until(clock.timeline(), 10**18)
asyncio.run(main())
"""


@pytest.mark.parametrize("wait", [IN_A_THREAD, IN_A_LOOP])
def test_control_c_ends_a_wait(wait: str) -> None:
    prelude = """
        import asyncio, signal
        from timevisor import aio
        from timevisor.manual import Clock
        # Programs that a shell starts in the background have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        clock = Clock(0)
        ready = lambda: print("ready", flush=True)
    """
    child = run(textwrap.dedent(prelude) + wait)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert child.returncode == -signal.SIGINT


def test_a_program_ends_while_daemon_threads_wait() -> None:
    child = run("""
        import threading
        from timevisor.manual import Clock
        timeline = Clock(0).timeline()
        for wait in (lambda: timeline.wait_until(10**18), lambda: timeline.wait_met(10**18), lambda: timeline.sleep(1, timeout_ns=20_000_000)):
            threading.Thread(target=wait, daemon=True).start()
        print("done")
    """)
    out, errors = child.communicate(timeout=60)
    assert (out, errors, child.returncode) == ("done\n", "", 0)


def test_a_fork_can_wait_too(clock: Clock, timeline: Timeline) -> None:
    child = os.fork()
    if child == 0:
        clock.advance(10)
        os._exit(0 if timeline.wait_until(1_000_000_010).lateness_ns == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_waits_give_their_descriptors_back(timeline: Timeline) -> None:
    timeline.wait_until(0)
    before = descriptors()
    for _ in range(20):
        timeline.wait_until(0)
        with pytest.raises(timevisor.TimedOut):
            timeline.wait_until(2_000_000_000, timeout_ns=0)
        timeline.periodic(1)
        timeline.watch()
        timevisor.Cancel()
    assert descriptors() == before
