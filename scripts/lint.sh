#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev lint: format, gcc and clang without warnings, clang-tidy, layers, duplicates, Go.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

deps_ensure build lint go
logs=$PWD/build-lint
mkdir -p "$logs"
failed=()

check() { # name, command...
	local name=$1
	shift
	if "$@" >"$logs/$name.log" 2>&1; then
		printf 'ok      %s\n' "$name"
	else
		printf 'FAILED  %s\n' "$name"
		{ grep -E 'error|warning|undefined|: [0-9]+ lines or more|may not know|KNOWN_RINGS' "$logs/$name.log" | grep -v 'generated\.$' ||
			tail -n 20 "$logs/$name.log"; } | head -n 40
		failed+=("$name")
	fi
}

format() {
	git ls-files '*.c' '*.h' | xargs -r clang-format --dry-run -Werror
}

# The compiler's own tree, so that a tree of ./dev build keeps its options.
compile() { # compiler
	if [ ! -f "$logs/$1/build.ninja" ]; then
		rm -rf "${logs:?}/$1"
		CC=$1 meson setup "$logs/$1" --werror || return 1
	fi
	ninja -C "$logs/$1"
}

tidy() {
	git ls-files 'src/*.c' |
		xargs -r -P "$(nproc)" -n 8 timeout 600 clang-tidy --quiet -p "$logs/clang"
}

go_format() {
	local unformatted
	unformatted=$(gofmt -l tests bench)
	[ -z "$unformatted" ] || {
		echo "gofmt -w these: $unformatted"
		return 1
	}
}

go_vet() {
	go vet ./... && (cd tests/deploy && go vet .) && (cd tests/conformance && go vet .) && (cd tests/nomad && go vet .)
}

# Kubernetes' client is a long way to fetch: looked at where ./dev e2e has been, with its flags and so
# with what it has compiled.
e2e_modules_here() {
	(cd tests/e2e && GOPROXY=off go list -deps -test ./...) >/dev/null 2>&1
}

go_vet_e2e() {
	(cd tests/e2e && GOPROXY=off GOFLAGS="$GOFLAGS -trimpath" CGO_ENABLED=0 go vet ./...)
}

check format format
check duplicates python3 scripts/check-duplicates.py
check gcc compile gcc
check clang compile clang
check layers python3 scripts/check-layers "$logs/gcc"
check clang-tidy tidy
check gofmt go_format
check go-vet go_vet
if e2e_modules_here; then
	check go-vet-e2e go_vet_e2e
else
	printf 'left out go-vet-e2e: its modules are not here (./dev e2e fetches them)\n'
fi

if [ ${#failed[@]} -gt 0 ]; then
	echo "lint: failed: ${failed[*]} (logs in $logs)"
	exit 1
fi
echo "lint: clean"
