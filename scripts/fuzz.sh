#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ./dev fuzz [TARGET|all] [SECONDS]: libFuzzer with ASan and UBSan on the targets of tests/fuzz. Each
# input of the corpus is run first, then new ones for SECONDS (20). The seed is fixed, so that a run
# can be repeated; FUZZ_SEED=N sets another. FUZZ_RUNS=N ends a target after N inputs, the
# corpus among them: a run that SECONDS do not end first is the same wherever it is made, as ./dev test wants it. Inputs found go to build-fuzz/found/TARGET and stay
# there; a finding is kept as build-fuzz/found/TARGET/crash-*. With FUZZ_MERGE=1 what a target has
# found is added to its archive, as little as covers as much. Exit status 77 where there is no libFuzzer.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
. scripts/lib.sh
. scripts/deps.sh

all=(h2_bytes h2_frames h2_client http1 docker provider tls csi record image_map disk_header thin options fsimg mountinfo ublkd chunk node luks_order)
target=${1:-all} seconds=${2:-20}
targets=("$target")
[ "$target" != all ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
	[ -f "tests/fuzz/fuzz_$target.c" ] || die "no target '$target': all ${all[*]}"
done
[[ $seconds =~ ^[0-9]+$ ]] || die "'$seconds' is no number of seconds"

deps_ensure build run
# A subshell: what cannot be installed ends it.
(deps_ensure fuzz) || {
	say "fuzz: skipped, there is no clang with libFuzzer, and it cannot be installed"
	exit 77
}
export CC=clang
build_target build-fuzz fuzzers -Db_sanitize=address,undefined -Db_lundef=false -Doptimization=1 \
	-Dc_args=-fsanitize=fuzzer-no-link || die "build-fuzz does not build, see build-fuzz/build.log"

# No target needs a privilege, and root's are too many for a program that is fed garbage.
unprivileged() {
	if [ "$(id -u)" -eq 0 ]; then
		setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
	else
		"$@"
	fi
}

export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

# One line for the target on standard output, what was found below it, and the exit status is that of the line.
run_target() { # TARGET
	local target=$1 found=build-fuzz/found/$1 code=0 dictionary=() runs said
	mkdir -p "$found" "$work/$target/new"
	cp "build-fuzz/tests/fuzz/fuzz_$target" "$work/$target/run"
	python3 scripts/fuzz-corpus.py unpack "$target" "$work/$target/corpus"
	sed -n "/^\[$target\]$/,/^\[/{/^\[/d;p}" tests/fuzz/dictionaries >"$work/$target/dict"
	[ ! -s "$work/$target/dict" ] || dictionary=(-dict=dict)
	[ "$(id -u)" -ne 0 ] || chown -R 65534:65534 "$work/$target"
	(cd "$work/$target" && unprivileged ./run -seed="${FUZZ_SEED:-1}" -max_total_time="$seconds" \
		-runs="${FUZZ_RUNS:--1}" \
		-max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "${dictionary[@]}" \
		new corpus) >"$found/log" 2>&1 || code=$?
	find "$work/$target" -maxdepth 1 -name '*-*' -type f -exec cp {} "$found/" \;
	if [ "${FUZZ_MERGE:-}" = 1 ]; then
		(cd "$work/$target" && mkdir merged && chown --reference=new merged &&
			unprivileged ./run -merge=1 -max_len=1024 merged corpus new) >>"$found/log" 2>&1
		mkdir -p "tests/fuzz/corpus/$target"
		find "$work/$target/merged" -type f -exec cp {} "tests/fuzz/corpus/$target/" \;
		python3 scripts/fuzz-corpus.py pack "$target"
	fi
	find "$work/$target/new" -type f -exec cp {} "$found/" \;
	if [ $code -eq 0 ]; then
		runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log")
		echo "ok      $target: $runs inputs"
	else
		said=$(grep -E 'does not hold|runtime error|ERROR: |SUMMARY|#[0-9]+ .*(src|tests/fuzz)/|Base64' "$found/log" |
			head -n 20) || true
		printf 'FAILED  %s: see %s/log and the input beside it\n%s\n' "$target" "$found" "$said"
	fi
	return $code
}

side_by_side run_target "${targets[@]}"
