/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a copy on its way to the image: one chunk, written whole. */
#ifndef RINGVOL_TRANSFER_PULL_BUF_H
#define RINGVOL_TRANSFER_PULL_BUF_H

#include "reactor/op.h"
#include "transfer/chunk.h"

struct pull_buf {
	/* res: 0 or -errno; the buffer is free again. */
	void (*on_written)(struct pull_buf *buf, int res);
	void *arg;
	/* Bytes of the image, while busy. */
	uint64_t offset;
	uint32_t len;
	bool busy;
	bool punches; /* zeros become a hole */
	/* private */
	uint32_t done;
	uint8_t *mem; /* CHUNK_BYTES_MAX, aligned; NULL: not needed yet */
	struct reactor *reactor;
	struct lane *lane;
	struct ring_req req;
	struct work_job job;
	int fd;
	bool direct;
};

void pull_bufs_init(struct pull_buf *bufs, unsigned count,
	void (*on_written)(struct pull_buf *buf, int res), void *arg);
/* None is busy. They can be used again. */
void pull_bufs_close(struct pull_buf *bufs, unsigned count);
/* One that is not busy; NULL: all are. */
struct pull_buf *pull_bufs_free(struct pull_buf *bufs, unsigned count);
/* How far all is written of what came up to `upto`. */
uint64_t pull_bufs_written(const struct pull_buf *bufs, unsigned count, uint64_t upto);
/* Takes a copy of the chunk, which was looked over. 0 or -ENOMEM. */
int pull_buf_fill(struct pull_buf *buf, const struct chunk *chunk);
/* Writes it; on_written() is called later. direct: fd has O_DIRECT. */
void pull_buf_write(
	struct pull_buf *buf, struct reactor *reactor, struct lane *lane, int fd, bool direct);

#endif
