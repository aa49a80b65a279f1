#!/usr/bin/env bash
# The real clients through `berth run` in front of `berth sim`. See README.md.
#
#   tests/clients/run.sh [WORD...]     only the scenarios whose name or client holds every WORD
#
# BERTH_BIN  the berth under test     (default: `cargo build`, then target/debug/berth)
# CARGO      what builds it           (default: cargo)
# JOBS       scenarios at a time      (default: 3)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$here/versions.env"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth-test-clients

# once FOLDER COMMAND...: runs the command in FOLDER unless it succeeded there before.
once() {
    local folder=$1
    shift
    [ -e "$folder/.complete" ] && return
    rm -rf "$folder"
    mkdir -p "$folder"
    echo "installing ${folder##*/}" >&2
    (cd "$folder" && "$@" >&2)
    touch "$folder/.complete"
}
npm_package() { npm install --no-audit --no-fund --no-save --ignore-scripts --prefix . "$1"; }
python_packages() {
    python3 -m venv . && ./bin/pip install --quiet --disable-pip-version-check "$@"
}

if [ -z "${BERTH_BIN:-}" ]; then
    (cd "$root" && ${CARGO:-cargo} build)
    BERTH_BIN=${CARGO_TARGET_DIR:-$root/target}/debug/berth
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
once "$cache/codex-$CODEX_NPM" npm_package "@openai/codex@$CODEX_NPM"
once "$cache/node-$OPENAI_NPM" npm_package "openai@$OPENAI_NPM"
# shellcheck disable=SC2086 # a list of packages
once "$cache/python-$OPENAI_PY-$ANTHROPIC_PY" \
    python_packages "openai==$OPENAI_PY" "anthropic==$ANTHROPIC_PY" $PYTHON_DEPENDENCIES
exec 9>&-

export BERTH_BIN
export CODEX_DIR=$cache/codex-$CODEX_NPM
export NODE_DIR=$cache/node-$OPENAI_NPM
export PYTHON_DIR=$cache/python-$OPENAI_PY-$ANTHROPIC_PY
export CODEX_NPM OPENAI_NPM OPENAI_PY ANTHROPIC_PY
export PYTHONDONTWRITEBYTECODE=1

# A network of its own with nothing but loopback: no client can reach another host, whatever it tries.
if unshare -n true 2>/dev/null; then
    alone=(unshare -n) NETWORK=private
elif unshare -rn true 2>/dev/null; then
    alone=(unshare -rn) NETWORK=private
else
    alone=() NETWORK=shared
fi
export NETWORK
exec "${alone[@]}" timeout --foreground --kill-after=20 600 python3 -u "$here/runner.py" "$@"
