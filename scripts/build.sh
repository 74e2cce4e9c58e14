#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev build [--asan]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

case ${1:-} in
"")
	deps_ensure build
	build_tree build
	echo build/ringvol
	;;
--asan)
	deps_ensure build
	build_tree build-asan "${asan_options[@]}"
	echo build-asan/ringvol
	;;
*)
	say "usage: ./dev build [--asan]"
	exit 2
	;;
esac
