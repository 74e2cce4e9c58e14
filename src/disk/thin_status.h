/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dm-thin says of a thin pool, and what its metadata begin with: read, without asking anybody.
 * Texts are those of drivers/md/dm-thin.c and Documentation/admin-guide/device-mapper, Linux 6.1 to
 * 7.2; the superblock's fields are those of drivers/md/dm-thin-metadata.c, version 2.
 */
#ifndef RINGVOL_DISK_THIN_STATUS_H
#define RINGVOL_DISK_THIN_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	THIN_METADATA_BLOCK_BYTES = 4096, /* one block of metadata */
	THIN_SUPER_BYTES = 4096,
	THIN_BLOCK_MIN = 64 << 10, /* a block of data: a power of two times this */
	THIN_BLOCK_MAX = 1 << 30,
};

enum thin_mode {
	THIN_WRITES,    /* as it should be */
	THIN_DATA_FULL, /* what needs a new block waits, or fails with ENOSPC */
	THIN_READ_ONLY, /* its metadata are full or damaged */
	THIN_FAILED,    /* nothing can be read either */
};

struct thin_status {
	enum thin_mode mode;
	bool needs_check;     /* a commit has failed, and the metadata have to be checked */
	bool fails_when_full; /* error_if_no_space */
	uint64_t metadata_used, metadata_total; /* blocks of THIN_METADATA_BLOCK_BYTES */
	uint64_t data_used, data_total;         /* blocks of the pool's size; 0: not known */
};
/* The status of a target `thin-pool`. 0 or -EBADMSG. */
int thin_status_parse(const char *params, struct thin_status *ret);
/* The status of a target `thin`: how much of it has blocks. 0; -ENODATA: the pool has failed;
 * -EBADMSG. */
int thin_volume_status_parse(const char *params, uint64_t *ret_mapped_bytes);

/* The table of a target `thin-pool`. */
struct thin_table {
	uint32_t metadata_major, metadata_minor, data_major, data_minor;
	uint32_t block_bytes;
	uint64_t low_water_blocks; /* an event is raised once that many are left */
	bool fails_when_full;
};
/* Into buf; the length, or -E2BIG. */
int thin_table_print(const struct thin_table *table, char *buf, size_t cap);
/* 0; -EBADMSG: not one of ours, as one that does not zero its blocks. */
int thin_table_parse(const char *params, struct thin_table *ret);

/* The first block of metadata. */
struct thin_super {
	bool blank; /* all zeros: the first activation makes it */
	bool needs_check;
	uint32_t block_bytes;
	uint64_t data_used, data_total; /* blocks, as of the last commit */
};
/* 0; -EBADMSG: it is none of dm-thin's. */
int thin_super_parse(const uint8_t block[THIN_SUPER_BYTES], struct thin_super *ret);

#endif
