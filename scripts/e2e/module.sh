# SPDX-License-Identifier: Apache-2.0
# Programs built as the Go modules of tests/e2e/parts, into .cache/e2e/bin; sourced after deps.sh, with Go
# ensured before the first call. One is built again when what it is made from has changed, which takes minutes.

# made PART KEY: whether the part was made from this already. remember PART KEY: it is from now on.
made() {
	[ "$(cat "$PWD/.cache/e2e/$1.made" 2>/dev/null)" = "$2" ]
}
remember() {
	echo "$2" >"$PWD/.cache/e2e/$1.made"
}

# module PART [LINKER FLAG...]
module() {
	local part=$1 cache=$PWD/.cache/e2e key
	shift
	mkdir -p "$cache/bin"
	key=$({ cat "tests/e2e/parts/$part/go.mod" "tests/e2e/parts/$part/go.sum" && echo "$*"; } | sha256sum)
	! made "$part" "$key" || return 0
	say "building $part"
	(cd "tests/e2e/parts/$part" && CGO_ENABLED=0 GOFLAGS="$GOFLAGS -trimpath" \
		quietly "$cache/$part.log" nice -n 10 go build -ldflags "-s -w $*" -o "$cache/bin/" tool) || return 1
	remember "$part" "$key"
}

# helm_ensure: sets $helm. Others than the end-to-end tests want it, and may find it gone.
helm_ensure() {
	helm=$PWD/.cache/e2e/bin/helm
	[ -x "$helm" ] || rm -f "$PWD/.cache/e2e/helm.made"
	module helm
}
