"""Spans between stamps, recordings, and the kernel's stamps of packets."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from timevisor import (
    AcrossDisruption,
    KernelRefused,
    MeasuredSpan,
    OutOfRange,
    PageUnusable,
    Recording,
    RecordingUnusable,
    Status,
    Timeline,
    TooNew,
    TooOld,
    Unobserved,
)
from timevisor.manual import Clock


@pytest.fixture
def growing(clock: Clock) -> Clock:
    """Bounds of 50 us that grow by 15 ppm."""
    clock.set_error(50_000)
    clock.set_growth_ppb(15_000)
    clock.step(1_000_000_000)
    return clock


def test_a_span_is_tighter_than_two_readings(growing: Clock, timeline: Timeline) -> None:
    timeline.observe()
    begin = timeline.stamp()
    growing.advance(10_000_000)
    end = timeline.stamp()
    assert timeline.span(begin, end) == MeasuredSpan(9_999_849, 10_000_000, 10_000_150, Status.SYNCHRONIZED)
    assert timeline.span(end, begin).shortest_ns == -10_000_150
    between = timeline.convert_between(begin, end)
    assert between.earliest_ns <= 999_950_001 and between.latest_ns >= 1_010_049_999
    with pytest.raises(OutOfRange, match="before it began"):
        timeline.convert_between(end, begin)
    growing.step(7)
    with pytest.raises(AcrossDisruption) as across:
        timeline.span(begin, timeline.stamp())
    assert across.value.since > begin


def test_a_recording_converts_stamps_later(growing: Clock, timeline: Timeline, tmp_path: Path) -> None:
    file = tmp_path / "tai.rec"
    with timeline.record_to(file) as recorder:
        begin = timeline.stamp()
        growing.advance(1_000_000_000)
        assert recorder.observe() and not recorder.observe()
        end = timeline.stamp()
        with pytest.raises(RecordingUnusable, match="another program"):
            timeline.record_to(file)
    recorder.close()
    with pytest.raises(RecordingUnusable, match="closed"):
        recorder.observe()
    recording = Recording(str(file))
    assert recording.name == "tai" and not recording.is_torn
    assert [(s.since, s.until, s.publications) for s in recording.segments] == [(begin, end, 2)]
    assert recording.convert(begin).estimate_ns == 1_000_000_000
    assert abs(recording.convert_between(begin, end).estimate_ns - 1_500_000_000) <= 1
    assert recording.span(begin, end).estimate_ns == 1_000_000_000
    with pytest.raises(TooOld):
        recording.convert(begin - 1)
    with pytest.raises(TooNew) as new:
        recording.convert(end + 1)
    assert new.value.until == end
    with pytest.raises(KernelRefused, match="No such file"):
        Recording(tmp_path / "nothing")
    with pytest.raises(RecordingUnusable, match="no recording"):
        Recording(__file__)


def test_a_stamp_from_a_gap_is_refused(growing: Clock, timeline: Timeline, tmp_path: Path) -> None:
    file = tmp_path / "tai.rec"
    timeline.record_to(file).close()
    begin = timeline.stamp()
    growing.advance(600_000_000_000)
    timeline.record_to(file).close()
    # Lines of a daemon hold for seconds, those of a hand-driven clock for years (docs/reference/recordings.md).
    content = bytearray(file.read_bytes())
    for at in range(128, len(content), 208):
        base = struct.unpack_from("<Q", content, at + 8 + 8 * 2)[0]
        struct.pack_into("<Q", content, at + 8 + 8 * 3, base + 2_000_000_000)
        struct.pack_into("<I", content, at + 204, zlib.crc32(content[at : at + 204]))
    file.write_bytes(content)
    with pytest.raises(Unobserved, match="nobody watched") as gap:
        Recording(file).convert(begin + 300_000_000_000)
    assert (gap.value.since, gap.value.until) == (begin + 2_000_000_000, timeline.stamp())


def test_a_clock_for_tests_has_no_packets(timeline: Timeline) -> None:
    with pytest.raises(PageUnusable, match="for tests"):
        timeline.packet_stamps()
