#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev valgrind [NAME...]: unit and wire tests under valgrind's memcheck. A finding is an error of memory
# or a block that is definitely lost; what is left out is named with the reason. Exit status 77 without
# valgrind.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

deps_ensure build test
(deps_ensure valgrind) || { # a subshell: what cannot be installed ends it
	say "valgrind: skipped, it cannot be installed"
	exit 77
}
build_tree build || die "build does not build, see build/build.log"
logs=$PWD/build/valgrind-logs
rm -rf "$logs"
mkdir -p "$logs"

# Why a test cannot be run here; valgrind is 3.19 on Debian 12.
left_out() {
	case $1 in
	crypt_filter | fsimg_damaged | helper | op | proc | reactor_calls) echo "processes are waited for by pidfd_open, which valgrind does not know" ;;
	probes_bios) echo "bpf() fills things in, and processes are waited for by pidfd_open; valgrind knows neither" ;;
	fd | mnt | mnt_label) echo "paths are opened by openat2, which valgrind does not know" ;;
	build | check_raw | departure | group | group_failures | moved | pool | pool_calls | pool_formats | pool_load | raw_pool | raw_space | room | survey | template | transfer_parts | trash)
		echo "pools that do not answer within 2 s are sick, and mkfs is waited for by pidfd_open;" \
			"under valgrind both are the rule" ;;
	store_model) echo "its tests take minutes, or measure memory, of which valgrind takes some; the sanitizers run them" ;;
	backend_ublk | copy | copy_places | op_calls | ublk | work) echo "its threads wait for each other, and valgrind runs one at a time" ;;
	esac
}

# Which of its tests are run, where some cannot.
only() {
	case $1 in
	sim) echo 'sim/!(files)' ;; # openat2
	io_limits) echo '*/!(where_pods_are)' ;; # openat2
	timer) echo 'timer/!(what_came_in_time_while_the_process_stood_still)' ;; # a signal in io_uring_enter, never in time there
	# Minutes each; the sanitizers run them.
	alloc) echo '*/!(a_pause)' ;;
	luks) echo 'luks/!(a_slot_that_costs_too_much_*|keys_are_added_and_removed|passphrases_are_stretched_by_argon2)' ;;
	thin_blocks) echo '*/!(random_histories)' ;;
	dial) echo 'dial/!(no_descriptors)' ;; # the limit lies below the descriptors that it has itself
	differ) echo 'differ/!(by_extents|more_extents_than_fit)' ;; # openat2
	fsimg) echo '*/!(ext4_dirty_journal)' ;;                     # openat2
	image) echo 'image/!(extent_hint_is_set_on_xfs_only|probe_*|reflink_shares_or_says_that_it_cannot|thick_growth_on_a_full_disk_changes_no_size)' ;; # openat2
	lodev) echo '*/!(a_mount_in_another_namespace_keeps_the_device|block_size_is_never_raised)' ;; # openat2
	disk_records) echo '*/!(how_mkfs_fails|the_file_system_for_records_is_made_on_their_device)' ;; # pidfd_open
	process) echo 'process/!(what_is_spawned_has_the_kernels_slices)' ;; # pidfd_open
	probes) echo 'probes_*/*' ;;  # else processes: bpf() fills things in, pidfd_open
	*) echo '*/*' ;;
	esac
}

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
	mapfile -t names < <(meson introspect --tests build | python3 -c '
import json, sys
for test in json.load(sys.stdin):
    if any(s.split(":")[-1] in ("unit", "wire") for s in test["suite"]):
        print(test["name"])')
fi

# found NAME: whether valgrind has found something; 2: it has written nothing, and nobody knows.
found() {
	grep -qE '^==[0-9]+== +(at|by) 0x' "$logs/$1".*.log
}

# One line for the test on standard output, and the exit status is that of the line.
check() { # NAME
	local code=0
	# Each test is a fork (tests/forked.c) and has a log of its own, empty when all is well.
	as_root env LD_PRELOAD="$PWD/build/tests/libforked.so" timeout 900 valgrind --trace-children=yes --trace-children-skip='*/mkfs*,*/mke2fs,/bin/*,/usr/bin/*,/sbin/*,/usr/sbin/*' \
		--quiet --vgdb=no --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
		--suppressions=scripts/valgrind.supp --log-file="$logs/$1.%p.log" \
		"build/tests/test_$1" --filter "$(only "$1")" >"$logs/$1.out" 2>&1 || code=$?
	if [ $code -ne 0 ]; then
		echo "FAILED  $1: exit status $code, see $logs/$1.out"
		return 1
	fi
	found "$1" 2>>"$logs/$1.out" || code=$?
	case $code in
	0) echo "FAILED  $1: see $logs/$1.*.log" ;;
	1) echo "ok      $1" && return 0 ;;
	*) echo "FAILED  $1: valgrind's logs $logs/$1.*.log cannot be read" ;;
	esac
	return 1
}

chosen=()
for name in "${names[@]}"; do
	reason=$(left_out "$name")
	if [ $# -eq 0 ] && [ -n "$reason" ]; then
		echo "skipped $name: $reason"
	else
		chosen+=("$name")
	fi
done
side_by_side check "${chosen[@]}"
