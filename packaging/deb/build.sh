#!/bin/bash
# Builds target/deb/berth_VERSION_ARCH.deb from a built binary, with Debian's own tools.
#
#   packaging/deb/build.sh [BINARY]        default: target/release/berth
#
# Man pages and completions are the binary's own word. Nothing is started by an installation.
set -euo pipefail
cd "$(dirname "$0")/../.."
binary=$(readlink -f "${1:-target/release/berth}")
[ -x "$binary" ] || { echo "$binary is not there: make deb builds it" >&2; exit 1; }
for tool in dpkg-deb dpkg-shlibdeps gzip; do
    command -v "$tool" > /dev/null || { echo "$tool is not there: apt-get install dpkg-dev" >&2; exit 1; }
done

version=$("$binary" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
out=target/deb
stage=$out/stage
rm -rf "$stage"
mkdir -p "$stage"

put() { install -D -m "$1" "$2" "$stage/$3"; }

put 755 "$binary" usr/bin/berth
if command -v strip > /dev/null; then strip "$stage/usr/bin/berth"; fi
# The units are written for a binary and a key that were put there by hand. A package knows of no key:
# `systemctl edit berth` adds a LoadCredential= for each.
for unit in systemd/berth.service systemd/berth.socket; do
    sed 's|/usr/local/bin|/usr/bin|g; s|^LoadCredential=|#&|' "$unit" > "$out/unit"
    put 644 "$out/unit" "usr/lib/systemd/system/$(basename "$unit")"
done
put 644 systemd/logrotate.conf etc/logrotate.d/berth
install -d -m 755 "$stage/etc/berth"
for example in conf/*.yaml conf/observability/*; do
    put 644 "$example" "usr/share/doc/berth/examples/${example#conf/}"
done
put 644 LICENSE usr/share/doc/berth/copyright
gzip -9n < CHANGELOG.md > "$out/changelog.gz"
put 644 "$out/changelog.gz" usr/share/doc/berth/changelog.gz

"$binary" manual "$out/manual"
for page in "$out"/manual/*.1; do
    gzip -9nf "$page"
    put 644 "$page.gz" "usr/share/man/man1/$(basename "$page").gz"
done
put 644 "$out/manual/berth.bash" usr/share/bash-completion/completions/berth
put 644 "$out/manual/_berth" usr/share/zsh/vendor-completions/_berth
put 644 "$out/manual/berth.fish" usr/share/fish/vendor_completions.d/berth.fish

# Which libraries it needs, dpkg-shlibdeps tells; it wants a source tree's control file.
mkdir -p "$out/source/debian"
printf 'Source: berth\n\nPackage: berth\nArchitecture: any\n' > "$out/source/debian/control"
depends=$(cd "$out/source" && dpkg-shlibdeps -O --ignore-missing-info ../stage/usr/bin/berth 2> /dev/null)
depends=${depends#shlibs:Depends=}

install -d -m 755 "$stage/DEBIAN"
size=$(du -sk --exclude=DEBIAN "$stage" | cut -f1)
sed -e "s|@VERSION@|$version|; s|@ARCH@|$arch|; s|@DEPENDS@|$depends|; s|@SIZE@|$size|" \
    packaging/deb/control > "$stage/DEBIAN/control"
printf '/etc/logrotate.d/berth\n' > "$stage/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "packaging/deb/$script" "$stage/DEBIAN/$script"
done

package=$out/berth_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$stage" "$package" > /dev/null
echo "$package"
