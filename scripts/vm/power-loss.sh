#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Power loss, in a guest: scripts/vm/power-loss.sh [KERNEL [go test argument...]] (6.1; everything).
# Standard output is that of `go test -v`. RINGVOL_BIN is the driver under test, build/ringvol by
# default. Exit status 0, 1 when something failed, 77 when no guest can be had here. See
# docs/power-loss.md.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh

kernel=${1:-6.1}
[ $# -eq 0 ] || shift
deps_ensure go
binary=$(readlink -f "${RINGVOL_BIN:-build/ringvol}") && [ -x "$binary" ] ||
	die "there is no driver to test: ./dev build, or RINGVOL_BIN"
# The guest has no C library but those of its own programs, and needs none for this.
(cd tests && CGO_ENABLED=0 quietly ../build/vm/power.log \
	go test -c -ldflags=-s -o ../build/vm/power.test ./power) || exit 1
code=0
# The pool, the log, the replay, and what a look at it changes.
bash scripts/vm/vm.sh --kernel "$kernel" --timeout 7200 \
	--disk 512M --disk 512M --disk 512M --disk 512M \
	--file "$binary:build/ringvol" --file build/vm/power.test \
	-- sh scripts/vm/guest/power-loss "$@" || code=$?
case $code in
0 | 77 | 130 | 143) exit $code ;;
*) exit 1 ;;
esac
