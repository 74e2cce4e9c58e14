#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev e2e [-run REGEXP] [other options of go test]: ringvol on a real Kubernetes node (docs/e2e.md). Prints what
# 'go test -v' prints; exit status 77 and a line 'e2e: skipped: REASON' where a node cannot be made. Logs of all parts
# are in build/test-logs/e2e afterwards.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

top=$PWD
options=()
for option in "$@"; do
	case $option in # -run, --run and -test.run are one to the test program
	-test.*) options+=("$option") ;;
	-*) options+=("-test.$(sed 's/^-*//' <<<"$option")") ;;
	*) options+=("$option") ;;
	esac
done

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
bash scripts/image.sh >/dev/null
say "building the tests"
mkdir -p build/e2e
(cd tests/e2e && export CGO_ENABLED=0 GOFLAGS="$GOFLAGS -trimpath" &&
	quietly "$top/build/e2e/vet.log" nice -n 5 go vet ./... &&
	quietly "$top/build/e2e/workload.log" nice -n 5 go build -ldflags "-s -w" -o "$top/build/e2e/workload" ./workload &&
	quietly "$top/build/e2e/tests.log" nice -n 5 go test -c -o "$top/build/e2e/tests" .)
cd tests/e2e
as_root env PATH="$PATH:/usr/sbin:/sbin" "$top/build/e2e/tests" -test.v=test2json -test.timeout=90m -test.parallel=6 "${options[@]}"
