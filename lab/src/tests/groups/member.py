"""The same as member.c: member.py NAME BUS AUTHORITY KEY"""

import sys

import timevisor
from timevisor.group import Fire, Gone

name, bus, authority, key = sys.argv[1:]
with timevisor.connect().join("cell7", name, bus=bus, authority=authority, key=key) as group:
    proposals, watch = group.proposals(), group.watch()
    group.accept("all")
    print("joined", flush=True)
    gone = False
    while not gone:
        try:
            event = proposals.get(timeout_ns=1_000_000_000)
        except timevisor.TimedOut:
            event = None
        if isinstance(event, Fire):
            print("fire", event.payload.decode(), event.earliest_ns, event.latest_ns, event.late_ns, flush=True)
        while report := watch.on_ready():
            gone = gone or isinstance(report, Gone) and report.who.name == "host"
