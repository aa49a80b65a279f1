#!/usr/bin/env bash
# berth beside what people would use instead, in one run of about ten minutes: writes docs/performance.md.
#
#   bench/run.sh [WORD...]     only these measurements (bench/field/src/main.rs lists them), and no document
#
# BENCH_QUICK  not empty: everything once and briefly, to see that it works
# CARGO        what builds it (default: cargo)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-$PWD/target}
. "$here/versions.env"

# Debian's and Ubuntu's packages. Whoever is not there is named in the document, and the rest goes on.
missing=()
PATH=$PATH:/usr/sbin:/sbin
command -v nginx > /dev/null || missing+=(nginx-light)
command -v haproxy > /dev/null || missing+=(haproxy)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo)
    # Installed, and not started as services: systemd is told that it is not running.
    "${as_root[@]}" apt-get update &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 RUNLEVEL=1 \
            apt-get install -y --no-install-recommends "${missing[@]}" ||
        echo "bench: ${missing[*]} cannot be installed" >&2
fi

# once FOLDER VERSION COMMAND...: runs the command in FOLDER unless it succeeded there before.
once() {
    local folder=$target/bench/$1 version=$2
    shift 2
    [ "$(cat "$folder/.complete" 2> /dev/null)" = "$version" ] && return
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "installing ${folder##*/} $version" >&2
    if (cd "$folder" && "$@" >&2); then
        echo "$version" > "$folder/.complete"
    else
        echo "bench: ${folder##*/} cannot be installed" >&2
    fi
}
litellm() {
    python3 -m venv . && ./bin/pip install --quiet --disable-pip-version-check "litellm[proxy]==$LITELLM"
}
portkey() {
    npm install --no-audit --no-fund --no-save --ignore-scripts --prefix . "@portkey-ai/gateway@$PORTKEY"
}
once litellm "$LITELLM" litellm
once portkey "$PORTKEY" portkey

# Together: apart, the same libraries would be compiled with other features.
$cargo build --release --locked -p berth -p berth-field
if [ "$#" = 0 ] || [[ " $* " = *" pure "* ]]; then
    time=1.5 warm=0.5
    [ -z "${BENCH_QUICK:-}" ] || time=0.2 warm=0.1
    $cargo bench --locked -p berth-pure --bench pure -- \
        --noplot --warm-up-time "$warm" --measurement-time "$time"
fi
# In a group of its own, which ends with this script whatever ends it: it starts proxies.
set -m
"$target/release/field" "$@" &
trap 'kill -- "-$!" 2> /dev/null || true' EXIT
wait "$!"
