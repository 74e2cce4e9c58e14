#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the device-mapper device of a raw block volume costs its stage, publish, unpublish and unstage, in a guest:
# scripts/vm/dm-bench.sh [KERNEL] (6.12). The loop node itself is measured beside it in the same boot; the clocks of
# emulation say nothing, the ratio does. RINGVOL_BIN is the driver, build/ringvol by default.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

driver_under_test
deps_ensure go
(cd bench && CGO_ENABLED=0 quietly ../build/vm/bench.log go build -ldflags=-s -o ../build/vm/bench .)
exec bash scripts/vm/vm.sh --kernel "${1:-6.12}" --timeout 900 --disk 8G \
	--file "$binary:build/ringvol" --file build/vm/bench \
	-- sh -c 'mkfs.xfs -q /dev/vdb && mount /dev/vdb /tmp && modprobe dm-mod &&
		RINGVOL_BIN=/ringvol/build/ringvol build/vm/bench -rounds 7 -out /tmp/results.json guard 2>&1 && cat /tmp/results.json'
