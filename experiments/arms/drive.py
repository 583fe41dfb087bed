"""One arm's drives: what they follow in each step. Pure: set-points and a time in, a command out.

A set-point says where the arm shall be at the moment the datagram arrives. From there the drive moves on with the
set-point's velocity until the next one, for EXTRAPOLATE_NS at most, and then holds. So two controllers that send at
different moments of the 2 ms do not disagree by v * 2 ms, and a late plant step uses the right set-point: the one
that had arrived by the step's own time.

A drive that holds follows again only from where it stands: it ignores set-points farther than ENGAGE_RAD from the
measured angles. A controller must bring its arm back with a motion of its own.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from datagram import SetPoint

EXTRAPOLATE_NS = 10_000_000  # a guest's wake-up was late by 6 ms at most
DISENGAGE_NS = 100_000_000  # without set-points: the drive no longer expects to be in time with its controller
ENGAGE_RAD = 0.02
STILL = np.zeros(6)


class Drive:
    """The state of one arm's drives."""

    def __init__(self, q: np.ndarray, gripper: float):
        self.following = False
        self.current: SetPoint | None = None  # the newest set-point in force, also while it is ignored
        self.arrival_ns = 0
        self.gap_ns = 0  # between the last two arrivals
        self.counts = {"accepted": 0, "old": 0, "lost": 0, "far": 0, "held_steps": 0}
        self._held, self.gripper = np.array(q, dtype=float), gripper
        self._waiting: deque[tuple[int, SetPoint]] = deque()
        self._newest: tuple[int, int] | None = None  # arrival and sequence of the newest one offered

    def offer(self, arrival_ns: int, point: SetPoint) -> bool:
        """Queues a set-point. Returns False for one that is not newer than the last, which is counted as old.

        After DISENGAGE_NS of silence any sequence is taken: the controller was restarted.
        """
        if self._newest is not None and arrival_ns - self._newest[0] < DISENGAGE_NS:
            if point.sequence <= self._newest[1]:
                self.counts["old"] += 1
                return False
            self.counts["lost"] += point.sequence - self._newest[1] - 1
        self._newest = (arrival_ns, point.sequence)
        self._waiting.append((arrival_ns, point))
        self.counts["accepted"] += 1
        return True

    def hold(self, q: np.ndarray) -> None:
        """Stands still at `q` (6, rad) until a set-point near the measured angles arrives."""
        self.following, self._held = False, np.array(q, dtype=float)

    def command(self, now_ns: int, measured: np.ndarray, stopped: bool) -> tuple[np.ndarray, np.ndarray, float]:
        """Returns angles (6, rad), velocities (6, rad/s) and the gripper for the step at `now_ns`."""
        fresh = False
        while self._waiting and self._waiting[0][0] <= now_ns:
            arrival_ns, self.current = self._waiting.popleft()
            self.gap_ns = arrival_ns - self.arrival_ns if self.arrival_ns else 0
            self.arrival_ns, fresh = arrival_ns, True
        if stopped or self.current is None:
            return self._held, STILL, self.gripper

        age_ns = now_ns - self.arrival_ns
        point, velocity = np.array(self.current.q), np.array(self.current.dq)
        target = point + velocity * (min(age_ns, EXTRAPOLATE_NS) * 1e-9)
        if self.following and age_ns > DISENGAGE_NS:
            self.hold(target)
        if not self.following and fresh:
            if np.abs(target - measured).max() <= ENGAGE_RAD:
                self.following = True
            else:
                self.counts["far"] += 1
        if not self.following:
            return self._held, STILL, self.gripper
        self.gripper = self.current.gripper
        if age_ns > EXTRAPOLATE_NS:
            self.counts["held_steps"] += 1
            return target, STILL, self.gripper
        return target, velocity, self.gripper
