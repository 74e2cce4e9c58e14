#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ublk against the kernel's loop devices, in guests: scripts/vm/ublk-bench.sh [BOOTS [KERNEL...]] (5;
# 6.12 and 7.2). RINGVOL_BENCH_UBLKSRV names the command line tool of a build of ublksrv, which is
# then measured beside them (its ublk.loop lies beside it). What the guests said goes to
# build/bench-ublk/KERNEL-N, the table to standard output.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

boots=${1:-5}
shift || true
kernels=("$@")
[ ${#kernels[@]} -gt 0 ] || kernels=(6.12 7.2)
[ -x build/ringvol ] || die "there is no data process to measure: ./dev build"
mkdir -p build/bench-ublk
guest_tests ublk
cc -O2 -Wall -o build/vm/count bench/ublk/count.c
peer=() files=()
if [ -n "${RINGVOL_BENCH_UBLKSRV:-}" ]; then
	tool=$(readlink -f "$RINGVOL_BENCH_UBLKSRV")
	files=(--file "$tool:/opt/peer/ublk" --file "$(dirname "$tool")/ublk.loop:/opt/peer/ublk.loop")
	peer=(/opt/peer/ublk)
fi
for kernel in "${kernels[@]}"; do
	for boot in $(seq "$boots"); do
		say "ublk benchmark on Linux $kernel, boot $boot of $boots"
		bash scripts/vm/vm.sh --kernel "$kernel" --parallel --timeout 1800 --disk 2G \
			--file build/vm/ublk.test --file build/vm/count "${files[@]}" \
			-- bash bench/ublk/guest.sh "${RINGVOL_BENCH_SECONDS:-4}" "${RINGVOL_BENCH_ROUNDS:-1}" "${peer[@]}" \
			| tee "build/bench-ublk/$kernel-$boot"
	done
done
python3 bench/ublk/report.py build/bench-ublk "${kernels[@]}"
