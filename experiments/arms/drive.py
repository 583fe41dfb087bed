"""One arm's drives: what they follow in each step. Pure: set-points and a time in, a command out.

A set-point says where the arm shall be at the moment the datagram arrives, if it came by the shortest way. One that took
longer than the shortest of the last WAY_NS was late on its way, and is taken for when it would have arrived: the drive
knows that from the differences of stamps and arrivals, without a clock of its own. From there it moves on with the
set-point's velocity and acceleration until the next one, for EXTRAPOLATE_NS at most, and then holds. So two
controllers that send at different moments of the 2 ms do not disagree by v * 2 ms, and a late plant step uses the
right set-point: the one that had arrived by the step's own time.

A drive that holds follows again only from where it stands and as fast as it moves: it ignores set-points farther than
ENGAGE_RAD from the measured angles or ENGAGE_RAD_S from the measured speeds, and begins with a set-point that arrived in
this very step: one whose controller has fallen silent is no reason to begin. It makes up for a linked hold of
RESUME_STEPS, up to RESUME_RAD; after a longer one a controller must bring its arm back with a motion that begins at rest.

The acceleration, which the torque feed-forward needs, is the velocities' difference over the stamps' difference
between two set-points. Only differences of one sender's stamps are used: an error of its clock does not change them. A clock
that is set back by more than a cycle shows by its stamps; by less, it looks like a longer way for WAY_NS, and then no more.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from datagram import SetPoint

EXTRAPOLATE_NS = 10_000_000  # a guest's wake-up was late by 6 ms at most
WAY_NS = 500_000_000  # a guest's set-points took 3 ms longer than the shortest one, and once 13 ms
DISENGAGE_NS = 100_000_000  # without set-points: the drive no longer expects to be in time with its controller
ENGAGE_RAD = 0.002  # 1.6 mm at the tip. With 0.02 and 0.3 rad/s a standing arm jumped onto the end of a carry, by 11 mrad
ENGAGE_RAD_S = 0.05
RESUME_RAD = 0.02
RESUME_STEPS = 3  # linked holds up to here bring the tips 1.6 mm apart when both resume in motion; 6 steps, 3.9 mm
MAX_ACCELERATION = 40.0  # rad/s^2; the plan needs 14. More is a jump of a clock, not a motion
STILL = np.zeros(6)


class Command(NamedTuple):
    """What the servo follows: 6 each, in rad, rad/s and rad/s^2."""

    q: np.ndarray
    dq: np.ndarray
    ddq: np.ndarray


class Drive:
    """The state of one arm's drives."""

    def __init__(self, q: np.ndarray, gripper: float):
        self.following = False
        self.current: SetPoint | None = None  # the newest set-point in force, also while it is ignored
        self.arrival_ns = 0
        self.way_ns = 0  # how much longer the newest one was on its way than the shortest of the last WAY_NS
        self.gap_ns = 0  # between the last two arrivals
        self.counts = {"accepted": 0, "old": 0, "lost": 0, "far": 0, "held_steps": 0}
        self._held, self.gripper = np.array(q, dtype=float), gripper
        self.ready = self.starving = False
        self._resumable = 0  # steps in which a hold may still end in motion
        self._acceleration, self._target, self._fresh = STILL, Command(self._held, STILL, STILL), False
        self._waiting: deque[tuple[int, SetPoint]] = deque()
        self._ways: deque[tuple[int, int]] = deque()  # arrivals, and arrival less stamp: rising, the first is the least
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

    def hold(self, q: np.ndarray, resume_steps: int = 0) -> None:
        """Stands still at `q` (6, rad) until a set-point arrives that the arm can follow from there.

        For `resume_steps` steps it may do so in motion.
        """
        self._resumable = resume_steps
        self.following, self._held = False, np.array(q, dtype=float)

    def take(self, now_ns: int, measured: np.ndarray, speed: np.ndarray) -> None:
        """Brings the newest set-point into force that had arrived by `now_ns`.

        `measured` is where the arm is (6, rad), `speed` how fast it moves (6, rad/s). Afterwards `ready` tells whether the drive can follow in this step.
        """
        self._fresh = False
        while self._waiting and self._waiting[0][0] <= now_ns:
            arrival_ns, point = self._waiting.popleft()
            self._acceleration = _acceleration(self.current, point)
            is_set_back = self.current is not None and point.stamp_ns <= self.current.stamp_ns
            self.current = point
            self.gap_ns = arrival_ns - self.arrival_ns if self.arrival_ns else 0
            self.way_ns = self._way(arrival_ns, arrival_ns - point.stamp_ns, is_set_back)
            self.arrival_ns, self._fresh = arrival_ns, True
        if self.current is None:
            return
        age_ns = now_ns - self.arrival_ns + self.way_ns
        ahead = min(age_ns, EXTRAPOLATE_NS) * 1e-9
        dq = np.array(self.current.dq)
        velocity = dq + self._acceleration * ahead
        self.starving = age_ns > EXTRAPOLATE_NS
        self._target = Command(np.array(self.current.q) + (dq + velocity) * (ahead / 2), velocity, self._acceleration)
        if self.following and age_ns > DISENGAGE_NS:
            self.hold(self._target.q)
        resumes, self._resumable = self._resumable > 0, self._resumable - 1
        near = np.abs(self._target.q - measured).max() <= (RESUME_RAD if resumes else ENGAGE_RAD)
        near &= resumes or np.abs(velocity - speed).max() <= ENGAGE_RAD_S
        self.counts["far"] += self._fresh and not self.following and not near
        self.ready = not self.starving and (self.following or (self._fresh and bool(near)))

    def _way(self, arrival_ns: int, way_ns: int, is_set_back: bool) -> int:
        """Returns how much longer this way was than the shortest of the last WAY_NS; EXTRAPOLATE_NS at most."""
        if arrival_ns - self.arrival_ns > DISENGAGE_NS or is_set_back:
            self._ways.clear()  # the controller may be another one, or its clock was set
        while self._ways and self._ways[-1][1] >= way_ns:
            self._ways.pop()
        self._ways.append((arrival_ns, way_ns))
        while arrival_ns - self._ways[0][0] > WAY_NS:
            self._ways.popleft()
        return min(way_ns - self._ways[0][1], EXTRAPOLATE_NS)

    def command(self, stopped: bool, may_follow: bool = True) -> Command:
        """Returns what the servo shall do in the step of the last `take`.

        With `may_follow` False a drive that follows holds where it shall be now, and one that holds stays so.
        """
        if stopped or self.current is None:
            return Command(self._held, STILL, STILL)
        if self.following and not may_follow:
            self.hold(self._target.q, RESUME_STEPS)
        elif not self.following:
            self.following = self.ready and may_follow
        if not self.following:
            return Command(self._held, STILL, STILL)
        self.gripper = self.current.gripper
        if self.starving:
            self.counts["held_steps"] += 1
            return Command(self._target.q, STILL, STILL)
        return self._target


def _acceleration(before: SetPoint | None, after: SetPoint) -> np.ndarray:
    """Returns the acceleration (6, rad/s^2) between two set-points; none when they do not belong together."""
    seconds = (after.stamp_ns - before.stamp_ns) * 1e-9 if before else 0.0
    if not 0 < seconds <= EXTRAPOLATE_NS * 1e-9:
        return STILL
    acceleration = (np.array(after.dq) - np.array(before.dq)) / seconds
    return acceleration if np.abs(acceleration).max() <= MAX_ACCELERATION else STILL
