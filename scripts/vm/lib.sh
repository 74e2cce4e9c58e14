# SPDX-License-Identifier: Apache-2.0
# For scripts that run the project's tests in a guest; sourced after ../lib.sh and ../deps.sh.

# driver_under_test: sets binary to what RINGVOL_BIN names, build/ringvol by default.
driver_under_test() {
	binary=$(readlink -f "${RINGVOL_BIN:-build/ringvol}") && [ -x "$binary" ] ||
		die "there is no driver to test: ./dev build, or RINGVOL_BIN"
}

# guest_tests PACKAGE...: builds tests/PACKAGE as build/vm/PACKAGE.test. A guest has no C library but
# those of its own programs, and needs none for these.
guest_tests() {
	local package
	deps_ensure go
	for package in "$@"; do
		(cd "tests/$package" && CGO_ENABLED=0 quietly "../../build/vm/$package.log" \
			go test -c -ldflags=-s -o "../../build/vm/$package.test" .) || return 1
	done
}
