"""The plant's two datagrams: a set-point to the plant, and a measured state back. README.md has them byte by byte."""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

import cell

MAGIC = b"TVA1"
SET_POINT, STATE = 1, 2
FOLLOWING, STOPPED, GRIPPED = 1, 2, 4  # flags of a state

_SET_POINT = struct.Struct("<4sBBHQq6d6dd")
_STATE = struct.Struct("<4sBBHQq6d6dddQ")
SET_POINT_BYTES, STATE_BYTES = _SET_POINT.size, _STATE.size  # 128 and 144

MAX_ANGLE = 2 * math.pi
MAX_SPEED = 2 * cell.MAX_SPEED  # twice: a controller that catches up is no malformed one


class Malformed(Exception):
    """The datagram is refused; `cause` is the counter's name, the text says what was wrong."""

    def __init__(self, cause: str, text: str):
        super().__init__(f"{cause}: {text}")
        self.cause = cause


class SetPoint(NamedTuple):
    """Where one arm shall be when the datagram arrives by the shortest way. `stamp_ns` is the sender's clock: differences are used."""

    arm: str
    sequence: int
    stamp_ns: int
    q: tuple[float, ...]  # 6, rad
    dq: tuple[float, ...]  # 6, rad/s
    gripper: float  # 0 open .. 1 closed

    def encode(self) -> bytes:
        """Returns the 128 bytes. Raises struct.error when a number does not fit."""
        arm = cell.ARMS.index(self.arm)
        head = (MAGIC, SET_POINT, arm, 0, self.sequence, self.stamp_ns)
        return _SET_POINT.pack(*head, *self.q, *self.dq, self.gripper)


class State(NamedTuple):
    """What the plant answers: the arm as measured, and the sequence and stamp of the set-point it answers."""

    arm: str
    flags: int
    sequence: int
    stamp_ns: int
    q: tuple[float, ...]  # 6, rad
    dq: tuple[float, ...]  # 6, rad/s
    gripper: float  # 0 open .. 1 closed, as measured
    deviation_mm: float  # NaN when not both arms grip the part
    step: int  # the plant's step, 2 ms each

    def encode(self) -> bytes:
        """Returns the 144 bytes."""
        head = (MAGIC, STATE, cell.ARMS.index(self.arm), self.flags, self.sequence, self.stamp_ns)
        return _STATE.pack(*head, *self.q, *self.dq, self.gripper, self.deviation_mm, self.step)


def decode_set_point(data: bytes) -> SetPoint:
    """Returns the set-point in `data`. Raises Malformed; no field of a refused datagram is used."""
    _check_head(data, SET_POINT, SET_POINT_BYTES)
    _, _, arm, reserved, sequence, stamp_ns, *numbers = _SET_POINT.unpack(data)
    if reserved != 0:
        raise Malformed("reserved", f"bytes 6 and 7 are {reserved}, not 0")
    q, dq, gripper = tuple(numbers[:6]), tuple(numbers[6:12]), numbers[12]
    if not all(map(math.isfinite, numbers)):
        raise Malformed("number", "a number is infinite or no number")
    if max(map(abs, q)) > MAX_ANGLE or max(map(abs, dq)) > MAX_SPEED or not 0 <= gripper <= 1:
        raise Malformed("range", f"angles to {MAX_ANGLE:.2f} rad, speeds to {MAX_SPEED:.2f} rad/s, gripper 0 to 1")
    return SetPoint(cell.ARMS[arm], sequence, stamp_ns, q, dq, gripper)


def decode_state(data: bytes) -> State:
    """Returns the state in `data`. Raises Malformed."""
    _check_head(data, STATE, STATE_BYTES)
    _, _, arm, flags, sequence, stamp_ns, *numbers = _STATE.unpack(data)
    return State(cell.ARMS[arm], flags, sequence, stamp_ns, tuple(numbers[:6]), tuple(numbers[6:12]), *numbers[12:])


def _check_head(data: bytes, kind: int, size: int) -> None:
    if len(data) != size:
        raise Malformed("length", f"{len(data)} bytes, not {size}")
    if data[:4] != MAGIC:
        raise Malformed("magic", f"begins with {data[:4]!r}, not {MAGIC!r}")
    if data[4] != kind:
        raise Malformed("kind", f"kind {data[4]}, not {kind}")
    if data[5] >= len(cell.ARMS):
        raise Malformed("arm", f"arm {data[5]}; 0 is a, 1 is b")
