/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a chunk: through the ring where the kernel keeps a direct write apart from the loop
 * (direct_writes), else as a job of the pool's lane; so is one that may become a hole, which takes
 * a look at all of it. A short write goes on where it ended; one that makes no progress is -EIO.
 */
#include "transfer/pull_buf.h"

#include "blockio/copy_walk.h"
#include "reactor/ring_chore.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void submit(struct pull_buf *buf);

static void written(struct pull_buf *buf, int res)
{
	uint32_t done = copy_advance(buf->direct, buf->done, res > 0 ? (uint32_t)res : 0, buf->len);
	bool failed = done == buf->done;
	buf->done = done;
	if (done < buf->len && !failed) {
		submit(buf);
		return;
	}
	buf->busy = false;
	buf->on_written(buf, !failed ? 0 : res < 0 ? res : -EIO);
}

static void on_write(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	written(container_of(req, struct pull_buf, req), res);
}

/* Whether it is to be a hole: memory compared with itself, a byte further. */
static bool is_hole(const struct pull_buf *buf)
{
	return buf->punches && buf->done == 0 && buf->mem[0] == 0 &&
	       memcmp(buf->mem, buf->mem + 1, buf->len - 1) == 0;
}

static int write_run(struct work_job *job)
{
	struct pull_buf *buf = container_of(job, struct pull_buf, job);
	ssize_t n;
	if (is_hole(buf) && fallocate(buf->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				    (off_t)buf->offset, (off_t)buf->len) == 0)
		return (int)buf->len;
	do
		n = pwrite(buf->fd, buf->mem + buf->done, buf->len - buf->done,
			(off_t)(buf->offset + buf->done));
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : (int)n;
}

static void write_end(struct work_job *job, int res)
{
	written(container_of(job, struct pull_buf, job), res);
}

static void submit(struct pull_buf *buf)
{
	struct ring *ring = buf->reactor->ring;
	if (buf->direct && ring_features(ring)->direct_writes && !buf->punches) {
		io_uring_prep_write(&buf->req.sqe, buf->fd, buf->mem + buf->done,
			buf->len - buf->done, buf->offset + buf->done);
		ring_sqe_chore(&buf->req.sqe);
		buf->req.fn = on_write;
		buf->req.lane = buf->lane;
		ring_submit(ring, &buf->req);
		return;
	}
	buf->job = (struct work_job){.run = write_run, .on_end = write_end, .lane = buf->lane};
	int r = work_submit(buf->reactor->work, &buf->job);
	if (r < 0) {
		buf->req.fn = on_write;
		ring_post(ring, &buf->req, r);
	}
}

void pull_bufs_init(struct pull_buf *bufs, unsigned count,
	void (*on_written)(struct pull_buf *buf, int res), void *arg)
{
	for (unsigned i = 0; i < count; i++)
		bufs[i] = (struct pull_buf){.on_written = on_written, .arg = arg};
}

void pull_bufs_close(struct pull_buf *bufs, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		free(bufs[i].mem);
		bufs[i].mem = NULL;
	}
}

struct pull_buf *pull_bufs_free(struct pull_buf *bufs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!bufs[i].busy)
			return &bufs[i];
	return NULL;
}

uint64_t pull_bufs_written(const struct pull_buf *bufs, unsigned count, uint64_t upto)
{
	for (unsigned i = 0; i < count; i++)
		if (bufs[i].busy && bufs[i].offset < upto)
			upto = bufs[i].offset;
	return upto;
}

int pull_buf_fill(struct pull_buf *buf, const struct chunk *chunk)
{
	void *mem = buf->mem;
	if (mem == NULL && posix_memalign(&mem, CHUNK_ALIGN, CHUNK_BYTES_MAX) != 0)
		return -ENOMEM;
	buf->mem = mem;
	memcpy(mem, chunk->data, chunk->len);
	buf->offset = chunk->offset;
	buf->len = (uint32_t)chunk->len;
	buf->done = 0;
	return 0;
}

void pull_buf_write(
	struct pull_buf *buf, struct reactor *reactor, struct lane *lane, int fd, bool direct)
{
	buf->busy = true;
	buf->reactor = reactor;
	buf->lane = lane;
	buf->fd = fd;
	buf->direct = direct;
	submit(buf);
}
