#!/usr/bin/env bash
# Runs sbom.py with what sbom.txt names, installed once.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/berth-tools/sbom-$(sha256sum < "$here/sbom.txt" | cut -c 1-12)
if [ ! -e "$folder/.complete" ]; then
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$here/sbom.txt" >&2
    touch "$folder/.complete"
fi
exec "$folder/bin/python" "$here/sbom.py"
