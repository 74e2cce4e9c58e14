#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/e2e/external.sh: Kubernetes' own tests of a storage driver in .cache/e2e/bin, beside the parts of the cluster
# (parts.sh): external.test, and what they need: ginkgo, which runs them side by side, kubectl, and agnhost, which pods of theirs run.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/e2e/module.sh

cache=$PWD/.cache/e2e
deps_ensure go

# A shell and its tools that need no library, for the images of the tests' pods.
if [ ! -x "$cache/busybox/bin/busybox" ]; then
	say "unpacking busybox-static"
	rm -rf "$cache/busybox" && mkdir -p "$cache/busybox"
	deps_apt_update
	(cd "$cache/busybox" && quietly "$cache/busybox.log" apt-get download busybox-static && dpkg -x ./*.deb . && rm ./*.deb)
fi
module external
key=$({ cat tests/e2e/parts/external/go.mod tests/e2e/parts/external/go.sum tests/e2e/parts/external/*.go; } | sha256sum)
if ! made external.test "$key"; then
	say "building Kubernetes' tests of storage drivers"
	(cd tests/e2e/parts/external && CGO_ENABLED=0 GOFLAGS="$GOFLAGS -trimpath" quietly "$cache/external.test.log" \
		nice -n 10 go test -c -vet=off -ldflags "-s -w" -o "$cache/bin/external.test" .)
	remember external.test "$key"
fi
