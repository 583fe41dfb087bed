#!/bin/bash
# A Debian on a disk, as an installation makes it: every package's own scripts have run, and it boots into its own systemd.
#
#   make.sh SUITE MIRROR MODULES SERVE IMAGE
#
# MODULES is the folder of a kernel's modules, named by its version; SERVE the file with the lab's shell. Needs root, mmdebstrap,
# e2fsprogs and kmod. This machine's own packages are not touched.
set -euo pipefail
suite=$1 mirror=$2 modules=$3 serve=$4 image=$5
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$image.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
source="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror"
# Translations and documents take a third of the time and are read by nobody; manual pages of ours are looked at.
mmdebstrap --quiet --variant=minbase --format=directory --include="$(xargs <"$here/packages" | tr ' ' ,)" \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-include=/usr/share/man/man*/timevisor*' \
    "$suite" "$root" "$source $suite main" "$source $suite-updates main"

# A machine that was booted before: an empty id would enable units by presets.
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
echo lab >"$root/etc/hostname"
mkdir -p "$root/usr/lib/modules"
cp -r --no-preserve=ownership "$modules" "$root/usr/lib/modules/"
depmod -b "$root" "${modules##*/}"

# The lab's shell on a virtio port, and a network to its servers.
install -D -m 644 "$serve" "$root/lab/serve"
install -m 644 "$here/run" "$root/lab/run"
install -m 644 "$here/lab-serve.service" "$root/etc/systemd/system/"
install -m 644 "$here/10-lab.network" "$root/etc/systemd/network/"
ln -s ../lab-serve.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -s /usr/lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/"
# Nobody logs in at the console, whose device takes a minute and a half to come under load.
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@.service"
# chronyd's servers are the test's; there is no name service.
sed -i '/^pool/d' "$root/etc/chrony/chrony.conf"

mke2fs -q -t ext4 -d "$root" -E lazy_itable_init=1 "$image" 2500M
