"""Plans the task and writes plan.json, which planners and controllers in any language read.

python3 plan.py [FILE]          (plan.json)

One cycle is two transfers: both arms grip the bar on the first stand, lift, carry and place it on the second stand,
release it and rise; then they bring it back. A cycle ends as it began, so that it repeats for ever.

The format, times in nanoseconds since the cycle's start, angles in radians:

    {"format": "timevisor-arms-plan/1",
     "cycle_ns": N,                        length of one cycle; the last waypoint is at N and equals the first
     "waypoint_interval_ns": N,            the waypoints' distance
     "joints": ["shoulder_pan", ...],      the order of every list of six
     "max_speed": X,                       rad/s, each joint; the plan stays below
     "interpolation_error_mm": X,          how far the interpolated tip is from the planned line, at most
     "phases": [{"name": "approach" | "close" | "lift" | "carry" | "lower" | "open" | "rise",
                 "transfer": 0 | 1, "start_ns": N, "end_ns": N}, ...],
     "arms": {"a": {"waypoints": [{"at_ns": N, "q": [6], "dq": [6], "ddq": [6], "gripper": X}, ...]},
              "b": ...}}

Between two waypoints each joint follows the quintic polynomial that meets q, dq and ddq at both (an online generator
such as ruckig with the same end states and minimum duration comes close). Joint interpolation over a whole carry
would not do: the arms are not mirror images, so their tips would come apart. `gripper` (0 open,
1 closed) holds from its waypoint on. All waypoints of a hold have dq = ddq = 0: there a controller may wait for ever.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import cell
from kinematics import Kinematics

WAYPOINT_NS = 20_000_000
RAISED_Z = cell.BAR_REST_Z + 0.12
LIFTED_Z = cell.BAR_REST_Z + 0.10
# The carry is as fast as a UR5e may go: 0.3 m in 0.5 s, 1.1 m/s at its peak, where 1 ms is 1.1 mm.
PHASES_NS = {
    "approach": 400_000_000,
    "close": 500_000_000,
    "lift": 360_000_000,
    "carry": 500_000_000,
    "lower": 360_000_000,
    "open": 300_000_000,
    "rise": 320_000_000,
}


class Colliding(Exception):
    """A waypoint collides; the text says when and what."""


@dataclass
class Segment:
    """One phase: the grips' middle moves from `start` to `end` (3 each, m) with minimum jerk."""

    name: str
    transfer: int
    start_ns: int
    end_ns: int
    start: np.ndarray
    end: np.ndarray
    gripper: float
    carries: bool

    def at(self, t_ns: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns position (3, m) and velocity (3, m/s) at `t_ns` of the cycle."""
        length = (self.end_ns - self.start_ns) * 1e-9
        x = (t_ns - self.start_ns) * 1e-9 / length
        way = self.end - self.start
        return self.start + way * x**3 * (10 - 15 * x + 6 * x * x), way * 30 * (x * (1 - x)) ** 2 / length


def segments() -> list[Segment]:
    """Returns the phases of one cycle, in order, without gaps."""
    found, now = [], 0
    for transfer, (here, there) in enumerate((cell.STAND_Y, cell.STAND_Y[::-1])):
        points = {
            "approach": ((here, RAISED_Z), (here, cell.BAR_REST_Z)),
            "close": ((here, cell.BAR_REST_Z), (here, cell.BAR_REST_Z)),
            "lift": ((here, cell.BAR_REST_Z), (here, LIFTED_Z)),
            "carry": ((here, LIFTED_Z), (there, LIFTED_Z)),
            "lower": ((there, LIFTED_Z), (there, cell.BAR_REST_Z)),
            "open": ((there, cell.BAR_REST_Z), (there, cell.BAR_REST_Z)),
            "rise": ((there, cell.BAR_REST_Z), (there, RAISED_Z)),
        }
        for name, length in PHASES_NS.items():
            start, end = (np.array([0.0, y, z]) for y, z in points[name])
            closed = name in ("close", "lift", "carry", "lower")
            gripper = cell.GRIPPER_CLOSED if closed else cell.GRIPPER_OPEN
            carries = name in ("lift", "carry", "lower")
            found.append(Segment(name, transfer, now, now + length, start, end, gripper, carries))
            now += length
    return found


def grip_offset(arm: str) -> np.ndarray:
    """Returns where the grip of `arm` is (3, m), seen from the bar's middle."""
    return np.array([-cell.GRIP_DISTANCE if arm == "a" else cell.GRIP_DISTANCE, 0, 0])


def make(kinematics: Kinematics) -> dict:
    """Returns the plan as plan.json holds it. Raises Unreachable, Colliding, or ValueError for too fast a plan."""
    phases = segments()
    cycle_ns = phases[-1].end_ns
    times = range(0, cycle_ns + 1, WAYPOINT_NS)
    arms = {arm: {"waypoints": _waypoints(kinematics, arm, phases, times)} for arm in cell.ARMS}
    plan = {
        "format": "timevisor-arms-plan/1",
        "cycle_ns": cycle_ns,
        "waypoint_interval_ns": WAYPOINT_NS,
        "joints": list(cell.JOINTS),
        "max_speed": cell.MAX_SPEED,
        "interpolation_error_mm": 0.0,
        "phases": [
            {"name": p.name, "transfer": p.transfer, "start_ns": p.start_ns, "end_ns": p.end_ns} for p in phases
        ],
        "arms": arms,
    }
    fastest = max(np.abs(w["dq"]).max() for arm in arms.values() for w in arm["waypoints"])
    if fastest > cell.MAX_SPEED:
        raise ValueError(f"a joint moves at {fastest:.2f} rad/s, the limit is {cell.MAX_SPEED:.2f}: lengthen a phase")
    _check_collisions(kinematics, plan, phases)
    plan["interpolation_error_mm"] = round(_interpolation_error(kinematics, plan, phases), 4)
    return plan


def _segment(phases: list[Segment], t_ns: float) -> Segment:
    return next(p for p in reversed(phases) if t_ns >= p.start_ns)


def _waypoints(kinematics: Kinematics, arm: str, phases: list[Segment], times: range) -> list[dict]:
    offset, found, seed = grip_offset(arm), [], cell.SEED
    for t in times:
        # The cycle's end is its beginning, to the last digit.
        phase = _segment(phases, t % phases[-1].end_ns)
        t_phase = t % phases[-1].end_ns
        if found and t_phase == 0:
            found.append(dict(found[0], at_ns=t))
            break

        def joints(at_ns, phase=phase):
            position, linear = phase.at(at_ns)
            q = kinematics.solve(arm, position + offset, seed)
            return q, kinematics.velocity(arm, q, linear)

        seed, dq = joints(t_phase)
        # Forwards: the next phase begins at rest, so that this holds at its edge, too.
        h = 100_000
        ddq = (joints(t_phase + h)[1] - dq) / (h * 1e-9) if np.abs(dq).max() > 1e-9 else np.zeros(6)
        named = {"q": seed, "dq": dq, "ddq": ddq}
        rounded = {key: [round(float(v), 9) + 0.0 for v in value] for key, value in named.items()}  # no -0.0
        found.append({"at_ns": t, **rounded, "gripper": phase.gripper})
    return found


def _check_collisions(kinematics: Kinematics, plan: dict, phases: list[Segment]) -> None:
    for a, b in zip(plan["arms"]["a"]["waypoints"], plan["arms"]["b"]["waypoints"]):
        t = a["at_ns"] % plan["cycle_ns"]
        phase = _segment(phases, t)
        if phase.carries:
            bar = phase.at(t)[0]
        else:
            bar = (phase.end if phase.name in ("open", "rise") else phase.start).copy()
            bar[2] = cell.BAR_REST_Z
        touching = kinematics.collisions({"a": np.array(a["q"]), "b": np.array(b["q"])}, bar)
        if touching:
            raise Colliding(f"at {t / 1e9:.2f} s ({phase.name}): {', '.join(touching)}")


def _interpolation_error(kinematics: Kinematics, plan: dict, phases: list[Segment]) -> float:
    """Returns the largest distance (mm) between the interpolated tip and the planned line, between waypoints."""
    worst, trajectory = 0.0, Trajectory(plan)
    for arm in cell.ARMS:
        for t in range(WAYPOINT_NS // 2, plan["cycle_ns"], WAYPOINT_NS):
            at, _ = kinematics.tip(arm, trajectory.sample(arm, t)[0])
            worst = max(worst, np.linalg.norm(at - _segment(phases, t).at(t)[0] - grip_offset(arm)) * 1e3)
    return worst


class Trajectory:
    """A plan as a function of time: what a controller samples in each of its cycles."""

    def __init__(self, plan: dict):
        if plan.get("format") != "timevisor-arms-plan/1":
            raise ValueError(f"format is {plan.get('format')!r}, not timevisor-arms-plan/1: run plan.py again")
        self.cycle_ns, self.interval_ns = plan["cycle_ns"], plan["waypoint_interval_ns"]
        self._coefficients, self._gripper = {}, {}
        for arm in cell.ARMS:
            points = plan["arms"][arm]["waypoints"]
            q, dq, ddq = (np.array([w[key] for w in points]) for key in ("q", "dq", "ddq"))
            self._coefficients[arm] = _quintics(q, dq, ddq, self.interval_ns * 1e-9)
            self._gripper[arm] = [w["gripper"] for w in points]

    def sample(self, arm: str, t_ns: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Returns angles (6, rad), velocities (6, rad/s) and the gripper (0..1) at `t_ns`; cycles repeat."""
        piece, inside = divmod(t_ns % self.cycle_ns, self.interval_ns)
        piece, x = int(piece), inside * 1e-9
        powers = np.array([1, x, x**2, x**3, x**4, x**5])
        slopes = np.array([0, 1, 2 * x, 3 * x**2, 4 * x**3, 5 * x**4])
        c = self._coefficients[arm][piece]
        return powers @ c, slopes @ c, self._gripper[arm][piece]


def _quintics(q: np.ndarray, dq: np.ndarray, ddq: np.ndarray, h: float) -> np.ndarray:
    """Returns the polynomials between `n` waypoints, `h` seconds apart: (n - 1, 6 powers, 6 joints)."""
    x = q[1:] - q[:-1] - dq[:-1] * h - ddq[:-1] * h**2 / 2
    v = dq[1:] - dq[:-1] - ddq[:-1] * h
    a = ddq[1:] - ddq[:-1]
    c3 = 10 * x / h**3 - 4 * v / h**2 + a / (2 * h)
    c4 = -15 * x / h**4 + 7 * v / h**3 - a / h**2
    c5 = 6 * x / h**5 - 3 * v / h**4 + a / (2 * h**3)
    return np.stack([q[:-1], dq[:-1], ddq[:-1] / 2, c3, c4, c5], axis=1)


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "plan.json")
    plan = make(Kinematics(cell.build()))
    path.write_text(json.dumps(plan) + "\n")
    fastest = max(np.abs(w["dq"]).max() for arm in plan["arms"].values() for w in arm["waypoints"])
    print(
        f"{path}: {plan['cycle_ns'] / 1e9:.2f} s, {len(plan['arms']['a']['waypoints'])} waypoints per arm, "
        f"fastest joint {fastest:.2f} rad/s, interpolation error {plan['interpolation_error_mm']} mm"
    )


if __name__ == "__main__":
    main()
