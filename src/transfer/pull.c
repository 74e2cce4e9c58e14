/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulling. Happy path: OpenCopy answers with the source's record and size; ReadCopy sends extents
 * from where the part ends; each is looked over, copied into a buffer and written through the ring.
 * Where the kernel could not keep that write apart (direct_writes), it is a job of the pool's lane.
 * Every PULL_NOTE_BYTES all that was written is synced and noted, while the next is written. At the
 * end what is left is synced and noted.
 *
 * How it can fail:
 *   - the connection is lost, or the source's driver restarts: the call is made again, after
 *     pauses that grow, and goes on behind the last byte that was written. Without a byte for
 *     PULL_PATIENCE_MS it ends; the part is kept. What has changed may be long in coming, where the
 *     source reads two images to find it.
 *   - a chunk is wrong: once all that is under way has ended, the part is cut to what is durable,
 *     because the next stream may have a hole there, and it is read again from there; after
 *     PULL_WRONG_MAX of them without progress that is DATA_LOSS.
 *   - the grant is gone: UNAVAILABLE, and a retry comes with another one. The part is kept; whether
 *     it is of use says its description (part.h).
 *   - our own disk: the error is the operation's.
 * The operation ends when its last write, sync and note have.
 */
#include "transfer/pull.h"

#include "cluster.pb-c.h"
#include "transfer/bulk.h"
#include "transfer/opened.h"
#include "transfer/pull_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define pull_of(op_ptr) container_of(op_ptr, struct pull, op)

static struct ring *ring_of(const struct pull *p)
{
	return p->transfer->reactor->ring;
}

static uint64_t now_ns(const struct pull *p)
{
	return ring_now_ns(ring_of(p));
}

/* Everything before it was written, or is a hole. */
static uint64_t written_bytes(const struct pull *p)
{
	return pull_bufs_written(p->bufs, PULL_BUFFERS, p->next_bytes);
}

/* ---- the end of an operation ---- */

static void end_if_over(struct pull *p);

/* The operation is to end so; what is under way goes on to its own end. The first one counts. */
void pull_end(struct pull *p, int res)
{
	if (p->state != PULL_CALLING && p->state != PULL_PAUSING)
		return;
	p->state = PULL_ENDING;
	p->res = res;
	ring_timer_cancel(ring_of(p), &p->timer);
	ring_timer_cancel(ring_of(p), &p->rate);
	channel_cancel(&p->call);
	end_if_over(p);
}

/* Our own disk: what is in the part is worth nothing. */
static void fail_here(struct pull *p, int res, const char *doing)
{
	err_sys(&p->err, res, "%s the copy of %s", doing, p->offer.source_id);
	p->build->part->keep = false;
	if (p->state == PULL_ENDING)
		p->res = res;
	pull_end(p, res);
}

void pull_end_unavailable(struct pull *p, const char *what, const char *why)
{
	int r = err_set(&p->err, ERR_UNAVAILABLE, "the data of %s on node %s (%s): %s%s%s",
		p->offer.source_id, p->offer.node_id, p->offer.address, what,
		why[0] != '\0' ? ": " : "", why);
	if (p->reading && (p->state == PULL_CALLING || p->state == PULL_PAUSING))
		p->build->part->keep = true;
	pull_end(p, r);
}

static void end_stopped(struct pull *p)
{
	pull_end_unavailable(
		p, "copying it was stopped because the driver shuts down; try again", "");
}

static void end_if_over(struct pull *p)
{
	if (p->state != PULL_ENDING || p->writing > 0 || p->part.marking || p->part.cutting)
		return;
	/* What was written and is not noted would be pulled again. */
	bool worth = p->reading && (p->res == 0 || p->build->part->keep);
	if (worth && p->next_bytes > p->part.noted_bytes) {
		pull_part_mark(&p->part, written_bytes(p));
		return;
	}
	p->state = PULL_IDLE;
	if (p->err.code != ERR_OK)
		p->op.err = p->err;
	op_complete(&p->op, p->res);
}

/* ---- calls, again and again ---- */

static void call_start(struct pull *p);

/* For longer than is waited for. */
static bool is_silent(const struct pull *p)
{
	uint64_t patience_ms = p->reading ? PULL_PATIENCE_MS : PULL_OPEN_MS;
	return now_ns(p) - p->heard_ns >= patience_ms * 1000000;
}

/* It compares, and has found nothing to send yet: that it is alive is seen by the connection. */
static bool is_looking(const struct pull *p)
{
	return p->reading && p->changed && p->state == PULL_CALLING &&
	       channel_state(p->channel) == CHANNEL_UP;
}

static void on_timer(struct ring_timer *timer)
{
	struct pull *p = container_of(timer, struct pull, timer);
	if (p->held || p->writing == PULL_BUFFERS || p->stray || is_looking(p))
		p->heard_ns = now_ns(p); /* it is us who do not go on, or it is at work */
	if (is_silent(p))
		pull_end_unavailable(p, "nothing comes from it; try again later",
			p->channel != NULL ? channel_why(p->channel) : "");
	else if (p->state == PULL_PAUSING)
		call_start(p);
	else
		ring_timer_arm(ring_of(p), timer, PULL_RETRY_MAX_MS);
}

static void pause_then_call(struct pull *p)
{
	uint64_t ms = PULL_RETRY_MS << (p->attempts < 5 ? p->attempts : 5);
	p->attempts++;
	p->state = PULL_PAUSING;
	ring_timer_arm(ring_of(p), &p->timer, ms < PULL_RETRY_MAX_MS ? ms : PULL_RETRY_MAX_MS);
}

/* What a status says of the next attempt. */
void pull_call_failed(struct pull *p, enum grpc_status status, const char *message)
{
	switch (status) {
	case GRPC_NOT_FOUND:
	case GRPC_DATA_LOSS:
	case GRPC_INVALID_ARGUMENT:
	case GRPC_PERMISSION_DENIED:
	case GRPC_UNAUTHENTICATED:
	case GRPC_UNIMPLEMENTED:
	case GRPC_FAILED_PRECONDITION:
		pull_end_unavailable(p, "its node refuses to send it", message);
		return;
	default:
		break;
	}
	p->transfer->stats.lost++;
	if (is_silent(p))
		pull_end_unavailable(p, "its node cannot be reached; try again later", message);
	else
		pause_then_call(p);
}

void pull_call_with(
	struct pull *p, const char *path, const ProtobufCMessage *request, uint64_t deadline_ns)
{
	uint8_t packed[2 * POOL_GRANT_BYTES + 96];
	size_t len = protobuf_c_message_get_packed_size(request);
	assert(len <= sizeof(packed));
	protobuf_c_message_pack(request, packed);
	p->call.path = path;
	p->call.deadline_ns = deadline_ns;
	p->state = PULL_CALLING;
	ring_timer_arm(ring_of(p), &p->timer, PULL_RETRY_MAX_MS);
	channel_start(p->channel, &p->call, packed, len, true);
}

ProtobufCBinaryData pull_text(const char *text)
{
	return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* ---- open ---- */

static bool on_opened(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct pull *p = container_of(call, struct pull, call);
	record_free(p->rec);
	p->answered =
		opened_parse(data, len, p->offer.source_id, &p->rec, &p->allocated_bytes) == 0;
	if (p->answered)
		p->size_bytes = record_image_bytes(p->rec);
	return true;
}

void pull_answered(struct pull *p, enum grpc_status status, const char *message)
{
	if (status != GRPC_OK)
		pull_call_failed(p, status, message);
	else if (p->answered)
		pull_end(p, 0);
	else
		pull_end(p,
			err_set(&p->err, ERR_DATA_LOSS,
				"node %s tells of %s what cannot be: is it of a later version of ringvol?",
				p->offer.node_id, p->offer.source_id));
}

static void on_open_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	(void)sent;
	pull_answered(container_of(call, struct pull, call), status, message);
}

static void call_open(struct pull *p)
{
	Ringvol__V1__OpenCopyRequest request = RINGVOL__V1__OPEN_COPY_REQUEST__INIT;
	request.grant = pull_text(p->offer.grant);
	p->answered = false;
	p->call.on_message = on_opened;
	p->call.on_end = on_open_end;
	pull_call_with(p, "/ringvol.v1.Transfer/OpenCopy", &request.base,
		now_ns(p) + PULL_CALL_MS * UINT64_C(1000000));
}

/* ---- read: writing ---- */

static void read_on(struct pull *p);

static void on_written(struct pull_buf *buf, int res)
{
	struct pull *p = buf->arg;
	p->writing--;
	if (res < 0)
		fail_here(p, res, "writing");
	read_on(p);
	end_if_over(p);
}

/* ---- read: what is durable is noted ---- */

static void on_marked(struct pull_part *part, int res)
{
	struct pull *p = part->arg;
	if (res < 0) {
		fail_here(p, res, "making durable");
	} else {
		p->wrong = 0;
		read_on(p);
	}
	end_if_over(p);
}

/* ---- read: what comes ---- */

static bool must_hold(struct pull *p)
{
	uint64_t ms = rate_wait_ms(&p->transfer->rate, now_ns(p));
	if (ms > 0 && !ring_timer_armed(&p->rate))
		ring_timer_arm(ring_of(p), &p->rate, ms);
	return ms > 0 || p->writing == PULL_BUFFERS;
}

/* More may come, if it was held back. */
static void read_on(struct pull *p)
{
	if (p->state != PULL_CALLING || !p->reading)
		return;
	/* Behind the end it comes with the operation's: more may come, and be wrong. */
	if (!p->part.marking && !p->ended &&
		written_bytes(p) >= p->part.noted_bytes + PULL_NOTE_BYTES)
		pull_part_mark(&p->part, written_bytes(p));
	if (!p->held || must_hold(p))
		return;
	p->held = false;
	p->heard_ns = now_ns(p);
	channel_read(&p->call);
}

static void on_rate(struct ring_timer *timer)
{
	read_on(container_of(timer, struct pull, rate));
}

/* Again from what is durable: the source or the way to it is not to be trusted. */
static void take_wrong(struct pull *p, const char *why)
{
	p->transfer->stats.wrong++;
	channel_cancel(&p->call);
	if (++p->wrong < PULL_WRONG_MAX) {
		p->next_bytes = p->changed ? 0 : p->part.noted_bytes;
		p->stray = !p->changed;
		p->ended = false;
		pause_then_call(p);
		return;
	}
	pull_end(p, err_set(&p->err, ERR_DATA_LOSS,
			    "node %s (%s) sent of %s, %u times: %s; look for errors of its memory, "
			    "its disk and the network",
			    p->offer.node_id, p->offer.address, p->offer.source_id, p->wrong, why));
}

static int take_chunk(struct pull *p, const struct chunk *chunk)
{
	struct pull_buf *buf = pull_bufs_free(p->bufs, PULL_BUFFERS);
	int r = buf != NULL ? pull_buf_fill(buf, chunk) : -ENOBUFS;
	if (r < 0)
		return r;
	p->writing++;
	p->next_bytes = chunk->offset + chunk->len;
	p->transfer->stats.received_bytes += chunk->len;
	p->received_bytes += chunk->len;
	(void)rate_take(&p->transfer->rate, now_ns(p), chunk->len);
	buf->punches = p->changed && !p->build->rec->thick;
	pull_buf_write(buf, p->op.reactor, p->op.lane, p->part.fd, p->direct);
	return 0;
}

static bool on_chunk(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct pull *p = container_of(call, struct pull, call);
	struct chunk chunk;
	if (p->state != PULL_CALLING)
		return true;
	const char *why = p->ended ? "more behind the end" : "what is no message";
	if (!p->ended && chunk_parse(data, len, &chunk))
		why = chunk_why_wrong(&chunk, p->next_bytes, p->size_bytes);
	if (why != NULL) {
		take_wrong(p, why);
		return true;
	}
	p->heard_ns = now_ns(p);
	p->attempts = 0;
	if (chunk.end) {
		p->ended = true;
		p->next_bytes = p->size_bytes;
		return true;
	}
	int r = take_chunk(p, &chunk);
	if (r < 0) {
		pull_end(p, err_sys(&p->err, r, "copying %s", p->offer.source_id));
		return true;
	}
	p->held = must_hold(p);
	return !p->held;
}

static void on_read_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct pull *p = container_of(call, struct pull, call);
	(void)sent;
	p->held = false;
	if (status == GRPC_OK && p->ended)
		pull_end(p, 0);
	else if (status == GRPC_OK)
		take_wrong(p, "an end without a word of it");
	else
		pull_call_failed(p, status, message);
}

static void call_read(struct pull *p)
{
	Ringvol__V1__ReadCopyRequest request = RINGVOL__V1__READ_COPY_REQUEST__INIT;
	bool renewed = p->changed && p->base[0] != '\0';
	request.grant = pull_text(renewed ? "" : p->offer.grant);
	request.later = pull_text(renewed ? p->offer.grant : "");
	request.since = pull_text(renewed ? p->base : "");
	request.offset = p->next_bytes;
	request.changed = p->changed && !renewed;
	p->held = p->ended = false;
	p->call.on_message = on_chunk;
	p->call.on_end = on_read_end;
	pull_call_with(p, "/ringvol.v1.Transfer/ReadCopy", &request.base, UINT64_MAX);
}

/* ---- read: what is not durable goes ---- */

static void on_cut(struct pull_part *part, int res)
{
	struct pull *p = part->arg;
	if (res < 0) {
		fail_here(p, res, "cutting back");
	} else {
		p->stray = false;
		p->heard_ns = now_ns(p);
		if (p->state == PULL_PAUSING)
			call_read(p);
	}
	end_if_over(p);
}

/* A mark that ran meanwhile counts: what it noted was checked, and is written. */
static void cut_begin(struct pull *p)
{
	p->next_bytes = p->part.noted_bytes;
	pull_part_cut(&p->part);
}

/* Our own disk is behind: there is no buffer for what would come, or what was written before a cut
 * is not yet all there. */
static bool must_wait(const struct pull *p)
{
	return p->writing == PULL_BUFFERS || (p->stray && (p->writing > 0 || p->part.marking));
}

static void call_start(struct pull *p)
{
	if (!p->reading) {
		p->attempt(p);
		return;
	}
	p->state = PULL_PAUSING;
	if (must_wait(p))
		ring_timer_arm(ring_of(p), &p->timer, PULL_RETRY_MS);
	else if (p->stray)
		cut_begin(p);
	else
		call_read(p);
}

/* ---- the operations ---- */

/* The wait comes first: what follows may end it. */
void pull_begin(struct pull *p, bool reading)
{
	(void)op_wait(&p->op);
	p->reading = reading;
	p->res = 0;
	p->err = (struct err){0};
	p->attempts = p->wrong = 0;
	p->heard_ns = now_ns(p);
}

static int open_run(struct op *op)
{
	struct pull *p = pull_of(op);
	pull_begin(p, false);
	p->attempt = call_open;
	call_open(p);
	if (p->stopped)
		end_stopped(p);
	return OP_PENDING;
}

static int read_run(struct op *op)
{
	struct pull *p = pull_of(op);
	p->direct = pool_features(p->build->pool)->direct_io;
	p->received_bytes = 0;
	p->next_bytes = p->changed ? 0 : p->part.noted_bytes;
	p->stray = false;
	pull_begin(p, true);
	call_start(p);
	if (p->stopped)
		end_stopped(p);
	return OP_PENDING;
}

static int read_end(struct op *op, int res)
{
	pull_of(op)->reading = false;
	return res;
}

static const struct op_step open_steps[] = {
	{"open copy", .run = open_run},
	{NULL},
};

static const struct op_step read_steps[] = {
	{"read copy", .run = read_run, .end = read_end},
	{NULL},
};

void pull_open_init(struct pull *p)
{
	op_init(&p->op, p->transfer->reactor, "pull_open", open_steps, NULL);
}

void pull_read_init(struct pull *p, struct pool_build *build, int fd)
{
	p->build = build;
	p->changed = false;
	op_init(&p->op, p->transfer->reactor, "pull_read", read_steps, NULL);
	p->op.lane = pool_lane(build->pool);
	p->part = (struct pull_part){.reactor = p->op.reactor,
		.build = build,
		.fd = fd,
		.noted_bytes = build->part->from_bytes,
		.on_marked = on_marked,
		.on_cut = on_cut,
		.arg = p};
}

void pull_changed_init(struct pull *p, struct pool_build *build, int fd)
{
	pull_read_init(p, build, fd);
	p->changed = true;
	/* All of it was noted: nothing of this is, as it is read again from its beginning. */
	p->part.noted_bytes = p->size_bytes;
}

int pull_init(
	struct pull *p, struct transfer *t, const struct offer *offer, bool reads, struct err *err)
{
	char peer[sizeof("ringvol://node/") + POOL_HOLD_NODE_MAX];
	if (reads && t->stats.pulls >= TRANSFER_PULLS_MAX)
		return err_set(err, ERR_UNAVAILABLE,
			"node %s copies %u volumes from other nodes, as many as it may; try again later",
			t->config.node_id, t->stats.pulls);
	*p = (struct pull){.transfer = t, .offer = *offer};
	p->timer.fn = on_timer;
	p->rate.fn = on_rate;
	pull_bufs_init(p->bufs, PULL_BUFFERS, on_written, p);
	snprintf(peer, sizeof(peer), "ringvol://node/%s", offer->node_id);
	const struct channel_config config = {
		.ring = t->reactor->ring,
		.address = p->offer.address,
		.work = t->reactor->work,
		.lane = t->lane,
		.tls = t->config.tls,
		.peer = peer,
		.bulk = true,
		.registry = t->registry,
	};
	int r = channel_open(&p->channel, &config, err);
	p->counted = r == 0 && reads;
	t->stats.pulls += p->counted;
	bulk_counted(t);
	return r;
}

void pull_free(struct pull *p)
{
	assert(p->state == PULL_IDLE);
	channel_close(p->channel);
	p->channel = NULL;
	record_free(p->rec);
	record_free(p->still_rec);
	p->rec = p->still_rec = NULL;
	if (p->counted) {
		p->transfer->stats.pulls--;
		bulk_counted(p->transfer);
	}
	p->counted = false;
	pull_bufs_close(p->bufs, PULL_BUFFERS);
}

void pull_stop(void *arg)
{
	struct pull *p = arg;
	p->stopped = true;
	if (p->state == PULL_CALLING || p->state == PULL_PAUSING)
		end_stopped(p);
}

bool pull_progress(const void *arg, uint64_t *ret_done, uint64_t *ret_total)
{
	const struct pull *p = arg;
	if (p->size_bytes == 0)
		return false;
	*ret_done = p->next_bytes;
	*ret_total = p->size_bytes;
	return true;
}
