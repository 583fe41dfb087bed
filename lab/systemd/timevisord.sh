#!/bin/bash
# timevisord with everything that packaging/timevisord.service restricts, as a service of the systemd
# that runs here. The only differences are the folders that it may write: the test's instead of its own.
#
#   timevisord.sh PROGRAM ARGUMENTS...
root=$(cd "$(dirname "$0")/../.." && pwd)
unit=timevisord-$$.service
log=$(readlink "/proc/$$/fd/1")
mkdir -p /run/systemd/system
{
    echo "[Unit]"
    echo "DefaultDependencies=no"
    echo "[Service]"
    sed -n '/^\[Service\]/,/^\[Install\]/p' "$root/packaging/timevisord.service" |
        grep -E '^[A-Z]' | grep -vE '^(Exec|Restart|RuntimeDirectory|StateDirectory)'
    # A drop-in of the package, if the test is about one.
    [[ -z ${LAB_DROP_IN:-} ]] || grep -E '^[A-Z]' "$LAB_DROP_IN"
    # The test's folders, and this workspace where ProtectHome= or PrivateTmp= would hide it.
    echo "ReadWritePaths=/run/lab $LAB_FOLDER"
    echo "BindReadOnlyPaths=$root $(dirname "$1")"
    echo "BindPaths=$LAB_FOLDER"
    echo "ExecStart=$*"
    echo "StandardOutput=append:$log"
    echo "StandardError=append:$log"
} > "/run/systemd/system/$unit"
trap 'systemctl kill --signal=TERM "$unit"' TERM
# A test that ends, or kills the daemon, kills this script.
setsid bash -c 'while kill -0 "$1" 2>/dev/null; do sleep 0.1; done; systemctl kill --signal=KILL "$2"' - $$ "$unit" \
    < /dev/null > /dev/null 2>&1 &
systemctl daemon-reload
systemctl start --no-block "$unit"
# A unit whose start is still queued is inactive, and has a job.
runs() {
    [[ $(systemctl show --property=ActiveState --property=Job "$unit") =~ =(active|activating|deactivating|reloading)|Job=[1-9] ]]
}
while runs; do
    sleep 0.1
done
status=$(systemctl show --property=ExecMainStatus --value "$unit")
rm "/run/systemd/system/$unit"
exit "${status:-0}"
