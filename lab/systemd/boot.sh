#!/bin/bash
# Boots the machine's systemd as PID 1 of namespaces of its own, and runs lab tests in it as a service.
#
#   boot.sh PROGRAM FOLDER TEST...     verdicts in FOLDER/TEST/verdict.json, output in FOLDER/output.log
#
# Only for hosts with systemd's own cgroup v1 hierarchy, or none.
set -e
program=$1 folder=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)

if [[ ${IN_NAMESPACES:-} != 1 ]]; then
    hierarchy=$(mktemp -d)
    mount -t cgroup -o none,name=systemd cgroup "$hierarchy"
    own=$hierarchy/tvlab-$$
    mkdir -p "$own"
    # What systemd makes is below ours, and goes with it.
    trap 'find "$own" -depth -type d -exec rmdir {} \; 2>/dev/null; umount "$hierarchy"; rmdir "$hierarchy"' EXIT
    (
        echo "$BASHPID" > "$own/cgroup.procs"
        IN_NAMESPACES=1 exec unshare --mount --pid --cgroup --uts --fork --kill-child --mount-proc --propagation private \
            "$here/boot.sh" "$program" "$folder" "$@"
    ) || true
    exit 0
fi

mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lab /run/lock
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount -t tmpfs tmpfs /etc/systemd/system
mount -t tmpfs tmpfs /var/lib/systemd
{
    echo "[Unit]"
    echo "DefaultDependencies=no"
    echo "[Service]"
    echo "Type=oneshot"
    echo "TimeoutStartSec=infinity"
    # What a runner sets, and the daemon under the unit.
    echo "Environment=TIMEVISOR_LAB_OWNER=1 TMPDIR=/run/lab LAB_DAEMON=$here/timevisord.sh LAB_FOLDER=$folder"
    echo "Environment=ATTACK_S=${ATTACK_S:-20} PATH=$PATH"
    for test in "$@"; do
        mkdir -p "$folder/$test"
        echo "ExecStart=-$program --dir $folder test-one $test"
    done
    echo "ExecStopPost=systemctl exit"
    echo "StandardOutput=append:$folder/output.log"
    echo "StandardError=append:$folder/output.log"
} > /etc/systemd/system/lab.service
container=lab exec /lib/systemd/systemd --system --unit=lab.service --log-target=console > "$folder/systemd.log" 2>&1 < /dev/null
