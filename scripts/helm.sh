# SPDX-License-Identifier: Apache-2.0
# helm, built as the Go module of tests/e2e/parts/helm; sourced after deps.sh with Go ensured.

# helm_ensure: sets $helm. Built when what it is made from has changed, which takes minutes.
helm_ensure() {
	local cache=$PWD/.cache/e2e key
	helm=$cache/bin/helm
	mkdir -p "$cache/bin"
	key=$({ cat tests/e2e/parts/helm/go.mod tests/e2e/parts/helm/go.sum && echo; } | sha256sum)
	[ ! -x "$helm" ] || [ "$(cat "$cache/helm.made" 2>/dev/null)" != "$key" ] || return 0
	say "building helm"
	(cd tests/e2e/parts/helm && CGO_ENABLED=0 GOFLAGS="$GOFLAGS -trimpath" \
		quietly "$cache/helm.log" nice -n 10 go build -ldflags "-s -w " -o "$cache/bin/" tool) || return 1
	echo "$key" >"$cache/helm.made"
}
