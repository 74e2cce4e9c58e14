#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests in a guest: scripts/vm/tests.sh LANE [KERNEL [go test argument...]]
#   system   the system tests that say most about a kernel, and csi-sanity (6.1)
#   dm       raw block volumes behind the device mapper: what a tenant can do with them, their life, growth, kills, upgrade,
#            the block half of csi-sanity; encrypted volumes; and the labels of SELinux (6.12). RINGVOL_DM_TESTS selects
#            other system tests, without csi-sanity
#   raw      pools on raw disks: their life, restarts, bad days, other tenants' bytes, kills, power loss, csi-sanity, and
#            the unit tests that need the device mapper (6.12). RINGVOL_RAW_TESTS selects other system tests, without the rest;
#            RINGVOL_RAW_LONG=1 asks for 1,000 rounds and kills where the lane has 20 and 30. With CI set there are a third
#            of them, and the tests that say most, without power loss
#   raw-soak volumes of all kinds one after the other on the same place, each read for what tenants before it wrote, with the driver
#            killed at any step; then kills under load on a raw pool (6.12). RINGVOL_RAW_ROUNDS=N is how many of each (100),
#            RINGVOL_RAW_KILLS=N how many kills
#   attach   volumes that are used on another node than their own, over NVMe and TCP (6.12). RINGVOL_ATTACH_TESTS selects other
#            system tests, RINGVOL_FENCE_ROUNDS=N how often a writer is fenced, RINGVOL_KILL_ROUNDS=N how often an owner's
#            driver is killed
#   ublk     the data process, and system tests with ublk volumes (7.2; 6.1 has no ublk). RINGVOL_UBLK_TESTS selects tests
#            of the data process, RINGVOL_UBLK_SYSTEM_TESTS system tests; RINGVOL_UBLK_LONG=1 asks for 200 devices and 30
#            kills where the lane has fewer, which takes 10 minutes more
#   power    power loss (6.1), see docs/power-loss.md; the arguments are for it
# RINGVOL_BIN is the driver under test, build/ringvol by default. Standard output is that of `go test -v`. Exit status 0,
# 77 when no guest can be had here, another when something failed.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/vm/lib.sh

lane=${1:-} kernel=${2:-}
shift $(($# < 2 ? $# : 2))
options=() node=()
driver_under_test
case $lane in
system)
	# What needs the device mapper; everything on each pool and file system, ext4's online growth among it, which needs a capability
	# that development machines may lack.
	selected='^(TestHealthDisk.*|TestHealthIOErrors|TestLifecycle|TestExpand|TestGrowthThen.*|TestThickStaysThick|TestFreshVolumesAreEmpty'
	selected+='|TestSnapshotsAndLists|TestRawStaysRaw|TestWithTheUnitsCapabilities|TestNodeLeavesPublishedVolumesAlone)$'
	: "${kernel:=6.1}"
	packages=(system conformance)
	options=(--timeout 1800 --file deploy/ringvol.service)
	arguments=("$selected")
	node_packages
	;;
dm)
	selected='^(TestGuard.*|TestCrypt.*|TestEncrypted.*|TestRawStaysRaw|TestDamagedRecordsInUse|TestModeOfA(Copy|Volume)|TestSELinux.*)$'
	# Of each volume's life on each pool, those of raw ones.
	lives='^(TestLifecycle|TestReadOnlyPublish)$/^(xfs_pool_block_volume|block)$'
	sanity=block
	if [ -n "${RINGVOL_DM_TESTS:-}" ]; then
		selected=$RINGVOL_DM_TESTS lives='' sanity=
	fi
	: "${kernel:=6.12}"
	packages=(system conformance)
	selinux_policy
	options=(--timeout 1500 "${selinux[@]}")
	arguments=("$selected" "$lives" "$sanity")
	;;
raw)
	: "${kernel:=6.12}"
	packages=(system crash conformance power)
	# The second disk is one that can be pulled.
	length='' timeout=5400
	[ -z "${CI:-}" ] || length=short timeout=1800
	[ -z "${RINGVOL_RAW_LONG:-}" ] || length=long timeout=14400
	options=(--timeout "$timeout" --disk 16G --disk 2G)
	arguments=("${RINGVOL_RAW_TESTS:-}" "$length")
	;;
raw-soak)
	: "${kernel:=6.12}"
	packages=(system crash)
	options=(--timeout 43200 --disk 16G)
	arguments=("${RINGVOL_RAW_ROUNDS:-100}" "${RINGVOL_RAW_KILLS:-${RINGVOL_RAW_ROUNDS:-100}}")
	;;
attach)
	: "${kernel:=6.12}"
	packages=(system)
	tlshd
	options=(--timeout 2400 "${tlshd[@]}")
	arguments=("${RINGVOL_ATTACH_TESTS:-^Test(Borrowed|Export|Pair)}" "${RINGVOL_FENCE_ROUNDS:-}" "${RINGVOL_KILL_ROUNDS:-}")
	;;
ublk)
	# What goes through the device, its growth, restarts and a reboot; on older kernels what they do
	# differently.
	: "${kernel:=7.2}"
	lives='^TestLifecycle$/^xfs_pool_(ext4|block)_volume$'
	selected='^(TestUblk.*|TestExpand|TestRestart|TestReboot|TestSnapshotsAndLists|TestThickStaysThick'
	selected+='|TestReadOnlyPublish|TestUnstageWhileThePoolIsAway|TestNodeLeavesPublishedVolumesAlone)$'
	[ "$kernel" = 7.2 ] || selected='^(TestUblkProcessesDie|TestUblkExternal|TestUblkLimits|TestExpand|TestNodeLeavesPublishedVolumesAlone)$'
	if [ -n "${RINGVOL_UBLK_SYSTEM_TESTS:-}" ]; then
		selected=$RINGVOL_UBLK_SYSTEM_TESTS lives=''
	fi
	packages=(ublk system)
	options=(--timeout 1800 --file build/vm/counts.so)
	arguments=("${RINGVOL_UBLK_TESTS:-.}" "$selected" "$lives" "${RINGVOL_UBLK_LONG:-}")
	node_packages
	mkdir -p build/vm
	cc -O2 -Wall -shared -fPIC -o build/vm/counts.so tests/ublk/preload/counts.c -ldl
	;;
power)
	: "${kernel:=6.1}"
	packages=(power)
	# The pool, the log, the replay, and what a look at it changes.
	options=(--timeout 7200)
	size=512M log=512M
	# A raw pool takes more, and what is overwritten is logged.
	case $* in
	*/raw*) size=1200M log=4G ;;
	esac
	options+=(--disk $size --disk $log --disk $size --disk $size)
	arguments=("$@")
	;;
*) die "tests.sh: no lane '$lane'; system, dm, raw, raw-soak, attach, ublk or power" ;;
esac
case $lane in
power | raw | raw-soak) ;;
*) options+=(--disk 8G) ;;
esac

guest_tests "${packages[@]}"
for package in "${packages[@]}"; do
	options+=(--file "build/vm/$package.test")
done
exec bash scripts/vm/vm.sh --kernel "$kernel" --file "$binary:build/ringvol" "${options[@]}" "${node[@]}" \
	-- sh scripts/vm/guest/tests "$lane" "${arguments[@]}"
