/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short calls of a pull: CloseCopy, which thanks the source, and of a volume that moves here
 * RenewCopy, StillVolume and LeaveVolume. Each is an operation of one call, which is made again as
 * long as its node cannot be reached (PULL_OPEN_MS); then the operation ends with ERR_UNAVAILABLE.
 * CloseCopy is tried once, and ends well.
 *
 * LeaveVolume is the commit of a move. Only two answers say what became of it: OK, it has left; and
 * that it has not, where its node, which has its pool, knows no such grant, or has not held it
 * still.
 */
#include "transfer/pull_private.h"

#include "base/log.h"
#include "cluster.pb-c.h"
#include "pool/attachment.h"
#include "transfer/grant.h"
#include "transfer/opened.h"

#include <stdio.h>
#include <string.h>

#define pull_of(op_ptr) container_of(op_ptr, struct pull, op)

enum { ANSWER_MAX = 2 * RECORD_BYTES_MAX };

static uint64_t deadline_ns(const struct pull *p, uint64_t ms)
{
	return ring_now_ns(p->transfer->reactor->ring) + ms * UINT64_C(1000000);
}

static int call_begin(struct op *op, void (*attempt)(struct pull *p))
{
	struct pull *p = pull_of(op);
	pull_begin(p, false);
	p->attempt = attempt;
	attempt(p);
	if (p->stopped)
		pull_end_unavailable(
			p, "it was stopped because the driver shuts down; try again", "");
	return OP_PENDING;
}

/* ---- close ---- */

static void on_close_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	(void)status;
	(void)message;
	(void)sent;
	pull_end(container_of(call, struct pull, call), 0);
}

static void call_close(struct pull *p)
{
	Ringvol__V1__CloseCopyRequest request = RINGVOL__V1__CLOSE_COPY_REQUEST__INIT;
	request.grant = pull_text(p->closing);
	p->call.on_message = NULL;
	p->call.on_end = on_close_end;
	pull_call_with(
		p, "/ringvol.v1.Transfer/CloseCopy", &request.base, deadline_ns(p, PULL_CLOSE_MS));
}

static int close_run(struct op *op)
{
	struct pull *p = pull_of(op);
	pull_begin(p, false);
	p->attempt = call_close;
	call_close(p);
	return OP_PENDING;
}

static const struct op_step close_steps[] = {
	{"close copy", .run = close_run},
	{NULL},
};

void pull_close_init(struct pull *p, const char *grant)
{
	p->closing = grant;
	op_init(&p->op, p->transfer->reactor, "pull_close", close_steps, NULL);
}

/* ---- renew ---- */

static bool take_renewed(struct pull *p, const Ringvol__V1__RenewCopyResponse *response)
{
	char grant[POOL_GRANT_BYTES] = {0};
	if (response->grant.len != sizeof(grant) - 1)
		return false;
	memcpy(grant, response->grant.data, response->grant.len);
	if (strspn(grant, "0123456789abcdef") != sizeof(grant) - 1 ||
		grant_is(grant, p->offer.grant))
		return false;
	memcpy(p->base, p->offer.grant, sizeof(p->base));
	memcpy(p->offer.grant, grant, sizeof(grant));
	return true;
}

static bool on_renewed(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct pull *p = container_of(call, struct pull, call);
	Ringvol__V1__RenewCopyResponse *response =
		len <= ANSWER_MAX ? ringvol__v1__renew_copy_response__unpack(NULL, len, data)
				  : NULL;
	p->answered = response != NULL && take_renewed(p, response);
	if (response != NULL)
		ringvol__v1__renew_copy_response__free_unpacked(response, NULL);
	return true;
}

/* Where there is none to be had, more is left for when the volume is still. */
static void on_renew_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct pull *p = container_of(call, struct pull, call);
	(void)sent;
	if (status != GRPC_UNIMPLEMENTED && status != GRPC_FAILED_PRECONDITION) {
		pull_answered(p, status, message);
		return;
	}
	log_event(LOG_LEVEL_DEBUG, "its node gives no later image of a volume that moves here",
		log_fields({"volume", p->offer.source_id}, {"why", message}));
	pull_end(p, 0);
}

static void call_renew(struct pull *p)
{
	Ringvol__V1__RenewCopyRequest request = RINGVOL__V1__RENEW_COPY_REQUEST__INIT;
	request.grant = pull_text(p->offer.grant);
	p->answered = false;
	p->call.on_message = on_renewed;
	p->call.on_end = on_renew_end;
	pull_call_with(
		p, "/ringvol.v1.Transfer/RenewCopy", &request.base, deadline_ns(p, PULL_OPEN_MS));
}

static int renew_run(struct op *op)
{
	pull_of(op)->base[0] = '\0';
	return call_begin(op, call_renew);
}

static const struct op_step renew_steps[] = {
	{"renew copy", .run = renew_run},
	{NULL},
};

void pull_renew_init(struct pull *p)
{
	op_init(&p->op, p->transfer->reactor, "pull_renew", renew_steps, NULL);
}

/* ---- still ---- */

/* How it is attached: to this node alone. Where it is not suspended, nobody asks. */
static bool take_attached(struct pull *p, const Ringvol__V1__StillVolumeResponse *response)
{
	struct attachments *all = NULL;
	p->attached = (struct pull_attached){0};
	if (!p->suspended || response->attachments.len == 0)
		return true;
	int r = attachments_parse(
		(const char *)response->attachments.data, response->attachments.len, &all);
	bool is_one = r == 0 && all != NULL && all->count == 1 && all->at[0].export[0] == '\0' &&
		      strcmp(all->at[0].node, p->transfer->config.node_id) == 0;
	if (is_one)
		p->attached = (struct pull_attached){
			all->at[0].mode, all->at[0].block, all->at[0].read_only};
	attachments_free(all);
	return is_one;
}

static bool take_still(struct pull *p, const Ringvol__V1__StillVolumeResponse *response)
{
	struct record_id id;
	p->still = response->still;
	p->since = response->since;
	snprintf(p->used_by, sizeof(p->used_by), "%.*s", (int)response->why.len,
		response->why.data != NULL ? (const char *)response->why.data : "");
	if (!p->still)
		return true;
	if (response->pool.len != RECORD_POOL_DIGITS || response->record.len > RECORD_BYTES_MAX ||
		record_id_parse(p->offer.source_id, &id) < 0 || !take_attached(p, response))
		return false;
	memcpy(p->from, response->pool.data, RECORD_POOL_DIGITS);
	record_free(p->still_rec);
	p->still_rec = NULL;
	return strspn(p->from, "0123456789abcdef") == RECORD_POOL_DIGITS &&
	       record_parse((const char *)response->record.data, response->record.len, id.key,
		       &p->still_rec) == 0 &&
	       strcmp(p->still_rec->random, id.random) == 0 &&
	       p->still_rec->kind == RECORD_VOLUME && p->still_rec->moves <= OPENED_MOVES_MAX &&
	       record_image_bytes(p->still_rec) == p->size_bytes;
}

static bool on_still(struct channel_call *call, const uint8_t *data, size_t len)
{
	struct pull *p = container_of(call, struct pull, call);
	Ringvol__V1__StillVolumeResponse *response =
		len <= ANSWER_MAX ? ringvol__v1__still_volume_response__unpack(NULL, len, data)
				  : NULL;
	p->answered = response != NULL && take_still(p, response);
	if (response != NULL)
		ringvol__v1__still_volume_response__free_unpacked(response, NULL);
	return true;
}

static void on_still_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	(void)sent;
	pull_answered(container_of(call, struct pull, call), status, message);
}

static void call_still(struct pull *p)
{
	Ringvol__V1__StillVolumeRequest request = RINGVOL__V1__STILL_VOLUME_REQUEST__INIT;
	request.grant = pull_text(p->offer.grant);
	request.suspended = p->suspended;
	p->answered = p->still = false;
	p->call.on_message = on_still;
	p->call.on_end = on_still_end;
	pull_call_with(
		p, "/ringvol.v1.Transfer/StillVolume", &request.base, deadline_ns(p, PULL_CALL_MS));
}

static int still_run(struct op *op)
{
	return call_begin(op, call_still);
}

static const struct op_step still_steps[] = {
	{"hold still", .run = still_run},
	{NULL},
};

void pull_still_init(struct pull *p)
{
	op_init(&p->op, p->transfer->reactor, "pull_still", still_steps, NULL);
}

/* ---- leave ---- */

static void on_leave_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	struct pull *p = container_of(call, struct pull, call);
	(void)sent;
	p->left = status == GRPC_OK;
	if (status == GRPC_OK || status == GRPC_FAILED_PRECONDITION || status == GRPC_NOT_FOUND) {
		snprintf(p->used_by, sizeof(p->used_by), "%.250s", p->left ? "" : message);
		pull_end(p, 0);
	} else {
		pull_call_failed(p, status, message);
	}
}

static void call_leave(struct pull *p)
{
	Ringvol__V1__LeaveVolumeRequest request = RINGVOL__V1__LEAVE_VOLUME_REQUEST__INIT;
	request.grant = pull_text(p->offer.grant);
	request.since = p->since;
	request.pool = (ProtobufCBinaryData){strlen(p->to), (uint8_t *)p->to};
	request.from = (ProtobufCBinaryData){strlen(p->from), (uint8_t *)p->from};
	p->call.on_message = NULL;
	p->call.on_end = on_leave_end;
	pull_call_with(
		p, "/ringvol.v1.Transfer/LeaveVolume", &request.base, deadline_ns(p, PULL_CALL_MS));
}

static int leave_run(struct op *op)
{
	return call_begin(op, call_leave);
}

static const struct op_step leave_steps[] = {
	{"leave", .run = leave_run},
	{NULL},
};

void pull_leave_init(struct pull *p, const char *pool_uuid8)
{
	snprintf(p->to, sizeof(p->to), "%s", pool_uuid8);
	op_init(&p->op, p->transfer->reactor, "pull_leave", leave_steps, NULL);
}
