#!/bin/bash
# Boots the machine's systemd as PID 1 of namespaces of its own, with an empty /run, until a unit calls
# `systemctl exit`.
#
#   boot.sh FOLDER     starts lab.service of FOLDER/units; FOLDER/state, if it is there, is /var/lib/timevisor;
#                      FOLDER/systemd.log is what systemd says
#
# A systemd that boots empties /tmp, among other things. Here it finds this machine's files read-only, and
# writes to FOLDER, the lab's cache, and file systems in memory only.
#
# Only for hosts with systemd's own cgroup v1 hierarchy, or none.
set -e
folder=$1
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
            "$here/boot.sh" "$folder"
    ) || true
    exit 0
fi

mount --bind "$folder" "$folder"
# The lab's kernels and images, which tests add to.
if [[ -e $folder/cache ]]; then
    cache=$(readlink -f "$folder/cache")
    mount --bind "$cache" "$cache"
fi
mount -o remount,bind,ro /
# A workspace may lie in a folder that is emptied now.
root=$(cd "$here/../.." && pwd)
kept=("$root" "$(readlink -f "${CARGO_TARGET_DIR:-$root/target}")" ${cache:+"$cache"} "$folder")
descriptors=()
for kept_folder in "${kept[@]}"; do
    exec {descriptor}< "$kept_folder"
    descriptors+=("$descriptor")
done
for writable in /run /tmp /var/tmp /var/log /var/lib /etc/systemd/system; do
    mount -t tmpfs -o mode=755 tmpfs "$writable"
done
for index in "${!kept[@]}"; do
    if [[ ! -e ${kept[index]} || ${kept[index]} == /tmp/* || ${kept[index]} == /var/tmp/* ]]; then
        mkdir -p "${kept[index]}"
        mount --no-canonicalize --bind "/proc/self/fd/${descriptors[index]}" "${kept[index]}"
    fi
    exec {descriptors[index]}<&-
done
chmod 1777 /tmp /var/tmp
if touch /.timevisor-lab 2> /dev/null; then
    echo "this machine's files are not read-only: nothing is booted" > "$folder/systemd.log"
    exit 1
fi
mkdir -p /run/lab /run/lock /var/lib/systemd /var/lib/timevisor
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
# Reservations need this one, whose groups systemd leaves alone.
mkdir /sys/fs/cgroup/cpuset
mount -t cgroup -o cpuset cgroup /sys/fs/cgroup/cpuset || rmdir /sys/fs/cgroup/cpuset
cp -r "$folder"/units/. /etc/systemd/system/
if [[ -d $folder/state ]]; then
    mount --bind "$folder/state" /var/lib/timevisor
fi
container=lab exec /lib/systemd/systemd --system --unit=lab.service --log-target=console >> "$folder/systemd.log" 2>&1 < /dev/null
