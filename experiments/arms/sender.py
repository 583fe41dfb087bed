"""A simple controller for one arm: samples the plan 500 times a second and sends set-points to the plant.

python3 sender.py ARM [--plan plan.json] [--error-ms 0] [--start NS] [--seconds N]

It stands in for the real controllers, which read a Timevisor timeline. Its clock is CLOCK_MONOTONIC plus the given
error; both senders need the same --start (default: the last whole cycle of that clock). It waits until the plan passes
the pose in which its arm stands, as a controller without a motion of its own must.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path

from datagram import FOLLOWING, STOPPED, SetPoint, decode_state
from plan import Trajectory
from plant import PORT, address

PERIOD_NS = 2_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arm", choices=("a", "b"))
    parser.add_argument("--plan", type=Path, default=Path("plan.json"))
    parser.add_argument("--plant", type=address, default=("127.0.0.1", PORT))
    parser.add_argument("--error-ms", type=float, default=0.0)
    parser.add_argument("--error-after", type=float, default=0.0, metavar="S", help="the error appears so late")
    parser.add_argument("--start", type=int, default=0, metavar="NS", help="the plan's beginning, CLOCK_MONOTONIC")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--fifo", type=int, metavar="PRIORITY", help="run under SCHED_FIFO; needs root")
    options = parser.parse_args()
    if options.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(options.fifo))
    trajectory = Trajectory(json.loads(options.plan.read_text()))
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(options.plant)
    sock.setblocking(False)

    began = due = time.monotonic_ns()
    sequence, states, late_max, flags, previous, refused = 0, 0, 0, 0, 0, ""
    while options.seconds is None or due - began < options.seconds * 1e9:
        due += PERIOD_NS
        ahead = due - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead * 1e-9)
        now = time.monotonic_ns()
        late_max = max(late_max, now - due)
        if now - due > 10 * PERIOD_NS:  # a late cycle is sent once, not made up for
            due = now
        error = round(options.error_ms * 1e6) if now - began >= options.error_after * 1e9 else 0
        q, dq, gripper = trajectory.sample(options.arm, now + error - options.start)
        sequence += 1
        try:
            sock.send(SetPoint(options.arm, sequence, now + error, tuple(q), tuple(dq), gripper).encode())
            while True:
                flags, states = decode_state(sock.recv(256)).flags & (FOLLOWING | STOPPED), states + 1
                if flags != previous:
                    doing = "stopped" if flags & STOPPED else "following" if flags & FOLLOWING else "holding"
                    print(f"{options.arm}: {doing}", flush=True)
                    previous = flags
        except BlockingIOError:
            pass
        except ConnectionRefusedError as error:
            if str(error) != refused:
                refused = str(error)
                print(f"{options.arm}: {refused}: the plant is not running, or not at {options.plant}", file=sys.stderr)
            time.sleep(0.2)
    print(f"{options.arm}: {sequence} set-points, {states} states, own cycle late by {late_max / 1e6:.2f} ms at most")
    return 0


if __name__ == "__main__":
    sys.exit(main())
