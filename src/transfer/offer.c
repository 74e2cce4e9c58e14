/* SPDX-License-Identifier: Apache-2.0 */
/* Offers, in the order in which they came. What a controller says is looked at here, once. */
#include "transfer/offer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_grant(const char *text)
{
	return strlen(text) == POOL_GRANT_BYTES - 1 &&
	       strspn(text, "0123456789abcdef") == POOL_GRANT_BYTES - 1;
}

static struct offer *find(const struct transfer *t, const char *source_id, const char *volume_name)
{
	list_for_each (l, &t->offers) {
		struct offer *offer = container_of(l, struct offer, link);
		if (strcmp(offer->source_id, source_id) == 0 &&
			strcmp(offer->volume_name, volume_name) == 0)
			return offer;
	}
	return NULL;
}

static void forget(struct transfer *t, struct offer *offer)
{
	list_remove(&offer->link);
	t->n_offers--;
	free(offer);
}

static int check(const struct offer *offer, struct err *err)
{
	struct record_id id;
	if (record_id_parse(offer->source_id, &id) < 0)
		return err_set(err, ERR_INVALID, "source_id is no id of a volume or snapshot");
	if (!is_grant(offer->grant))
		return err_set(err, ERR_INVALID, "grant is not 32 hex digits");
	if (offer->volume_name[0] == '\0' || offer->node_id[0] == '\0' || offer->address[0] == '\0')
		return err_set(err, ERR_INVALID, "volume_name, node_id or address is missing");
	return 0;
}

int offer_put(struct transfer *t, const char *source_id, const char *volume_name, const char *grant,
	const char *node_id, const char *address, struct err *err)
{
	struct offer made = {.made_ns = ring_now_ns(t->reactor->ring)};
	const struct {
		char *to;
		size_t cap;
		const char *from, *name;
	} fields[] = {
		{made.source_id, sizeof(made.source_id), source_id, "source_id"},
		{made.volume_name, sizeof(made.volume_name), volume_name, "volume_name"},
		{made.grant, sizeof(made.grant), grant, "grant"},
		{made.node_id, sizeof(made.node_id), node_id, "node_id"},
		{made.address, sizeof(made.address), address, "address"},
	};
	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if ((size_t)snprintf(fields[i].to, fields[i].cap, "%s", fields[i].from) >=
			fields[i].cap)
			return err_set(err, ERR_INVALID, "%s is longer than %zu bytes",
				fields[i].name, fields[i].cap - 1);
	int r = check(&made, err);
	if (r < 0)
		return r;
	struct offer *offer = find(t, source_id, volume_name);
	if (offer != NULL)
		forget(t, offer);
	if (t->n_offers >= TRANSFER_OFFERS_MAX)
		forget(t, container_of(t->offers.next, struct offer, link));
	offer = malloc(sizeof(*offer));
	if (offer == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*offer = made;
	list_push(&t->offers, &offer->link);
	t->n_offers++;
	return 0;
}

bool offer_find(
	struct transfer *t, const char *source_id, const char *volume_name, struct offer *ret)
{
	offers_sweep(t);
	const struct offer *offer = find(t, source_id, volume_name);
	if (offer != NULL)
		*ret = *offer;
	return offer != NULL;
}

bool offer_find_key(struct transfer *t, const char *key, const char *volume_name, struct offer *ret)
{
	offers_sweep(t);
	list_for_each (l, &t->offers) {
		const struct offer *offer = container_of(l, struct offer, link);
		struct record_id id;
		if (strcmp(offer->volume_name, volume_name) != 0 ||
			record_id_parse(offer->source_id, &id) < 0 || strcmp(id.key, key) != 0)
			continue;
		*ret = *offer;
		return true;
	}
	return false;
}

void offer_drop(struct transfer *t, const char *source_id, const char *volume_name)
{
	struct offer *offer = find(t, source_id, volume_name);
	if (offer != NULL)
		forget(t, offer);
}

void offers_sweep(struct transfer *t)
{
	uint64_t now_ns = ring_now_ns(t->reactor->ring);
	while (!list_empty(&t->offers)) {
		struct offer *oldest = container_of(t->offers.next, struct offer, link);
		if (now_ns - oldest->made_ns < TRANSFER_OFFER_MS * UINT64_C(1000000))
			return;
		forget(t, oldest);
	}
}

void offers_free(struct transfer *t)
{
	while (!list_empty(&t->offers))
		forget(t, container_of(t->offers.next, struct offer, link));
}
