#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev image [--arch amd64|arm64] [-o FILE]: an OCI archive with ringvol and the tools it starts, of Debian's packages
# alone. The same commit, on machines with the same packages, gives the same bytes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

usage() {
	say "usage: ./dev image [--arch amd64|arm64] [-o FILE]"
	exit 2
}

native=$(dpkg --print-architecture)
arch=$native
output=
while [ $# -gt 0 ]; do
	case $1 in
	--arch) arch=${2:-} ;;
	-o | --output) output=${2:-} ;;
	*) usage ;;
	esac
	[ $# -ge 2 ] || usage
	shift 2
done
case $arch in
amd64) triplet=x86_64-linux-gnu ;;
arm64) triplet=aarch64-linux-gnu ;;
*) usage ;;
esac

work=build/image/$arch
[ -n "$output" ] || output=build/image/ringvol$([ "$arch" = "$native" ] || echo "-$arch").tar
deps_ensure build run
mkdir -p "$work"
version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" meson.build | head -n 1)
[ -n "$version" ] || die "meson.build tells no version"
# Time stands still at the commit. Without git (an unpacked release), at the newest of the sources.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null ||
	find src bpf proto meson.build -type f -printf '%Ts\n' | sort -n | tail -n 1)}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)

# A tree of its own, whose binary does not know where it was built. ccache may be told that directories make no difference;
# then its objects do know.
export CCACHE_HASHDIR=true CCACHE_BASEDIR=
if [ "$arch" = "$native" ]; then
	options=(-Dc_args=-ffile-prefix-map="$PWD"=.)
	strip=strip
else
	. scripts/image/cross.sh
	cross_ensure "$arch" "$triplet" "$work"
	options=(--cross-file "$work/cross.ini")
	strip=$triplet-strip
fi
build_target "$work/build" ringvol "${options[@]}"
$strip --strip-unneeded -o "$work/ringvol" "$work/build/ringvol"

# What src starts (reactor/proc.h), and what a person would repair a volume with.
programs=(e2fsprogs:mke2fs e2fsprogs:mkfs.ext4 e2fsprogs:/etc/mke2fs.conf e2fsprogs:e2fsck e2fsprogs:resize2fs
	xfsprogs:mkfs.xfs xfsprogs:xfs_repair btrfs-progs:mkfs.btrfs btrfs-progs:btrfs btrfs-progs:btrfstune tar:tar
	thin-provisioning-tools:thin_check thin-provisioning-tools:thin_repair thin-provisioning-tools:thin_dump)
# What src opens when it needs it (dlopen).
libraries=(libssl.so.3 libcryptsetup.so.12)
say "collecting the root directory"
python3 scripts/image/root.py "$work/root" --cache ".cache/image/$arch" --arch "$arch" \
	--binary "$work/ringvol=/usr/bin/ringvol" --binary "LICENSE=/usr/share/doc/ringvol/copyright" \
	"${programs[@]/#/--program=}" "${libraries[@]/#/--library=}"
python3 scripts/image/oci.py --root "$work/root" --name "ringvol.dev/ringvol:$version" --arch "$arch" --epoch "$epoch" \
	--entrypoint /usr/bin/ringvol --env PATH=/usr/sbin:/usr/bin \
	--label org.opencontainers.image.title=ringvol --label "org.opencontainers.image.version=$version" \
	--label "org.opencontainers.image.revision=$revision" --label org.opencontainers.image.licenses=Apache-2.0 \
	-o "$output"
say "$(stat -c %s "$output") bytes, $(du -sb "$work/root" | cut -f1) unpacked"
echo "$output"
