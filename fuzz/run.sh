#!/bin/bash
# Builds and runs the fuzz targets; `make fuzz` calls it.
#
#   run.sh [TARGET...]       all of them by default
#
#   SECONDS_EACH  CPU-seconds (user + system) per target, default 600. CPU and not wall clock: on a busy machine
#                 libFuzzer's own -max_total_time would count the waiting.
#   JOBS          targets at the same time, default 1
#   RESULTS       default target/results/fuzz.json beside the root's Cargo.toml
#   LOGS          default target/fuzz-logs
#
# Why RUSTC_BOOTSTRAP: the sanitizer and coverage flags of cargo-fuzz need a nightly compiler or this switch. The house
# has one compiler, the stable one that builds everything else; it brings the AddressSanitizer runtime along.
#
# What is found: fuzz/artifacts/TARGET/crash-* and the log. To see it again: the binary with the file as its argument.
# Whatever grew in fuzz/corpus is gone on from at the next run; it is not committed. Small seeds are, in corpus-seeds.
set -euo pipefail

fuzz=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$fuzz")
seconds=${SECONDS_EACH:-600}
jobs=${JOBS:-1}
results=${RESULTS:-$root/target/results/fuzz.json}
logs=${LOGS:-$root/target/fuzz-logs}
built=${CARGO_TARGET_DIR:-$fuzz/target}/$(uname -m)-unknown-linux-gnu/release
export RUSTC_BOOTSTRAP=1 SECONDS_EACH=$seconds LOGS=$logs
# Rust's own linker options define some symbols twice, which is no defect here.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_odr_violation=0}

# Two targets have seeds elsewhere too: every scenario, and this machine's leap second table behind 32 bytes of choices.
seeds_of() {
    local own=$fuzz/corpus-seeds/$1
    if [[ -d $own ]]; then echo "$own"; fi
    if [[ $1 == scenario ]]; then echo "$root/scenarios"; fi
}

# One target, until its CPU time is used up or it crashes. libFuzzer runs in rounds that go on from each other's corpus,
# because it counts wall-clock time only.
run_one() {
    local target=$1 log=$LOGS/$1.log corpus=$fuzz/corpus/$1 artifacts=$fuzz/artifacts/$1
    local used=0 executions=0 coverage=0 crashes=0 verdict=clean round figures left
    local options=(-max_len=8192 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "-artifact_prefix=$artifacts/")
    if [[ -f $fuzz/dictionaries/$target.dict ]]; then options+=("-dict=$fuzz/dictionaries/$target.dict"); fi
    mkdir -p "$corpus" "$artifacts"
    : >"$log"
    local before
    before=$(found "$artifacts")
    for ((round = 1; ; round++)); do
        left=$((seconds - used / 1000))
        if ((left <= 0)); then break; fi
        echo "=== round $round: $left s left ===" >>"$log"
        local status=0
        # shellcheck disable=SC2046 # folder names here have no blanks
        figures=$(
            TIMEFORMAT='%U %S'
            { time "$built/$target" "${options[@]}" "-max_total_time=$left" "$corpus" $(seeds_of "$target") \
                >>"$log" 2>&1; } 2>&1
        ) || status=$?
        used=$((used + $(awk '{ printf "%d", ($1 + $2) * 1000 }' <<<"$figures")))
        executions=$((executions + $(last "$log" 's/^stat::number_of_executed_units: *\([0-9]*\).*/\1/p')))
        coverage=$(last "$log" 's/.* cov: \([0-9]*\) .*/\1/p')
        crashes=$(($(found "$artifacts") - before))
        if ((status != 0 || crashes > 0)); then
            verdict="CRASHED (see $log)"
            crashes=$((crashes > 0 ? crashes : 1))
            break
        fi
    done
    printf '%-15s %6d CPU s %12d executions %6d edges  %s\n' \
        "$target" $((used / 1000)) "$executions" "$coverage" "$verdict"
    printf '{"target":"%s","seconds":%d,"executions":%d,"coverage":%d,"crashes":%d}\n' \
        "$target" $((used / 1000)) "$executions" "$coverage" "$crashes" >"$log.json"
}

# Crashes, timeouts and what took too much memory; inputs that were merely slow are kept there, too.
found() {
    find "$1" -type f ! -name 'slow-unit-*' | wc -l
}

# The last match in the newest round, 0 if there is none.
last() {
    local match
    match=$(awk '/^=== round /{ n = 0 } { lines[++n] = $0 } END { for (i = 1; i <= n; i++) print lines[i] }' "$1" |
        sed -n "$2" | tail -n 1)
    echo "${match:-0}"
}

collate() {
    local target rows=() status=0
    for target in "$@"; do rows+=("$(cat "$LOGS/$target.log.json")"); done
    # The compiler's switch for the sanitizer would have cargo build the rest of the house again.
    printf '%s\n' "${rows[@]}" |
        env -u RUSTC_BOOTSTRAP cargo run --quiet --manifest-path "$root/Cargo.toml" -p timevisor-results -- fuzz "$results"
    if printf '%s\n' "${rows[@]}" | grep -q '"crashes":[1-9]'; then status=1; fi
    return $status
}

if [[ ${1:-} == --one ]]; then
    run_one "$2"
    exit
fi

mapfile -t all < <(cargo fuzz list --fuzz-dir "$fuzz")
targets=("${@:-${all[@]}}")
for target in "${targets[@]}"; do
    if [[ ! " ${all[*]} " == *" $target "* ]]; then
        echo "there is no fuzz target $target; there are ${all[*]}" >&2
        exit 2
    fi
done
mkdir -p "$logs"
if [[ -z ${BUILT:-} ]]; then
    for target in "${targets[@]}"; do
        if ((${#targets[@]} == ${#all[@]})); then target=; fi
        # shellcheck disable=SC2086 # no target means all
        (cd "$root" && cargo fuzz build --fuzz-dir "$fuzz" $target)
        if [[ -z $target ]]; then break; fi
    done
fi
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} "$0" --one {}
collate "${targets[@]}"
