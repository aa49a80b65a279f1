#!/usr/bin/env bash
# Fuzzes each target (src/bin) from its committed corpus, two at a time. Nothing is added to the corpus:
# an input that breaks a promise is left in fuzz/artifacts, and belongs into the corpus once it is mended.
#
#   fuzz/run.sh [TARGET...]     default: all
#
# SECONDS_EACH  how long each one runs   (default: 60)
set -euo pipefail
cd "$(dirname "$0")"
seconds=${SECONDS_EACH:-60}

targets=("$@")
if [ "${#targets[@]}" = 0 ]; then
    for file in src/bin/*.rs; do
        targets+=("$(basename "$file" .rs)")
    done
fi

# Counters of coverage are all that is wanted: safe Rust needs no sanitizer, and berth builds on stable.
RUSTC_BOOTSTRAP=1 ../tools/cargo.sh fuzz build --sanitizer none
built=${CARGO_TARGET_DIR:-target}/$(rustc --print host-tuple)/release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fuzz() {
    local target=$1
    mkdir -p "$work/$target" "artifacts/$target"
    if "$built/$target" "$work/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        > "$work/$target.log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/$target.log")
        echo "$target: $runs inputs, none broke a promise"
    else
        tail -n 60 "$work/$target.log"
        echo "$target: broken; see fuzz/artifacts/$target" >&2
        return 1
    fi
}

failed=0 running=0
for target in "${targets[@]}"; do
    fuzz "$target" &
    running=$((running + 1))
    if [ "$running" -ge 2 ]; then
        wait -n || failed=$((failed + 1))
        running=$((running - 1))
    fi
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=$((failed + 1))
    running=$((running - 1))
done
echo "fuzz: $((${#targets[@]} - failed)) of ${#targets[@]} targets held"
[ "$failed" = 0 ]
