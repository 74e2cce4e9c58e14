#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/render-manifests.sh [DIR]: the chart's plain manifests, for those who do not use helm, into deploy/kubernetes (or
# DIR, for the test that they are what the chart renders).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh
. scripts/e2e/module.sh

dir=${1:-deploy/kubernetes}
deps_ensure go
helm_ensure

# manifest NAME TITLE OPTION...
manifest() {
	local name=$1 title=$2
	shift 2
	{
		echo "# $title"
		echo "# Rendered from deploy/helm/ringvol by scripts/render-manifests.sh: change the chart."
		# "Helm" is not who manages these.
		"$helm" template ringvol deploy/helm/ringvol --namespace ringvol --kube-version 1.35.0 "$@" 2>"$dir/.warnings" |
			sed -e '/^ *helm\.sh\/chart: /d' -e '/^ *app\.kubernetes\.io\/managed-by: Helm$/d'
	} >"$dir/$name.new" || { cat "$dir/.warnings" >&2 && return 1; }
	rm "$dir/.warnings"
	mv "$dir/$name.new" "$dir/$name"
}

mkdir -p "$dir"
cat >"$dir/namespace.yaml.new" <<-'END'
	# First. The driver is privileged, which a namespace has to allow where Pod Security Admission is enforced.
	apiVersion: v1
	kind: Namespace
	metadata:
	  name: ringvol
	  labels:
	    pod-security.kubernetes.io/enforce: privileged
END
mv "$dir/namespace.yaml.new" "$dir/namespace.yaml"
# Certificates are nothing to be kept in a file that everybody has: these Secrets are to be there first.
cluster=(--set tls.existingSecret.controller=ringvol-controller-tls --set tls.existingSecret.node=ringvol-node-tls)
needs="needs the Secrets ringvol-controller-tls and ringvol-node-tls (docs/cluster.md)"
manifest ringvol.yaml "ringvol without snapshots: $needs." "${cluster[@]}" --set snapshots.enabled=false
manifest ringvol-snapshots.yaml "ringvol with snapshots: $needs, the snapshot CRDs and a snapshot controller." "${cluster[@]}" \
	--set snapshots.enabled=true
manifest ringvol-ublk.yaml "ringvol with snapshots, as before, and ublk volumes: needs Linux 6.8 or newer with ublk_drv loaded, too." \
	"${cluster[@]}" --set snapshots.enabled=true --set ublk.enabled=true
manifest ringvol-node-mode.yaml "ringvol without a controller, with snapshots: needs the snapshot CRDs and a snapshot controller with --enable-distributed-snapshotting." \
	--set mode=node --set snapshots.enabled=true
