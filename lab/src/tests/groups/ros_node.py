"""A node of ROS 2 by real rclpy: says what timevisor-ros publishes, sends trajectories, says what comes back.

    ros_node.py COUNT

Prints one JSON object: interval and time_reference (lists), diagnostics (the last), sent and received trajectories.
"""

import json
import sys
import time

import rclpy
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import TimeReference
from std_msgs.msg import Int64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

PATIENCE_S = 60


def ns(stamp) -> int:
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def parts(ns: int) -> dict:
    return {"sec": ns // 1_000_000_000, "nanosec": ns % 1_000_000_000}


def trajectory(number: int) -> JointTrajectory:
    message = JointTrajectory()
    message.header.stamp = Time(**parts(time.time_ns() + 1_000_000_000 + number))
    message.header.frame_id = f"number {number}"
    message.joint_names = ["shoulder", "elbow"]
    for after_ns in (0, 8_000_001):
        point = JointTrajectoryPoint(positions=[number + 0.5, -1.0], time_from_start=Duration(**parts(after_ns)))
        message.points.append(point)
    return message


def said(message: JointTrajectory) -> dict:
    return {
        "stamp_ns": ns(message.header.stamp),
        "frame": message.header.frame_id,
        "joints": list(message.joint_names),
        "points": [[ns(point.time_from_start), list(point.positions)] for point in message.points],
    }


def main(count: int) -> None:
    rclpy.init()
    node = rclpy.create_node("observer")
    seen: dict = {"interval": [], "time_reference": [], "diagnostics": None, "sent": [], "received": []}

    def diagnosed(message: DiagnosticArray) -> None:
        for status in message.status:
            level = status.level if isinstance(status.level, int) else status.level[0]
            values = {value.key: value.value for value in status.values}
            seen["diagnostics"] = {"level": level, "name": status.name, "message": status.message, "values": values}

    def referred(message: TimeReference) -> None:
        seen["time_reference"].append([ns(message.header.stamp), ns(message.time_ref), message.source])

    reliable = QoSProfile(depth=100, history=HistoryPolicy.KEEP_LAST, reliability=ReliabilityPolicy.RELIABLE)
    node.create_subscription(Int64MultiArray, "/timevisor/interval", lambda it: seen["interval"].append(list(it.data)), reliable)
    node.create_subscription(TimeReference, "/timevisor/time_reference", referred, reliable)
    node.create_subscription(DiagnosticArray, "/diagnostics", diagnosed, reliable)
    node.create_subscription(JointTrajectory, "/arm/planned", lambda it: seen["received"].append(said(it)), reliable)
    publisher = node.create_publisher(JointTrajectory, "/arm/command", reliable)
    end = time.monotonic() + PATIENCE_S

    def spin_until(is_done) -> None:
        while not is_done():
            if time.monotonic() > end:
                print(json.dumps(seen))
                sys.exit("not everything came in time")
            rclpy.spin_once(node, timeout_sec=0.1)

    spin_until(lambda: publisher.get_subscription_count() > 0)
    spin_until(lambda: len(seen["interval"]) >= 10 and len(seen["time_reference"]) >= 10 and seen["diagnostics"])
    for number in range(count):
        message = trajectory(number)
        seen["sent"].append(said(message))
        publisher.publish(message)
        rclpy.spin_once(node, timeout_sec=0.02)
    spin_until(lambda: len(seen["received"]) >= count)
    print(json.dumps(seen))
    node.destroy_node()
    rclpy.shutdown()


main(int(sys.argv[1]))
