#!/usr/bin/env bash
# cargo with a subcommand that does not come with it: the one that is installed, else built for us, a
# wheel of requirements.txt (x86_64 only: elsewhere `cargo install cargo-SUBCOMMAND --locked` once).
#
#   tools/cargo.sh SUBCOMMAND [ARGUMENT...]
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if ! command -v "cargo-$1" > /dev/null; then
    version=$(sha256sum < "$here/requirements.txt" | cut -c 1-12)
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tools/wheels-$version
    if [ ! -e "$folder/.complete" ]; then
        rm -rf "$folder"
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes \
            -r "$here/requirements.txt" >&2
        touch "$folder/.complete"
    fi
    PATH=$PATH:$folder/bin
fi
exec "cargo-$1" "$@"
