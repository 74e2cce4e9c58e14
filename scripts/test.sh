#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev test [LANE...]: every lane this machine can run. Logs are kept in build/test-logs; the last
# line is the count, before it the names of failures and the reasons of skips.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

top=$PWD
logs=$top/build/test-logs
results=$logs/results.tsv
lanes=("$@")
[ ${#lanes[@]} -gt 0 ] || lanes=(unit wire sim asan system crash conformance)
for lane in "${lanes[@]}"; do
	case $lane in
	unit | wire | sim | asan | system | crash | conformance) ;;
	*)
		say "no lane '$lane': unit wire sim asan system crash conformance"
		exit 2
		;;
	esac
done

wants() {
	local lane
	for lane in "${lanes[@]}"; do
		[ "$lane" != "$1" ] || return 0
	done
	return 1
}

# A build that fails is one failure; the lanes that need it are left out.
result() { # lane, pass|fail|skip, name, reason
	printf '%s\t%s\t%s\t%s\n' "$@" >>"$results"
}

build_or_fail() {
	build_tree "$@" || {
		result build fail "$1" "does not build, see $1/build.log"
		return 1
	}
}

# criterion DIR SUITE LANE
criterion() {
	say "lane $3"
	as_root python3 scripts/run-criterion.py "$1" "$2" "$3" "$logs" "$results" ||
		result "$3" fail "$3" "the lane could not be run"
}

# golang LANE TIMEOUT PACKAGE [go test argument...]
golang() {
	local lane=$1 timeout=$2 package=$3
	shift 3
	say "lane $lane"
	if ! (cd tests && quietly "$logs/$lane.build.log" go test -c -o "../build/$lane.test" "./$package"); then
		result "$lane" fail "$package" "does not compile, see $logs/$lane.build.log"
		return
	fi
	(
		cd "tests/$package"
		as_root env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_BIN="$ringvol_bin" \
			RINGVOL_DESCRIPTORS="$top/build/proto/descriptor_set.pb" \
			"$top/build/$lane.test" -test.v=test2json -test.timeout="$timeout" "$@" \
			>"$logs/$lane.log" 2>&1
	) || true
	go tool test2json <"$logs/$lane.log" >"$logs/$lane.json"
	python3 scripts/count-go.py "$lane" "$logs/$lane.json" "$results" ||
		result "$lane" fail "$lane" "the results could not be read"
}

deps_ensure build test go
mkdir -p "$logs"
rm -rf "${logs:?}"/*
: >"$results"

if wants unit || wants wire || wants sim || wants system || wants crash || wants conformance; then
	if build_or_fail build; then
		for lane in unit wire sim; do
			if wants $lane; then criterion build $lane $lane; fi
		done
		ringvol_bin=$top/build/ringvol
		if wants system; then
			golang proto 2m proto
			golang system 15m system
		fi
		if wants crash; then golang crash 10m crash; fi
		if wants conformance; then golang conformance 10m conformance; fi
	fi
fi
if wants asan && build_or_fail build-asan "${asan_options[@]}"; then
	for lane in unit wire sim; do
		criterion build-asan $lane asan-$lane
	done
	ringvol_bin=$top/build-asan/ringvol
	golang asan-system 15m system -test.short
fi

python3 scripts/summary.py "$results" "$logs"
