"""A clock that a test drives by hand, with the same handle type as a real one. Waits on it wake as soon as it is moved."""

from ._timevisor import Clock

__all__ = ["Clock"]
