#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/e2e/parts.sh: the real parts of a cluster in .cache/e2e/bin: Kubernetes, etcd, the CSI sidecars and helm
# built as the Go modules of tests/e2e/parts, containerd, runc and the CNI plugins out of Debian's packages, which
# are unpacked and not installed (an installed containerd would be started). A part is made again when what it is
# made from has changed, and not before. The first time takes the better part of an hour on two cores.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/e2e/module.sh

top=$PWD
cache=$top/.cache/e2e
packages=(containerd runc containernetworking-plugins)

# Kubernetes learns its version from the linker; a kubelet without one is turned away.
kubernetes() {
	local version package=k8s.io/component-base/version
	version=$(sed -nE 's/^.*k8s\.io\/kubernetes (v[0-9.]+).*/\1/p' tests/e2e/parts/kubernetes/go.mod)
	module kubernetes -X "$package.gitVersion=$version" -X "$package.gitMajor=$(cut -d. -f1 <<<"${version#v}")" \
		-X "$package.gitMinor=$(cut -d. -f2 <<<"$version")"
}

# definitions_of PART MODULE: what a cluster has to know of a sidecar's objects comes with the sidecar's module of types.
definitions_of() {
	local from
	from=$(cd "tests/e2e/parts/$1" && go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	cp "$from"/config/crd/*.storage.k8s.io_*.yaml "$cache/crds/"
}

definitions() {
	rm -rf "$cache/crds" && mkdir -p "$cache/crds"
	definitions_of sidecars github.com/kubernetes-csi/external-snapshotter/client/v8
	definitions_of snapshot-metadata github.com/kubernetes-csi/external-snapshot-metadata/client
}

candidates() {
	apt-cache policy "${packages[@]}" | grep Candidate
}

debian() {
	local key
	key=$(candidates)
	[ -n "$key" ] || { deps_apt_update && key=$(candidates); }
	! made debian "$key" || return 0
	say "unpacking ${packages[*]}"
	rm -rf "$cache/debian" && mkdir -p "$cache/debian"
	deps_apt_update
	(cd "$cache/debian" && quietly "$cache/debian.log" apt-get download "${packages[@]}" &&
		for file in *.deb; do dpkg -x "$file" .; done && rm ./*.deb)
	remember debian "$key"
}

deps_ensure go
mkdir -p "$cache/bin"
debian
module etcd
[ ! -e "$cache/bin/server" ] || mv "$cache/bin/server" "$cache/bin/etcd" # named after its directory
kubernetes
module sidecars
module snapshot-metadata
definitions
helm_ensure
