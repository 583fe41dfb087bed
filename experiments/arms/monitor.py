"""Measures how far the two tips have come apart, and decides on the protective stop. Pure.

While both arms grip the part, the vector between their tips must stay what it was when both had gripped. The deviation
is the distance between the two vectors, in the world's frame: the plan never turns the part.
"""

from __future__ import annotations

import numpy as np

STOP_MM = 3.0
# After a stop is released the arms are still apart. They may return, but not come apart by as much once more.
REARM_MM = STOP_MM / 2
# Both grips are closed for so long before the reference is taken: the fingers come to rest first.
SETTLE_NS = 150_000_000


class Monitor:
    """The deviation's state over time. `enabled` False measures without stopping."""

    def __init__(self, enabled: bool = True, limit_mm: float = STOP_MM):
        self.enabled, self.limit_mm = enabled, limit_mm
        self.stopped = False
        self._reference: np.ndarray | None = None
        self._touching_since: int | None = None
        self._allowed_mm = limit_mm

    @property
    def gripped(self) -> bool:
        """Whether both arms hold the part and a reference is there."""
        return self._reference is not None

    def update(self, now_ns: int, between: np.ndarray, closed: bool, touching: bool) -> tuple[np.ndarray | None, bool]:
        """Takes one step's measurement; returns the deviation (3, mm; None without a grip) and whether to stop now.

        `between` is the vector from tip a to tip b (3, m); `closed`: both grippers are commanded to hold;
        `touching`: all four pads touch the part.
        """
        if not closed:
            self._reference, self._touching_since = None, None
            return None, False
        if self._reference is None:
            if not touching:
                self._touching_since = None
            elif self._touching_since is None:
                self._touching_since = now_ns
            elif now_ns - self._touching_since >= SETTLE_NS:
                self._reference, self._allowed_mm = between.copy(), self.limit_mm
            if self._reference is None:
                return None, False
        deviation = (between - self._reference) * 1e3
        distance = float(np.linalg.norm(deviation))
        if distance < REARM_MM:
            self._allowed_mm = self.limit_mm
        stops = self.enabled and not self.stopped and distance > self._allowed_mm
        self.stopped |= stops
        if stops:
            self._allowed_mm = distance + self.limit_mm
        return deviation, stops

    def release(self) -> None:
        """Ends a stop. Until the arms are together again, REARM_MM, a further STOP_MM is allowed."""
        self.stopped = False
