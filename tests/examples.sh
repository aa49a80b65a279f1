#!/bin/sh
# `berth check` on every example of conf/: all must be good, and there must be some.
set -eu
cargo=${CARGO:-cargo}
cd "$(dirname "$0")/.."

checked=0
for file in conf/*.yaml; do
    [ -e "$file" ] || continue
    "$cargo" run --quiet --locked -- check -c "$file"
    checked=$((checked + 1))
done
if [ "$checked" = 0 ]; then
    echo "no example was found in conf/" >&2
    exit 1
fi
echo "$checked examples are good"
