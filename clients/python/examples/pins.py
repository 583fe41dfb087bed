"""A button and a valve: when was it pressed, and open the valve 200 ms after that, or not at all.

python3 pins.py CHIP BUTTON VALVE [PAGE]
"""

import sys

import timevisor

chip, button, valve = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tai = timevisor.connect(*sys.argv[4:5]).timeline("tai")
good = tai.with_requirement(timevisor.Requirement.within(1_000_000))

output = timevisor.OutputLine(chip, valve)
events = tai.line_events(chip, button, "rising")
while True:
    try:
        event = next(events)
    except timevisor.Unplaced as error:
        print("pressed  ", error, error.lost, "lost before")
        continue
    pressed = event.reading
    print("pressed  ", pressed.earliest_ns, "..", pressed.latest_ns, "ns,", event.lost, "lost before")
    try:
        opened = output.at(good, pressed.estimate_ns + 200_000_000, True)
        print("opened   ", opened.reading.earliest_ns, "..", opened.reading.latest_ns, "ns,", opened.lateness_ns, "ns late")
    except (timevisor.TooLateError, timevisor.NotMet, timevisor.DisruptedError) as error:
        print("closed   ", error)
    finally:
        # Also when it has opened, but when is not known (Unplaced), or Ctrl-C ends this.
        output.set(False)
