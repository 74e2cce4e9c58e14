#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Power loss, in a guest: scripts/vm/power-loss.sh [KERNEL [go test argument...]] (6.1; everything).
# Standard output is that of `go test -v`. RINGVOL_BIN is the driver under test, build/ringvol by
# default. Exit status 0, 77 when no guest can be had here, another when something failed. See
# docs/power-loss.md.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

kernel=${1:-6.1}
[ $# -eq 0 ] || shift
driver_under_test
guest_tests power
# The pool, the log, the replay, and what a look at it changes.
exec bash scripts/vm/vm.sh --kernel "$kernel" --timeout 7200 \
	--disk 512M --disk 512M --disk 512M --disk 512M \
	--file "$binary:build/ringvol" --file build/vm/power.test \
	-- sh scripts/vm/guest/power-loss "$@"
