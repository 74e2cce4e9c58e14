/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: there is a finished part, of this run or an earlier one; it says which volume it is;
 * TakeVolume of it asks the node that it came from, and makes the volume or lets the part go. Of a
 * volume that is here TakeVolume has the cover go on. How
 * it can fail: that node is away, or what the part says cannot be read. Then the next one is tried,
 * and later this one again: the part may be all that there is of the volume.
 */
#include "csi/arrivals.h"

#include "cluster.pb-c.h"
#include "csi/cover.h"
#include "csi/messages.h"
#include "csi/take_text.h"
#include "pool/arrival.h"
#include "pool/index.h"

#include <stdio.h>

/* What is to be taken. */
struct wanted {
	char id[RECORD_ID_MAX], name[RECORD_NAME_MAX + 1];
	const struct pool *pool;
};

static bool of_arrival(
	const struct pool_arrival *arrival, const struct pool *pool, struct wanted *ret)
{
	struct take_text text;
	if (take_text_parse(arrival->text, arrival->len, &text) < 0)
		return false;
	snprintf(ret->id, sizeof(ret->id), "%s", text.offer.source_id);
	snprintf(ret->name, sizeof(ret->name), "%s", text.offer.volume_name);
	ret->pool = pool;
	return true;
}

static void of_volume(const struct pool_object *volume, struct wanted *ret)
{
	pool_object_id(volume, ret->id);
	snprintf(ret->name, sizeof(ret->name), "%s", volume->rec->name);
	ret->pool = volume->pool;
}

/* The one with that number, of all pools that are ready. False: there are fewer, or nobody can tell
 * what it is; *ret_count: so many. */
static bool find(const struct csi *csi, unsigned number, struct wanted *ret, unsigned *ret_count)
{
	const struct pool *pool;
	*ret_count = 0;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		const struct pool_arrival *a = NULL;
		while (pool_state(pool) == POOL_READY && (a = pool_arrival_next(pool, a)) != NULL)
			if ((*ret_count)++ == number)
				return of_arrival(a, pool, ret);
	}
	list_for_each (link, &csi->borrows->all) {
		const struct pool_object *own =
			csi_cover_own(csi, container_of(link, struct borrowed, link));
		if (own != NULL && (*ret_count)++ == number) {
			of_volume(own, ret);
			return true;
		}
	}
	return false;
}

static bool next_of(struct csi_arrivals *a, struct wanted *ret)
{
	unsigned count;
	bool found = find(a->csi, a->next, ret, &count);
	if (!found && count <= a->next) {
		a->next = 0;
		found = find(a->csi, 0, ret, &count);
	}
	a->next++;
	return found;
}

static void arm(struct csi_arrivals *a)
{
	ring_timer_arm(a->csi->reactor->ring, &a->timer, CSI_ARRIVALS_MS);
}

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct csi_arrivals *a = container_of(local, struct csi_arrivals, local);
	(void)status; /* the task has logged it */
	(void)message;
	a->calling = false;
	arm(a);
}

static void take(struct csi_arrivals *a, const struct wanted *wanted)
{
	static const struct grpc_peer controller = {.role = GRPC_PEER_CONTROLLER};
	uint8_t packed[2 * RECORD_ID_MAX + 2 * RECORD_NAME_MAX + 512];
	Ringvol__V1__TakeVolumeRequest request = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	request.volume_id = csi_bytes(wanted->id);
	request.volume_name = csi_bytes(wanted->name);
	request.pool = csi_bytes(pool_name(wanted->pool));
	if (protobuf_c_message_get_packed_size(&request.base) > sizeof(packed)) {
		arm(a);
		return;
	}
	size_t len = protobuf_c_message_pack(&request.base, packed);
	a->calling = true;
	a->local = (struct grpc_local){.on_end = on_end, .peer = &controller};
	grpc_dispatch_local(a->registry, "/ringvol.v1.Member/TakeVolume", packed, len, &a->local);
}

static void on_timer(struct ring_timer *timer)
{
	struct csi_arrivals *a = container_of(timer, struct csi_arrivals, timer);
	struct wanted wanted;
	if (next_of(a, &wanted))
		take(a, &wanted);
	else
		arm(a);
}

void csi_arrivals_open(struct csi_arrivals *a, struct csi *csi, struct grpc_registry *registry)
{
	*a = (struct csi_arrivals){.csi = csi, .registry = registry};
	a->timer.fn = on_timer;
	arm(a);
}

void csi_arrivals_close(struct csi_arrivals *a)
{
	if (a->csi == NULL)
		return;
	ring_timer_cancel(a->csi->reactor->ring, &a->timer);
	if (a->calling)
		grpc_local_leave(&a->local);
	a->calling = false;
}
