/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of every csi.v1 method through decoding, the edge check, the validators and as far into
 * the operations as goes without a disk (csi_world.h).
 *
 * A request is raw bytes or built along its descriptor (csi_requests.h). Several are sent at once.
 * Every call ends; each message of an error is UTF-8.
 */
#include "csi_requests.h"
#include "csi_world.h"
#include "fuzz.h"

#include "base/buf.h"
#include "csi.pb-c.h"
#include "rpc/wire.h"

#include <string.h>

enum { CALLS_MAX = 8, TURNS_MAX = 20000 };

/* ---- calls ---- */

struct answer {
	struct grpc_local local;
	bool sent, ended;
	unsigned messages;
};

static bool is_utf8(const char *s)
{
	for (const uint8_t *p = (const uint8_t *)s; *p != 0;) {
		unsigned more = *p < 0x80    ? 0
				: *p >= 0xf0 ? 3
				: *p >= 0xe0 ? 2
				: *p >= 0xc2 ? 1
					     : 9;
		if (more == 9)
			return false;
		for (p++; more > 0; more--, p++)
			if ((*p & 0xc0) != 0x80)
				return false;
	}
	return true;
}

static void on_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	struct answer *a = container_of(local, struct answer, local);
	must(data != NULL && len <= GRPC_MESSAGE_MAX_BYTES && !a->ended);
	a->messages++;
}

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct answer *a = container_of(local, struct answer, local);
	char encoded[GRPC_ENCODED_MESSAGE_MAX];
	must(!a->ended);
	a->ended = true;
	must(status <= GRPC_UNAUTHENTICATED);
	must(a->messages == (status == GRPC_OK));
	must(is_utf8(message));
	must(status == GRPC_OK || message[0] != '\0');
	size_t len = grpc_wire_encode_message(message, encoded);
	must(len <= sizeof(encoded));
	for (size_t i = 0; i < len; i++)
		must(encoded[i] >= ' ' && encoded[i] < 0x7f);
}

static const ProtobufCServiceDescriptor *const services[] = {
	&csi__v1__controller__descriptor,
	&csi__v1__node__descriptor,
	&csi__v1__identity__descriptor,
};

static void send_call(struct csi_world *w, struct fuzz *f, struct answer *a)
{
	char path[128];
	uint8_t which = fuzz_byte(f);
	const ProtobufCServiceDescriptor *service = services[which % 3];
	const ProtobufCMethodDescriptor *method =
		&service->methods[fuzz_byte(f) % service->n_methods];
	snprintf(path, sizeof(path), "/%s/%s", service->name, method->name);
	*a = (struct answer){.local = {on_message, on_end}, .sent = true};
	if ((which & 0x80) != 0) {
		size_t want = (size_t)fuzz_byte(f) << 8;
		struct fuzz raw = fuzz_take(f, want | fuzz_byte(f));
		grpc_dispatch_local(w->registry, path, raw.data, raw.len, &a->local);
		return;
	}
	struct buf request = {0};
	csi_requests_put(&request, method->input, f, (which & 0x40) != 0);
	grpc_dispatch_local(w->registry, path, request.data, request.len, &a->local);
	buf_free(&request);
}

/* With wait, time jumps to the next timer when nothing else is left to do. */
static void turn(struct csi_world *w, bool wait)
{
	must(ring_turn(w->reactor.ring, wait) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct csi_world w = {0};
	struct answer calls[CALLS_MAX] = {0};
	csi_world_open(&w, fuzz_byte(&f));
	csi_world_answers = fuzz_take(&f, fuzz_below(&f, 32));
	for (unsigned i = 0; i < CALLS_MAX && f.len > 0; i++) {
		send_call(&w, &f, &calls[i]);
		for (unsigned n = fuzz_below(&f, 8); n > 0; n--)
			turn(&w, false);
	}
	for (unsigned i = 0; i < CALLS_MAX; i++)
		for (unsigned turns = 0; calls[i].sent && !calls[i].ended; turns++) {
			must(turns < TURNS_MAX);
			turn(&w, true);
		}
	for (unsigned turns = 0; w.csi->task_count > 0; turns++) {
		must(turns < TURNS_MAX);
		turn(&w, true);
	}
	csi_world_close(&w);
	return 0;
}
