#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The system tests that say most about a kernel, in guests: scripts/vm/system-tests.sh [KERNEL...]
# (6.1 and 6.12). RINGVOL_BIN is the driver under test, build/ringvol by default. Standard output is
# that of `go test -v` for test2json, kernel by kernel. Exit status 0, 1 when something failed, 77 when
# no guest can be had here and nothing has failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh

kernels=("$@")
[ ${#kernels[@]} -gt 0 ] || kernels=(6.1 6.12)
# What needs the device mapper; everything on each pool and file system, ext4's online growth among it, which needs a capability
# that development machines may lack.
selected='^(TestHealthDisk.*|TestHealthIOErrors|TestLifecycle|TestExpand|TestThickStaysThick|TestFreshVolumesAreEmpty|TestSnapshotsAndLists|TestRawStaysRaw)$'

deps_ensure go
binary=$(readlink -f "${RINGVOL_BIN:-build/ringvol}") && [ -x "$binary" ] ||
	die "there is no driver to test: ./dev build, or RINGVOL_BIN"
# The guest has no C library but those of its own programs, and needs none for these.
for package in system conformance; do
	(cd tests && CGO_ENABLED=0 quietly "../build/vm/$package.log" \
		go test -c -ldflags=-s -o "../build/vm/$package.test" "./$package") || exit 1
done

worst=0
for kernel in "${kernels[@]}"; do
	say "system tests on Linux $kernel"
	code=0
	bash scripts/vm/vm.sh --kernel "$kernel" --timeout 1800 --disk 8G \
		--file "$binary:build/ringvol" \
		--file build/vm/system.test --file build/vm/conformance.test \
		-- sh scripts/vm/guest/system-tests "$selected" || code=$?
	case $code in
	0) ;;
	77) [ $worst -ne 0 ] || worst=77 ;;
	130 | 143) exit $code ;;
	*) worst=1 ;;
	esac
done
exit $worst
