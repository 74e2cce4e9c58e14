#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Raw block volumes behind the device mapper, in a guest: what a tenant can do with them, their life, growth, kills,
# upgrade, and the block half of csi-sanity: scripts/vm/dm-tests.sh [KERNEL] (6.12). RINGVOL_DM_TESTS selects other
# system tests, without csi-sanity. RINGVOL_BIN is the driver under test, build/ringvol by default. Standard output is
# that of `go test -v`. Exit status 0, 77 when no guest can be had here, another when something failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

selected='^(TestGuard.*|TestRawStaysRaw|TestDamagedRecordsInUse|TestModeOfA(Copy|Volume))$'
# Of each volume's life on each pool, those of raw ones.
lives='^(TestLifecycle|TestReadOnlyPublish)$/^(xfs_pool_block_volume|block)$'
sanity=block
if [ -n "${RINGVOL_DM_TESTS:-}" ]; then
	selected=$RINGVOL_DM_TESTS lives='^$' sanity=
fi

driver_under_test
guest_tests system conformance
exec bash scripts/vm/vm.sh --kernel "${1:-6.12}" --timeout 900 --disk 8G \
	--file "$binary:build/ringvol" --file build/vm/system.test --file build/vm/conformance.test \
	-- sh scripts/vm/guest/dm-tests "$selected" "$lives" "$sanity"
