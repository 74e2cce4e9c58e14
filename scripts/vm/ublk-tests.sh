#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the data process, and system tests with ublk volumes, in guests:
# scripts/vm/ublk-tests.sh [KERNEL...] (6.1, which has no ublk, 6.12 and 7.2). RINGVOL_UBLK_TESTS selects
# tests of the data process. Standard output is that of `go test -v` for test2json. Exit status 0, 1 when
# something failed, 77 when no guest can be had here and nothing has failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh

kernels=("$@")
[ ${#kernels[@]} -gt 0 ] || kernels=(6.1 6.12 7.2)

deps_ensure go
binary=$(readlink -f "${RINGVOL_BIN:-build/ringvol}") && [ -x "$binary" ] ||
	die "there is no data process to test: ./dev build, or RINGVOL_BIN"
mkdir -p build/vm
cc -O2 -Wall -shared -fPIC -o build/vm/allocs.so tests/ublk/preload/allocs.c
# The guest has no C library but those of its own programs, and needs none for this.
for package in ublk system; do
	(cd tests && CGO_ENABLED=0 quietly "../build/vm/$package.log" \
		go test -c -ldflags=-s -o "../build/vm/$package.test" "./$package") || exit 1
done
# What goes through the device, its growth, restarts and a reboot; on older kernels what they do
# differently.
lives='^TestLifecycle$/^xfs_pool_(ext4|block)_volume$'

worst=0
for kernel in "${kernels[@]}"; do
	say "ublk tests on Linux $kernel"
	selected='^(TestUblk.*|TestExpand|TestRestart|TestReboot|TestSnapshotsAndLists|TestThickStaysThick)$'
	[ "$kernel" = 7.2 ] || selected='^(TestUblkProcessesDie|TestUblkExternal|TestExpand)$'
	code=0
	bash scripts/vm/vm.sh --kernel "$kernel" --timeout 1800 --disk 8G \
		--file "$binary:build/ringvol" --file build/vm/ublk.test --file build/vm/system.test \
		--file build/vm/allocs.so \
		-- sh scripts/vm/guest/ublk-tests "${RINGVOL_UBLK_TESTS:-.}" "$selected" "$lives" || code=$?
	case $code in
	0) ;;
	77) [ $worst -ne 0 ] || worst=77 ;;
	130 | 143) exit $code ;;
	*) worst=1 ;;
	esac
done
exit $worst
