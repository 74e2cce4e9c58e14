#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev valgrind [NAME...]: unit and wire tests under valgrind's memcheck. A finding is an error of memory
# or a block that is definitely lost; what is left out is named with the reason.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

deps_ensure build test
build_tree build || die "build does not build, see build/build.log"
logs=$PWD/build/valgrind-logs
rm -rf "$logs"
mkdir -p "$logs"

# Why a test cannot be run here; valgrind is 3.19 on Debian 12.
left_out() {
	case $1 in
	bytes | copy | fsimg | lodev)
		echo "valgrind does not know what the ioctls of loop devices fill in: all of it reads as undefined"
		;;
	helper | op | proc) echo "processes are waited for by pidfd_open, which valgrind does not know" ;;
	mnt) echo "paths are opened by openat2, which valgrind does not know" ;;
	pool | room | template)
		echo "pools that do not answer within 2 s are sick, and mkfs is waited for by pidfd_open;" \
			"under valgrind both are the rule" ;;
	work) echo "its threads wait for each other, and valgrind runs one at a time" ;;
	esac
}

# Which of its tests are run, where some cannot.
only() {
	case $1 in
	sim) echo 'sim/!(files)' ;; # openat2
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

passed=0 failed=() skipped=0
for name in "${names[@]}"; do
	reason=$(left_out "$name")
	if [ $# -eq 0 ] && [ -n "$reason" ]; then
		echo "skipped $name: $reason"
		skipped=$((skipped + 1))
		continue
	fi
	code=0
	# criterion starts a process for each test: each has a log of its own, empty when all is well.
	as_root timeout 600 valgrind --trace-children=yes --trace-children-skip='*/mkfs*,*/mke2fs,/bin/*,/usr/bin/*,/sbin/*,/usr/sbin/*' \
		--quiet --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
		--suppressions=scripts/valgrind.supp --log-file="$logs/$name.%p.log" \
		"build/tests/test_$name" -j1 --filter "$(only "$name")" >"$logs/$name.out" 2>&1 || code=$?
	if [ $code -ne 0 ]; then
		echo "FAILED  $name: exit status $code, see $logs/$name.out"
		failed+=("$name")
	elif cat "$logs/$name".*.log | grep -qE '^==[0-9]+== +(at|by) 0x'; then
		echo "FAILED  $name: see $logs/$name.*.log"
		failed+=("$name")
	else
		echo "ok      $name"
		passed=$((passed + 1))
	fi
done
echo "valgrind: $passed passed, ${#failed[@]} failed, $skipped skipped"
[ ${#failed[@]} -eq 0 ]
