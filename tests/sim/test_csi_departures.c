/* SPDX-License-Identifier: Apache-2.0 */
/* GetDeparture and DropDeparture: what a controller asks of a node that a volume has left, or was
 * to come to. */
#include "answers.h"

#include "cluster.pb-c.h"
#include "pool/departure.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define THERE "89abcdef"

static const char *asks_departure(const char *id)
{
	Ringvol__V1__GetDepartureRequest req = RINGVOL__V1__GET_DEPARTURE_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	return ask("/ringvol.v1.Member/GetDeparture", &req,
		&ringvol__v1__get_departure_response__descriptor);
}

static const char *drops_departure(const char *id)
{
	Ringvol__V1__DropDepartureRequest req = RINGVOL__V1__DROP_DEPARTURE_REQUEST__INIT;
	req.volume_id = csi_bytes(id);
	return ask("/ringvol.v1.Member/DropDeparture", &req,
		&ringvol__v1__drop_departure_response__descriptor);
}

static struct pool *nth_pool(unsigned i)
{
	struct pool *pool = pools_at(w->pools, i);
	cr_assert_not_null(pool);
	return pool;
}

/* A note in memory: its volume has gone to node-2. */
static void has_left(struct pool *pool, const char *key, const char *id)
{
	struct pool_departure *d = calloc(1, sizeof(*d));
	cr_assert_not_null(d);
	d->pool = pool;
	strcpy(d->key, key);
	snprintf(d->id, sizeof(d->id), "%s", id);
	strcpy(d->to, THERE);
	strcpy(d->node_id, "node-2");
	d->moves = 1;
	pool_departure_enter(pool, d);
}

/* Removals in the pool that no sync has covered yet. */
static void leaves_unsynced(struct pool *pool)
{
	pool->sync[RECORD_VOLUME].removed++;
}

static bool is_unsynced(const struct pool *pool)
{
	return pool->sync[RECORD_VOLUME].removed_durable != pool->sync[RECORD_VOLUME].removed;
}

static void open_two(void)
{
	open_world(WORLD_EXT4, 1, true);
	w->two_pools = true;
	world_restart(w);
}

static void name_of(char id[RECORD_ID_MAX], unsigned pool, const char *key)
{
	snprintf(id, RECORD_ID_MAX, "%s.%s.0badcafe", pool_uuid8(nth_pool(pool)), key);
}

Test(csi_departures, where_it_has_gone, .timeout = 120)
{
	char id[RECORD_ID_MAX];
	open_two();
	name_of(id, 1, "far");
	says(asks_departure("nonsense"), "3: volume_id: nonsense is no id");
	says(asks_departure(id), "%s", "");
	has_left(nth_pool(1), "far", id);
	says(asks_departure(id), "pool='" THERE "' node_id='node-2'");
	/* Then nothing is looked for that a pool would have to be here for. */
	pool_enter(nth_pool(0), POOL_AWAY, "it is gone");
	says(asks_departure(id), "pool='" THERE "' node_id='node-2'");
	pool_enter(nth_pool(0), POOL_SERVED, "%s", "");
	says(drops_departure(id), "%s", "");
	cr_expect_null(pools_departure(w->pools, id));
	says(asks_departure(id), "%s", "");
	says(drops_departure(id), "%s", ""); /* a repeat */
	world_close(w);
}

/* Whatever is finished of it in any pool may become a volume. */
Test(csi_departures, whether_it_arrives, .timeout = 120)
{
	char id[RECORD_ID_MAX], other[RECORD_ID_MAX], path[160];
	open_two();
	name_of(id, 0, "far");
	name_of(other, 0, "fa");
	for (unsigned i = 0; i < 2; i++) {
		struct record *kept = plain_record(RECORD_VOLUME, "far", "0badcafe", MIB);
		cr_assert_not_null(kept);
		snprintf(path, sizeof(path), "%s/copies/part-far", pool_path(nth_pool(i)));
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		cr_assert_geq(fd, 0);
		says(asks_departure(id), "%s", ""); /* there is nothing that is finished */
		cr_assert_eq(pool_part_finish(pool_holds_fd(nth_pool(i)), fd, kept, "x", 1), 0);
		says(asks_departure(id), "arriving=1");
		says(asks_departure(other), "%s", "");
		pool_enter(nth_pool(1 - i), POOL_READ_ONLY, "it cannot be written");
		says(asks_departure(id), "14: it cannot be written");
		pool_enter(nth_pool(1 - i), POOL_SERVED, "%s", "");
		cr_assert_eq(pool_part_unfinish(fd), 0);
		says(asks_departure(id), "%s", "");
		close(fd);
		cr_assert_eq(unlink(path), 0);
		record_free(kept);
	}
	world_close(w);
}

/* Who asks takes a removal for done: the answer waits until each of them is durable, and is none
 * where a sync fails. */
Test(csi_departures, what_was_removed_is_durable_first, .timeout = 120)
{
	char id[RECORD_ID_MAX];
	open_two();
	name_of(id, 0, "far");
	for (unsigned drops = 0; drops < 2; drops++) {
		const char *(*calls)(const char *id) = drops ? drops_departure : asks_departure;
		for (unsigned pools = 1; pools < 4; pools++) {
			for (unsigned i = 0; i < 2; i++)
				if (pools & 1u << i)
					leaves_unsynced(nth_pool(i));
			says(calls(id), "%s", "");
			cr_expect_not(is_unsynced(nth_pool(0)));
			cr_expect_not(is_unsynced(nth_pool(1)));
		}
		leaves_unsynced(nth_pool(1));
		w->work_fault_after = drops ? 0 : 1; /* the look for parts is the first job */
		cr_expect_eq(strncmp(calls(id), "13: ", 4), 0);
		cr_expect(w->fault_hit);
		w->fault_hit = false;
		cr_expect(is_unsynced(nth_pool(1)));
		says(calls(id), "%s", "");
		cr_expect_not(is_unsynced(nth_pool(1)));
	}
	world_close(w);
}

/* What could not go to the trash when it left goes with the note; the other way round it would be a
 * volume again. While its pool cannot be written both stay. */
Test(csi_departures, an_image_that_was_left, .timeout = 120)
{
	char path[160];
	struct stat st;
	open_world(WORLD_EXT4, 1, true);
	struct pool *pool = nth_pool(0);
	cr_assert_eq(create("v", EMPTY, volume_id), GRPC_OK);
	struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, "v");
	cr_assert_not_null(o);
	snprintf(path, sizeof(path), "%s/volumes/v", w->pool_path);
	has_left(pool, "v", volume_id);
	pool_entry(o)->left = true;
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	says(drops_departure(volume_id), "14: it cannot be written");
	cr_expect_eq(stat(path, &st), 0);
	cr_expect_not_null(pools_departure(w->pools, volume_id));
	pool_enter(pool, POOL_SERVED, "%s", "");
	unsigned failed = 0;
	for (int n = 0; pools_departure(w->pools, volume_id) != NULL; n++) {
		w->fault_after = n;
		failed += drops_departure(volume_id)[0] != '\0';
		w->fault_after = -1;
		if (stat(path, &st) == 0)
			cr_expect_not_null(pools_departure(w->pools, volume_id), "fault %d", n);
		cr_assert_lt(n, 50);
	}
	cr_expect_geq(failed, 4);
	says(drops_departure(volume_id), "%s", "");
	cr_expect_null(pools_departure(w->pools, volume_id));
	cr_expect_neq(stat(path, &st), 0);
	cr_expect_null(pools_find_name(w->pools, RECORD_VOLUME, "v"));
	world_settle(w);
	world_restart(w);
	cr_expect_null(pools_find_name(w->pools, RECORD_VOLUME, "v"));
	world_close(w);
}

/* ---- copies ---- */

static const char *grants(const char *source, const char *node, bool move)
{
	Ringvol__V1__GrantCopyRequest req = RINGVOL__V1__GRANT_COPY_REQUEST__INIT;
	req.source_id = csi_bytes(source);
	req.node_id = csi_bytes(node);
	req.volume_name = csi_bytes("copy");
	req.move = move;
	return ask("/ringvol.v1.Member/GrantCopy", &req,
		&ringvol__v1__grant_copy_response__descriptor);
}

static const char *offers(const char *source)
{
	Ringvol__V1__OfferCopyRequest req = RINGVOL__V1__OFFER_COPY_REQUEST__INIT;
	req.source_id = csi_bytes(source);
	req.volume_name = csi_bytes("copy");
	req.grant = csi_bytes("00000000000000000000000000000000");
	req.node_id = csi_bytes("node-2");
	req.address = csi_bytes("192.0.2.1:1");
	return ask("/ringvol.v1.Member/OfferCopy", &req,
		&ringvol__v1__offer_copy_response__descriptor);
}

Test(csi_departures, copies_that_are_refused, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(create("v", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	struct transfer *transfer = w->csi->transfer;
	w->csi->transfer = NULL;
	says(grants(volume_id, "node-2", false), "12: this node copies nothing to others");
	says(offers(volume_id), "12: this node copies nothing from others");
	w->csi->transfer = transfer;
	says(grants(volume_id, "", false), "3: node_id is missing");
	says(grants(snapshot_id, "node-2", true),
		"9: %s is a snapshot: it stays with its pool; restore it on the other node",
		snapshot_id);
	cr_expect_eq(transfer_grants(transfer), 0);
	cr_expect_eq(strncmp(grants(snapshot_id, "node-2", false), "grant='", 7), 0);
	cr_expect_eq(transfer_grants(transfer), 1);
	world_close(w);
}
