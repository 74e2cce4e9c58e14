#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Measurements in guests:
#   scripts/vm/bench.sh dm [KERNEL] (6.12)
#       What the device-mapper device of a raw block volume costs its stage, publish, unpublish and unstage. The loop node
#       itself is measured beside it in the same boot, by a clock that counts instructions. RINGVOL_BIN is the driver,
#       build/ringvol by default.
#   scripts/vm/bench.sh limits [KERNEL] (6.12)
#       What a volume that is limited to 1,000 operations a second gets, loop and ublk, and its neighbour's latency with the
#       limit and without. The clock is the guest's own, and the disk is memory (null_blk): an emulated one is too slow for
#       the limit to say anything.
#   scripts/vm/bench.sh raw [KERNEL [GROUP...]] (6.12; raw-io, raw-crypt, raw-calls, raw-thin, attach and move)
#       Raw pools beside the disk itself, dm-linear, LVM, dm-thin and dm-crypt by hand, by the same clock. The disk is memory
#       (null_blk), which has no latency: what is compared are path lengths. What the guests said goes to build/bench-raw.
#   scripts/vm/bench.sh ublk [BOOTS [KERNEL...]] (5; 6.12 and 7.2)
#       ublk against the kernel's loop devices. RINGVOL_BENCH_UBLKSRV names the command line tool of a build of ublksrv,
#       which is then measured beside them (its ublk.loop lies beside it). What the guests said goes to
#       build/bench-ublk/KERNEL-N, the table to standard output.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

bench_dm() {
	counted_bench
	exec bash scripts/vm/vm.sh --kernel "${1:-6.12}" --counted --timeout 900 --disk 8G \
		--file "$binary:build/ringvol" --file build/vm/bench \
		-- sh -c 'mkfs.xfs -q /dev/vdb && mount /dev/vdb /tmp && modprobe dm-mod &&
			RINGVOL_BIN=/ringvol/build/ringvol build/vm/bench -rounds 5 -out /tmp/results.json guard 2>&1 && cat /tmp/results.json'
}

bench_limits() {
	counted_bench
	exec bash scripts/vm/vm.sh --kernel "${1:-6.12}" --parallel --timeout 900 --memory 6144 \
		--file "$binary:build/ringvol" --file build/vm/bench \
		-- sh -c 'modprobe null_blk nr_devices=1 gb=3 memory_backed=1 && mkfs.xfs -q /dev/nullb0 && mount /dev/nullb0 /tmp &&
			modprobe ublk_drv &&
			RINGVOL_BIN=/ringvol/build/ringvol build/vm/bench -rounds 3 -out /tmp/results.json limits 2>&1 && cat /tmp/results.json'
}

# bench_packages PACKAGE...: what is measured beside ours. A guest has this machine's tools.
bench_packages() {
	local missing
	mapfile -t missing < <(deps_missing "$@")
	[ ${#missing[@]} -eq 0 ] || (deps_apt_install "${missing[@]}") || say "without ${missing[*]}: what they are needed for is left out"
}

# counted_bench: a program for the guest.
counted_bench() {
	driver_under_test
	deps_ensure go
	mkdir -p build/vm
	(cd bench && CGO_ENABLED=0 quietly ../build/vm/bench.log go build -ldflags=-s -o ../build/vm/bench .)
}

# A group has a boot of its own, and its device is new.
bench_raw() {
	local kernel=${1:-6.12} groups group gib memory
	shift || true
	groups=("$@")
	[ ${#groups[@]} -gt 0 ] || groups=(raw-io raw-crypt raw-calls raw-thin attach move)
	bench_packages fio lvm2
	counted_bench
	for group in "${groups[@]}"; do
		say "$group on Linux $kernel"
		mkdir -p "build/bench-raw/$kernel-$group"
		# The disk takes the memory of what is written to it.
		case $group in
		raw-io) gib=4 memory=6144 ;;
		raw-crypt) gib=2 memory=4096 ;;
		raw-calls) gib=5 memory=8192 ;;
		raw-thin) gib=7 memory=10240 ;;
		attach) gib=2 memory=4096 ;;
		move) gib=1 memory=4096 ;;
		esac
		bash scripts/vm/vm.sh --kernel "$kernel" --counted --timeout 3600 --disk 8G --memory "$memory" \
			--file "$binary:build/ringvol" --file build/vm/bench --out "build/bench-raw/$kernel-$group" \
			-- sh -c 'mkfs.xfs -q /dev/vdb && mount /dev/vdb /tmp && modprobe -a dm-mod dm-crypt dm-thin-pool && { modprobe ublk_drv || true; } &&
				{ modprobe -a nvme-tcp nvmet-tcp || true; } &&
				modprobe null_blk nr_devices=1 gb="$1" memory_backed=1 irqmode=0 no_sched=1 &&
				RINGVOL_BIN=/ringvol/build/ringvol build/vm/bench -rounds "$3" -device /dev/nullb0 -raw-volumes 64 \
					-out "$RINGVOL_OUT/results.json" -table "$RINGVOL_OUT/table.md" "$2" 2>&1' \
			sh "$gib" "$group" "${RINGVOL_BENCH_ROUNDS:-3}" | tee "build/bench-raw/$kernel-$group/log"
	done
}

bench_ublk() {
	local boots=${1:-5} kernels boot kernel tool peer=() files=()
	shift || true
	kernels=("$@")
	[ ${#kernels[@]} -gt 0 ] || kernels=(6.12 7.2)
	[ -x build/ringvol ] || die "there is no data process to measure: ./dev build"
	mkdir -p build/bench-ublk
	guest_tests ublk
	cc -O2 -Wall -o build/vm/count bench/ublk/count.c
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
}

case ${1:-} in
dm | limits | raw | ublk) "bench_$1" "${@:2}" ;;
*) die "bench.sh: dm, limits, raw or ublk" ;;
esac
