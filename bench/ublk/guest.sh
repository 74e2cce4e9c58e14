#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# In the guest, for scripts/vm/bench.sh ublk: guest.sh SECONDS ROUNDS [PEER]. Prints lines
#   iops KIND RW DEPTH IOPS              of fio, 4k random, one job, SECONDS each, in turn
#   count KIND RW DEPTH INSTRUCTIONS SYSCALLS REQUESTS
# KIND: loop (the kernel's, direct I/O), ublk (ours), peer (another ublk server's loop target: PEER is
# its command line tool, which also starts it).
set -u
seconds=$1 rounds=$2 peer=${3:-}
top=/ringvol
modprobe ublk_drv && modprobe loop || exit
mkfs.xfs -q /dev/vdb && mount /dev/vdb /mnt || exit
mkdir -p /run/ringvol
declare -A node pid name
start_ublk() {
	"$top/build/ringvol" ublkd --threads 1 2>>/run/ringvol/ublkd.log &
	pid[ublk]=$! name[ublk]=ublk-
	for _ in $(seq 300); do
		node[ublk]=$("$top/build/vm/ublk.test" attach /run/ringvol/ublkd.sock /mnt/ublk 2>/dev/null) && return
		sleep 0.1
	done
	exit 1
}
start_peer() {
	before=$(echo /dev/ublkb*)
	"$peer" add -t loop -q 1 -d 64 -f /mnt/peer >/run/ringvol/peer.log 2>&1 || cat /run/ringvol/peer.log
	for n in /dev/ublkb*; do
		case " $before " in *" $n "*) ;; *) node[peer]=$n ;; esac
	done
	pid[peer]=$(pidof ublk.loop) name[peer]=
}

# Every kind has an image of its own, written throughout.
for kind in loop ublk peer; do
	dd if=/dev/zero of=/mnt/$kind bs=1M count=256 oflag=direct 2>/dev/null
done
node[loop]=$(losetup -f --show --direct-io=on /mnt/loop) || exit
start_ublk
kinds='loop ublk'
if [ -n "$peer" ]; then
	start_peer
	kinds='loop ublk peer'
fi
echo "kernel $(uname -r)"
for kind in $kinds; do echo "device $kind ${node[$kind]}"; done

job() { # kind rw depth, then fio options
	local kind=$1 rw=$2 depth=$3
	shift 3
	fio --name=j --filename="${node[$kind]}" --direct=1 --ioengine=libaio --bs=4k --rw="$rw" \
		--iodepth="$depth" --size=256m --randrepeat=1 --norandommap --minimal "$@"
}

for round in $(seq "$rounds"); do
	for rw in randread randwrite; do
		for depth in 1 32; do
			for kind in $kinds; do
				field=8
				[ $rw = randwrite ] && field=49
				iops=$(job $kind $rw $depth --time_based --runtime="$seconds" --ramp_time=0.5 |
					cut -d';' -f$field)
				echo "iops $kind $rw $depth $iops"
			done
		done
	done
done

requests() { awk '{print $1 + $5 + $16}' "/sys/block/${node[$1]#/dev/}/stat"; }

for rw in randread randwrite; do
	for depth in 1 32; do
		for kind in $kinds; do
			[ $kind = loop ] && continue
			"$top/build/vm/count" ${pid[$kind]} ${name[$kind]} >/run/ringvol/count &
			counter=$!
			sleep 1
			first=$(requests $kind)
			job $kind $rw $depth --number_ios=96 >/dev/null
			last=$(requests $kind)
			kill -TERM $counter
			wait $counter
			read -r _ instructions _ syscalls </run/ringvol/count
			# A process that was stepped through is of no use any more.
			kill -KILL ${pid[$kind]}
			echo "count $kind $rw $depth $instructions $syscalls $((last - first))"
			if [ $kind = ublk ]; then
				start_ublk
			else
				"$peer" del -n "${node[peer]#/dev/ublkb}" >/dev/null 2>&1
				start_peer
			fi
		done
	done
done
"$top/build/vm/ublk.test" detach /run/ringvol/ublkd.sock /mnt/ublk
