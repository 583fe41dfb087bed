"""pins.py CHIP SYSFS: edges of line 0 of a gpio-sim chip, and changes of line 1 at a time, beside readings of the page. Says
nothing but "fine"; ends at what is wrong."""

import asyncio
import sys
from pathlib import Path

import timevisor
from timevisor import Edge, NotMet, OutputLine, PinUnusable, PtpPins, Requirement, TimedOut, TooLateError, aio

EDGES = 20
LATE_AT_MOST_NS = 5_000_000_000
chip, folder = sys.argv[1], Path(sys.argv[2])
tai = timevisor.connect().timeline("tai")
output = OutputLine(chip, 1)


def pull(up: bool) -> None:
    (folder / "sim_gpio0/pull").write_text("pull-up" if up else "pull-down")


def value() -> bool:
    return (folder / "sim_gpio1/value").read_text().strip() == "1"


def refused(call, error) -> Exception:
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"no {error.__name__}")


def judge(event, up: bool, before, after) -> None:
    assert event.edge == (Edge.RISING if up else Edge.FALLING) and event.lost == 0, event
    assert event.first <= after.counter and before.counter <= event.last, (before, event, after)
    then = event.reading
    assert then.earliest_ns <= after.latest_ns and before.earliest_ns <= then.latest_ns, (before, event, after)


def edges() -> None:
    pull(False)
    events = tai.line_events(chip, 0)
    for edge in range(EDGES):
        before = tai.now()
        pull(edge % 2 == 0)
        after = tai.now()
        judge(events.event(timeout_ns=20_000_000_000), edge % 2 == 0, before, after)
    refused(lambda: events.event(timeout_ns=10_000_000), TimedOut)
    events.close()


async def with_asyncio() -> None:
    async with aio.line_events(tai, chip, 0) as events:
        for edge in range(4):
            before = tai.now()
            waiting = asyncio.ensure_future(events.__anext__())
            await asyncio.sleep(0)
            pull(edge % 2 == 0)
            after = tai.now()
            judge(await asyncio.wait_for(waiting, 20), edge % 2 == 0, before, after)
    t_ns = tai.now().latest_ns + 500_000_000
    changed = await aio.output_at(output, tai, t_ns, True, late_at_most_ns=LATE_AT_MOST_NS)
    assert value() and changed.reading.latest_ns >= t_ns, changed
    task = asyncio.ensure_future(aio.output_at(output, tai, tai.now().latest_ns + 50_000_000, False))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0.2)
    assert value(), "a cancelled output has changed the line"


def outputs() -> None:
    assert not output.get()
    refused(lambda: OutputLine(chip, 1), PinUnusable)
    t_ns = tai.now().latest_ns + 500_000_000
    changed = output.at(tai, t_ns, True, late_at_most_ns=LATE_AT_MOST_NS)
    assert value() and changed.lateness_ns >= 0 and changed.first <= changed.last, changed
    then = changed.reading
    assert then.latest_ns >= t_ns and then.earliest_ns <= t_ns + changed.lateness_ns, changed
    late = refused(lambda: output.at(tai, t_ns, False), TooLateError)
    assert late.by_ns > 0 and value()
    strict = tai.with_requirement(Requirement.within(1))
    refused(lambda: output.at(strict, tai.now().latest_ns + 1_000_000_000, False), NotMet)
    assert value()
    output.set(False)
    assert not value()


edges()
outputs()
pull(False)
asyncio.run(with_asyncio())
assert PtpPins("/dev/ptp0").count == 0
assert "has 0 pins" in str(refused(lambda: PtpPins("/dev/ptp0").pin(0), PinUnusable))
print("fine")
