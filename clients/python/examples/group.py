"""Act together: join a group, wait for another member, propose a time, print who fired.

python3 group.py NAME [PAGE [CHANNEL]]

Run it twice, as `left` and as `right`. It needs timevisord and timevisor-bus (docs/how-to/act-together.md).
"""

import sys

import timevisor
from timevisor.group import Fire, Outcome

SECOND = 1_000_000_000
name = sys.argv[1]
client = timevisor.connect(*sys.argv[2:4])

with client.join("cell7", name, timevisor.Requirement.within(SECOND)) as group:
    group.accept("all")
    proposals = group.proposals()
    group.wait_for_names(["left", "right"], timeout_ns=30 * SECOND)
    # Both have an inbox for proposals from here on.
    group.barrier("ready", 2, timeout_ns=30 * SECOND)
    if name == "left":
        at_ns = client.timeline("tai").now().latest_ns + SECOND
        group.propose(at_ns, b"grip the part", late_at_most_ns=SECOND // 4)

    while True:
        event = proposals.get(timeout_ns=30 * SECOND)
        if isinstance(event, Fire):
            print("fire     ", event.payload.decode(), "at", event.earliest_ns, "to", event.latest_ns, "ns")
        elif isinstance(event, Outcome) and not event.unknown:
            print("fired    ", *(fired.who.name for fired in event.fired))
            break
