/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sending. Happy path: OpenCopy tells what the copy is; ReadCopy opens the image on a thread and
 * walks over its data (blockio/copy_walk.h), one batch of extents ahead. A few buffers are read
 * into through the ring, in the pool's lane, and sent in order as the client reads, and as the rate
 * allows, each by a chore of the loop: RPCs go first. After the last one comes a message that says
 * so. CloseCopy drops the grant.
 *
 * How it can fail: there is no such grant for that node; too many copies are under way; the disk
 * cannot be read; the client leaves, or does not read: then nothing more is read for it. A stream
 * ends when its last request and its last job have come back. That a volume was sent whole is made
 * durable before it is told: what is granted later has to be another image (grant.h). An image that
 * its disk does not give is granted no more either.
 */
#include "transfer/send.h"

#include "base/fd.h"
#include "blockio/copy_walk.h"
#include "cluster.pb-c.h"
#include "pool/hold.h"
#include "reactor/ring_chore.h"
#include "transfer/bulk.h"
#include "transfer/chunk.h"
#include "transfer/grant.h"
#include "transfer/renew.h"
#include "transfer/still.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	SEND_BUFFERS = 6,
	IMAGE_NAME_BYTES = RECORD_KEY_MAX, /* a hold's name is shorter */
};
_Static_assert(sizeof(((struct pool_hold *)0)->name) <= IMAGE_NAME_BYTES, "a name fits");

struct send_buf {
	struct ring_req req;
	struct send *send;
	uint8_t *mem; /* CHUNK_ALIGN bytes for the head, then CHUNK_BYTES */
	uint64_t offset;
	uint32_t len, done;
	bool ready;
};

struct send {
	struct list link; /* the transfer's */
	struct transfer *transfer;
	struct grpc_call *call;
	struct pool_hold *hold;
	struct work_job open, note;
	struct copy_walk walk;
	struct ring_timer pause; /* the rate's */
	struct ring_chore chore; /* the next chunk */
	struct lane *lane;
	int holds_fd, fd; /* holds_fd: also the base's */
	/* What differs from the base is sent alone: of a volume that is held still from the hold's
	 * image, of that from an earlier hold's. fd is the target's. */
	bool differs;
	struct pool_hold *earlier; /* the latter; NULL */
	int target_dir_fd;
	char target[IMAGE_NAME_BYTES], base[IMAGE_NAME_BYTES];
	struct differ differ;
	bool direct_io, opened, blocked;
	bool noting, noted, closing;
	uint64_t from_bytes, size_bytes;
	/* Buffers first .. first + used - 1 have chunks, in order. */
	struct send_buf bufs[SEND_BUFFERS];
	unsigned first, used, reading;
	/* Set once: it is to end so. */
	bool ending;
	enum grpc_status status;
	const char *message; /* static */
};

static uint64_t now_ns(const struct transfer *t)
{
	return ring_now_ns(t->reactor->ring);
}

/* ---- the end ---- */

static bool job_armed(const struct send *s)
{
	return !s->opened;
}

static int close_run(struct work_job *job)
{
	struct send *s = container_of(job, struct send, open);
	fd_close(&s->fd);
	fd_close(&s->differ.base_fd);
	return 0;
}

static void send_free(struct send *s)
{
	for (unsigned i = 0; i < SEND_BUFFERS; i++)
		free(s->bufs[i].mem);
	fd_close(&s->fd);
	fd_close(&s->differ.base_fd);
	differ_close(&s->differ);
	free(s);
}

static void closed(struct work_job *job, int res)
{
	struct send *s = container_of(job, struct send, open);
	struct transfer *t = s->transfer;
	(void)res;
	grant_let_go(t, s->hold);
	if (s->earlier != NULL)
		grant_let_go(t, s->earlier);
	list_remove(&s->link);
	t->stats.sends--;
	bulk_counted(t);
	grpc_end(s->call, s->status, s->message);
	send_free(s);
}

/* Nothing of it is under way any more: the last close of a deleted image gives its blocks back, on
 * a thread. The hold is let go after it: the trash leaves alone what is open. */
static void send_over(struct send *s)
{
	struct transfer *t = s->transfer;
	s->closing = true;
	ring_timer_cancel(t->reactor->ring, &s->pause);
	ring_chore_cancel(&s->chore);
	s->open = (struct work_job){.run = close_run, .on_end = closed, .lane = s->lane};
	if (s->fd < 0 || work_submit(t->reactor->work, &s->open) < 0) {
		fd_close(&s->fd);
		closed(&s->open, 0);
	}
}

static void end_if_over(struct send *s)
{
	if (s->ending && s->reading == 0 && !s->walk.running && !job_armed(s) && !s->noting &&
		!s->closing)
		send_over(s);
}

static void end_with(struct send *s, enum grpc_status status, const char *message)
{
	if (s->ending)
		return;
	s->ending = true;
	s->status = status;
	s->message = message;
}

/* This node is short of something, or its pool is away. */
static bool passes(int res)
{
	return res == -EAGAIN || res == -EINTR || res == -ENOMEM || res == -EMFILE ||
	       res == -ENFILE || res == -ENOTDIR;
}

/* The image cannot be had: message says it of one that never will. Another grant of the same has
 * another image. */
static void end_failed(struct send *s, int res, const char *message)
{
	if (passes(res)) {
		end_with(s, GRPC_UNAVAILABLE,
			"the pool is away, or its node is short of memory or descriptors: try again");
		return;
	}
	s->hold->dropped = true;
	if (s->earlier != NULL)
		s->earlier->dropped = true;
	end_with(s, GRPC_DATA_LOSS, message);
}

/* ---- reading ---- */

static void go_on(struct send *s);

static void buf_read(struct send_buf *buf);

static void on_read(struct ring_req *req, int res, uint32_t flags)
{
	struct send_buf *buf = container_of(req, struct send_buf, req);
	struct send *s = buf->send;
	(void)flags;
	s->reading--;
	uint32_t done =
		copy_advance(s->direct_io, buf->done, res > 0 ? (uint32_t)res : 0, buf->len);
	if (done == buf->done)
		end_failed(s, res,
			"the image cannot be read: look for errors of its disk "
			"in the kernel log of its node");
	buf->done = done;
	buf->ready = buf->done == buf->len;
	if (!s->ending && !buf->ready)
		buf_read(buf);
	go_on(s);
}

static void buf_read(struct send_buf *buf)
{
	struct send *s = buf->send;
	io_uring_prep_read(&buf->req.sqe, s->fd, buf->mem + CHUNK_ALIGN + buf->done,
		buf->len - buf->done, buf->offset + buf->done);
	ring_sqe_chore(&buf->req.sqe);
	buf->req.fn = on_read;
	buf->req.lane = s->lane;
	s->reading++;
	ring_submit(s->transfer->reactor->ring, &buf->req);
}

static bool start_buf(struct send *s)
{
	struct copy_extent *e = copy_walk_extent(&s->walk);
	while (e != NULL && e->start >= e->end) {
		copy_walk_next(&s->walk);
		e = copy_walk_extent(&s->walk);
	}
	if (e == NULL || s->used == SEND_BUFFERS)
		return false;
	struct send_buf *buf = &s->bufs[(s->first + s->used) % SEND_BUFFERS];
	uint64_t len = e->end - e->start;
	uint32_t most =
		ring_chores_small(s->transfer->reactor->ring) ? CHUNK_SMALL_BYTES : CHUNK_BYTES;
	buf->send = s;
	buf->offset = e->start;
	buf->len = len < most ? (uint32_t)len : most;
	buf->done = 0;
	buf->ready = false;
	e->start += buf->len;
	s->used++;
	buf_read(buf);
	return true;
}

/* ---- sending ---- */

static void on_pause(struct ring_timer *timer)
{
	go_on(container_of(timer, struct send, pause));
}

static void on_writable(struct grpc_call *call, void *arg)
{
	struct send *s = arg;
	(void)call;
	s->blocked = false;
	go_on(s);
}

static void send_buf(struct send *s, struct send_buf *buf)
{
	struct transfer *t = s->transfer;
	uint8_t *data = buf->mem + CHUNK_ALIGN;
	struct chunk chunk = {.offset = buf->offset, .data = data, .len = buf->len};
	chunk.checksum = chunk_sum(&chunk);
	size_t len;
	const uint8_t *message = chunk_put_head(&chunk, data, &len);
	s->blocked = !grpc_send_bytes(s->call, message, len);
	s->hold->used_ns = now_ns(t);
	t->stats.sent_bytes += buf->len;
	(void)rate_take(&t->rate, now_ns(t), buf->len);
	s->first = (s->first + 1) % SEND_BUFFERS;
	s->used--;
}

static void send_end(struct send *s)
{
	uint8_t head[CHUNK_HEAD_MAX];
	struct chunk chunk = {.offset = s->size_bytes, .end = true};
	size_t len;
	const uint8_t *message = chunk_put_head(&chunk, head + sizeof(head), &len);
	(void)grpc_send_bytes(s->call, message, len);
	end_with(s, GRPC_OK, NULL);
}

static int note_run(struct work_job *job)
{
	return pool_hold_note_sent(container_of(job, struct send, note)->fd);
}

static void noted(struct work_job *job, int res)
{
	struct send *s = container_of(job, struct send, note);
	s->noting = false;
	s->noted = res == 0;
	if (res < 0)
		end_with(s, GRPC_UNAVAILABLE,
			"that it was sent cannot be noted on the disk of its node: try again");
	go_on(s);
}

/* The image of a snapshot is the same whenever it is granted. */
static void note_or_end(struct send *s)
{
	if (s->noted || s->differs || s->hold->rec->kind == RECORD_SNAPSHOT) {
		send_end(s);
		return;
	}
	s->hold->sent = true;
	s->note = (struct work_job){.run = note_run, .on_end = noted, .lane = s->lane};
	if (work_submit(s->transfer->reactor->work, &s->note) < 0)
		end_with(s, GRPC_RESOURCE_EXHAUSTED, "too much is under way: try again");
	else
		s->noting = true;
}

/* True: the first chunk may go. */
static bool may_send(struct send *s)
{
	struct transfer *t = s->transfer;
	if (s->used == 0 || !s->bufs[s->first].ready || s->blocked || s->ending)
		return false;
	uint64_t ms = rate_wait_ms(&t->rate, now_ns(t));
	if (ms > 0)
		ring_timer_arm(t->reactor->ring, &s->pause, ms);
	return ms == 0;
}

static void go_on(struct send *s)
{
	if (!s->opened)
		return;
	if (grpc_call_gone(s->call))
		end_with(s, GRPC_CANCELLED, NULL);
	else if (s->walk.res < 0)
		end_failed(s, s->walk.res,
			"the image's extents cannot be read: look for errors of "
			"its disk in the kernel log of its node");
	if (may_send(s))
		ring_chore_want(s->transfer->reactor->ring, &s->chore);
	while (!s->ending && start_buf(s))
		;
	if (!s->ending && !s->noting && s->used == 0 && !s->blocked && copy_walk_at_end(&s->walk))
		note_or_end(s);
	end_if_over(s);
}

static void on_chore(struct ring_chore *chore)
{
	struct send *s = container_of(chore, struct send, chore);
	if (may_send(s))
		send_buf(s, &s->bufs[s->first]);
	go_on(s);
}

/* ---- the start ---- */

static void on_extents(struct copy_walk *walk)
{
	go_on(container_of(walk, struct send, walk));
}

static int open_run(struct work_job *job)
{
	struct send *s = container_of(job, struct send, open);
	int fd = pool_hold_open(s->target_dir_fd, s->target, s->direct_io);
	if (fd < 0)
		return fd;
	s->fd = s->differ.target_fd = fd;
	if (!s->differs)
		return 0;
	s->differ.base_fd = pool_hold_open(s->holds_fd, s->base, s->direct_io);
	return s->differ.base_fd < 0 ? s->differ.base_fd : differ_open(&s->differ);
}

static int walk_start(struct send *s)
{
	struct work *work = s->transfer->reactor->work;
	if (s->differs)
		return copy_walk_start_differ(&s->walk, work, s->lane, &s->differ, s->from_bytes,
			s->size_bytes, on_extents);
	return copy_walk_start(
		&s->walk, work, s->lane, s->fd, s->from_bytes, s->size_bytes, on_extents);
}

static void opened(struct work_job *job, int res)
{
	struct send *s = container_of(job, struct send, open);
	s->opened = true;
	if (res == -EWOULDBLOCK) /* it is being deleted under its first name */
		end_with(s, GRPC_UNAVAILABLE, "the image is locked for a moment: try again");
	else if (res < 0)
		end_failed(s, res, "the image that is to be copied cannot be opened");
	if (!s->ending && walk_start(s) < 0)
		end_with(s, GRPC_RESOURCE_EXHAUSTED, "too much is under way: try again");
	end_if_over(s);
}

static void on_gone(struct grpc_call *call, void *arg)
{
	struct send *s = arg;
	(void)call;
	end_with(s, GRPC_CANCELLED, NULL);
	go_on(s);
}

static struct send *send_new(struct transfer *t, struct pool_hold *hold)
{
	struct send *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return NULL;
	for (unsigned i = 0; i < SEND_BUFFERS; i++) {
		void *mem;
		if (posix_memalign(&mem, CHUNK_ALIGN, CHUNK_ALIGN + CHUNK_BYTES) != 0) {
			s->fd = s->differ.base_fd = -1;
			send_free(s);
			return NULL;
		}
		s->bufs[i].mem = mem;
	}
	s->transfer = t;
	s->hold = hold;
	s->fd = s->differ.base_fd = -1;
	s->lane = pool_lane(hold->pool);
	s->holds_fd = pool_holds_fd(hold->pool);
	s->direct_io = pool_features(hold->pool)->direct_io;
	s->target_dir_fd = s->holds_fd;
	strcpy(s->target, hold->name);
	s->size_bytes = record_image_bytes(hold->rec);
	s->pause.fn = on_pause;
	s->chore.fn = on_chore;
	return s;
}

/* ---- the methods ---- */

static void open_copy(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__OpenCopyRequest *req = (const void *)request;
	const struct transfer *t = grpc_call_context(call);
	struct pool_hold *hold = grant_of_call(call, req->grant);
	char text[RECORD_BYTES_MAX];
	if (hold == NULL)
		return;
	int len = record_print(hold->rec, text, sizeof(text));
	if (len < 0) {
		grpc_end(call, GRPC_INTERNAL, "the record of the source cannot be told");
		return;
	}
	hold->opened = true;
	hold->used_ns = now_ns(t);
	Ringvol__V1__OpenCopyResponse response = RINGVOL__V1__OPEN_COPY_RESPONSE__INIT;
	response.size_bytes = hold->rec->size_bytes;
	response.allocated_bytes = hold->allocated_bytes;
	response.record = (ProtobufCBinaryData){(size_t)len, (uint8_t *)text};
	grpc_reply(call, &response.base);
}

static void read_differing(struct send *s, const char *base)
{
	const struct fs_features *features = pool_features(s->hold->pool);
	s->differs = true;
	strcpy(s->base, base);
	s->differ.shares =
		s->hold->shares && features->reflink && extents_comparable(features->fs_type);
}

/* The volume, where it differs from the hold's image. */
static void read_changed(struct send *s)
{
	s->target_dir_fd = pool_dirfd(s->hold->pool, RECORD_VOLUME);
	memcpy(s->target, s->hold->rec->key, strlen(s->hold->rec->key) + 1);
	read_differing(s, s->hold->name);
}

/* The hold's image, where it differs from an earlier one's. */
static void read_since(struct send *s, struct pool_hold *earlier)
{
	s->earlier = earlier;
	read_differing(s, earlier->name);
}

/* False, with the call ended: its images cannot be compared with the hold's. */
static bool may_compare(struct grpc_call *call, bool changed, const struct pool_hold *hold,
	const struct pool_hold *earlier)
{
	bool ok = !changed && earlier != hold && earlier->pool == hold->pool &&
		  strcmp(earlier->source_id, hold->source_id) == 0 &&
		  record_image_bytes(earlier->rec) == record_image_bytes(hold->rec);
	if (!ok)
		grpc_end(call, GRPC_INVALID_ARGUMENT,
			"since: an earlier grant of the same volume and size is asked for, without changed");
	return ok;
}

static void read_copy(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__ReadCopyRequest *req = (const void *)request;
	struct transfer *t = grpc_call_context(call);
	struct pool_hold *hold = grant_of_call(call, req->since.len > 0 ? req->later : req->grant);
	if (hold == NULL)
		return;
	if (req->offset % CHUNK_ALIGN != 0 || req->offset > record_image_bytes(hold->rec)) {
		grpc_end(call, GRPC_INVALID_ARGUMENT,
			"offset: a multiple of 4096 within the image is asked for");
		return;
	}
	if (req->changed && still_of(t, hold) == NULL) {
		grpc_end(call, GRPC_FAILED_PRECONDITION, "its volume is not held still any more");
		return;
	}
	struct pool_hold *earlier = NULL;
	if (req->since.len > 0) {
		earlier = grant_of_call(call, req->since);
		if (earlier == NULL || !may_compare(call, req->changed, hold, earlier))
			return;
	}
	struct send *s = t->stats.sends < TRANSFER_SENDS_MAX ? send_new(t, hold) : NULL;
	if (s == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED,
			"this node sends as many copies as it can: try again");
		return;
	}
	s->call = call;
	s->from_bytes = req->offset;
	if (req->changed)
		read_changed(s);
	else if (earlier != NULL)
		read_since(s, earlier);
	s->open = (struct work_job){.run = open_run, .on_end = opened, .lane = s->lane};
	if (work_submit(t->reactor->work, &s->open) < 0) {
		send_free(s);
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "too much is under way: try again");
		return;
	}
	hold->opened = true;
	grant_keep(t, hold);
	if (earlier != NULL)
		grant_keep(t, earlier);
	list_push(&t->sends, &s->link);
	t->stats.sends++;
	bulk_counted(t);
	grpc_on_writable(call, on_writable, s);
	grpc_on_gone(call, on_gone, s);
}

static void close_copy(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__CloseCopyRequest *req = (const void *)request;
	struct pool_hold *hold = grant_of_call(call, req->grant);
	if (hold == NULL)
		return;
	Ringvol__V1__CloseCopyResponse response = RINGVOL__V1__CLOSE_COPY_RESPONSE__INIT;
	still_close(still_of(grpc_call_context(call), hold));
	grant_drop(hold);
	grpc_reply(call, &response.base);
}

static const struct grpc_method methods[] = {
	{"OpenCopy", open_copy},
	{"ReadCopy", read_copy},
	{"RenewCopy", renew_copy},
	{"CloseCopy", close_copy},
	{"StillVolume", still_volume},
	{"LeaveVolume", leave_volume},
	{NULL},
};

/* The methods look at their fields themselves, byte by byte. */
static enum grpc_status no_check(const ProtobufCMessage *request, struct err *err)
{
	(void)request;
	(void)err;
	return GRPC_OK;
}

int transfer_register(struct transfer *t, struct grpc_registry *registry, unsigned peers)
{
	t->registry = registry;
	t->service = (struct grpc_service){
		.descriptor = &ringvol__v1__transfer__descriptor,
		.methods = methods,
		.context = t,
		.peers = peers,
	};
	return grpc_registry_add(registry, &t->service, no_check);
}

void sends_stop(struct transfer *t)
{
	list_for_each_safe (l, &t->sends) {
		struct send *s = container_of(l, struct send, link);
		end_with(s, GRPC_UNAVAILABLE, "the driver is shutting down");
		go_on(s);
	}
}
