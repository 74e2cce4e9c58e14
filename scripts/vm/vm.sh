#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev vm: installs what a guest needs on this machine, once, and hands over to vm.py. Exits with 77
# and the reason where no guest can be had.
set -euo pipefail
top=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
. "$top/scripts/lib.sh"
. "$top/scripts/deps.sh"

skip() {
	say "vm: skipped, $*"
	exit 77
}

case ${1:-} in
-h | --help) ;;
*)
	[ "$(uname -m)" = x86_64 ] || skip "the guest is built of this machine's programs, which are not x86_64"
	packages=(qemu-system-x86 busybox-static debian-archive-keyring python3 bash dash zstd
		util-linux mount e2fsprogs xfsprogs btrfs-progs dmsetup cryptsetup-bin thin-provisioning-tools)
	mapfile -t missing < <(deps_missing "${packages[@]}")
	if [ ${#missing[@]} -gt 0 ]; then
		# A subshell: without root and sudo the installation ends the shell.
		(deps_apt_install "${missing[@]}") || skip "these packages cannot be installed: ${missing[*]}"
	fi
	;;
esac
PYTHONDONTWRITEBYTECODE=1 exec python3 "$top/scripts/vm/vm.py" "$@"
