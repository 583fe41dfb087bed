"""Tests of the plant: python3 -m unittest test_arms. No test depends on the machine's speed."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np

import cell
import tracefile
from datagram import (
    FOLLOWING,
    GRIPPED,
    SET_POINT_BYTES,
    STATE_BYTES,
    STOPPED,
    Malformed,
    SetPoint,
    State,
    decode_set_point,
    decode_state,
)
from drive import DISENGAGE_NS, ENGAGE_RAD, ENGAGE_RAD_S, EXTRAPOLATE_NS, Drive
from kinematics import Kinematics, Unreachable
from monitor import SETTLE_NS, STOP_MM, Monitor
from offline import PHASE_NS, Controller, run
from physics import Physics
from plan import Trajectory, grip_offset, make

MODEL = cell.build()
KINEMATICS = Kinematics(MODEL)
PLAN = make(KINEMATICS)
TRAJECTORY = Trajectory(PLAN)
MS = 1_000_000


def point(arm="a", sequence=1, stamp_ns=0, q=(0.0,) * 6, dq=(0.0,) * 6, gripper=0.0) -> SetPoint:
    return SetPoint(arm, sequence, stamp_ns, tuple(q), tuple(dq), gripper)


def follow(physics: Physics, until_ns: int, silent=(), after_ns: int = 0, on_step=None) -> list[dict]:
    """Runs the plan from its beginning; arms in `silent` send nothing after `after_ns`. Returns the events."""
    events, controllers = [], [Controller(arm, TRAJECTORY, 0) for arm in cell.ARMS]
    for now in range(0, until_ns, cell.STEP_NS):
        for controller in controllers:
            at = now - cell.STEP_NS + PHASE_NS[controller.arm]
            if controller.arm not in silent or at < after_ns:
                physics.drives[controller.arm].offer(at, controller.set_point(at))
        physics.step(now)
        events += physics.events
        physics.events.clear()
        if on_step:
            on_step(now)
    return events


class KinematicsTest(unittest.TestCase):
    def test_the_solution_of_a_tips_position_brings_the_tip_there(self):
        random = np.random.default_rng(7)
        for _ in range(50):
            for arm in cell.ARMS:
                wanted = grip_offset(arm) + random.uniform([-0.05, -0.15, 0.08], [0.05, 0.15, 0.25])
                at, turned = KINEMATICS.tip(arm, KINEMATICS.solve(arm, wanted))
                np.testing.assert_allclose(at, wanted, atol=1e-6)
                np.testing.assert_allclose(turned, cell.GRIP_ROTATION[arm], atol=1e-6)

    def test_what_is_out_of_reach_is_said(self):
        with self.assertRaisesRegex(Unreachable, "arm a does not reach .* mm are missing"):
            KINEMATICS.solve("a", np.array([1.5, 0, 0.2]))

    def test_a_bar_inside_the_table_collides(self):
        q = {arm: np.array(PLAN["arms"][arm]["waypoints"][0]["q"]) for arm in cell.ARMS}
        self.assertEqual(KINEMATICS.collisions(q, np.array([0, cell.STAND_Y[0], cell.BAR_REST_Z])), [])
        self.assertTrue(KINEMATICS.collisions(q, np.array([0, 0.3, 0.0])))


class PlanTest(unittest.TestCase):
    def test_the_cycle_closes_and_the_tips_stay_together(self):
        for arm in cell.ARMS:
            first, last = PLAN["arms"][arm]["waypoints"][0], PLAN["arms"][arm]["waypoints"][-1]
            self.assertEqual((first["q"], first["dq"]), (last["q"], last["dq"]))
            self.assertEqual(last["at_ns"], PLAN["cycle_ns"])
        self.assertLess(PLAN["interpolation_error_mm"], 0.01)
        carry = next(p for p in PLAN["phases"] if p["name"] == "carry")
        for t in range(carry["start_ns"], carry["end_ns"], 7_300_000):
            a, b = (KINEMATICS.tip(arm, TRAJECTORY.sample(arm, t)[0])[0] for arm in cell.ARMS)
            np.testing.assert_allclose(b - a, [2 * cell.GRIP_DISTANCE, 0, 0], atol=1e-5)

    def test_velocities_are_the_positions_slope(self):
        h = 10_000
        for t in range(1_000_000, PLAN["cycle_ns"], 333_333_333):
            before, after = (TRAJECTORY.sample("b", t + d)[0] for d in (-h, h))
            np.testing.assert_allclose((after - before) / (2 * h * 1e-9), TRAJECTORY.sample("b", t)[1], atol=1e-4)

    def test_it_survives_json_and_refuses_another_format(self):
        again = Trajectory(json.loads(json.dumps(PLAN)))
        np.testing.assert_array_equal(again.sample("a", 123456789)[0], TRAJECTORY.sample("a", 123456789)[0])
        with self.assertRaisesRegex(ValueError, "plan/1"):
            Trajectory(dict(PLAN, format="timevisor-arms-plan/2"))


class DatagramTest(unittest.TestCase):
    WHOLE = point("b", 2**63, -5, (0.1, -0.2, 0.3, -0.4, 0.5, -0.6), (1, 2, 3, -1, -2, -3), 0.5)

    def test_round_trip(self):
        self.assertEqual(decode_set_point(self.WHOLE.encode()), self.WHOLE)
        state = State("a", FOLLOWING | GRIPPED, 7, 9, (1.0,) * 6, (2.0,) * 6, 0.25, 1.5, 42)
        self.assertEqual(decode_state(state.encode()), state)

    def test_golden_bytes(self):
        data = self.WHOLE.encode()
        self.assertEqual((len(data), SET_POINT_BYTES, STATE_BYTES), (128, 128, 144))
        self.assertEqual(data[:24].hex(), "54564131" "01" "01" "0000" "0000000000000080" "fbffffffffffffff")
        self.assertEqual(data[24:32].hex(), "9a9999999999b93f")  # 0.1
        self.assertEqual(data[120:].hex(), "000000000000e03f")  # 0.5

    def test_malformed_ones_are_refused_with_their_cause(self):
        good = self.WHOLE.encode()

        def changed(at: int, value: bytes) -> bytes:
            return good[:at] + value + good[at + len(value) :]

        nan, seven = np.float64("nan").tobytes(), np.float64(7).tobytes()
        for cause, data in (
            ("length", b""),
            ("length", good[:-1]),
            ("length", good + b"\0"),
            ("magic", changed(0, b"TVA2")),
            ("kind", changed(4, b"\2")),
            ("arm", changed(5, b"\2")),
            ("reserved", changed(6, b"\1")),
            ("number", changed(24, nan)),
            ("number", changed(120, nan)),
            ("range", changed(24, seven)),
            ("range", changed(72, seven)),
            ("range", changed(120, seven)),
        ):
            with self.subTest(cause), self.assertRaises(Malformed) as caught:
                decode_set_point(data)
            self.assertEqual(caught.exception.cause, cause)


class DriveTest(unittest.TestCase):
    def step(self, drive: Drive, now: int, measured=np.zeros(6), speed=1.0):
        """Takes a step of an arm that moves at the `speed` of the set-points, most often."""
        drive.take(now, measured, np.full(6, speed))
        return drive.command(stopped=False)

    def test_it_moves_on_between_set_points_and_then_holds(self):
        drive = Drive(np.zeros(6), 0.0)
        drive.offer(0, point(dq=(1.0,) * 6))
        self.assertAlmostEqual(self.step(drive, MS).q[0], 0.001)
        self.assertAlmostEqual(self.step(drive, 5 * MS).q[0], 0.005)
        held = self.step(drive, EXTRAPOLATE_NS + 20 * MS)
        self.assertAlmostEqual(held.q[0], EXTRAPOLATE_NS * 1e-9)
        self.assertEqual(held.dq[0], 0.0)
        self.step(drive, DISENGAGE_NS + MS)
        self.assertFalse(drive.following)

    def test_a_late_step_uses_what_had_arrived_by_its_time(self):
        drive = Drive(np.zeros(6), 0.0)
        drive.offer(0, point(sequence=1))
        drive.offer(3 * MS, point(sequence=2, q=(0.01,) * 6))
        self.assertEqual(self.step(drive, 2 * MS, speed=0.0).q[0], 0.0)
        self.assertEqual(self.step(drive, 4 * MS, speed=0.0).q[0], 0.01)

    def test_it_follows_only_from_where_it_stands(self):
        drive = Drive(np.zeros(6), 0.0)
        drive.offer(0, point(q=(2 * ENGAGE_RAD,) * 6))
        self.assertEqual(self.step(drive, MS, speed=0.0).q[0], 0.0)
        drive.offer(2 * MS, point(sequence=2, dq=(2 * ENGAGE_RAD_S,) * 6))
        self.assertEqual(self.step(drive, 3 * MS, speed=0.0).q[0], 0.0)
        self.assertEqual((drive.following, drive.counts["far"]), (False, 2))
        drive.offer(4 * MS, point(sequence=3))
        self.step(drive, 5 * MS, speed=0.0)
        self.assertTrue(drive.following)

    def test_old_and_lost_ones_are_counted_and_a_restart_is_accepted(self):
        drive = Drive(np.zeros(6), 0.0)
        self.assertTrue(drive.offer(0, point(sequence=5)))
        self.assertFalse(drive.offer(MS, point(sequence=5)))
        self.assertTrue(drive.offer(2 * MS, point(sequence=9)))
        self.assertEqual((drive.counts["old"], drive.counts["lost"]), (1, 3))
        self.assertTrue(drive.offer(2 * MS + DISENGAGE_NS, point(sequence=1)))

    def test_one_that_was_late_on_its_way_is_taken_for_when_it_would_have_arrived(self):
        drive = Drive(np.zeros(6), 0.0)
        for step in range(4):
            drive.offer(2 * step * MS + 100_000, point(sequence=1 + step, stamp_ns=2 * step * MS, q=(0.002 * step,) * 6, dq=(1.0,) * 6))
        self.assertAlmostEqual(self.step(drive, 7 * MS, measured=np.full(6, 0.0069)).q[0], 0.0069)
        # Sampled at 8 ms, 3 ms longer on its way: the arm is where it would be without that.
        drive.offer(11 * MS + 100_000, point(sequence=5, stamp_ns=8 * MS, q=(0.008,) * 6, dq=(1.0,) * 6))
        self.assertAlmostEqual(self.step(drive, 12 * MS).q[0], 0.0119)
        self.assertEqual(drive.way_ns, 3 * MS)
        # 13 ms on its way: nothing is known of the last 10 ms, so it holds.
        drive.offer(24 * MS, point(sequence=6, stamp_ns=11 * MS, q=(0.011,) * 6, dq=(1.0,) * 6))
        self.step(drive, 25 * MS)
        self.assertTrue(drive.starving)
        # A clock that is set back looks so for half a second, and then no more.
        drive.offer(26 * MS, point(sequence=7, stamp_ns=21 * MS))
        self.step(drive, 26 * MS)
        self.assertEqual(drive.way_ns, 4_900_000)
        # By more than a cycle: its stamps say so.
        drive.offer(27 * MS, point(sequence=8, stamp_ns=21 * MS))
        self.step(drive, 27 * MS)
        self.assertEqual(drive.way_ns, 0)
        drive.offer(27 * MS + 500_000, point(sequence=9, stamp_ns=24 * MS))
        for sequence, at in enumerate(range(28 * MS, 600 * MS, 2 * MS), 10):
            drive.offer(at, point(sequence=sequence, stamp_ns=at - 5 * MS))
        self.step(drive, 600 * MS)
        self.assertEqual(drive.way_ns, 0)

    def test_the_acceleration_comes_from_stamps_and_a_jump_gives_none(self):
        drive = Drive(np.zeros(6), 0.0)
        drive.offer(0, point(sequence=1, stamp_ns=10 * MS))
        drive.offer(MS, point(sequence=2, stamp_ns=12 * MS, dq=(0.02,) * 6))
        self.assertAlmostEqual(self.step(drive, MS, speed=0.0).ddq[0], 10.0)
        drive.offer(3 * MS, point(sequence=3, stamp_ns=500 * MS, dq=(0.02,) * 6))
        self.assertEqual(self.step(drive, 3 * MS, speed=0.0).ddq[0], 0.0)


class MonitorTest(unittest.TestCase):
    def gripped(self) -> Monitor:
        monitor = Monitor()
        for now in (0, SETTLE_NS):
            monitor.update(now, np.zeros(3), closed=True, touching=True)
        self.assertTrue(monitor.gripped)
        return monitor

    def apart(self, monitor: Monitor, mm: float) -> bool:
        return monitor.update(2 * SETTLE_NS, np.array([0, mm / 1e3, 0]), True, True)[1]

    def test_it_stops_above_the_limit_once(self):
        monitor = self.gripped()
        self.assertFalse(self.apart(monitor, STOP_MM - 0.01))
        self.assertTrue(self.apart(monitor, STOP_MM + 0.01))
        self.assertFalse(self.apart(monitor, STOP_MM + 5))

    def test_after_a_release_the_arms_may_return_but_not_come_further_apart(self):
        monitor = self.gripped()
        self.assertTrue(self.apart(monitor, 4.0))
        monitor.release()
        self.assertFalse(self.apart(monitor, 4.5))
        self.assertFalse(self.apart(monitor, 1.0))
        self.assertTrue(self.apart(monitor, 3.1))

    def test_without_a_grip_nothing_is_measured(self):
        self.assertEqual(Monitor().update(0, np.ones(3), closed=False, touching=False), (None, False))


class PhysicsTest(unittest.TestCase):
    def test_a_pushed_arm_stops_both_and_a_release_lets_them_follow_again(self):
        physics = Physics()

        def push(now):
            if now == 800 * MS:  # at rest, both have gripped
                physics.push("b", np.array([0, 300.0, 0]), 50)

        events = follow(physics, 1000 * MS, on_step=push)
        stop = next(e for e in events if e["event"] == "stop")
        self.assertGreater(stop["distance_mm"], STOP_MM)
        self.assertGreaterEqual(stop["at_ns"], 800 * MS)
        self.assertEqual(stop["clock_difference_ns"], 0)
        self.assertTrue(physics.monitor.stopped)
        self.assertFalse(any(drive.following for drive in physics.drives.values()))
        # Stopped, they stand still whatever is sent.
        before = {arm: physics.target[arm].q.copy() for arm in cell.ARMS}
        physics.drives["a"].offer(1000 * MS, point(sequence=10**6, q=before["a"] + 0.01))
        physics.step(1002 * MS)
        np.testing.assert_array_equal(physics.target["a"].q, before["a"])
        self.assertTrue(physics.release())
        for arm in cell.ARMS:
            near = physics.data.qpos[physics.index.qpos[arm]]
            physics.drives[arm].offer(1004 * MS, point(arm, sequence=2 * 10**6, q=near, gripper=1.0))
        physics.step(1004 * MS)
        self.assertTrue(all(drive.following for drive in physics.drives.values()))
        self.assertFalse(physics.release())

    def test_when_one_controller_falls_silent_in_the_carry_both_hold(self):
        for linked, expected in ((True, "linked_hold"), (False, "stop")):
            events = follow(Physics(linked=linked), 1800 * MS, silent="b", after_ns=1450 * MS)
            self.assertEqual([e["event"] for e in events if e["event"] != "reset"], [expected], events)

    def test_after_a_hold_neither_begins_alone(self):
        physics = Physics()
        follow(physics, 1000 * MS)
        self.assertTrue(physics.monitor.gripped)
        for now in range(1002 * MS, 1050 * MS, 2 * MS):
            physics.step(now)

        def offer(arm, at, sequence):
            near = physics.data.qpos[physics.index.qpos[arm]]
            physics.drives[arm].offer(at, point(arm, sequence=10**6 + sequence, q=near, gripper=1.0))

        def follows():
            return [physics.drives[arm].following for arm in cell.ARMS]

        self.assertEqual(follows(), [False, False])
        # a's controller has said its last word 2 ms before b's first one.
        for step, arms in enumerate(("a", "b", "b", "ab")):
            at = 1050 * MS + 2 * step * MS
            for arm in arms:
                offer(arm, at, step)
            physics.step(at)
            self.assertEqual(follows(), [arms == "ab"] * 2, arms)

    def test_a_larger_clock_error_brings_the_tips_further_apart(self):
        physics = Physics(stop_enabled=False)
        outcomes = {error: run(physics, TRAJECTORY, error, 1) for error in (0, 0.1, 1, 10)}
        across = [outcome.across_mm for outcome in outcomes.values()]
        self.assertEqual(across, sorted(across), across)
        self.assertLess(2 * outcomes[0.1].max_mm, outcomes[1].max_mm)
        self.assertLess(5 * outcomes[1].max_mm, outcomes[10].max_mm)
        self.assertLess(outcomes[0.1].max_mm, STOP_MM / 2)
        self.assertEqual(outcomes[0.1].placed, 2)

    def test_ten_milliseconds_stop_the_arms(self):
        outcome = run(Physics(), TRAJECTORY, 10, 1)
        self.assertEqual((outcome.stops, outcome.placed), (1, 0))


class PlantTest(unittest.TestCase):
    """Over real sockets; nothing is asserted about times."""

    def test_answers_counts_control_and_recording(self):
        from plant import Plant

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.trace"
            writer = tracefile.Writer(path, {"realtime_ns": 5_000, "monotonic_ns": 0})
            plant = Plant(("127.0.0.1", 0), ("127.0.0.1", 0), writer)
            thread = threading.Thread(target=plant.serve)
            with contextlib.redirect_stdout(io.StringIO()):
                thread.start()
                status, state, q = self._talk(plant, thread)
            self.assertEqual((state.sequence, state.stamp_ns, state.arm), (77, 123, "a"))
            self.assertEqual(state.flags & STOPPED, 0)
            self.assertTrue(math.isnan(state.deviation_mm))
            np.testing.assert_allclose(state.q, q, atol=1e-3)
            self.assertEqual(status["refused"], {"length": 1, "command": 1})
            recording = tracefile.read(path)
            self.assertEqual(len(recording.records), plant.physics.step_count)
            self.assertEqual([e["event"] for e in recording.events], ["reset", "reset", "end"])
            self._converts_to_mcap(recording, Path(folder) / "run.mcap")
            # A recording whose last block is cut off is read up to there.
            path.write_bytes(path.read_bytes()[:-3])
            self.assertEqual([e["event"] for e in tracefile.read(path).events], ["reset", "reset"])

    def _talk(self, plant, thread: threading.Thread) -> tuple[dict, State, np.ndarray]:
        """Sends the plant one of everything; returns its status, its answer, and what was sent."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as arm:
                arm.settimeout(30)
                arm.connect(plant.socket.getsockname())
                arm.send(b"nonsense")
                q, dq, gripper = TRAJECTORY.sample("a", 0)
                arm.send(point("a", 77, 123, q, dq, gripper).encode())
                state = decode_state(arm.recv(256))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                control.settimeout(30)
                control.connect(plant.control.getsockname())

                def ask(text: str) -> dict:
                    control.send(text.encode())
                    return json.loads(control.recv(65536))

                self.assertEqual(ask("release"), {"released": False})
                self.assertIn("commands:", ask("jump")["error"])
                self.assertEqual(ask("reset"), {"reset": True})
                return ask("quit"), state, q
        finally:
            plant.running = False
            thread.join()
            plant.close()

    def _converts_to_mcap(self, recording: tracefile.Recording, path: Path) -> None:
        from mcap.reader import make_reader

        import recording as converter

        count = converter.write(recording, path)
        with open(path, "rb") as file:
            found = [(c.topic, json.loads(m.data), m.log_time) for _, c, m in make_reader(file).iter_messages()]
        self.assertEqual(count, len(found))
        self.assertEqual(count, 4 * len(recording.records) + 3)
        bar = next(message for topic, message, _ in found if topic == "/bar")
        self.assertAlmostEqual(bar["position"]["y"], cell.STAND_Y[0], places=3)

    def test_a_file_that_is_no_recording_is_refused(self):
        with self.assertRaisesRegex(ValueError, "is no recording"):
            tracefile.read(Path(__file__))


if __name__ == "__main__":
    unittest.main()
