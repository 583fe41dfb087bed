"""The plant's recording: one file, written while the plant runs, readable to its last whole block.

The file is the line `timevisor-arms-trace/1`, a line of JSON (the header), and blocks. A block is a letter, its
payload's length (u32, little-endian) and the payload: `R` is zlib over records of RECORD, `E` is one event in JSON.
A plant that is killed loses a second at most.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import cell

FORMAT = b"timevisor-arms-trace/1\n"
POSITIONS = 35  # MuJoCo's qpos: the bar's 7, then 14 per arm
RECORD = np.dtype(
    [
        ("at_ns", "<i8"),  # the step's nominal time, CLOCK_MONOTONIC
        ("late_ns", "<i4"),  # how much later the step ran
        ("flags", "u1"),  # as in a state datagram, and FOLLOWING << 4 for arm b
        ("qpos", "<f4", POSITIONS),
        ("qvel", "<f4", (2, 6)),  # rad/s, arm a and b
        ("target", "<f4", (2, 6)),  # rad: what the drives followed
        ("gripper", "<f4", 2),  # 0..1, as commanded
        ("sequence", "<u8", 2),  # of the set-points in force
        ("stamp_ns", "<i8", 2),
        ("arrival_ns", "<i8", 2),  # CLOCK_MONOTONIC
        ("deviation", "<f4", 3),  # mm; NaN without a grip
    ]
)
BLOCK_RECORDS = 500


class Writer:
    """Writes a recording. Compression and the disk have a thread of their own, off the plant's 2 ms."""

    def __init__(self, path: Path, header: dict, every: int = 1):
        self._file = open(path, "wb")
        self._file.write(FORMAT + json.dumps(header).encode() + b"\n")
        self._every, self._seen = every, 0
        self._block, self._used = np.zeros(BLOCK_RECORDS, RECORD), 0
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="trace")
        self._thread.start()

    def record(self, values: tuple) -> None:
        """Adds one step's record, `values` in RECORD's order; only each `every`-th is kept."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self._block[self._used] = values
        self._used += 1
        if self._used == BLOCK_RECORDS:
            self._flush()

    def event(self, event: dict) -> None:
        """Adds an event, after the records so far."""
        self._flush()
        self._queue.put((b"E", json.dumps(event).encode()))

    def close(self) -> None:
        """Writes what is left. Raises OSError when the disk refused a block."""
        self._flush()
        self._queue.put(None)
        self._thread.join()
        self._file.close()
        if self._error:
            raise self._error

    _error: OSError | None = None

    def _flush(self) -> None:
        if self._used:
            self._queue.put((b"R", self._block[: self._used].tobytes()))
            self._used = 0

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            kind, payload = item
            if kind == b"R":
                payload = zlib.compress(payload, 1)
            try:
                if self._error is None:
                    self._file.write(kind + struct.pack("<I", len(payload)) + payload)
                    self._file.flush()
            except OSError as error:
                self._error = error


@dataclass
class Recording:
    """A recording in memory: `records` is an array of RECORD."""

    header: dict
    records: np.ndarray
    events: list[dict] = field(default_factory=list)

    def distance_mm(self) -> np.ndarray:
        """Returns the deviation per record (mm, NaN without a grip)."""
        return np.linalg.norm(self.records["deviation"], axis=1)


def record_of(physics, late_ns: int, flags: int) -> tuple:
    """Returns the values of one step in RECORD's order."""
    drives = [physics.drives[arm] for arm in cell.ARMS]
    points = [drive.current for drive in drives]
    return (
        physics.now_ns,
        min(late_ns, 2**31 - 1),
        flags,
        physics.data.qpos,
        [physics.data.qvel[physics.index.qvel[arm]] for arm in cell.ARMS],
        [physics.target[arm].q for arm in cell.ARMS],
        [drive.gripper for drive in drives],
        [point.sequence if point else 0 for point in points],
        [point.stamp_ns if point else 0 for point in points],
        [drive.arrival_ns for drive in drives],
        physics.deviation if physics.deviation is not None else np.nan,
    )


def read(path: Path) -> Recording:
    """Reads a recording, without a last block that is cut off. Raises ValueError for another file."""
    with open(path, "rb") as file:
        if file.readline(64) != FORMAT:
            raise ValueError(f"{path} is no recording of this plant: its first line is not {FORMAT.decode().strip()}")
        header, blocks, events = json.loads(file.readline()), [], []
        while len(head := file.read(5)) == 5:
            kind, length = head[:1], struct.unpack("<I", head[1:])[0]
            payload = file.read(length)
            if len(payload) < length:
                break
            if kind == b"R":
                blocks.append(np.frombuffer(zlib.decompress(payload), RECORD))
            elif kind == b"E":
                events.append(json.loads(payload))
    return Recording(header, np.concatenate(blocks) if blocks else np.zeros(0, RECORD), events)
