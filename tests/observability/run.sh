#!/usr/bin/env bash
# The alerts and the board of conf/observability against a real Prometheus that scrapes a real berth. See run.py.
#
# BERTH_BIN  the berth under test     (default: `cargo build`, then target/debug/berth)
# CARGO      what builds it           (default: cargo)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

if ! command -v prometheus > /dev/null || ! command -v promtool > /dev/null; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    install() {
        "${as_root[@]}" apt-get update &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
                apt-get install -y --no-install-recommends prometheus
    }
    if ! install > /dev/null 2>&1; then
        echo "not run: Prometheus is not there and cannot be installed (apt-get install prometheus)"
        echo "0 passed, 0 failed"
        exit 0
    fi
fi

if [ -z "${BERTH_BIN:-}" ]; then
    (cd "$root" && ${CARGO:-cargo} build --locked)
    BERTH_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/berth
fi
export BERTH_BIN PYTHONDONTWRITEBYTECODE=1
exec timeout --foreground --kill-after=10 90 python3 -u "$here/run.py"
