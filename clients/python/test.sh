#!/bin/sh
# Builds the wheel, installs it into a virtual environment below target/python, and tests it there: test.sh [PYTEST ARGUMENT...]
#
# Needs cargo and, by Debian's names: python3 python3-venv. The rest (tests/requirements.txt) comes from where the system's pip
# is told to look. PYTHON: another interpreter. TIMEVISORD, TIMEVISOR_BUS_PROGRAM: a daemon and a bus that are built already.
# PROFILE=release: the wheel as it is shipped; by default a quick build, which shares most of cargo's own. WHEEL_ONLY=1: no tests;
# prints where the wheel is.
set -eu
room=$(dirname "$(realpath "$0")")
root=$(realpath "$room/../..")
: "${CARGO_TARGET_DIR:=$root/target}" "${PYTHON:=python3}" "${PROFILE:=dev}"
export CARGO_TARGET_DIR PYTHONDONTWRITEBYTECODE=1
work=$CARGO_TARGET_DIR/python
# One for each interpreter: /usr's and another's of the same version are not the same.
venv=$work/venv$("$PYTHON" -c 'import sys; print(sys.base_prefix.replace("/", "-") + "-%d.%d" % sys.version_info[:2])')

[ -x "$venv/bin/pip" ] || "$PYTHON" -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$room/tests/requirements.txt"

if [ -z "${WHEEL_ONLY:-}" ]; then
    # Not `-p timevisord`, which chooses other features of shared dependencies: see .ci/program.
    programs=
    [ -n "${TIMEVISORD:-}" ] || programs="--bin timevisord"
    [ -n "${TIMEVISOR_BUS_PROGRAM:-}" ] || programs="$programs --bin timevisor-bus"
    # shellcheck disable=SC2086 # several words
    [ -z "$programs" ] || (cd "$root" && cargo build --quiet --locked --workspace $programs)
    : "${TIMEVISORD:=$CARGO_TARGET_DIR/debug/timevisord}" "${TIMEVISOR_BUS_PROGRAM:=$CARGO_TARGET_DIR/debug/timevisor-bus}"
fi

rm -rf "$work/wheels"
"$venv/bin/maturin" build --profile "$PROFILE" --quiet --interpreter "$venv/bin/python" --manifest-path "$room/Cargo.toml" --out "$work/wheels"
if [ -n "${WHEEL_ONLY:-}" ]; then
    echo "$work"/wheels/*.whl
    exit 0
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$work"/wheels/*.whl

# Not below the room: its python/timevisor has no extension module, and must not be imported.
cd "$work"
export TIMEVISORD TIMEVISOR_BUS_PROGRAM
exec "$venv/bin/python" -m pytest -c "$room/pyproject.toml" --rootdir "$room" -o cache_dir="$work/pytest" "$room/tests" "$@"
