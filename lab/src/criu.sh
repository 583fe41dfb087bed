#!/bin/sh
# Two "hosts" for a container in one VM: run directories /run/a and /run/b, each with a timevisord's page, and a bundle for each.
#
#   criu.sh setup            the box: a root that is not the initramfs, which pivot_root(2) refuses; bundles a and b in it
#   criu.sh runc ARGUMENT... runc in the box
#
# Debian's runc and CRIU. No network namespace: CRIU would need ip and iptables to dump one.
set -eu
export PATH=/sbin:/bin:/usr/sbin:/usr/bin

bundle() {
    root=/box/$1/rootfs
    mkdir -p "$root/bin" "$root/proc" "$root/dev" "$root/out" "$root/run/timevisor"
    cp /bin/lab-age "$root/bin/"
    touch "$root/run/timevisor/clock"
    cat >"/box/$1/config.json" <<JSON
{"ociVersion": "1.0.2",
 "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/lab-age", "/out/ages"], "env": ["PATH=/bin"], "cwd": "/",
             "capabilities": {}, "noNewPrivileges": true},
 "root": {"path": "rootfs", "readonly": true},
 "mounts": [
   {"destination": "/proc", "type": "proc", "source": "proc"},
   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
   {"destination": "/out", "type": "bind", "source": "/out", "options": ["bind", "rw"]},
   {"destination": "/run/timevisor/clock", "type": "bind", "source": "/run/$1/clock",
    "options": ["bind", "ro", "nosuid", "nodev", "noexec"]}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}], "cgroupsPath": "/lab"}}
JSON
}

case $1 in
setup)
    ip link set lo up 2>/dev/null || true
    mount -t cgroup2 cgroup /sys/fs/cgroup
    mkdir -p /box
    mount -t tmpfs box /box
    mkdir -p /box/out /box/image /box/tmp
    for folder in bin lib lib64 usr etc proc sys dev run; do
        [ -d "/$folder" ] || continue
        mkdir -p "/box/$folder"
        mount --rbind "/$folder" "/box/$folder"
    done
    bundle a
    bundle b
    ;;
runc)
    exec unshare -m sh -c 'cd /box && mount --move . / && exec chroot . "$@"' sh "$@" </dev/null
    ;;
esac
