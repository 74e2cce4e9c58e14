#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the data process, and system tests with ublk volumes, in a guest:
# scripts/vm/ublk-tests.sh [KERNEL] (7.2; 6.1 has no ublk). RINGVOL_UBLK_TESTS selects tests of the data
# process, RINGVOL_UBLK_SYSTEM_TESTS system tests; RINGVOL_UBLK_LONG=1 asks for 200 devices and 30 kills
# where the lane has fewer, which takes 10 minutes more. RINGVOL_BIN is the driver under test, build/ringvol by default. Standard
# output is that of `go test -v`. Exit status 0, 77 when no guest can be had here, another when something failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

kernel=${1:-7.2}
# What goes through the device, its growth, restarts and a reboot; on older kernels what they do
# differently.
lives='^TestLifecycle$/^xfs_pool_(ext4|block)_volume$'
selected='^(TestUblk.*|TestExpand|TestRestart|TestReboot|TestSnapshotsAndLists|TestThickStaysThick'
selected+='|TestReadOnlyPublish|TestUnstageWhileThePoolIsAway|TestNodeLeavesPublishedVolumesAlone)$'
[ "$kernel" = 7.2 ] || selected='^(TestUblkProcessesDie|TestUblkExternal|TestExpand|TestNodeLeavesPublishedVolumesAlone)$'
if [ -n "${RINGVOL_UBLK_SYSTEM_TESTS:-}" ]; then
	selected=$RINGVOL_UBLK_SYSTEM_TESTS lives='^$'
fi

driver_under_test
node_packages
guest_tests ublk system
cc -O2 -Wall -shared -fPIC -o build/vm/counts.so tests/ublk/preload/counts.c -ldl
exec bash scripts/vm/vm.sh --kernel "$kernel" --timeout 1800 --disk 8G \
	--file "$binary:build/ringvol" --file build/vm/ublk.test --file build/vm/system.test \
	--file build/vm/counts.so \
	"${node[@]}" -- sh scripts/vm/guest/ublk-tests "${RINGVOL_UBLK_TESTS:-.}" "$selected" "$lives" "${RINGVOL_UBLK_LONG:-}"
