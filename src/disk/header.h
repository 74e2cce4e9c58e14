/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a disk of a raw pool says of itself: one block of text at the beginning of its first unit,
 * and a copy at the beginning of its last. Versioned, checksummed, padded with zeros. It is written
 * by `pool init --device`, `pool grow` and `pool release`, and by a driver when it becomes the
 * owner; the copy first, each with a flush.
 *
 *   ringvol-disk 1
 *   pool=<uuid>  disk=<uuid>  index=  count=  size=  start=  offset=  bytes=
 *   records-offset=  records-bytes=  generation=  state=making|growing
 *   owner=<node>  owner-machine=  owner-since=<ns, CLOCK_REALTIME>
 *   member=<uuid>       of the first disk: each of all
 *   sum=<first 16 hex digits of SHA-256 of everything before this line>
 *
 * One line each, in this order; what is empty or 0 is left out.
 */
#ifndef RINGVOL_DISK_HEADER_H
#define RINGVOL_DISK_HEADER_H

#include "disk/disk.h"

#include <stddef.h>

enum { DISK_HEADER_BYTES = 4096, DISK_OWNER_MAX = 256, DISK_MACHINE_MAX = 64 };

/* How far a change of the pool's disks has come. */
enum disk_state {
	DISK_SOUND,
	DISK_MAKING,  /* `pool init` did not end: nothing is on the disk yet */
	DISK_GROWING, /* of the first disk: `pool grow` did not end */
	DISK_STATES,
};

struct disk_header {
	char pool[DISK_UUID_BYTES], disk[DISK_UUID_BYTES];
	unsigned index; /* of this disk among the pool's */
	unsigned count; /* of the first: how many there are; else 0 */
	char disks[DISK_MEMBERS_MAX][DISK_UUID_BYTES]; /* of the first: their uuids */
	uint64_t size_bytes;                           /* of the device, rounded down to units */
	uint64_t start, offset, bytes;                 /* as in struct disk_member */
	uint64_t records_offset, records_bytes;        /* 0 but on the first */
	uint64_t generation;                           /* the larger one of two is the later */
	enum disk_state state;
	char owner[DISK_OWNER_MAX]; /* of the first: the node that serves the pool; "": none */
	char owner_machine[DISK_MACHINE_MAX]; /* which machine that is (owner.h); "": not known */
	uint64_t owner_since_ns;
};

/* Into buf, all DISK_HEADER_BYTES of it. 0 or -E2BIG. */
int disk_header_print(const struct disk_header *header, char *buf);
/* 0; -ENODATA: nothing of ours (no magic); -EBADMSG: damaged, or numbers that contradict each
 * other; -EPROTONOSUPPORT: a later version. */
int disk_header_parse(const char *buf, struct disk_header *ret);

/* Of an open device, direct I/O or not; size: of the device, 0: the copy is not looked at. The
 * later of the two where both are sound; *ret_damaged: one is not. As disk_header_parse(), or
 * -errno. A first block of zeros has been wiped: the copy does not count. It does where something
 * else has been written there; ask disk_signature() what that is. */
int disk_header_read(int fd, uint64_t size_bytes, struct disk_header *ret, bool *ret_damaged);
/* Both, durable. */
int disk_header_write(int fd, const struct disk_header *header);

#endif
