#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev e2e [--mode controller|node] [--set NAME=VALUE] [-run REGEXP] [other options of go test]: ringvol on two real Kubernetes
# nodes (docs/e2e.md), in one of the chart's modes, and with other values of the chart. Prints what 'go test -v' prints; exit status 77 and a line 'e2e: skipped:
# REASON' where nodes cannot be made. Logs of all parts are in build/test-logs/e2e afterwards.
# ./dev e2e external [--mode ...] [--quick] [--fs ext4,xfs,btrfs] [--focus REGEXP]: Kubernetes' own tests of storage drivers there.
# ./dev e2e up [--mode ...]: brings the cluster up with the chart installed, and leaves it so. ./dev e2e down takes it away.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

top=$PWD
kept=$top/build/e2e/kubeconfig
options=() what=test mode=${RINGVOL_E2E_MODE:-controller}
while [ $# -gt 0 ]; do
	option=$1
	shift
	case $option in # -run, --run and -test.run are one to the test program
	up | down | external) what=$option ;;
	--quick) export RINGVOL_E2E_QUICK=1 ;;
	--fs | --focus)
		[ $# -gt 0 ] || die "$option needs a value"
		if [ "$option" = --fs ]; then export RINGVOL_E2E_FS=$1; else export RINGVOL_E2E_FOCUS=$1; fi
		shift
		;;
	--set)
		[ $# -gt 0 ] || die "--set needs NAME=VALUE"
		export RINGVOL_E2E_SET="${RINGVOL_E2E_SET:-} $1"
		shift
		;;
	--mode)
		mode=${1:-}
		shift || true
		;;
	--mode=*) mode=${option#--mode=} ;;
	-test.*) options+=("$option") ;;
	-*) options+=("-test.$(sed 's/^-*//' <<<"$option")") ;;
	*) options+=("$option") ;;
	esac
done
case $mode in
controller | node) ;;
*) die "--mode is controller or node" ;;
esac

# up's test program, if it runs.
keeper() {
	local pid
	pid=$(cat "$kept.pid" 2>/dev/null) || return 1
	[ "$(readlink "/proc/$pid/exe")" = "$top/build/e2e/tests" ] && echo "$pid"
}

down() {
	local pid
	pid=$(keeper) || { say "no cluster is up" && return; }
	as_root kill -TERM "$pid"
	while keeper >/dev/null; do sleep 0.5; done
	rm -f "$kept.pid"
	say "the cluster is gone"
}

if [ $what = down ]; then
	down
	exit
fi
! keeper >/dev/null || die "a cluster is up: ./dev e2e down"

# The test program looks at this more closely; here it is about not building for an hour first.
if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
	say "e2e: skipped: namespaces, mounts and loop devices need root"
	exit 77
fi
if ! as_root unshare --mount --pid --net --uts --ipc --fork true 2>/dev/null; then
	say "e2e: skipped: no namespaces to be had"
	exit 77
fi
deps_ensure run e2e go
bash scripts/e2e/parts.sh
[ $what != external ] || bash scripts/e2e/external.sh
bash scripts/image.sh >/dev/null
say "building the tests"
mkdir -p build/e2e
(cd tests/e2e && export CGO_ENABLED=0 GOFLAGS="$GOFLAGS -trimpath" &&
	quietly "$top/build/e2e/vet.log" nice -n 5 go vet ./... &&
	quietly "$top/build/e2e/workload.log" nice -n 5 go build -ldflags "-s -w" -o "$top/build/e2e/workload" ./workload &&
	quietly "$top/build/e2e/tests.log" nice -n 5 go test -c -o "$top/build/e2e/tests" .)
cd tests/e2e
run=(env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_E2E_MODE="$mode" RINGVOL_E2E_SET="${RINGVOL_E2E_SET:-}")

up() {
	local log=$top/build/e2e/up.log
	rm -f "$kept"
	as_root "${run[@]}" RINGVOL_E2E_KUBECONFIG="$kept" setsid "$top/build/e2e/tests" </dev/null >"$log" 2>&1 &
	local starter=$!
	until [ -e "$kept" ]; do
		kill -0 $starter 2>/dev/null || { cat "$log" >&2 && die "the cluster does not come up"; }
		sleep 1
	done
	say "the cluster is up, in mode $mode. ./dev e2e down takes it away. What it says: $log"
	echo "export KUBECONFIG=$kept"
}

if [ $what = up ]; then
	up
	exit
fi
limit=120m
if [ $what = external ]; then
	run+=(RINGVOL_E2E_EXTERNAL=1 RINGVOL_E2E_QUICK="${RINGVOL_E2E_QUICK:-}" RINGVOL_E2E_FS="${RINGVOL_E2E_FS:-}"
		RINGVOL_E2E_FOCUS="${RINGVOL_E2E_FOCUS:-}")
	options=(-test.run='^TestExternal$' "${options[@]}")
	limit=8h
fi
# Marks that tell a test's own lines from those about it are for scripts/test.sh; people are better off without.
as_root "${run[@]}" "$top/build/e2e/tests" -test.v="${RINGVOL_E2E_V:-true}" -test.timeout=$limit -test.parallel=6 "${options[@]}"
