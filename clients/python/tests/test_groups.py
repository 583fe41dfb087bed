"""Groups over a real timevisor-bus, which $TIMEVISOR_BUS_PROGRAM names (test.sh builds one), with clocks that tests drive."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, TypeVar

import pytest

import timevisor
from conftest import DAEMON, PATIENCE_S
from timevisor import Requirement, aio, manual
from timevisor.group import (
    Asked,
    Connected,
    Decided,
    Fire,
    Gone,
    Group,
    Leads,
    MemberId,
    Message,
    Outcome,
    Present,
    Quiet,
    Sides,
    Why,
    WhyGone,
)
from timevisor.manual import Clock

ROOM = Path(__file__).resolve().parent.parent
BUS = os.environ.get("TIMEVISOR_BUS_PROGRAM", "")
pytestmark = pytest.mark.skipif(not BUS, reason="run test.sh, or set TIMEVISOR_BUS_PROGRAM")
SECOND = 1_000_000_000
LONG = 60 * SECOND
T = TypeVar("T")


class Bus:
    """A bus of our own."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.path = path
        self.process = subprocess.Popen([BUS, "--socket", str(path), *arguments], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + LONG / SECOND
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    return
            assert self.process.poll() is None and time.monotonic() < deadline, "the bus does not listen"
            time.sleep(0.01)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    bus = Bus(tmp_path_factory.mktemp("bus") / "socket")
    yield bus
    bus.stop()


@pytest.fixture
def running() -> Iterator[Clock]:
    """A clock that goes as this machine's does, because a thread moves it."""
    clock = Clock(1_000 * SECOND)
    clock.set_error(50_000)
    stop = threading.Event()

    def drive() -> None:
        last = time.monotonic_ns()
        while not stop.wait(0.001):
            now = time.monotonic_ns()
            clock.advance(now - last)
            last = now

    thread = threading.Thread(target=drive)
    thread.start()
    yield clock
    stop.set()
    thread.join()


class Cell:
    """A group of its own for each test."""

    count = 0

    def __init__(self, bus: Bus, clock: Clock) -> None:
        Cell.count += 1
        self.name, self.bus, self.clock = f"cell{Cell.count}", bus, clock
        self.joined: list[Group] = []

    def join(self, member: str, requirement: Requirement | None = None) -> Group:
        group = Group.join(self.clock.timeline(), self.name, member, requirement, bus=self.bus.path)
        group.accept("all")
        self.joined.append(group)
        return group

    def members(self, *names: str) -> list[Group]:
        groups = [self.join(name) for name in names]
        for group in groups:
            group.wait_for_names(names, timeout_ns=LONG)
        return groups

    def soon(self, after_ns: int = SECOND) -> int:
        return self.clock.timeline().now().latest_ns + after_ns


@pytest.fixture
def cell(bus: Bus, running: Clock) -> Iterator[Cell]:
    cell = Cell(bus, running)
    yield cell
    for group in cell.joined:
        group.leave()


def until(entries: Iterator[T], found: Callable[[T], bool]) -> T:
    return next(entry for entry in entries if found(entry))


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def test_members_see_each_other_come_and_go(cell: Cell) -> None:
    (a,) = cell.members("a")
    watch = a.watch()
    with cell.join("b", Requirement.within(100_000)) as b:
        a.wait_for(2, timeout_ns=LONG)
        assert a.id.name == "a" and a.id != b.id
        first, second = a.members()
        assert (first.who, first.requirement, first.met) == (a.id, None, True)
        assert (second.who, second.requirement, second.met) == (b.id, Sides(100_000, 100_000), True)
        assert second.achieved is not None and second.achieved.below_ns >= 50_000
        present = until(watch, lambda it: isinstance(it, Present) and it.info.who == b.id and it.info.met)
        assert present == Present(second)
        cell.clock.set_error(200_000)
        until(watch, lambda it: isinstance(it, Present) and it.info.who == b.id and not it.info.met)
        with pytest.raises(timevisor.TimedOut):
            a.wait_for(2, timeout_ns=1_000_000)
    assert until(watch, lambda it: isinstance(it, Gone)) == Gone(b.id, WhyGone.LEFT)
    assert [info.who for info in a.members()] == [a.id]
    with pytest.raises(timevisor.TimedOut):
        a.wait_for_names(["nobody"], timeout_ns=1_000_000)


def test_messages_come_in_both_orders_and_the_history_first(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    own = a.subscribe("poses")
    a.publish("poses", b"old")
    assert own.get(LONG).payload == b"old"
    arrival = b.subscribe("poses", history=10)
    old = arrival.get(LONG)
    assert (old.payload, old.is_old, old.sender) == (b"old", True, a.id)
    in_time = b.subscribe("poses", "time", hold_ns=5 * SECOND)
    # Its own copy says that the bus has heard of the subscriptions.
    b.publish("poses", b"first")
    assert arrival.get(LONG).payload == b"first"
    for number in range(10):
        a.publish("poses", b"%d" % number)
    numbers = [b"%d" % number for number in range(10)]
    assert payloads([arrival.get(LONG) for _ in range(10)]) == numbers
    ordered = [in_time.get(LONG) for _ in range(11)]
    # The clock moves in steps: messages of one step have no order, except for one sender's.
    assert payloads([message for message in ordered if message.sender == a.id]) == numbers
    stamps = [message.stamp.latest_ns for message in ordered if message.stamp]
    assert len(stamps) == 11 and stamps == sorted(stamps)
    assert all(message.late_ns == 0 and not message.unheard for message in ordered)
    assert arrival.dropped() == 0
    with pytest.raises(timevisor.TimedOut):
        arrival.get(1_000_000)
    assert arrival.on_ready() is None
    assert select.select([arrival], [], [], 0)[0] == []
    a.publish("poses", b"again")
    assert select.select([arrival], [], [], LONG / SECOND)[0] == [arrival]
    found = arrival.on_ready()
    assert found is not None and found.payload == b"again"
    arrival.close()
    with pytest.raises(ValueError, match="closed"):
        arrival.get(0)


def test_what_cannot_be_published(cell: Cell) -> None:
    (a,) = cell.members("a")
    a.publish("t", b"x" * (1 << 20))
    with pytest.raises(timevisor.TooLong, match="more than 1 MiB; publish it in parts"):
        a.publish("t", b"x" * ((1 << 20) + 1))
    with pytest.raises(timevisor.Invalid, match="cannot be a name"):
        a.publish("no topic", b"")
    with pytest.raises(ValueError, match="'sideways' is no order: give 'arrival' or 'time'"):
        a.subscribe("t", "sideways")
    with pytest.raises(ValueError, match="give 'all', 'nothing' or 'ask'"):
        a.accept("some")


def test_two_wait_at_a_barrier(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    lateness: list[int] = []
    other = threading.Thread(target=lambda: lateness.append(b.barrier("start", 2, timeout_ns=LONG)))
    other.start()
    lateness.append(a.barrier("start", 2, timeout_ns=LONG))
    other.join()
    assert len(lateness) == 2 and all(0 <= late < LONG for late in lateness)
    with pytest.raises(timevisor.TimedOut):
        a.barrier("start", 2, timeout_ns=50_000_000)
    waiting = a.barrier_fd("start", 2)
    with pytest.raises(timevisor.WaitsAlready, match="waits at barrier start already"):
        a.barrier("start", 2)
    waiting.close()
    cancel = timevisor.Cancel()
    cancel.cancel()
    with pytest.raises(timevisor.Cancelled):
        a.barrier("start", 2, cancel=cancel)


def test_a_proposal_fires_at_its_time(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    inboxes = [a.proposals(), b.proposals()]
    at_ns = cell.soon()
    pending = a.propose(at_ns, b"grip", late_at_most_ns=SECOND)
    assert pending.id.proposer == a.id
    assert pending.decided(timeout_ns=LONG) is True
    outcome = pending.wait(timeout_ns=LONG)
    assert (outcome.id, outcome.agreed, outcome.quiet, outcome.unknown) == (pending.id, True, (), ())
    assert [fired.who for fired in outcome.fired] == [a.id, b.id]
    for inbox in inboxes:
        assert until(inbox, lambda it: isinstance(it, Decided)) == Decided(pending.id, True)
        fire = until(inbox, lambda it: isinstance(it, Fire))
        assert isinstance(fire, Fire) and (fire.id, fire.payload) == (pending.id, b"grip")
        assert fire.latest_ns >= at_ns and fire.late_ns >= 0
        assert until(inbox, lambda it: isinstance(it, Outcome) and not it.unknown) == outcome


def test_a_proposal_that_one_refuses_fires_nowhere(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    b.accept("ask")
    asked_of_b = b.proposals()
    pending = a.propose(cell.soon(2 * SECOND), b"again", members=["a", "b"], late_at_most_ns=5_000_000)
    asked = until(asked_of_b, lambda it: isinstance(it, Asked))
    assert isinstance(asked, Asked)
    proposal = asked.proposal
    assert (proposal.id, proposal.payload, proposal.participants) == (pending.id, b"again", (a.id, b.id))
    assert proposal.late_at_most_ns == 5_000_000 and proposal.decide_by_ns < proposal.at_ns
    b.answer(proposal.id, False)
    assert pending.decided(timeout_ns=LONG) is False
    outcome = pending.wait(timeout_ns=LONG)
    assert (outcome.agreed, outcome.fired, outcome.unknown) == (False, (), ())
    # Each is quoted with what it said last: who refused hears of the end, too.
    assert all(isinstance(quiet, Quiet) and quiet.why in (Why.REJECTED, Why.ABORTED) for quiet in outcome.quiet)
    assert [quiet.who for quiet in outcome.quiet] == [a.id, b.id]


def test_what_cannot_be_proposed(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    with pytest.raises(timevisor.CannotPropose, match="too close"):
        a.propose(cell.soon(0))
    with pytest.raises(timevisor.CannotPropose, match="proposer has to be a participant"):
        a.propose(cell.soon(), members=["b"])
    with pytest.raises(timevisor.NoMember, match="no member called \"c\""):
        a.propose(cell.soon(), members=["a", "c"])
    with pytest.raises(TypeError, match="not a float"):
        a.propose(1e9)  # type: ignore[arg-type]
    cell.clock.forget()
    with pytest.raises(timevisor.CannotPropose, match="does not meet"):
        b.propose(2_000 * SECOND)


def test_one_leads(cell: Cell) -> None:
    a, b = cell.members("a", "b")
    told = a.watch()
    a.stand("chief", ["a", "b"], SECOND)
    leads = until(told, lambda it: isinstance(it, Leads))
    assert isinstance(leads, Leads) and leads.office == "chief" and leads.until_ns > cell.clock.timeline().now().earliest_ns
    assert a.leads("chief") and not b.leads("chief")
    a.resign("chief")
    assert not a.leads("chief")
    with pytest.raises(timevisor.Invalid, match="needs voters"):
        a.stand("chief", [], SECOND)


def test_who_cannot_join_is_told_why(bus: Bus, cell: Cell, tmp_path: Path) -> None:
    (a,) = cell.members("a")
    with pytest.raises(timevisor.Refused, match=f"a member called a is in group {cell.name}") as refused:
        cell.join("a")
    assert refused.value.code == "name_taken"
    with pytest.raises(timevisor.Invalid, match="cannot be a name"):
        cell.join("no name")
    nowhere = tmp_path / "nowhere"
    with pytest.raises(timevisor.NoBus, match="start timevisor-bus") as none:
        Group.join(cell.clock.timeline(), "g", "a", bus=nowhere)
    assert [tried.place for tried in none.value.tried] == [str(nowhere)]
    with pytest.raises(timevisor.Invalid, match="timevisor cluster key"):
        Group.join(cell.clock.timeline(), "g", "a", bus=bus.path, key="no key")


def test_a_key_has_to_match(running: Clock, tmp_path: Path) -> None:
    key = "0123456789abcdef" * 4
    (tmp_path / "key").write_text(key)
    (tmp_path / "key").chmod(0o600)
    config = tmp_path / "bus.toml"
    config.write_text(f'[[group]]\nname = "cell7"\nkey = "{tmp_path / "key"}"\n')
    bus = Bus(tmp_path / "socket", "--config", str(config))
    try:
        timeline = running.timeline()
        with Group.join(timeline, "cell7", "a", bus=bus.path, key=key.encode()):
            for wrong in (key[:-1] + "e", None):
                with pytest.raises(timevisor.Refused, match="the key of group cell7 does not match") as refused:
                    Group.join(timeline, "cell7", "b", bus=bus.path, key=wrong)
                assert refused.value.code == "key"
            Group.join(timeline, "cell7", "b", bus=bus.path, key=key + "\n").leave()
    finally:
        bus.stop()


def test_leaving_ends_waits_and_inboxes(cell: Cell) -> None:
    (a,) = cell.members("a")
    messages, watch = a.subscribe("t"), a.watch()
    pending = a.propose(cell.soon(100 * SECOND))
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            a.wait_for(2)
        except timevisor.Left as error:
            failed.append(error)

    threads = [threading.Thread(target=wait), threading.Thread(target=lambda: list(messages))]
    for thread in threads:
        thread.start()
    a.leave()
    for thread in threads:
        thread.join()
    assert len(failed) == 1
    assert not any(isinstance(it, Gone) for it in watch)
    for use in (a.members, a.watch, pending.wait, lambda: a.publish("t", b""), lambda: a.wait_for(1)):
        with pytest.raises(timevisor.Left, match="join it again"):
            use()
    a.leave()
    assert isinstance(a.id, MemberId)


def test_a_fork_is_no_member_and_leaves_its_parents_queues_alone(cell: Cell) -> None:
    (a,) = cell.members("a")
    messages = a.subscribe("t")
    pending = a.propose(cell.soon(100 * SECOND))
    wait, barrier = a.wait_for_fd(2), a.barrier_fd("b", 2)
    a.publish("t", b"1")
    assert select.select([messages], [], [], LONG / SECOND)[0] == [messages]
    child = os.fork()
    if child == 0:
        try:
            for use in (a.members, messages.get, messages.on_ready, pending.wait, wait.on_ready, barrier.on_ready):
                with pytest.raises(timevisor.Left, match="forked this one; join again"):
                    use()
            assert list(messages) == [] and messages.dropped() == 0
            messages.close()
            wait.close()
            barrier.close()
            del a, messages, pending, wait, barrier
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert messages.get(LONG).payload == b"1"
    assert barrier.on_ready() is None


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where a shell started the tests in the background, which ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_waits(cell: Cell) -> None:
    (a,) = cell.members("a")
    messages = a.subscribe("t")
    waits: list[Callable[[], object]] = [
        lambda: a.wait_for(2),
        lambda: a.barrier("b", 2),
        lambda: messages.get(),
    ]
    for wait in waits:
        interrupt = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        interrupt.join()
    # It does not wait there any more.
    with pytest.raises(timevisor.TimedOut):
        a.barrier("b", 2, timeout_ns=1_000_000)


def test_a_bus_in_memory_cuts_loses_and_heals() -> None:
    clock = Clock(1_000 * SECOND)
    clock.set_error(50_000)
    bus = manual.Bus()
    tai = clock.timeline()
    a = Group.join(tai, "memory", "a", bus=bus, lease_ns=SECOND // 2)
    b = Group.join(tai, "memory", "b", bus=bus, lease_ns=SECOND // 2)
    a.wait_for(2, timeout_ns=LONG)
    told = a.watch()
    bus.cut("b")
    until(told, lambda it: isinstance(it, Gone) and it.who.name == "b")
    bus.heal()
    until(told, lambda it: isinstance(it, Present) and it.info.who.name == "b")
    messages = b.subscribe("t")
    bus.delay(SECOND // 5)
    begun = time.monotonic()
    a.publish("t", b"late")
    assert messages.get(timeout_ns=LONG).payload == b"late"
    assert time.monotonic() - begun >= 0.2
    bus.lose(1000)
    a.publish("t", b"lost")
    bus.restart()
    until(told, lambda it: isinstance(it, Connected))
    with pytest.raises(ValueError, match="has no authority"):
        Group.join(tai, "memory", "c", bus=bus, authority="/ca.pem")
    b.leave()
    a.leave()


def test_asyncio(cell: Cell) -> None:
    async def test() -> None:
        a, b = cell.join("a"), cell.join("b")
        await asyncio.gather(aio.wait_for(a, 2), aio.wait_for_names(b, ["a", "b"]))
        late = await asyncio.gather(aio.barrier(a, "start", 2), aio.barrier(b, "start", 2))
        assert len(late) == 2 and min(late) >= 0
        outcome = await aio.propose(a, cell.soon(), b"grip", late_at_most_ns=SECOND)
        assert outcome.agreed is True
        assert await aio.decided(b.propose(cell.soon())) is True
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.barrier(a, "start", 2), 0.05)
        seen: list[bytes] = []
        async with aio.inbox(b.subscribe("poses")) as messages:
            while not seen:
                a.publish("poses", b"1")
                try:
                    seen.append((await asyncio.wait_for(messages.__anext__(), 0.5)).payload)
                except asyncio.TimeoutError:
                    pass
            await asyncio.to_thread(b.leave)
            async for message in messages:
                seen.append(message.payload)
        assert set(seen) == {b"1"}
        with pytest.raises(timevisor.Left):
            await aio.wait_for(b, 1)

    asyncio.run(test())


@pytest.mark.skipif(not DAEMON, reason="run test.sh, or set TIMEVISORD")
def test_the_example_runs(bus: Bus, run_directory: Path) -> None:
    page, channel = str(run_directory / "clock"), str(run_directory / "timelines")
    client = timevisor.connect(page, channel)
    client.timeline("tai").wait_met(PATIENCE_S * SECOND)
    members = [
        subprocess.Popen(
            [sys.executable, str(ROOM / "examples/group.py"), name, page, channel],
            env={**os.environ, "TIMEVISOR_BUS": str(bus.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for member in members:
        said, _ = member.communicate(timeout=PATIENCE_S)
        assert member.returncode == 0
        assert said.startswith("fire      grip the part at ") and said.endswith("fired     left right\n")
    with client.join("cell8", "c", Requirement.within(SECOND), bus=bus.path, lease_ns=2 * SECOND) as group:
        group.wait_for(1, timeout_ns=LONG)
        assert [info.who.name for info in group.members()] == ["c"]
    with pytest.raises(timevisor.CannotBeMet):
        client.join("cell8", "c", Requirement.within(1), bus=bus.path)
