"""The plant without clocks and sockets: MuJoCo, the drives and the monitor, one step at a time.

plant.py steps it in real time, offline.py as fast as it goes. Both give each step its nominal time.
"""

from __future__ import annotations

import mujoco
import numpy as np

import cell
from drive import STILL, Command, Drive
from kinematics import Kinematics
from monitor import Monitor
from plan import RAISED_Z, grip_offset

FINGER_CLOSED_RAD = 0.8  # the 2F-85's driver joint


class Physics:
    """Two arms and a bar. `events` gets a dict per stop, linked hold, release and reset; the caller empties it.

    `linked`: while both arms grip the part and one drive gets no set-points, both hold in the same step. A cell's
    safety controller does this by wire; it knows nothing of clocks, and hides no clock's error.
    """

    def __init__(self, stop_enabled: bool = True, linked: bool = True):
        self.model = cell.build()
        self.data = mujoco.MjData(self.model)
        self.index = cell.Index(self.model)
        kinematics = Kinematics(self.model)
        start = np.array([0, cell.STAND_Y[0], RAISED_Z])
        self._home = {arm: kinematics.solve(arm, start + grip_offset(arm)) for arm in cell.ARMS}
        self._stop_enabled, self.linked = stop_enabled, linked
        self._pushes: dict[str, tuple[np.ndarray, int]] = {}
        self.events: list[dict] = []
        self.step_count = 0
        self.now_ns = 0
        self.deviation: np.ndarray | None = None  # 3, mm
        self.target = {arm: Command(self._home[arm], STILL, STILL) for arm in cell.ARMS}
        self._torque = np.zeros(self.model.nv)
        self.reset()

    def reset(self) -> None:
        """Puts the arms above the first stand and the bar on it, with open grippers; ends a stop."""
        mujoco.mj_resetData(self.model, self.data)
        for arm in cell.ARMS:
            self.data.qpos[self.index.qpos[arm]] = self._home[arm]
            self.data.ctrl[self.index.servo[arm]] = self._home[arm]
        self.drives = {arm: Drive(self._home[arm], cell.GRIPPER_OPEN) for arm in cell.ARMS}
        self.monitor = Monitor(self._stop_enabled)
        self.deviation = None
        self._pushes.clear()
        mujoco.mj_forward(self.model, self.data)
        self.events.append({"event": "reset", "step": self.step_count, "at_ns": self.now_ns})

    def release(self) -> bool:
        """Ends a protective stop; returns whether there was one. The drives hold until set-points come near."""
        if not self.monitor.stopped:
            return False
        self.monitor.release()
        self.events.append({"event": "release", "step": self.step_count, "at_ns": self.now_ns})
        return True

    def hold(self) -> None:
        """Lets both arms stand where they are, until set-points come near: after time has jumped for the plant."""
        for arm, drive in self.drives.items():
            drive.hold(self.data.qpos[self.index.qpos[arm]])

    def push(self, arm: str, force: np.ndarray, steps: int) -> None:
        """Pushes the wrist of `arm` with `force` (3, N, in the world) for so many steps: a fault for tests."""
        self._pushes[arm] = (np.array(force, dtype=float), steps)

    def step(self, now_ns: int) -> None:
        """Advances by 2 ms; `now_ns` is the step's nominal time, in the same clock as the set-points' arrivals."""
        data, index = self.data, self.index
        self.now_ns = now_ns
        wanted = np.zeros(self.model.nv)  # acceleration
        for arm, drive in self.drives.items():
            drive.take(now_ns, data.qpos[index.qpos[arm]], data.qvel[index.qvel[arm]])
        together = self._together()
        for arm, drive in self.drives.items():
            command = self.target[arm] = drive.command(self.monitor.stopped, together)
            data.ctrl[index.servo[arm]] = command.q + command.dq * cell.SERVO_KD / cell.SERVO_KP
            data.ctrl[index.fingers[arm]] = drive.gripper * cell.GRIPPER_SCALE
            wanted[index.qvel[arm]] = command.ddq
            self._apply_push(arm)
        self._feed_torque_forward(wanted)
        mujoco.mj_step(self.model, data)
        self.step_count += 1
        self._watch(now_ns)

    def _together(self) -> bool:
        """Whether the drives may follow. While both grip the part and are linked, both follow or both hold."""
        if not (self.linked and self.monitor.gripped) or all(drive.ready for drive in self.drives.values()):
            return True
        if not self.monitor.stopped and any(drive.following for drive in self.drives.values()):
            starving = [arm for arm, drive in self.drives.items() if drive.starving]
            self.events.append(
                {"event": "linked_hold", "step": self.step_count, "at_ns": self.now_ns, "starving": starving}
            )
        return False

    def _feed_torque_forward(self, wanted: np.ndarray) -> None:
        """Applies the torques that the commanded acceleration (nv, rad/s^2) needs, as a robot's own drives do.

        Without them the servo must be so stiff that its torque limit makes it oscillate when set-points jitter. M and
        the Coriolis forces are those of the step before; the bar is not in them.
        """
        data = self.data
        mujoco.mj_mulM(self.model, data, self._torque, wanted)
        for arm in cell.ARMS:
            joints = self.index.qvel[arm]
            coriolis = data.qfrc_bias[joints] - data.qfrc_gravcomp[joints]
            data.qfrc_applied[joints] = np.clip(self._torque[joints] + coriolis, -cell.MAX_TORQUE, cell.MAX_TORQUE)

    def _apply_push(self, arm: str) -> None:
        force, steps = self._pushes.get(arm, (np.zeros(3), 0))
        self.data.xfrc_applied[self.index.wrist[arm], :3] = force if steps > 0 else 0.0
        if steps > 0:
            self._pushes[arm] = (force, steps - 1)

    def _watch(self, now_ns: int) -> None:
        data, index = self.data, self.index
        between = data.site_xpos[index.tip["b"]] - data.site_xpos[index.tip["a"]]
        closed = all(drive.gripper > 0.5 for drive in self.drives.values())
        # Contacts cost more than the rest, and count only until the reference is taken.
        touching = closed and not self.monitor.gripped and self._touching()
        self.deviation, stops = self.monitor.update(now_ns, between, closed, touching)
        if stops:
            self.events.append(self._stop_event(now_ns))
            self.hold()

    def _touching(self) -> bool:
        """Whether every finger touches the bar."""
        pairs = self.data.contact.geom[: self.data.ncon]
        on_bar = pairs[(pairs == self.index.bar_geom).any(axis=1)]
        touched = set(on_bar.flatten().tolist())
        return all(side & touched for arm in cell.ARMS for side in self.index.pads[arm])

    def _stop_event(self, now_ns: int) -> dict:
        """What is known about a stop's cause.

        `ahead_ns` is stamp minus arrival: the sender's clock against the plant's, plus the way. Its difference between
        the arms is the error of one clock against the other. `age_ns` and `gap_ns` show late or missing set-points,
        which are the machine's scheduling and not a clock's fault.
        """
        event = {
            "event": "stop",
            "step": self.step_count,
            "at_ns": now_ns,
            "deviation_mm": [round(float(v), 4) for v in self.deviation],
            "distance_mm": round(float(np.linalg.norm(self.deviation)), 4),
            "arms": {},
        }
        for arm, drive in self.drives.items():
            known = {"following": drive.following, "counts": dict(drive.counts)}
            if drive.current is not None:
                known |= {
                    "sequence": drive.current.sequence,
                    "stamp_ns": drive.current.stamp_ns,
                    "age_ns": now_ns - drive.arrival_ns,
                    "gap_ns": drive.gap_ns,
                    "ahead_ns": drive.current.stamp_ns - drive.arrival_ns,
                }
            event["arms"][arm] = known
        ahead = [known.get("ahead_ns") for known in event["arms"].values()]
        if None not in ahead:
            event["clock_difference_ns"] = ahead[1] - ahead[0]
        return event

    def gripper(self, arm: str) -> float:
        """Returns how far the gripper is closed, 0 to 1, as measured."""
        return float(np.clip(self.data.qpos[self.index.finger_qpos[arm]] / FINGER_CLOSED_RAD, 0, 1))

    def bar(self) -> np.ndarray:
        """Returns the bar's position (3, m) and orientation (quaternion, 4): 7 numbers."""
        return self.data.qpos[self.index.bar_qpos : self.index.bar_qpos + 7].copy()

    def placed(self, stand: int) -> bool:
        """Whether the bar lies on stand 0 or 1: within 10 mm along and 5 mm across it, flat to 2 mm."""
        wanted = np.array([0, cell.STAND_Y[stand], cell.BAR_REST_Z])
        return bool((np.abs(self.bar()[:3] - wanted) < [0.010, 0.005, 0.002]).all())
