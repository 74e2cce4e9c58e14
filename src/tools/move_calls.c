/* SPDX-License-Identifier: Apache-2.0 */
/* After a failure the connection is closed: it may be of no more use, and another one costs little.
 */
#include "tools/move_calls.h"

#include "move.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void move_calls_close(struct move_calls *calls)
{
	grpc_client_close(calls->client);
	calls->client = NULL;
}

static int open_client(struct move_calls *calls, unsigned ms, struct err *err)
{
	int r = calls->client == NULL ? grpc_client_open(&calls->client, calls->endpoint, err) : 0;
	if (r == 0)
		grpc_client_wait(calls->client, ms);
	return r;
}

/* Of what has failed. */
static enum move_outcome failed(struct move_calls *calls, const struct err *err, struct err *reason)
{
	size_t len = strlen(calls->endpoint);
	const char *words = err->message;
	move_calls_close(calls);
	if (calls->answered && strncmp(words, calls->endpoint, len) == 0 &&
		strncmp(words + len, ": ", 2) == 0)
		words += len + 2;
	if (err->code == ERR_TIMEOUT)
		words = "it is being copied";
	if (err->code == ERR_UNIMPLEMENTED)
		err_set(reason, err->code,
			"%.128s: who answers there is no controller of a cluster, or an older one",
			calls->endpoint);
	else
		err_set(reason, err->code, "%s", words);
	bool later = err->code == ERR_UNAVAILABLE || err->code == ERR_TIMEOUT ||
		     err->code == ERR_PENDING;
	return later && calls->answered ? MOVE_LATER : MOVE_NEVER;
}

/* ---- MoveVolume ---- */

static ProtobufCBinaryData bytes(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)(uintptr_t)s};
}

static void copy(ProtobufCBinaryData from, char ret[MOVE_TEXT_MAX])
{
	size_t len = from.len < MOVE_TEXT_MAX ? from.len : MOVE_TEXT_MAX - 1;
	if (len != 0)
		memcpy(ret, from.data, len);
	ret[len] = '\0';
}

static int on_answer(void *arg, const uint8_t *data, size_t len)
{
	struct move_answer *answer = arg;
	Ringvol__V1__MoveVolumeResponse *m =
		ringvol__v1__move_volume_response__unpack(NULL, len, data);
	if (m == NULL)
		return -EPROTO;
	copy(m->node_id, answer->node);
	copy(m->pool, answer->pool);
	answer->was_there = m->was_there;
	ringvol__v1__move_volume_response__free_unpacked(m, NULL);
	return 0;
}

enum move_outcome move_ask(struct move_calls *calls, const char *volume, const char *node,
	const char *pool, unsigned ms, struct move_answer *ret, struct err *reason)
{
	Ringvol__V1__MoveVolumeRequest request = RINGVOL__V1__MOVE_VOLUME_REQUEST__INIT;
	struct err err = {0};
	request.volume = bytes(volume);
	request.node_id = bytes(node);
	request.pool = bytes(pool);
	*ret = (struct move_answer){0};
	int r = open_client(calls, ms, &err);
	if (r == 0) {
		/* It can be called: what it says of a node that is away passes. */
		calls->answered = true;
		r = grpc_client_call(calls->client, "/ringvol.v1.Move/MoveVolume", &request.base,
			on_answer, ret, &err);
	}
	return r == 0 ? MOVE_DONE : failed(calls, &err, reason);
}

/* ---- what there is ---- */

enum move_outcome move_list(struct move_calls *calls, struct inventory *ret, struct err *reason)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {RINGVOL__V1__LIST_REQUEST__KIND__NODES,
		RINGVOL__V1__LIST_REQUEST__KIND__VOLUMES,
		RINGVOL__V1__LIST_REQUEST__KIND__SNAPSHOTS};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct err err = {0};
	request.n_kinds = sizeof(kinds) / sizeof(kinds[0]);
	request.kinds = kinds;
	int r = open_client(calls, 0, &err);
	if (r == 0)
		r = inventory_ask(ret, calls->client, &request, &err);
	if (r < 0)
		return failed(calls, &err, reason);
	calls->answered = true;
	return MOVE_DONE;
}
