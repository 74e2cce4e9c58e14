#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev test [--within SECONDS] [all|LANE...]: runs lanes, the default ones if none is named; ./dev test --list says which
# there are. Lanes that would begin after so many seconds are skipped. A line tells when a lane starts, how far it is, and how it ended. Each run has a directory of logs in build/test-logs, where latest
# is the one that began last. The last line is the count; before it come the names of failures and the reasons of skips.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

top=$PWD
logs=$top/build/test-logs/$(date +%Y%m%d-%H%M%S)-$$
results=$logs/results.tsv
times=$top/build/test-times.tsv # lane, seconds it took last

# The lanes in the order in which they run: name, when it runs without being named (default or all), what it needs, what it
# does. The function lane_NAME, with _ for - and ., runs it.
lanes_known=(
	"unit|default|root, loop devices|each module alone, over real files, devices and mounts"
	"wire|default|-|HTTP/2, gRPC and HTTP/1 on a socket"
	"sim|default|root|every operation, failed at each of its steps"
	"scripts|default|-|what the scripts behind ./dev make of their input"
	"deploy|default|Go|image, chart, manifests, unit files"
	"proto|default|Go|the protocol against the specification's descriptors"
	"system|default|root, Go, XFS, btrfs, ext4|a driver, real devices and file systems, a real gRPC client"
	"conformance|default|root, Go|csi-sanity"
	"nomad|default|root, Go|Nomad's own CSI client"
	"h2spec|default|Go|HTTP/2 as h2spec reads its specification"
	"crash|default|root, Go|kill -9 under a load of every RPC"
	"cluster|all|root, Go|copies between nodes, killed at either end fifty times"
	"asan|all|root, Go|unit, wire, sim and system tests with ASan and UBSan"
	"guest-6.1|all|QEMU|system tests on Linux 6.1"
	"guest-6.12|all|QEMU|system tests on Linux 6.12"
	"guest-dm|all|QEMU|raw block volumes behind device mapper, a tenant who attacks them, and encrypted volumes, on Linux 6.12"
	"guest-raw|all|QEMU|pools on raw disks, on Linux 6.12"
	"guest-raw-6.1|all|QEMU|pools on raw disks, on Linux 6.1"
	"guest-raw-7.2|all|QEMU|pools on raw disks, on Linux 7.2"
	"guest-attach|all|QEMU|volumes that are used on another node, on Linux 6.12"
	"ublk-6.12|all|QEMU|ublk volumes on Linux 6.12"
	"ublk-7.2|all|QEMU|ublk volumes on Linux 7.2"
	"fuzz|all|clang's libFuzzer|20,000 inputs for each fuzzer"
	"valgrind|all|valgrind|unit and wire tests under memcheck"
	"power|all|QEMU|a short replay of power losses (docs/power-loss.md)"
	"e2e|all|containerd, an hour for its parts|two Kubernetes nodes of real parts, with a controller (docs/e2e.md)"
	"e2e-node|all|containerd, an hour for its parts|the same without a controller"
)

lane_names() { # [default]
	local lane name when _
	for lane in "${lanes_known[@]}"; do
		IFS='|' read -r name when _ <<<"$lane"
		[ "${1:-}" = default ] && [ "$when" != default ] || echo "$name"
	done
}

known() { # LANE
	local name
	for name in $(lane_names); do
		[ "$name" != "$1" ] || return 0
	done
	return 1
}

took_last() { # LANE: minutes:seconds, or - if it has not run here
	local seconds
	seconds=$(awk -v lane="$1" '$1 == lane { s = $2 } END { print s }' "$times" 2>/dev/null) || true
	if [ -n "$seconds" ]; then printf '%d:%02d' $((seconds / 60)) $((seconds % 60)); else printf -- -; fi
}

list() {
	local lane name when needs what
	printf '%-12s %-8s %8s  %-38s %s\n' lane runs "took" needs "what it tests"
	for lane in "${lanes_known[@]}"; do
		IFS='|' read -r name when needs what <<<"$lane"
		printf '%-12s %-8s %8s  %-38s %s\n' "$name" "$when" "$(took_last "$name")" "$needs" "$what"
	done
	echo
	echo "'default' lanes run without arguments, './dev test all' runs every lane, 'guest' and 'ublk' stand for those of all"
	echo "kernels. 'took' is how long the lane took here last (minutes:seconds)."
}

# The lanes to run, in the order of the table.
lanes=()
choose() { # WORD...
	local word name
	local -A chosen=()
	[ $# -gt 0 ] || set -- default
	for word in "$@"; do
		case $word in
		default | all)
			for name in $(lane_names "$word"); do chosen[$name]=1; done
			;;
		guest | ublk)
			for name in $(lane_names | grep "^$word-[0-9]"); do chosen[$name]=1; done
			;;
		*)
			if ! known "$word"; then
				say "no lane '$word'; ./dev test --list names them"
				exit 2
			fi
			chosen[$word]=1
			;;
		esac
	done
	for name in $(lane_names); do
		if [ -n "${chosen[$name]:-}" ]; then lanes+=("$name"); fi
	done
}

# ---- results and progress ----

result() { # lane, pass|fail|skip, name, reason[, log]
	printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" "${5:-}" >>"$results"
}

# progress LANE FILE PATTERN: until it is killed, says how many tests of the lane have ended, as lines of FILE that match
# PATTERN tell: in place on a terminal, else once in a minute.
progress() {
	local start=$SECONDS pause=60 count
	if [ -t 2 ]; then pause=2; fi
	while sleep $pause; do
		count=$(grep -cE -- "$3" "$2" 2>/dev/null) || true
		if [ -t 2 ]; then
			printf '\r  %s: %s tests, %d s \033[K' "$1" "${count:-0}" $((SECONDS - start)) >&2
		else
			say "  $1: ${count:-0} tests, $((SECONDS - start)) s"
		fi
	done
}

# watched LANE FILE PATTERN COMMAND...: the command, with its progress told meanwhile.
watched() {
	local lane=$1 file=$2 pattern=$3 code=0 watcher
	shift 3
	progress "$lane" "$file" "$pattern" &
	watcher=$!
	"$@" || code=$?
	kill $watcher 2>/dev/null || true
	wait $watcher 2>/dev/null || true
	if [ -t 2 ]; then printf '\r\033[K' >&2; fi
	return $code
}

# ---- builds ----

# built DIR [MESON OPTION...]: builds a tree once in a run. A build that fails is one failure, and its lanes are left out.
declare -A built_trees=()
built() {
	local dir=$1
	if [ -z "${built_trees[$dir]:-}" ]; then
		if build_tree "$@"; then
			built_trees[$dir]=yes
		else
			built_trees[$dir]=no
			result build fail "$dir" "does not build" "$dir/build.log"
		fi
	fi
	[ "${built_trees[$dir]}" = yes ]
}

# warm: compiles the Go programs of the run's lanes while the first lanes run, which wait more than they work.
warm_pid=
warm() {
	local lane
	renice -n 10 -p $BASHPID
	for lane in "${lanes[@]}"; do
		case $lane in
		deploy | proto | system | conformance | nomad | h2spec | crash)
			[ "$lane" != deploy ] || (. scripts/e2e/module.sh && helm_ensure)
			(cd "tests/$lane" && go test -c -o /dev/null .)
			;;
		esac
	done
}

warmed() {
	wait "$warm_pid" || true # what does not compile is said by the lane itself
}

# ---- the kinds of lanes ----

# criterion DIR SUITE LANE
criterion() {
	watched "$3" "$results" "^$3"$'\t' \
		as_root python3 scripts/run-criterion.py "$1" "$2" "$3" "$logs" "$results" ||
		result "$3" fail "$3" "the lane could not be run"
}

# What a test mounts is in a mount namespace of its own, so that nobody else's copy of the machine's mounts holds its devices.
own_mounts() {
	as_root unshare --mount --propagation private -- "$@"
}

# go_run LANE PACKAGE TIMEOUT RESULTS SUFFIX [go test argument...]: runs what was compiled; its logs are LANE with SUFFIX.
# System tests run side by side.
go_run() {
	local lane=$1 package=$2 timeout=$3 into=$4 log=$logs/$1$5 programs=1
	local said=$log.log
	shift 5
	set -- "$logs/$lane.test" -test.v=test2json -test.timeout="$timeout" "$@"
	if [ "$package" = system ]; then
		said=$log.programs
		set -- python3 "$top/scripts/go-tests.py" run "$log.log" "$top/build/$lane.seconds" "$@"
	fi
	(
		cd "tests/$package"
		own_mounts env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_BIN="$ringvol_bin" \
			RINGVOL_DESCRIPTORS="$top/build/proto/descriptor_set.pb" RINGVOL_NODE_PACKAGES="${RINGVOL_NODE_PACKAGES:-}" \
			"$@" >"$said" 2>&1
	) || true
	[ "$package" != system ] || programs=$(tail -n 1 "$said")
	go tool test2json <"$log.log" >"$log.json"
	python3 scripts/go-tests.py count "$lane" "$log.json" "$into" "$programs" ||
		printf '%s\tfail\t%s\t%s\n' "$lane" "$lane" "the results could not be read" >>"$into"
}

# golang LANE TIMEOUT PACKAGE [go test argument...]: a directory of tests/, which may be a module of its own.
golang() {
	local lane=$1 timeout=$2 package=$3
	shift 3
	warmed
	if ! (cd "tests/$package" && quietly "$logs/$lane.build.log" go test -c -o "$logs/$lane.test" .); then
		result "$lane" fail "$package" "does not compile" "$logs/$lane.build.log"
		return
	fi
	watched "$lane" "$logs/$lane.log" '--- (PASS|FAIL|SKIP): ' \
		go_run "$lane" "$package" "$timeout" "$results" "" "$@"
	[ -z "${CI:-}" ] || again "$lane" "$package" "$timeout" "$@"
	rm "$logs/$lane.test" # some megabytes
}

# again LANE PACKAGE TIMEOUT [go test argument...]: where nobody watches, system tests that failed, three at most, have a
# second attempt, with real devices, kernel threads and clocks in them as they are, if the lane came to its end at all.
# What passes then is named in the summary. Tests of what a crash leaves get none.
again() {
	local lane=$1 package=$2 timeout=$3 names
	shift 3
	[ "$package" = system ] || return 0
	mapfile -t names < <(python3 scripts/go-tests.py names "$lane" "$results" | grep .)
	if [ ${#names[@]} -eq 0 ]; then return 0; fi
	say "lane $lane: once more ${names[*]}"
	go_run "$lane" "$package" "$timeout" "$logs/$lane.again.tsv" .again "$@" \
		-test.run="^($(IFS='|' && echo "${names[*]}"))\$"
	python3 scripts/go-tests.py merge "$lane" "$results" "$logs/$lane.again.tsv"
}

logged() { # LOG COMMAND...
	local log=$1
	shift
	"$@" >"$log" 2>&1
}

# counted LANE COMMAND...: a script that says a line for each of its tests, "ok NAME", "FAILED NAME: why"
# or "skipped NAME: why", or exits with 77 and the reason where it cannot run at all.
counted() {
	local lane=$1 code=0
	shift
	watched "$lane" "$logs/$lane.log" '^(ok|FAILED|skipped) ' logged "$logs/$lane.log" "$@" || code=$?
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

# guest LANE SCRIPT ARGUMENT...: a script that runs Go tests in a guest or on a node that it makes; it says "vm: ..."
# or "e2e: ..." how that went, and exits with 77 where there can be none.
guest() {
	local lane=$1 code=0 said
	shift
	watched "$lane" "$logs/$lane.log" '--- (PASS|FAIL|SKIP): ' \
		logged_apart "$logs/$lane.log" "$logs/$lane.vm.log" bash "$@" || code=$?
	said=$(grep -E '^(vm|e2e): ' "$logs/$lane.vm.log" | tail -n 1) || true
	if [ $code -eq 77 ]; then
		result "$lane" skip "$lane" "$said"
		return
	fi
	say "$said"
	go tool test2json <"$logs/$lane.log" >"$logs/$lane.json"
	python3 scripts/go-tests.py count "$lane" "$logs/$lane.json" "$results" || code=1
	accounted "$lane" $code
}

logged_apart() { # LOG ERROR-LOG COMMAND...
	local log=$1 errors=$2
	shift 2
	"$@" >"$log" 2>"$errors"
}

# ---- the lanes ----

lane_unit() { criterion build unit unit; }
lane_wire() { criterion build wire wire; }
lane_sim() { criterion build sim sim; }
lane_scripts() { counted scripts python3 scripts/run-unittest.py tests/scripts; }

# The image and what deploy/ has for Kubernetes. Without helm, which is built of Go modules, the chart's tests are skipped.
lane_deploy() {
	warmed
	counted image env RINGVOL_BIN="$ringvol_bin" python3 scripts/run-unittest.py tests/image
	. scripts/e2e/module.sh
	helm_ensure || true
	golang deploy 5m deploy
}

lane_proto() { golang proto 2m proto; }

lane_system() {
	deps_prometheus
	deps_node
	deps_podman
	golang system 15m system
}

lane_nomad() { golang nomad 10m nomad; }
lane_conformance() { golang conformance 10m conformance; }
lane_h2spec() { golang h2spec 5m h2spec; }
lane_crash() { golang crash 10m crash; }

# The tests are the system lane's, which does the same three times.
lane_cluster() { golang cluster 30m system -test.run='^TestClusterCopyKilledOften$' -cluster.rounds=50; }
lane_valgrind() { counted valgrind bash scripts/valgrind.sh; }

lane_asan() {
	local lane
	built build-asan "${asan_options[@]}" || return 0
	for lane in unit wire sim; do
		criterion build-asan $lane asan-$lane
	done
	ringvol_bin=$top/build-asan/ringvol golang asan-system 15m system -test.short
}

lane_fuzz() { counted fuzz env FUZZ_RUNS=20000 bash scripts/fuzz.sh all 180; }
lane_guest_6_1() { guest guest-6.1 scripts/vm/tests.sh system 6.1; }
lane_guest_6_12() { guest guest-6.12 scripts/vm/tests.sh system 6.12; }
lane_guest_dm() { guest guest-dm scripts/vm/tests.sh dm 6.12; }
lane_guest_raw() { guest guest-raw scripts/vm/tests.sh raw 6.12; }
lane_guest_raw_6_1() { guest guest-raw-6.1 scripts/vm/tests.sh raw 6.1; }
lane_guest_raw_7_2() { guest guest-raw-7.2 scripts/vm/tests.sh raw 7.2; }
lane_guest_attach() { guest guest-attach scripts/vm/tests.sh attach 6.12; }
lane_ublk_6_12() { guest ublk-6.12 scripts/vm/tests.sh ublk 6.12; }
lane_ublk_7_2() { guest ublk-7.2 scripts/vm/tests.sh ublk 7.2; }

# A part of it: all of it takes half an hour (docs/power-loss.md).
lane_power() {
	RINGVOL_BIN=$ringvol_bin guest power scripts/vm/tests.sh power 6.1 -test.short -test.run=/xfs \
		-power.points=40
}

lane_e2e() { RINGVOL_E2E_V=test2json guest e2e scripts/e2e.sh; }
lane_e2e_node() { RINGVOL_E2E_V=test2json guest e2e-node scripts/e2e.sh --mode node; }

# ---- one run ----

# What a lane's tests are built from; asan and fuzz have trees of their own, and e2e builds its image.
needs_build() {
	case $1 in
	asan | fuzz | e2e | e2e-node) return 1 ;;
	esac
}

run_lane() { # NUMBER LANE
	local lane=$2 start=$SECONDS before after
	if [ -n "$within" ] && [ $SECONDS -ge "$within" ]; then
		result "$lane" skip "$lane" "no time was left: it would have begun after $SECONDS s, and the limit is $within s (./dev test $lane)"
		say "[$1/${#lanes[@]}] $lane: no time is left"
		return
	fi
	say "[$1/${#lanes[@]}] $lane (took $(took_last "$lane") last)"
	before=$(wc -l <"$results")
	if needs_build "$lane" && ! built build; then
		return
	fi
	if [ -z "$warm_pid" ]; then
		warm >"$logs/warm.log" 2>&1 &
		warm_pid=$!
	fi
	"lane_${lane//[-.]/_}"
	after=$(tail -n +$((before + 1)) "$results" | awk -F '\t' '{ n[$2]++ }
		END { printf "%d passed, %d failed, %d skipped", n["pass"], n["fail"], n["skip"] }')
	say "  $lane: $after, $((SECONDS - start)) s"
	{
		grep -v "^$lane " "$times" 2>/dev/null || true
		echo "$lane $((SECONDS - start))"
	} >"$times.new"
	mv "$times.new" "$times"
}

within=
case "${1:-}" in
--list)
	list
	exit 0
	;;
--within)
	within=${2:-}
	[[ $within =~ ^[0-9]+$ ]] || die "--within: '$within' is no number of seconds"
	shift 2
	;;
-h | --help)
	echo "usage: ./dev test [--within SECONDS] [all|LANE...]; ./dev test --list names the lanes"
	exit 0
	;;
esac
choose "$@"
deps_ensure build test go
mkdir -p "$logs"
ln -sfn "${logs##*/}" "${logs%/*}/latest"
# Of runs that have ended, those but the last five go.
find "${logs%/*}" -maxdepth 1 -name '20*-*-*' | sort -r | tail -n +6 | while read -r old; do
	[ -d "/proc/${old##*-}" ] || rm -rf "$old"
done
: >"$results"
ringvol_bin=$top/build/ringvol
number=0
for lane in "${lanes[@]}"; do
	number=$((number + 1))
	run_lane $number "$lane"
done
python3 scripts/summary.py "$results" "$logs"
