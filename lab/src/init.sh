#!/bin/sh
# The lab guest's init: mounts, loads modules, names the virtio ports, runs the test's snippet, then leaves.
export PATH=/sbin:/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
exec </dev/ttyS0 >/dev/ttyS0 2>&1

while read -r module; do
    insmod "/lab/modules/$module" || echo "LAB-INSMOD-FAILED $module"
done </lab/modules/order

# As the udev rules of packaging/60-timevisor.rules.
for clock in /sys/class/ptp/ptp*; do
    case $(cat "$clock/clock_name" 2>/dev/null) in vmclock*) ln -sf "${clock##*/}" /dev/ptp_vmclock ;; esac
done

# udev would make these names. The ports appear a moment after the device, the lab's own port last.
name_ports() {
    mkdir -p /dev/virtio-ports
    for port in /sys/class/virtio-ports/vport*; do
        name=$(cat "$port/name" 2>/dev/null) && [ -n "$name" ] && ln -sf "../${port##*/}" "/dev/virtio-ports/$name"
    done
}
tries=0
while name_ports; [ ! -e /dev/virtio-ports/org.timevisor.lab ] && [ $tries -lt 400 ]; do
    tries=$((tries + 1))
    sleep 0.05
done

. /lab/serve

# From here on only warnings reach the console, so that kernel lines do not cut through the test's own.
dmesg -n 5
echo "LAB-READY $(uname -r)"
. /lab/run
echo "LAB-DONE $?"
