"""Converts a recording of the plant to MCAP, which Foxglove opens.

python3 recording.py RUN.trace RUN.mcap [--every 5]

Topics, each with a JSON schema: /arm_a/joints and /arm_b/joints (angles, velocities, set-points), /deviation (the
vector in mm, and the protective stop's state), /bar (a pose), /events (stops, releases, resets, with their evidence).
The messages' times are the plant's steps in CLOCK_REALTIME, as it stood when the plant started.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from mcap.writer import CompressionType, Writer

import cell
import tracefile
from datagram import FOLLOWING, GRIPPED, STOPPED

NUMBER, BOOLEAN, TEXT = {"type": "number"}, {"type": "boolean"}, {"type": "string"}
SIX = {"type": "array", "items": NUMBER, "minItems": 6, "maxItems": 6}
XYZ = {"type": "object", "properties": {axis: NUMBER for axis in "xyz"}}
XYZW = {"type": "object", "properties": {axis: NUMBER for axis in "xyzw"}}
SCHEMAS = {
    "JointState": {
        "name": {"type": "array", "items": TEXT},
        "position": SIX,
        "velocity": SIX,
        "set_point": SIX,
        "gripper": NUMBER,
        "following": BOOLEAN,
        "sequence": {"type": "integer"},
        "stamp_minus_arrival_ms": NUMBER,
    },
    "Deviation": {"x": NUMBER, "y": NUMBER, "z": NUMBER, "distance": NUMBER, "gripped": BOOLEAN, "stopped": BOOLEAN},
    "Pose": {"position": XYZ, "orientation": XYZW},
    "Event": {"event": TEXT, "at_ns": {"type": "integer"}},
}


def write(recording: tracefile.Recording, path: Path, every: int = 1) -> int:
    """Writes the MCAP file and returns how many messages it holds. `every`: keep each Nth record, and all events."""
    offset = recording.header["realtime_ns"] - recording.header["monotonic_ns"]
    count = 0
    with open(path, "wb") as file:
        writer = Writer(file, compression=CompressionType.ZSTD)
        writer.start(profile="", library="timevisor-arms")
        channels = _register(writer)

        def add(topic: str, at_ns: int, message: dict) -> None:
            nonlocal count
            time = at_ns + offset
            writer.add_message(channels[topic], log_time=time, publish_time=time, data=json.dumps(message).encode())
            count += 1

        events = sorted(recording.events, key=lambda e: e.get("at_ns", 0))
        for record in recording.records[::every]:
            at = int(record["at_ns"])
            while events and events[0].get("at_ns", 0) <= at:
                event = events.pop(0)
                add("/events", event.get("at_ns") or at, event)
            _add_record(add, at, record)
        last = int(recording.records["at_ns"][-1]) if len(recording.records) else 0
        for event in events:
            add("/events", event.get("at_ns") or last, event)
        writer.finish()
    return count


def _register(writer: Writer) -> dict[str, int]:
    ids = {}
    for name, properties in SCHEMAS.items():
        schema = {"type": "object", "title": name, "properties": properties}
        ids[name] = writer.register_schema(name=name, encoding="jsonschema", data=json.dumps(schema).encode())
    topics = {f"/arm_{arm}/joints": "JointState" for arm in cell.ARMS}
    topics |= {"/deviation": "Deviation", "/bar": "Pose", "/events": "Event"}
    return {t: writer.register_channel(topic=t, message_encoding="json", schema_id=ids[s]) for t, s in topics.items()}


def _add_record(add, at: int, record: np.void) -> None:
    flags = int(record["flags"])
    for n, arm in enumerate(cell.ARMS):
        joints = {
            "name": list(cell.JOINTS),
            "position": _rounded(record["qpos"][7 + 14 * n : 13 + 14 * n]),
            "velocity": _rounded(record["qvel"][n]),
            "set_point": _rounded(record["target"][n]),
            "gripper": float(record["gripper"][n]),
            "following": bool(flags >> 4 * n & FOLLOWING),
            "sequence": int(record["sequence"][n]),
            "stamp_minus_arrival_ms": int(record["stamp_ns"][n] - record["arrival_ns"][n]) / 1e6,
        }
        add(f"/arm_{arm}/joints", at, joints)
    gripped = bool(flags & GRIPPED)
    x, y, z = _rounded(record["deviation"]) if gripped else (0.0, 0.0, 0.0)  # JSON has no NaN
    distance = round(float(np.linalg.norm(record["deviation"])), 4) if gripped else 0.0
    deviation = {"x": x, "y": y, "z": z, "distance": distance}
    add("/deviation", at, deviation | {"gripped": gripped, "stopped": bool(flags & STOPPED)})
    px, py, pz, w, qx, qy, qz = _rounded(record["qpos"][:7])
    add("/bar", at, {"position": dict(x=px, y=py, z=pz), "orientation": dict(x=qx, y=qy, z=qz, w=w)})


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(v), 6) for v in values]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("mcap", type=Path)
    parser.add_argument("--every", type=int, default=5, metavar="N", help="keep each Nth record (5: 100 Hz)")
    options = parser.parse_args()
    count = write(tracefile.read(options.trace), options.mcap, options.every)
    print(f"{options.mcap}: {count} messages, {options.mcap.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
