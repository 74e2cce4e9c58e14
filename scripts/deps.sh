# SPDX-License-Identifier: Apache-2.0
# Packages of Debian 12 and newer and Ubuntu 24.04; sourced after lib.sh. Nothing is asked of apt,
# and no network is used, when nothing is missing. llhttp and libbpf come with the work that uses
# them.

deps_build=(meson ninja-build pkg-config gcc libc6-dev python3 liburing-dev libnghttp2-dev
	libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libprotobuf-dev libblkid-dev
	libmd-dev libcriterion-dev)
deps_run=(xfsprogs btrfs-progs e2fsprogs util-linux mount ca-certificates)
deps_test=("${deps_run[@]}" attr valgrind)
deps_lint=(clang clang-format clang-tidy)
deps_optional=(libclang-rt-14-dev) # clang's sanitizers, a package of their own on Debian 12

deps_missing() {
	local package
	for package in "$@"; do
		case $(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null) in
		*"installed "*) ;;
		*) echo "$package" ;;
		esac
	done
}

deps_apt_update() {
	[ -z "${deps_updated:-}" ] || return 0
	quietly /tmp/ringvol-apt-update.log as_root apt-get update || return 1
	deps_updated=1
}

deps_apt_install() {
	say "installing $*"
	deps_apt_update || return 1
	DEBIAN_FRONTEND=noninteractive quietly /tmp/ringvol-apt-install.log \
		as_root apt-get install -y --no-install-recommends "$@"
}

# deps_ensure GROUP...: build, run, test, lint, go
deps_ensure() {
	local group package missing=() wanted=()
	for group in "$@"; do
		case $group in
		build) wanted+=("${deps_build[@]}") ;;
		run) wanted+=("${deps_run[@]}") ;;
		test) wanted+=("${deps_test[@]}") ;;
		lint)
			wanted+=("${deps_lint[@]}")
			for package in "${deps_optional[@]}"; do
				if apt-cache show "$package" >/dev/null 2>&1; then
					wanted+=("$package")
				fi
			done
			;;
		go) ;;
		esac
	done
	mapfile -t missing < <(deps_missing "${wanted[@]}")
	if [ ${#missing[@]} -gt 0 ]; then
		deps_apt_install "${missing[@]}" || die "packages could not be installed"
	fi
	for group in "$@"; do
		[ "$group" != go ] || deps_ensure_go
	done
}

# True when the go command is new enough to fetch the toolchain that tests/go.mod asks for.
deps_go_usable() {
	local version
	version=$(GOTOOLCHAIN=local go version 2>/dev/null | sed -n 's/.* go\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
	[ -n "$version" ] || return 1
	# shellcheck disable=SC2086
	set -- $version
	[ "$1" -gt 1 ] || [ "$2" -ge 21 ]
}

deps_ensure_go() {
	export GOTOOLCHAIN=auto GOFLAGS=-buildvcs=false
	deps_go_usable && return
	if [ -x /usr/local/go/bin/go ]; then
		PATH=/usr/local/go/bin:$PATH
		deps_go_usable && return
	fi
	. /etc/os-release
	if [ "${VERSION_CODENAME:-}" = bookworm ]; then
		# Debian 12's own is 1.19.
		if ! grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d; then
			echo "deb http://deb.debian.org/debian bookworm-backports main" |
				as_root tee /etc/apt/sources.list.d/bookworm-backports.list >/dev/null
			deps_updated=
		fi
		deps_apt_install -t bookworm-backports golang-go
	else
		deps_apt_install golang-go
	fi || die "Go could not be installed"
	hash -r
	deps_go_usable || die "go 1.21 or newer is needed; $(go version 2>&1)"
}
