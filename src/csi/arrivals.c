/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: there is a finished part, of this run or an earlier one; it says which volume it is;
 * TakeVolume of it asks the node that it came from, and makes the volume or lets the part go. How
 * it can fail: that node is away, or what the part says cannot be read. Then the next one is tried,
 * and later this one again: the part may be all that there is of the volume.
 */
#include "csi/arrivals.h"

#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/take_text.h"
#include "pool/arrival.h"
#include "pool/pool.h"

#include <string.h>

/* The one with that number, of all pools that are ready; NULL, and how many there are. */
static const struct pool_arrival *find(const struct pools *pools, unsigned number,
	const struct pool **ret_pool, unsigned *ret_count)
{
	const struct pool *pool;
	*ret_count = 0;
	for (unsigned i = 0; (pool = pools_at(pools, i)) != NULL; i++) {
		const struct pool_arrival *a = NULL;
		while (pool_state(pool) == POOL_READY && (a = pool_arrival_next(pool, a)) != NULL) {
			*ret_pool = pool;
			if ((*ret_count)++ == number)
				return a;
		}
	}
	return NULL;
}

static const struct pool_arrival *next_of(struct csi_arrivals *a, const struct pool **ret_pool)
{
	unsigned count;
	const struct pool_arrival *arrival = find(a->csi->pools, a->next, ret_pool, &count);
	if (arrival == NULL) {
		a->next = 0;
		arrival = find(a->csi->pools, 0, ret_pool, &count);
	}
	a->next++;
	return arrival;
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

static void take(struct csi_arrivals *a, const struct take_text *text, const struct pool *pool)
{
	static const struct grpc_peer controller = {.role = GRPC_PEER_CONTROLLER};
	uint8_t packed[2 * RECORD_ID_MAX + 2 * RECORD_NAME_MAX + 512];
	Ringvol__V1__TakeVolumeRequest request = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	request.volume_id = csi_bytes(text->offer.source_id);
	request.volume_name = csi_bytes(text->offer.volume_name);
	request.pool = csi_bytes(pool_name(pool));
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
	const struct pool *pool;
	struct take_text text;
	const struct pool_arrival *arrival = next_of(a, &pool);
	if (arrival != NULL && take_text_parse(arrival->text, arrival->len, &text) == 0)
		take(a, &text, pool);
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
