#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev bench [NAME...]: measures, merges into bench/results.json and writes docs/benchmarks.md. BENCH_ARGS
# are flags for the Go program, RINGVOL_BENCH_PEER a built csi-driver-host-path, RINGVOL_BIN another
# driver than the release build made here.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

deps_ensure build run go
mapfile -t missing < <(deps_missing nghttp2-client nghttp2-server fio)
if [ ${#missing[@]} -gt 0 ]; then
	deps_apt_install "${missing[@]}" || die "packages could not be installed"
fi
dir=build-bench
build_tree $dir --buildtype=release
RINGVOL_BIN=${RINGVOL_BIN:-$PWD/$dir/ringvol}
mkdir -p $dir
gcc -std=gnu17 -O2 -Wall -Wextra -D_GNU_SOURCE bench/floor/floor.c -o $dir/floor
(cd bench && quietly "../$dir/bench.log" go build -o "../$dir/bench" .)
status=0
# shellcheck disable=SC2086
as_root env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_BIN="$RINGVOL_BIN" \
	RINGVOL_BENCH_PEER="${RINGVOL_BENCH_PEER:-}" "$dir/bench" -floor "$dir/floor" -client $dir/bench-client \
	-out bench/results.json ${BENCH_ARGS:-} "$@" || status=$?
[ ! -f bench/results.json ] || python3 bench/report.py bench/results.json docs
exit $status
