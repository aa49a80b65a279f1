#!/usr/bin/env bash
# The status page in a real browser, in front of `berth run` and `berth sim`.
#
#   tests/page/run.sh [WORD...]     only the promises whose name holds every WORD
#
# BERTH_BIN      the berth under test   (default: `cargo build`, then target/debug/berth)
# CARGO          what builds it         (default: cargo)
# CHROMIUM       the browser            (default: the machine's; Debian's is installed where none is)
# UPDATE_IMAGES  1 writes docs/images anew
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$here/versions.env"
folder=${XDG_CACHE_HOME:-$HOME/.cache}/berth-test-page/$PLAYWRIGHT_NPM-$AXE_NPM

find_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if [ -z "${CHROMIUM:-}" ] && ! find_chromium > /dev/null; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    "${as_root[@]}" apt-get update >&2 || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends chromium >&2 || true
    if ! find_chromium > /dev/null; then
        echo "no browser can be had here: install chromium, or say where one is by CHROMIUM"
        echo "0 passed, 0 failed"
        exit 0
    fi
fi
export CHROMIUM=${CHROMIUM:-$(find_chromium)}

if [ -z "${BERTH_BIN:-}" ]; then
    (cd "$root" && ${CARGO:-cargo} build --locked)
    BERTH_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/berth
fi
export BERTH_BIN

mkdir -p "${folder%/*}"
exec 9> "${folder%/*}/lock"
flock 9
if [ ! -e "$folder/.complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    (cd "$folder" && npm install --no-audit --no-fund --no-save --ignore-scripts --prefix . \
        "playwright-core@$PLAYWRIGHT_NPM" "axe-core@$AXE_NPM" >&2)
    touch "$folder/.complete"
fi
exec 9>&-

export NODE_DIR=$folder IMAGES=$root/docs/images
exec timeout --foreground --kill-after=10 170 node "$here/run.mjs" "$@"
