/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data process's memory: one small file per ublk device, so that the next process knows which
 * image a device serves. The directory is on a tmpfs (/run), for devices do not outlive the kernel;
 * a file is replaced by rename, so it is whole or absent. Synchronous, for work jobs and starts.
 */
#ifndef RINGVOL_BACKENDS_UBLK_STATE_H
#define RINGVOL_BACKENDS_UBLK_STATE_H

#include "backends/ublk/ublkd_proto.h"
#include "base/err.h"

#include <stdbool.h>

enum ublk_phase {
	UBLK_PHASE_MAKING = 1, /* nobody was told of the device yet: swept by the next start */
	UBLK_PHASE_LIVE = 2,   /* recovered by the next start */
	UBLK_PHASE_ENDING = 3, /* a detach has begun: swept by the next start */
};

/* As it is in the file; grows at its end only. */
struct ublk_record {
	uint32_t magic, version, bytes, check;
	uint32_t phase;
	uint32_t dev_id;
	uint32_t flags; /* UBLKD_READ_ONLY, UBLKD_NO_DISCARD */
	uint32_t block_size;
	uint16_t queues, depth;
	uint32_t recoveries;
	uint64_t image_dev, image_ino;
	char tag[UBLKD_TAG_BYTES];
	char path[UBLKD_PATH_BYTES];
	struct io_limits limits;
};

/* Makes the directory (0700, with what is missing above it) if asked, and opens it. The fd, or
 * -errno. */
int ublk_state_open_dir(const char *path, bool make);
/* One data process per directory: holds its lock until the fd is closed. -EWOULDBLOCK. */
int ublk_state_lock(int dirfd, int *ret_lock_fd);
/* A random number kept in the directory: devices carry it, so that the data processes of two
 * directories (nodes in containers on one kernel) leave each other's alone. */
int ublk_state_instance(int dirfd, uint32_t *ret);

/* Fills the record's frame and puts it into its file. */
int ublk_state_write(int dirfd, struct ublk_record *record);
/* -ENOENT; -EBADMSG when it is damaged. */
int ublk_state_read(int dirfd, uint32_t dev_id, struct ublk_record *ret);
int ublk_state_remove(int dirfd, uint32_t dev_id);
/* For each file: record NULL when it cannot be read. */
int ublk_state_each(int dirfd,
	void (*each)(void *arg, uint32_t dev_id, const struct ublk_record *record), void *arg);

#endif
