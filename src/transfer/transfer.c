/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of copies share: its life, and the timer that lets go of what nobody wants. */
#include "transfer/transfer.h"

#include "transfer/grant.h"
#include "transfer/offer.h"
#include "transfer/parting.h"
#include "transfer/send.h"
#include "transfer/still.h"

#include <errno.h>
#include <stdlib.h>

static void on_timer(struct ring_timer *timer)
{
	struct transfer *t = container_of(timer, struct transfer, timer);
	offers_sweep(t);
	stills_sweep(t);
	grants_sweep(t);
	parting_look(t);
	ring_timer_arm(t->reactor->ring, timer, TRANSFER_LOOK_MS);
}

int transfer_open(struct transfer **ret, struct reactor *reactor, struct pools *pools,
	struct node *node, const struct transfer_config *config)
{
	struct transfer *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return -ENOMEM;
	if (ring_lane_open(&t->lane, reactor->ring) < 0) {
		free(t);
		return -ENOMEM;
	}
	t->config = *config;
	t->reactor = reactor;
	t->pools = pools;
	t->node = node;
	t->rate.bytes_per_s = config->rate_bytes;
	list_init(&t->offers);
	list_init(&t->sends);
	list_init(&t->stills);
	t->timer.fn = on_timer;
	ring_timer_arm(reactor->ring, &t->timer, TRANSFER_LOOK_MS);
	*ret = t;
	return 0;
}

void transfer_drain(struct transfer *t)
{
	t->draining = true;
	ring_timer_cancel(t->reactor->ring, &t->timer);
	sends_stop(t);
}

bool transfer_idle(const struct transfer *t)
{
	return t == NULL || parting_idle(t);
}

void transfer_close(struct transfer *t)
{
	if (t == NULL)
		return;
	ring_timer_cancel(t->reactor->ring, &t->timer);
	offers_free(t);
	stills_free(t);
	parting_free(t);
	free(t);
}

unsigned transfer_grants(const struct transfer *t)
{
	unsigned count = 0;
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (const struct pool_hold *h = NULL; (h = pool_hold_next(pool, h)) != NULL;)
			count++;
	return count;
}
