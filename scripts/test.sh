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
all=(unit wire sim deploy system crash conformance h2spec valgrind guest ublk power asan fuzz e2e)
parts=(guest-6.1 guest-6.12 ublk-6.12 ublk-7.2) # guest and ublk on one kernel alone
lanes=("$@")
[ ${#lanes[@]} -gt 0 ] || lanes=("${all[@]}")
for lane in "${lanes[@]}"; do
	case " ${all[*]} ${parts[*]} " in
	*" $lane "*) ;;
	*)
		say "no lane '$lane': ${all[*]} ${parts[*]}"
		exit 2
		;;
	esac
done

wants() { # LANE...: whether one of these is to be run
	local lane wanted
	for lane in "${lanes[@]}"; do
		for wanted in "$@"; do
			[ "$lane" != "$wanted" ] || return 0
		done
	done
	return 1
}

# A build that fails is one failure; the lanes that need it are left out.
result() { # lane, pass|fail|skip, name, reason[, log]
	printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "${5:-}" >>"$results"
}

build_or_fail() {
	build_tree "$@" || {
		result build fail "$1" "does not build" "$1/build.log"
		return 1
	}
}

# criterion DIR SUITE LANE
criterion() {
	say "lane $3"
	as_root python3 scripts/run-criterion.py "$1" "$2" "$3" "$logs" "$results" ||
		result "$3" fail "$3" "the lane could not be run"
}

# go_run LANE PACKAGE TIMEOUT RESULTS SUFFIX [go test argument...]: runs what was compiled; its logs are LANE with SUFFIX.
go_run() {
	local lane=$1 package=$2 timeout=$3 into=$4 log
	log=$logs/$lane$5
	shift 5
	(
		cd "tests/$package"
		as_root env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_BIN="$ringvol_bin" \
			RINGVOL_DESCRIPTORS="$top/build/proto/descriptor_set.pb" \
			"$top/build/$lane.test" -test.v=test2json -test.timeout="$timeout" "$@" \
			>"$log.log" 2>&1
	) || true
	go tool test2json <"$log.log" >"$log.json"
	python3 scripts/count-go.py "$lane" "$log.json" "$into" ||
		printf '%s\tfail\t%s\t%s\n' "$lane" "$lane" "the results could not be read" >>"$into"
}

# golang LANE TIMEOUT PACKAGE [go test argument...]: a directory of tests/, which may be a module of its own.
golang() {
	local lane=$1 timeout=$2 package=$3
	shift 3
	say "lane $lane"
	if ! (cd "tests/$package" && quietly "$logs/$lane.build.log" go test -c -o "$top/build/$lane.test" .); then
		result "$lane" fail "$package" "does not compile" "$logs/$lane.build.log"
		return
	fi
	go_run "$lane" "$package" "$timeout" "$results" "" "$@"
	[ -z "${CI:-}" ] || again "$lane" "$package" "$timeout" "$@"
}

# again LANE PACKAGE TIMEOUT [go test argument...]: where nobody watches, system tests that failed, three at most, have a
# second attempt, with real devices, kernel threads and clocks in them as they are, if the lane came to its end at all.
# What passes then is named in the summary. Tests of what a crash leaves get none.
again() {
	local lane=$1 package=$2 timeout=$3 names
	shift 3
	[ "$package" = system ] || return 0
	mapfile -t names < <(python3 scripts/again.py names "$lane" "$results" | grep .)
	if [ ${#names[@]} -eq 0 ]; then return 0; fi
	say "lane $lane: once more ${names[*]}"
	go_run "$lane" "$package" "$timeout" "$logs/$lane.again.tsv" .again "$@" \
		-test.run="^($(IFS='|' && echo "${names[*]}"))\$"
	python3 scripts/again.py merge "$lane" "$results" "$logs/$lane.again.tsv"
}

# counted LANE COMMAND...: a script that says a line for each of its tests, "ok NAME", "FAILED NAME: why"
# or "skipped NAME: why", or exits with 77 and the reason where it cannot run at all.
counted() {
	local lane=$1 code=0
	shift
	say "lane $lane"
	"$@" >"$logs/$lane.log" 2>&1 || code=$?
	if [ $code -eq 77 ]; then
		result "$lane" skip "$lane" "$(tail -n 1 "$logs/$lane.log")"
		return
	fi
	sed -nE -e "s/^ok +([^ :]+).*/$lane\tpass\t\1\t/p" \
		-e "s|^FAILED +([^ :]+):? ?(.*)|$lane\tfail\t\1\t\2\t$logs/$lane.log|p" \
		-e "s/^skipped +([^ :]+):? ?(.*)/$lane\tskip\t\1\t\2/p" "$logs/$lane.log" >>"$results"
	accounted "$lane" $code
}

# accounted LANE EXIT-STATUS: a failure that no test of the lane is named for counts as well.
accounted() {
	if [ "$2" -ne 0 ] && ! grep -q "^$1"$'\tfail\t' "$results"; then
		result "$1" fail "$1" "exit status $2" "$logs/$1.log"
	elif ! grep -q "^$1"$'\t' "$results"; then
		result "$1" fail "$1" "ran no test" "$logs/$1.log"
	fi
}

# The image and what deploy/ has for Kubernetes. Without helm, which is built of Go modules, the chart's tests are skipped.
deployment() {
	counted image env RINGVOL_BIN="$ringvol_bin" python3 scripts/run-unittest.py tests/image
	. scripts/e2e/module.sh
	helm_ensure || true
	golang deploy 5m deploy
}

# guest LANE SCRIPT ARGUMENT...: a script that runs Go tests in a guest or on a node that it makes; it says "vm: ..."
# or "e2e: ..." how that went, and exits with 77 where there can be none.
guest() {
	local lane=$1 code=0 said
	shift
	say "lane $lane"
	bash "$@" >"$logs/$lane.log" 2>"$logs/$lane.vm.log" || code=$?
	said=$(grep -E '^(vm|e2e): ' "$logs/$lane.vm.log" | tail -n 1) || true
	if [ $code -eq 77 ]; then
		result "$lane" skip "$lane" "$said"
		return
	fi
	say "$said"
	go tool test2json <"$logs/$lane.log" >"$logs/$lane.json"
	python3 scripts/count-go.py "$lane" "$logs/$lane.json" "$results" || code=1
	accounted "$lane" $code
}

# A part of it: all of it takes half an hour (docs/power-loss.md).
power_loss() {
	RINGVOL_BIN=$ringvol_bin guest power scripts/vm/power-loss.sh 6.1 -test.short -test.run=/xfs \
		-power.points=40
}

deps_ensure build test go
mkdir -p "$logs"
rm -rf "${logs:?}"/*
: >"$results"

if wants unit wire sim deploy system crash conformance h2spec valgrind guest ublk power "${parts[@]}"; then
	if build_or_fail build; then
		for lane in unit wire sim; do
			if wants $lane; then criterion build $lane $lane; fi
		done
		if wants unit; then counted scripts python3 scripts/run-unittest.py tests/scripts; fi
		ringvol_bin=$top/build/ringvol
		if wants deploy; then deployment; fi
		if wants system; then
			deps_prometheus
			golang proto 2m proto
			golang system 15m system
		fi
		if wants crash; then golang crash 10m crash; fi
		if wants conformance; then golang conformance 10m conformance; fi
		if wants h2spec; then golang h2spec 5m h2spec; fi
		if wants valgrind; then counted valgrind bash scripts/valgrind.sh; fi
		for kernel in 6.1 6.12; do
			if wants guest guest-$kernel; then guest guest-$kernel scripts/vm/system-tests.sh $kernel; fi
		done
		for kernel in 6.12 7.2; do
			if wants ublk ublk-$kernel; then guest ublk-$kernel scripts/vm/ublk-tests.sh $kernel; fi
		done
		if wants power; then power_loss; fi
	fi
fi
if wants asan && build_or_fail build-asan "${asan_options[@]}"; then
	for lane in unit wire sim; do
		criterion build-asan $lane asan-$lane
	done
	ringvol_bin=$top/build-asan/ringvol
	golang asan-system 15m system -test.short
fi
if wants fuzz; then counted fuzz env FUZZ_RUNS=20000 bash scripts/fuzz.sh all 180; fi
if wants e2e; then guest e2e scripts/e2e.sh; fi

python3 scripts/summary.py "$results" "$logs"
