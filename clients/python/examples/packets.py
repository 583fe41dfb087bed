"""When did a packet arrive? With the kernel's stamp, not with the moment at which the program woke up.

python3 packets.py [PAGE]
"""

import socket
import struct
import sys

import timevisor

SO_TIMESTAMPNS = 35  # include/uapi/asm-generic/socket.h: CLOCK_REALTIME, in nanoseconds

tai = timevisor.connect(*sys.argv[1:2]).timeline("tai")
stamps = tai.packet_stamps()  # before the socket is opened

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.bind(("127.0.0.1", 0))
    sent = tai.stamp()
    receiver.sendto(b"a packet from somewhere", receiver.getsockname())

    data, control, flags, sender = receiver.recvmsg(2048, 1024)
    seconds, nanoseconds = next(
        struct.unpack("=qq", value) for level, kind, value in control if kind == SO_TIMESTAMPNS
    )
    first, last = stamps.stamp_of(seconds * 1_000_000_000 + nanoseconds)  # soon

arrival = tai.convert_between(first, last)  # now, or any time later
print("earliest ", arrival.earliest_ns, "ns")
print("latest   ", arrival.latest_ns, "ns")
flight = tai.span(sent, last)
print("flight   ", flight.longest_ns, "ns at most")
