"""Inverse kinematics by damped least squares, and whether a pose is reached, within limits and free of collisions.

The textbook's method (Wampler 1986; Buss 2004, section 5): dq = J' (J J' + k^2 I)^-1 e, with J from MuJoCo. It needs
a seed near the solution; `cell.SEED` serves the whole cell.
"""

from __future__ import annotations

import mujoco
import numpy as np

import cell

DAMPING = 1e-3
MAX_ITERATIONS = 60
MAX_STEP = 0.3  # rad per iteration: a larger one leaves the region where J holds
POSITION_TOLERANCE = 1e-7  # m
ROTATION_TOLERANCE = 1e-7  # rad


class Unreachable(Exception):
    """The tip does not reach the pose; the text says which arm, where, and how much is missing."""


class Kinematics:
    """Both arms' kinematics. It owns a scratch state: do not share one between threads."""

    def __init__(self, model: mujoco.MjModel):
        self.model = model
        self.data = mujoco.MjData(model)
        self.index = cell.Index(model)
        self._jacobian = np.zeros((6, model.nv))

    def _forward(self, arm: str, q: np.ndarray) -> None:
        self.data.qpos[self.index.qpos[arm]] = q
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)

    def tip(self, arm: str, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tip's position (3, metres) and rotation (3x3) in the world at joint angles `q` (6)."""
        self._forward(arm, q)
        site = self.index.tip[arm]
        return self.data.site_xpos[site].copy(), self.data.site_xmat[site].reshape(3, 3).copy()

    def jacobian(self, arm: str, q: np.ndarray) -> np.ndarray:
        """Returns the tip's Jacobian at `q`: 6x6, three rows of m/rad, then three of rad/rad, in the world."""
        self._forward(arm, q)
        mujoco.mj_jacSite(self.model, self.data, self._jacobian[:3], self._jacobian[3:], self.index.tip[arm])
        return self._jacobian[:, self.index.qvel[arm]].copy()

    def solve(self, arm: str, position: np.ndarray, seed: np.ndarray = cell.SEED) -> np.ndarray:
        """Returns the joint angles (6, rad) that bring the tip of `arm` to `position` (3, m), tool down.

        Raises Unreachable.
        """
        q = np.array(seed, dtype=float)
        rotation = cell.GRIP_ROTATION[arm]
        for _ in range(MAX_ITERATIONS):
            at, turned = self.tip(arm, q)
            error = np.concatenate([position - at, _rotation_between(turned, rotation)])
            if np.linalg.norm(error[:3]) < POSITION_TOLERANCE and np.linalg.norm(error[3:]) < ROTATION_TOLERANCE:
                return q
            jacobian = self.jacobian(arm, q)
            step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + DAMPING**2 * np.eye(6), error)
            q += step * min(1.0, MAX_STEP / (np.abs(step).max() + 1e-12))
        missing = np.linalg.norm(error[:3]) * 1e3
        raise Unreachable(f"arm {arm} does not reach {np.round(position, 3)} m: {missing:.1f} mm are missing")

    def velocity(self, arm: str, q: np.ndarray, linear: np.ndarray) -> np.ndarray:
        """Returns the joint velocities (6, rad/s) that move the tip at `linear` (3, m/s) without turning it."""
        return np.linalg.solve(self.jacobian(arm, q), np.concatenate([linear, np.zeros(3)]))

    def collisions(self, q: dict[str, np.ndarray], bar: np.ndarray) -> list[str]:
        """Returns what touches what at this pose of both arms and the bar's position (3, m), open grippers.

        The bar may rest on its stand and each gripper's pads may touch the bar; all else is named.
        """
        data, model, index = self.data, self.model, self.index
        mujoco.mj_resetData(model, data)
        for arm in cell.ARMS:
            data.qpos[index.qpos[arm]] = q[arm]
        data.qpos[index.bar_qpos : index.bar_qpos + 3] = bar
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_collision(model, data)
        allowed = {index.bar_geom, model.geom("start").id, model.geom("goal").id}
        pads = set().union(*(side for arm in cell.ARMS for side in index.pads[arm]))
        found = []
        for contact in data.contact[: data.ncon]:
            pair = {int(contact.geom1), int(contact.geom2)}
            if pair <= allowed or (index.bar_geom in pair and pair & pads):
                continue
            names = [f"{model.body(model.geom_bodyid[g]).name}/{model.geom(g).name or g}" for g in sorted(pair)]
            found.append(" and ".join(names))
        return found


def _rotation_between(current: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the rotation vector (3, rad, in the world) that turns `current` into `wanted` (3x3 each)."""
    turn, quat = np.zeros(3), np.zeros(4)
    mujoco.mju_mat2Quat(quat, (wanted @ current.T).flatten())
    mujoco.mju_quat2Vel(turn, quat, 1.0)
    return turn
