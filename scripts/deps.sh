# SPDX-License-Identifier: Apache-2.0
# Packages of Debian 12 and newer and Ubuntu 24.04; sourced after lib.sh. Nothing is asked of apt,
# and no network is used, when nothing is missing.

deps_build=(meson ninja-build pkg-config gcc libc6-dev python3 liburing-dev libnghttp2-dev
	libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libprotobuf-dev libblkid-dev
	libmd-dev libbpf-dev libjansson-dev libssl-dev libcryptsetup-dev clang libcriterion-dev)
# llhttp is a library from Debian 13 and Ubuntu 24.04 on; Debian 12 has its generated sources.
case $(. /etc/os-release && echo "${VERSION_CODENAME:-}") in
bookworm) deps_build+=(node-llhttp) ;;
*) deps_build+=(libllhttp-dev) ;;
esac
deps_run=(xfsprogs btrfs-progs e2fsprogs util-linux mount ca-certificates libcryptsetup12
	thin-provisioning-tools)
deps_test=("${deps_run[@]}" attr fio)
deps_lint=(clang clang-format clang-tidy)
deps_fuzz=(clang)
deps_valgrind=(valgrind libc6-dbg)
deps_e2e=(iproute2 libseccomp2)

deps_missing() {
	local package
	for package in "$@"; do
		# A package that others name without its being here is "not-installed".
		case " $(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null)" in
		*" installed "*) ;;
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
		as_root apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

# deps_ensure GROUP...: build, run, test, lint, fuzz, valgrind, e2e, go
deps_ensure() {
	local group package missing=() wanted=()
	for group in "$@"; do
		case $group in
		build) wanted+=("${deps_build[@]}") ;;
		run) wanted+=("${deps_run[@]}") ;;
		test) wanted+=("${deps_test[@]}") ;;
		lint) wanted+=("${deps_lint[@]}") ;;
		fuzz) wanted+=("${deps_fuzz[@]}") ;;
		valgrind) wanted+=("${deps_valgrind[@]}") ;;
		e2e) wanted+=("${deps_e2e[@]}") ;;
		go) ;;
		esac
	done
	mapfile -t missing < <(deps_missing "${wanted[@]}")
	if [ ${#missing[@]} -gt 0 ]; then
		deps_apt_install "${missing[@]}" || die "packages could not be installed"
	fi
	for group in "$@"; do
		case $group in
		go) deps_ensure_go ;;
		fuzz) deps_ensure_fuzzer ;;
		esac
	done
}

# clang's libFuzzer and sanitizers are a package of their own, named after the clang that there is.
deps_ensure_fuzzer() {
	deps_fuzzer_usable && return
	deps_apt_install "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" && deps_fuzzer_usable ||
		die "there is no clang with libFuzzer"
}

deps_fuzzer_usable() {
	printf 'int LLVMFuzzerTestOneInput(void);\nint LLVMFuzzerTestOneInput(void) { return 0; }\n' |
		clang -fsanitize=fuzzer,address,undefined -x c -o /dev/null - 2>/dev/null
}

# promtool and prometheus for the tests of metrics, taken out of their package: installing it would start
# a server. Without them those tests are skipped.
deps_prometheus() {
	local dir=$PWD/.cache/prometheus
	command -v promtool >/dev/null && command -v prometheus >/dev/null && return
	if [ ! -x "$dir/usr/bin/promtool" ]; then
		mkdir -p "$dir"
		deps_apt_update || return 0
		if ! (cd "$dir" && quietly /tmp/ringvol-prometheus.log apt-get download prometheus &&
			dpkg -x prometheus_*.deb . && rm prometheus_*.deb); then
			return 0
		fi
	fi
	PATH=$PATH:$dir/usr/bin
}

# podman for the test of the volume plugin. Without it that test is skipped.
deps_podman() {
	local missing
	mapfile -t missing < <(deps_missing podman runc busybox-static)
	[ ${#missing[@]} -eq 0 ] || deps_apt_install "${missing[@]}" || true
}

# True when the go command is new enough to fetch the toolchain that go.mod asks for.
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

# udev, LVM and their like for the tests of what a node does with a tenant's bytes. They are unpacked, not installed: their
# services would run on this machine. Sets RINGVOL_NODE_PACKAGES; without them those tests are skipped.
deps_node() {
	local dir=$PWD/.cache/node package
	if [ ! -e "$dir/done" ]; then
		rm -rf "$dir"
		mkdir -p "$dir/archives/partial" "$dir/usr"
		deps_apt_update || return 0
		quietly /tmp/ringvol-node.log as_root apt-get -y --no-install-recommends --download-only --reinstall \
			-o "Dir::Cache::archives=$dir/archives" install udev dmsetup lvm2 mdadm btrfs-progs bcache-tools || return 0
		for package in "$dir"/archives/*.deb; do
			dpkg -x "$package" "$dir" || return 0
		done
		# /bin and its like are links into /usr on the machine.
		for package in bin sbin lib; do
			[ ! -d "$dir/$package" ] || cp -a "$dir/$package/." "$dir/usr/$package/"
		done
		rm -rf "$dir/archives"
		touch "$dir/done"
	fi
	export RINGVOL_NODE_PACKAGES=$dir
}
