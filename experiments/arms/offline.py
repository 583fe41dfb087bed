"""How far apart the tips come for an error between the two controllers' clocks, without real time.

python3 offline.py [--cycles 2] [--long 20] [--json offline.json]

Two controllers sample the plan at `now + clock error`, at 500 Hz and at different moments of the 2 ms. Arm b's clock
gets the error while both arms hold still to close their grippers: the drives follow, and no arm jumps. Each error
runs twice: with the protective stop, and without it for the full deviation. `across` is the deviation's part in the
direction of the carry, where a clock error shows undiluted: v * error.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import cell
from datagram import SetPoint
from kinematics import Kinematics
from physics import Physics
from plan import Trajectory, make

ERRORS_MS = (0, 0.1, 0.3, 1, 3, 5, 10, 50, 200)
ERROR_FROM_NS = 450_000_000  # in the first hold, which lasts from 0.4 to 0.9 s
PHASE_NS = {"a": 300_000, "b": 1_100_000}  # when in the plant's cycle each controller sends


@dataclass
class Outcome:
    """One run. Deviations are in mm, over all steps with a grip."""

    error_ms: float
    max_mm: float
    across_mm: float
    rms_mm: float
    stops: int
    stop_at_s: float | None
    stop_max_mm: float  # the largest deviation when the stop is armed, the way into standstill included
    transfers: int
    placed: int


class Controller:
    """Samples the plan by its own clock, which has an error from ERROR_FROM_NS on."""

    def __init__(self, arm: str, trajectory: Trajectory, error_ns: int):
        self.arm, self.trajectory, self.error_ns, self.sequence = arm, trajectory, error_ns, 0

    def set_point(self, now_ns: int) -> SetPoint:
        """Returns the set-point at true time `now_ns`."""
        self.sequence += 1
        clock_ns = now_ns + (self.error_ns if now_ns >= ERROR_FROM_NS else 0)
        # The first set-point is due just before the plan begins: it must not sample the plan's end.
        q, dq, gripper = self.trajectory.sample(self.arm, max(clock_ns, 0))
        return SetPoint(self.arm, self.sequence, clock_ns, tuple(q), tuple(dq), gripper)


def run(physics: Physics, trajectory: Trajectory, error_ms: float, cycles: int, observe=None) -> Outcome:
    """Runs `cycles` cycles; `observe(physics)` is called after each step."""
    physics.reset()
    controllers = [Controller("a", trajectory, 0), Controller("b", trajectory, round(error_ms * 1e6))]
    half = trajectory.cycle_ns // 2
    deviations, stops, placed, stop_at = [], 0, 0, None
    for step in range(cycles * trajectory.cycle_ns // cell.STEP_NS):
        now = step * cell.STEP_NS
        for controller in controllers:
            at = now - cell.STEP_NS + PHASE_NS[controller.arm]
            physics.drives[controller.arm].offer(at, controller.set_point(at))
        physics.step(now)
        if physics.deviation is not None:
            deviations.append(physics.deviation)
        for event in physics.events:
            if event["event"] == "stop":
                stops += 1
                stop_at = stop_at if stop_at is not None else now / 1e9
        if observe:
            observe(physics)
        physics.events.clear()
        if (now + cell.STEP_NS) % half == 0:
            # A stopped arm may have left the bar where the transfer before put it.
            placed += not physics.monitor.stopped and physics.placed(((now + cell.STEP_NS) // half) % 2)
    vectors = np.array(deviations or np.zeros((1, 3)))
    values, across = np.linalg.norm(vectors, axis=1), float(np.abs(vectors[:, 1]).max())
    worst, rms = float(values.max()), float(np.sqrt((values**2).mean()))
    return Outcome(error_ms, worst, across, rms, stops, stop_at, worst, 2 * cycles, placed)


def table(trajectory: Trajectory, errors_ms=ERRORS_MS, cycles: int = 2, show=print) -> list[Outcome]:
    """Runs each error with and without the stop and returns the outcomes, in order."""
    free, guarded, outcomes = Physics(stop_enabled=False), Physics(), []
    show("clock error   max deviation      across         rms   protective stop      placed")
    for error in errors_ms:
        measured, stopping = run(free, trajectory, error, cycles), run(guarded, trajectory, error, cycles)
        stopping.max_mm, stopping.across_mm, stopping.rms_mm = measured.max_mm, measured.across_mm, measured.rms_mm
        worst, across, rms = stopping.max_mm, stopping.across_mm, stopping.rms_mm
        stop = f"yes, at {stopping.stop_at_s:5.2f} s" if stopping.stops else "no"
        placed = "yes" if stopping.placed == stopping.transfers else "no"
        show(
            f"{error:8g} ms {worst:12.2f} mm {across:8.2f} mm {rms:8.2f} mm   {stop:18}"
            f"   {placed:>3} ({stopping.placed} of {stopping.transfers})"
        )
        outcomes.append(stopping)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, help="a plan.json; planned afresh without it")
    parser.add_argument("--cycles", type=int, default=2)
    parser.add_argument("--long", type=int, default=0, help="then run so many cycles without an error")
    parser.add_argument("--json", type=Path, help="write the table there")
    options = parser.parse_args()
    plan = json.loads(options.plan.read_text()) if options.plan else make(Kinematics(cell.build()))
    trajectory = Trajectory(plan)
    result = {"table": [asdict(o) for o in table(trajectory, cycles=options.cycles)]}
    if options.long:
        long = run(Physics(), trajectory, 0, options.long)
        print(
            f"{options.long} cycles without an error: {long.placed} of {long.transfers} transfers placed, "
            f"{long.stops} stops, deviation {long.max_mm:.2f} mm at most"
        )
        result["long"] = asdict(long)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
