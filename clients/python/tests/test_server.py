"""Against a real timevisord, which $TIMEVISORD names (test.sh builds one): on its own page and channel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Callable

import pytest

import timevisor
from conftest import DAEMON, PATIENCE_S
from timevisor import Achieved, Client, Comparison, Epoch, Held, Lost, Requirement, Status

ROOM = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not DAEMON, reason="run test.sh, or set TIMEVISORD")


@pytest.fixture
def client(run_directory: Path) -> Client:
    client = timevisor.connect(run_directory / "clock", run_directory / "timelines", name="pytest 1.0")
    client.timeline("tai").wait_met(PATIENCE_S * 1_000_000_000)
    return client


def test_the_first_program_runs(run_directory: Path, client: Client) -> None:
    arguments = [str(run_directory / "clock"), str(run_directory / "timelines")]
    done = subprocess.run(
        [sys.executable, str(ROOM / "examples/first.py"), *arguments], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    lines = dict(re.findall(r"^(\w+) +(.+?)(?: ns)?$", done.stdout, re.MULTILINE))
    assert list(lines) == ["page", "earliest", "estimate", "latest", "status", "met", "lateness"]
    assert int(lines["earliest"]) < int(lines["estimate"]) < int(lines["latest"])
    assert (lines["page"], lines["met"]) == (arguments[0], "True")
    assert int(lines["lateness"]) >= 0


def test_a_packet_arrived_while_it_was_on_its_way(run_directory: Path, client: Client) -> None:
    tai = client.timeline("tai")
    before = tai.now()
    page = str(run_directory / "clock")
    command = [sys.executable, str(ROOM / "examples/packets.py"), page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = {name: int(ns) for name, ns in re.findall(r"^(\w+) +(-?\d+) ns", done.stdout, re.MULTILINE)}
    assert list(lines) == ["earliest", "latest", "flight"]
    assert before.earliest_ns < lines["latest"] and lines["earliest"] < tai.now().latest_ns
    assert 0 < lines["flight"] < 1_000_000_000


def test_a_binding_is_in_force_until_its_block_is_left(client: Client) -> None:
    def members() -> int:
        return next(row.members for row in client.timelines() if row.name == "tai")

    before = members()
    with client.bind("tai", Requirement.within(1_000_000_000)) as tai:
        assert members() == before + 1
        assert (tai.lease, tai.epoch, tai.name) == (Held(), Epoch.TAI, "tai")
        assert isinstance(tai.achieved, Achieved) and tai.achieved.below_ns is not None
        now = tai.now()
        assert now.met and now.status is Status.SYNCHRONIZED
        # This system's own clock is the reference.
        system_ns = time.time_ns() + (now.tai_offset or 0) * 1_000_000_000
        assert abs(system_ns - now.estimate_ns) < PATIENCE_S * 1_000_000_000
        assert now.compare(tai.wait_past(now.latest_ns).reading) is Comparison.BEFORE
        assert tai.update(Requirement.within(2_000_000_000)).above_ns is not None
    assert members() == before
    assert tai.now().is_known, "reading goes on"
    tai.unbind()
    uses: list[Callable[[], object]] = [lambda: tai.lease, lambda: tai.achieved, lambda: tai.update(None)]
    for use in uses:
        with pytest.raises(timevisor.Withdrawn, match="bind again"):
            use()


def test_a_binding_ends_with_an_exception_or_its_last_reference_too(client: Client) -> None:
    def members() -> int:
        return next(row.members for row in client.timelines() if row.name == "tai")

    before = members()
    kept = client.bind("tai")
    with pytest.raises(ZeroDivisionError), kept:
        assert members() == before + 1
        1 / 0
    assert members() == before
    dropped = client.bind("tai")
    assert members() == before + 1
    del dropped
    # Nobody waited for the answers, but requests are answered in order.
    assert members() == before


def test_what_cannot_be_had_is_told(client: Client) -> None:
    with pytest.raises(timevisor.CannotBeMet, match="relax it, or bind with best effort") as error:
        client.bind("tai", Requirement.within(1))
    assert error.value.achievable.below_ns is None or error.value.achievable.below_ns > 1
    with client.bind("tai", Requirement.within(1), best_effort=True) as tai:
        assert not tai.now().met
        with pytest.raises(timevisor.CannotBeMet):
            tai.update(Requirement.within(2))
        with pytest.raises(timevisor.TimedOut):
            tai.wait_met(1_000_000)


def test_a_local_timeline_is_made_and_gone(client: Client) -> None:
    with client.bind("python-test", create=Epoch.LOCAL) as own:
        row = next(row for row in client.timelines() if row.name == "python-test")
        assert (row.epoch, row.temporary, row.members, row.required) == (Epoch.LOCAL, True, 1, None)
        waited = own.wait_until(own.now().estimate_ns + 1_000_000)
        assert waited.lateness_ns >= 0
        tick = next(own.periodic(1_000_000))
        assert tick.scheduled_ns % 1_000_000 == 0
    assert "python-test" not in [row.name for row in client.timelines()]


def is_refused(use: Callable[[], object]) -> bool:
    """Unlike pytest.raises it keeps no frame alive, nor what is in there."""
    try:
        use()
    except timevisor.ChannelFailed as error:
        return "connect again" in str(error)
    return False


def test_a_fork_has_no_bindings_and_leaves_its_parents_alone(client: Client) -> None:
    channel = Path(client.page.path).parent / "timelines"
    mine = timevisor.connect(client.page.path, channel)
    left, dropped = mine.bind("tai"), mine.bind("tai")

    def child() -> None:
        assert isinstance(left.lease, Lost) and left.now().is_known
        uses: list[Callable[[], object]] = [mine.timelines, lambda: mine.bind("tai"), lambda: left.update(None)]
        assert all(is_refused(use) for use in uses)
        with timevisor.connect(client.page.path, channel).bind("tai") as own:
            assert own.lease == Held()

    pid = os.fork()
    if pid == 0:
        sys.unraisablehook = lambda _: os._exit(2)  # where errors of deallocation end
        status = 1
        try:
            with left:
                child()
            del dropped, mine
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (left.lease, dropped.lease) == (Held(), Held())
    assert next(row.members for row in mine.timelines() if row.name == "tai") == 2


def test_names_are_checked(client: Client) -> None:
    with pytest.raises(timevisor.NotFound, match="timevisor timelines"):
        client.timeline("nothing")
    with pytest.raises(timevisor.NotFound):
        client.bind("nothing")
    with pytest.raises(timevisor.Invalid, match="1 to 32 bytes"):
        client.bind("no spaces")
    with pytest.raises(timevisor.Refused) as error:
        client.bind("tai", create="local")
    assert error.value.code == "exists"
    with pytest.raises(ValueError, match="'gps' is no epoch"):
        client.bind("gps", create="gps")


def test_a_host_has_no_vcpus(client: Client) -> None:
    assert client.notice() == "none" and client.notice() is timevisor.Notice.NONE
    assert client.vm_generation() is None
    assert client.host_cpu_time(0) is None
    assert client.host_cpu_time(10_000) is None
    with pytest.raises(OverflowError):
        client.host_cpu_time(-1)


def test_what_is_used_and_what_is_not_there_is_told(run_directory: Path, client: Client) -> None:
    assert client.page.path == str(run_directory / "clock") and client.page.passed_over == ()
    client.timelines()
    assert client.channel is not None
    assert (client.channel.address, client.channel.tenant) == (str(run_directory / "timelines"), f"uid:{os.getuid()}")
    with pytest.raises(timevisor.NoPage, match="start timevisord") as no_page:
        timevisor.connect(run_directory / "nothing")
    assert [tried.place for tried in no_page.value.tried] == [str(run_directory / "nothing")]
    deaf = timevisor.connect(run_directory / "clock", run_directory / "nobody")
    assert deaf.channel is None
    with pytest.raises(timevisor.NoChannel, match="reading works without") as no_channel:
        deaf.bind("tai")
    assert [tried.place for tried in no_channel.value.tried] == [str(run_directory / "nobody")]
    assert deaf.timeline("tai").now().is_known


def test_a_truncated_page_is_an_error(run_directory: Path, client: Client, tmp_path: Path) -> None:
    copy = tmp_path / "clock"
    copy.write_bytes((run_directory / "clock").read_bytes())
    copy.chmod(0o644)
    lost = timevisor.connect(copy).timeline("tai")
    assert lost.now().is_known
    os.truncate(copy, 0)
    for _ in range(3):
        with pytest.raises(timevisor.PageUnusable, match="truncated"):
            lost.now()
    timevisor.survive_truncation()
    assert client.timeline("tai").now().is_known
