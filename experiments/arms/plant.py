"""The plant in real time: two arms and a bar at 500 Hz, moved by set-points that come over UDP.

python3 plant.py [--seconds N | --until-stopped] [--record run.trace]

Step k belongs to the time start + k * 2 ms. A step that runs late computes what it would have computed in time: it
uses the set-points that had arrived by its nominal time, by the kernel's receive stamps. README.md has the datagrams
and the commands of the control socket. The plant needs no synchronized clock and reads none.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import socket
import struct
import sys
import time
from array import array
from collections import Counter
from pathlib import Path

import numpy as np

import cell
import tracefile
from datagram import FOLLOWING, GRIPPED, STOPPED, Malformed, SetPoint, State, decode_set_point
from physics import Physics

PORT, CONTROL_PORT = 47110, 47111
SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h: the kernel's receive stamp, CLOCK_REALTIME
MAX_BEHIND_NS = 500_000_000  # beyond this the machine slept: the plant leaves out what it missed, and holds
AFTER_STOP_NS = 500_000_000  # --until-stopped still records the way into standstill
RECENT_STEPS = 15_000  # half a minute
PER_STEP = 64  # datagrams per socket and step: a flood must not hold up the physics


class Plant:
    """The sockets around Physics. Not thread-safe: `serve` runs everything."""

    def __init__(
        self,
        listen: tuple[str, int],
        control: tuple[str, int],
        writer: tracefile.Writer | None = None,
        linked: bool = True,
    ):
        self.physics, self.writer = Physics(linked=linked), writer
        self.socket, self.control = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        for sock, address in ((self.socket, listen), (self.control, control)):
            sock.setblocking(False)
            sock.bind(address)
        self.refused: Counter = Counter()  # by cause
        self.stops, self.linked_holds, self.skipped_steps = 0, 0, 0
        self.late_ns = array("q")
        self.deviation_max_mm = 0.0
        self.running, self._stopped_at = True, None
        self._answers: list[tuple[SetPoint, tuple]] = []

    def serve(self, seconds: float | None = None, until_stopped: bool = False) -> None:
        """Steps until the time is over, a protective stop (when asked for), `quit`, or `self.running` is False."""
        due = time.monotonic_ns() + cell.STEP_NS
        end = due + int(seconds * 1e9) if seconds else None
        while self.running and (end is None or due < end):
            ahead = due - time.monotonic_ns()
            if ahead > 0:
                time.sleep(ahead * 1e-9)
            late = time.monotonic_ns() - due
            if late > MAX_BEHIND_NS:
                missed = late // cell.STEP_NS
                self.skipped_steps += missed
                due += missed * cell.STEP_NS
                self.physics.hold()
                self._log({"event": "behind", "step": self.physics.step_count, "at_ns": due, "skipped": missed})
            self.late_ns.append(late)
            self._receive()
            self.physics.step(due)
            self._after_step(late)
            self._serve_control()
            if until_stopped and self._stopped_at is not None and due - self._stopped_at > AFTER_STOP_NS:
                break
            due += cell.STEP_NS
        if self.writer:
            self.writer.event({"event": "end", **self.status(whole=True)})

    def _receive(self) -> None:
        offset = time.time_ns() - time.monotonic_ns()  # a stepped CLOCK_REALTIME costs one cycle at most
        for _ in range(PER_STEP):
            try:
                data, ancillary, _, sender = self.socket.recvmsg(256, 64)
            except BlockingIOError:
                return
            except OSError:  # an earlier answer was refused: its sender is gone
                continue
            now = time.monotonic_ns()
            arrival = now
            for level, kind, value in ancillary:
                if kind == SO_TIMESTAMPNS and len(value) == 16:
                    seconds, nanoseconds = struct.unpack("=qq", value)
                    arrival = min(now, max(seconds * 1_000_000_000 + nanoseconds - offset, now - MAX_BEHIND_NS))
            try:
                point = decode_set_point(data)
            except Malformed as error:
                self.refused[error.cause] += 1
                continue
            if self.physics.drives[point.arm].offer(arrival, point):
                self._answers.append((point, sender))

    def _after_step(self, late: int) -> None:
        physics = self.physics
        for event in physics.events:
            self._log(event)
            self.linked_holds += event["event"] == "linked_hold"
            if event["event"] == "stop":
                self.stops += 1
                self._stopped_at = event["at_ns"]
        physics.events.clear()
        following = [physics.drives[arm].following for arm in cell.ARMS]
        common = STOPPED * physics.monitor.stopped | GRIPPED * physics.monitor.gripped
        distance = float("nan") if physics.deviation is None else float(np.linalg.norm(physics.deviation))
        if distance > self.deviation_max_mm:  # never for NaN
            self.deviation_max_mm = distance
        for point, sender in self._answers:
            index = physics.index
            q, dq = physics.data.qpos[index.qpos[point.arm]], physics.data.qvel[index.qvel[point.arm]]
            flags = common | FOLLOWING * following[cell.ARMS.index(point.arm)]
            measured = (tuple(q), tuple(dq), physics.gripper(point.arm), distance, physics.step_count)
            state = State(point.arm, flags, point.sequence, point.stamp_ns, *measured)
            try:
                self.socket.sendto(state.encode(), sender)
            except OSError:
                self.refused["answer"] += 1
        self._answers.clear()
        if self.writer:
            flags = common | FOLLOWING * following[0] | (FOLLOWING << 4) * following[1]
            self.writer.record(tracefile.record_of(physics, late, flags))

    def _log(self, event: dict) -> None:
        event["realtime_ns"] = time.time_ns()
        if event["event"] in ("stop", "behind"):
            event["plant_late_ns"] = self.late_ns[-1] if self.late_ns else 0
            event["plant_late_max_1s_ns"] = max(self.late_ns[-500:], default=0)
        if self.writer:
            self.writer.event(event)
        print(json.dumps(event), flush=True)

    def _serve_control(self) -> None:
        try:
            data, sender = self.control.recvfrom(256)
        except OSError:
            return
        try:
            answer = self._command(data.decode().split())
        except (ValueError, UnicodeDecodeError) as error:
            self.refused["command"] += 1
            answer = {"error": str(error)}
        try:
            self.control.sendto(json.dumps(answer).encode() + b"\n", sender)
        except OSError:
            self.refused["answer"] += 1

    def _command(self, words: list[str]) -> dict:
        match words:
            case ["status"]:
                return self.status()
            case ["release"]:
                return {"released": self.physics.release()}
            case ["reset"]:
                self.physics.reset()
                return {"reset": True}
            case ["push", arm, *force, steps] if arm in cell.ARMS and len(force) == 3:
                self.physics.push(arm, np.clip([float(f) for f in force], -1000, 1000), min(int(steps), 500))
                return {"pushed": arm}
            case ["quit"]:
                self.running = False
                return self.status()
        raise ValueError("commands: status, release, reset, quit, push a|b FX FY FZ STEPS (newtons, 2 ms each)")

    def status(self, whole: bool = False) -> dict:
        """Returns the counters and the state, as `status` answers them.

        The lateness is that of the last RECENT_STEPS, or of the whole run, which takes longer than a step.
        """
        late = np.array((self.late_ns if whole else self.late_ns[-RECENT_STEPS:]) or [0])
        physics = self.physics
        distance = None if physics.deviation is None else round(float(np.linalg.norm(physics.deviation)), 4)
        return {
            "step": physics.step_count,
            "skipped_steps": self.skipped_steps,
            "stopped": physics.monitor.stopped,
            "stops": self.stops,
            "linked_holds": self.linked_holds,
            "gripped": physics.monitor.gripped,
            "deviation_mm": distance,
            "deviation_max_mm": round(self.deviation_max_mm, 4),
            "bar": [round(float(v), 5) for v in physics.bar()],
            "refused": dict(self.refused),
            "arms": {arm: {"following": d.following, **d.counts} for arm, d in physics.drives.items()},
            "late_us": {
                **{f"p{p}": round(float(np.percentile(late, p)) / 1e3, 1) for p in (50, 99, 99.9)},
                "max": round(float(late.max()) / 1e3, 1),
                "over_2_ms": int((late > cell.STEP_NS).sum()),
            },
        }

    def close(self) -> None:
        """Closes the sockets and the recording."""
        self.socket.close()
        self.control.close()
        if self.writer:
            self.writer.close()


def address(text: str) -> tuple[str, int]:
    """Returns the host and port of `HOST:PORT`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    return host or "127.0.0.1", int(port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", type=address, default=("127.0.0.1", PORT), help=f"default 127.0.0.1:{PORT}")
    parser.add_argument("--control", type=address, default=("127.0.0.1", CONTROL_PORT), help="keep it local")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--until-stopped", action="store_true", help="end 0.5 s after the first protective stop")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--record-every", type=int, default=1, metavar="N", help="keep each Nth step")
    parser.add_argument("--no-link", action="store_true", help="one arm goes on when the other gets no set-points")
    parser.add_argument("--fifo", type=int, metavar="PRIORITY", help="run under SCHED_FIFO; needs root")
    options = parser.parse_args()
    if options.fifo:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(options.fifo))
    header = {"step_ns": cell.STEP_NS, "every": options.record_every, "realtime_ns": time.time_ns()}
    header |= {"monotonic_ns": time.monotonic_ns(), "joints": list(cell.JOINTS)}
    writer = tracefile.Writer(options.record, header, options.record_every) if options.record else None
    plant = Plant(options.listen, options.control, writer, not options.no_link)

    def stop(*_):
        plant.running = False

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    gc.freeze()  # the model's objects need no second look while the plant runs
    print(json.dumps({"event": "listening", "listen": options.listen, "control": options.control}), flush=True)
    try:
        plant.serve(options.seconds, options.until_stopped)
        print(json.dumps({"event": "end", **plant.status(whole=True)}), flush=True)
    finally:
        plant.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
