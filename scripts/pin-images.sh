#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/pin-images.sh [VALUES]: asks the registry which image each sidecar's tag names now, and writes its digest into the
# chart's values (or VALUES). Needs skopeo or crane and the network; changes nothing unless every image was answered for.
# Afterwards: scripts/render-manifests.sh.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh

values=$(readlink -f "${1:-deploy/helm/ringvol/values.yaml}")

# The digest of what the tag names, for all architectures together.
digest_of() {
	if command -v skopeo >/dev/null; then
		skopeo inspect --no-tags --format '{{.Digest}}' "docker://$1"
	elif command -v crane >/dev/null; then
		crane digest "$1"
	else
		die "pin-images: install skopeo or crane"
	fi
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
pinned=0 digest=
while IFS= read -r line; do
	case $line in
	"    image: "*)
		image=${line#*: }
		digest=$(digest_of "$image") || die "pin-images: the registry does not answer for $image"
		[[ $digest =~ ^sha256:[0-9a-f]{64}$ ]] || die "pin-images: the registry's answer for $image is no digest: $digest"
		say "$image $digest"
		pinned=$((pinned + 1))
		;;
	"    digest: "*)
		line="    digest: $digest"
		;;
	esac
	printf '%s\n' "$line"
done <"$values" >"$new"
[ $pinned -gt 0 ] || die "pin-images: no image in $values"
cat "$new" >"$values"
