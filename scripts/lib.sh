# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts behind ./dev; sourced from the top of the source tree.

say() {
	printf '%s\n' "$*" >&2
}

die() {
	say "error: $*"
	exit 1
}

# as_root CMD...: loop devices, mounts and apt need root.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo --preserve-env=PATH,RINGVOL_BIN,RINGVOL_DESCRIPTORS,DEBIAN_FRONTEND,CI "$@"
	else
		die "'$1' needs root, and there is no sudo"
	fi
}

# quietly LOG CMD...: output goes to LOG; its end is shown when CMD fails.
quietly() {
	local log=$1
	shift
	mkdir -p "$(dirname "$log")"
	if ! "$@" >"$log" 2>&1; then
		say "failed: $*"
		tail -n 40 "$log" >&2
		say "all of it: $log"
		return 1
	fi
}

# build_tree DIR [MESON OPTION...]: configures once, then builds what changed.
build_tree() {
	local dir=$1
	shift
	build_target "$dir" all "$@"
}

# build_target DIR TARGET [MESON OPTION...]: no more of a tree than that. One builds in a tree at a time.
build_target() (
	dir=$1 target=$2
	shift 2
	mkdir -p "$dir"
	exec 9>"$dir/lock"
	flock 9
	if [ ! -f "$dir/build.ninja" ]; then
		say "configuring $dir"
		rm -rf "$dir"/meson-* # of an attempt cut short; logs may lie in there already
		quietly "$dir/setup.log" meson setup "$dir" "$@" || return 1
	fi
	say "building $dir"
	quietly "$dir/build.log" ninja -C "$dir" "$target"
)

# side_by_side COMMAND WORD...: runs COMMAND with each word, as many at once as there are processors; fails if one fails.
side_by_side() {
	local command=$1 word running=0 failed=0
	shift
	for word in "$@"; do
		if [ $running -ge "$(nproc)" ]; then
			wait -n || failed=1
			running=$((running - 1))
		fi
		"$command" "$word" &
		running=$((running + 1))
	done
	for ((; running > 0; running--)); do
		wait -n || failed=1
	done
	return $failed
}

asan_options=(-Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1)
