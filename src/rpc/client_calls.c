/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of a channel, and what they have to do in the loop's next turn: end, because something
 * failed inside a function of their owner's, go on reading, or tell that there is room to send.
 */
#include "rpc/client_calls.h"

#include "rpc/client_answer.h"

#include <assert.h>

/* ---- the next turn ---- */

void channel_read(struct channel_call *call)
{
	if (call->calls == NULL || call->state == CHANNEL_CALL_ENDING)
		return;
	call->resumed = true;
	client_call_be_due(call);
}

/* False: the call has ended. */
static bool tell_writable(struct channel_call *call)
{
	call->choked = false;
	if (call->on_writable == NULL)
		return true;
	struct client_calls *calls = call->calls;
	client_call_callback_begins(call);
	call->on_writable(call);
	return client_call_callback_over(calls, call);
}

static void on_go(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct client_calls *calls = container_of(req, struct client_calls, go);
	struct list due, *node;
	list_init(&due);
	list_splice(&due, &calls->due);
	while ((node = list_pop(&due)) != NULL) {
		struct channel_call *call = container_of(node, struct channel_call, due);
		if (call->state == CHANNEL_CALL_ENDING) {
			client_call_end_with(
				call, (enum grpc_status)call->end_status, call->message);
			continue;
		}
		bool room = call->choked && call->out.len - call->out_at <= CHANNEL_OUT_BYTES / 2;
		if ((!room || tell_writable(call)) && call->resumed)
			client_answer_read_on(call);
	}
}

void client_calls_init(struct client_calls *calls, struct ring *ring, struct budget *memory)
{
	*calls = (struct client_calls){.ring = ring, .memory = memory, .go.fn = on_go};
	list_init(&calls->due);
	list_init(&calls->closed);
}

void client_calls_end(struct client_calls *calls, const char *why)
{
	while (!list_empty(&calls->due))
		client_call_end(container_of(calls->due.next, struct channel_call, due),
			GRPC_UNAVAILABLE, why);
	while (!list_empty(&calls->closed))
		client_call_end(container_of(calls->closed.next, struct channel_call, link),
			GRPC_UNAVAILABLE, why);
}

void client_calls_close(struct client_calls *calls)
{
	assert(calls->count == 0 && calls->depth == 0);
	ring_discard(calls->ring, &calls->go);
}
