"""For tests: a clock that is driven by hand, with the same handle type as a real one, whose waits wake as soon as it is moved; and
a bus in this process, for groups."""

from ._timevisor import Bus, Clock

__all__ = ["Bus", "Clock"]
