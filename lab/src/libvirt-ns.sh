# PID 1 of a private libvirtd's namespaces; $1 is its directory on the host, then come pairs of paths: the first is seen
# in the place of the second. Everything here is gone when it ends.
set -e
mount -t proc proc /proc
# libvirt would make cgroups that outlive us; whoever wants some ($LAB_CONTROLLERS, cgroup v1) removes them.
umount -l /sys/fs/cgroup 2>/dev/null || :
if [ -n "$LAB_CONTROLLERS" ]; then
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    for controller in $LAB_CONTROLLERS; do
        mkdir "/sys/fs/cgroup/$controller"
        mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
    done
fi

# A /dev without /dev/kvm: one that does not work makes libvirt probe QEMU again for every domain.
mkdir -p "$1/dev"
mount -t tmpfs -o mode=755 dev "$1/dev"
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$1/dev"
mkdir "$1/dev/pts" "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
ln -s pts/ptmx "$1/dev/ptmx"
# The host's own mounts there go first: libvirt moves each into QEMU's namespace, and cannot move a covered one.
while read -r _ target _; do
    case $target in /dev | /dev/*) echo "$target" ;; esac
done </proc/self/mounts | sort -r | while read -r target; do umount -l "$target"; done
mount --move "$1/dev" /dev

for directory in /run /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do
    mount -t tmpfs -o mode=755 tmpfs "$directory"
done
mount --bind "$1/etc" /etc/libvirt
shift
while [ $# -ge 2 ]; do
    mount --bind "$1" "$2"
    shift 2
done

libvirtd &
libvirtd=$!
# The shell reaps what QEMU's daemonizing leaves to it; without that `virsh create` would hang.
while kill -0 $libvirtd 2>/dev/null; do
    sleep 1 &
    wait $!
done
