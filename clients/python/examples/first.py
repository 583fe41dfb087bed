"""The first program: bind, read, wait. The same in every language, on a host and in a guest.

python3 first.py [PAGE [CHANNEL]]
"""

import sys

import timevisor

client = timevisor.connect(*sys.argv[1:3])
print("page     ", client.page.path)
for other in client.page.passed_over:
    print("not      ", f"{other.place}: {other.why}")

with client.bind("tai", timevisor.Requirement.within(1_000_000_000)) as tai:
    now = tai.now()
    print("earliest ", now.earliest_ns, "ns")
    print("estimate ", now.estimate_ns, "ns")
    print("latest   ", now.latest_ns, "ns")
    print("status   ", now.status)
    print("met      ", now.met)

    waited = tai.wait_past(now.estimate_ns + 10_000_000)
    print("lateness ", waited.lateness_ns, "ns")
