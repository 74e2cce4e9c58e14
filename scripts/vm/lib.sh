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

# node_packages: sets node to the options that bring the packages of deps_node into the guest, with the libraries that
# this machine has of theirs.
node_packages() {
	local program
	deps_node
	node=()
	[ -n "${RINGVOL_NODE_PACKAGES:-}" ] || return 0
	mkdir -p build/vm
	tar -C "$RINGVOL_NODE_PACKAGES" -cf build/vm/node.tar --exclude=usr/share .
	node=(--file build/vm/node.tar)
	for program in udevadm dmsetup lvm mdadm make-bcache; do
		program=$(PATH=$RINGVOL_NODE_PACKAGES/usr/bin:$RINGVOL_NODE_PACKAGES/usr/sbin:$PATH command -v "$program")
		node+=(--file "$program:/usr/lib/node/${program##*/}")
	done
}

# tlshd: sets tlshd to the option that brings the daemon for the kernel's TLS handshakes into the guest; none where it cannot be had,
# and what needs it is skipped.
tlshd() {
	mkdir -p .cache/vm build/vm
	tlshd=()
	PYTHONDONTWRITEBYTECODE=1 python3 scripts/vm/tlshd.py .cache/vm/tlshd.tar || return 0
	tlshd=(--file .cache/vm/tlshd.tar:build/vm/tlshd.tar)
}

# selinux_policy: sets selinux to the options that give the guest SELinux and a policy to load; none where there is no compiler for
# it, and tests find a node without SELinux.
selinux_policy() {
	local missing
	mapfile -t missing < <(deps_missing checkpolicy)
	selinux=()
	[ ${#missing[@]} -eq 0 ] || (deps_apt_install "${missing[@]}") || return 0
	quietly build/vm/selinux.log checkpolicy -M -U allow -c 33 -o build/vm/selinux.policy scripts/vm/guest/selinux.conf
	selinux=(--selinux --file build/vm/selinux.policy)
}
