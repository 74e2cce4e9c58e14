#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The system tests that say most about a kernel, and csi-sanity, in a guest:
# scripts/vm/system-tests.sh [KERNEL] (6.1). RINGVOL_BIN is the driver under test, build/ringvol by default.
# Standard output is that of `go test -v`. Exit status 0, 77 when no guest can be had here, another
# when something failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

# What needs the device mapper; everything on each pool and file system, ext4's online growth among it, which needs a capability
# that development machines may lack.
selected='^(TestHealthDisk.*|TestHealthIOErrors|TestLifecycle|TestExpand|TestGrowthThen.*|TestThickStaysThick|TestFreshVolumesAreEmpty|TestSnapshotsAndLists|TestRawStaysRaw|TestWithTheUnitsCapabilities|TestNodeLeavesPublishedVolumesAlone)$'

driver_under_test
node_packages
guest_tests system conformance
exec bash scripts/vm/vm.sh --kernel "${1:-6.1}" --timeout 1800 --disk 8G \
	--file "$binary:build/ringvol" \
	--file deploy/ringvol.service --file build/vm/system.test --file build/vm/conformance.test \
	"${node[@]}" -- sh scripts/vm/guest/system-tests "$selected"
