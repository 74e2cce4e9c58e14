#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev run: builds ringvol and the tour, a Go client that starts the driver on a pool of its own (a
# sparse XFS image, 1 GiB) and takes volumes through their life. The tour cleans up after itself,
# also on ^C.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

deps_ensure build run go
build_tree build
(cd tests && quietly ../build/tour.log go build -o ../build/tour ./cmd/tour)
as_root env PATH="$PATH:/usr/sbin:/sbin" RINGVOL_BIN="$PWD/build/ringvol" build/tour "$@"
