/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of more than a page holds, or than a call looks at; and lists while a pool is not here. */
#include "inspect_lines.h"

#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_MAX = 4096, HEALTH_MAX = 1024, SCAN_MAX = 10000 };

static struct pool_object **objects;
static unsigned object_count;

/* Their names are in order. */
static void open_full(enum record_kind kind, unsigned count)
{
	open_world(WORLD_EXT4, 1, true);
	objects = calloc(count, sizeof(struct pool_object *));
	cr_assert_not_null(objects);
	for (object_count = 0; object_count < count; object_count++) {
		char name[16];
		snprintf(name, sizeof(name), "o-%05u", object_count);
		objects[object_count] = insert(kind, name);
	}
}

static void close_full(void)
{
	while (object_count > 0)
		take_out(objects[--object_count]);
	free(objects);
	world_close(w);
}

static char token[256];

/* How many entries a page has, from the token on, which it changes. */
static size_t volumes_of(int32_t max_entries)
{
	Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	struct world_answer answer;
	req.max_entries = max_entries;
	req.starting_token = csi_bytes(token);
	cr_assert_eq(call("Controller/ListVolumes", &req.base, &answer), GRPC_OK);
	Csi__V1__ListVolumesResponse *response =
		csi__v1__list_volumes_response__unpack(NULL, answer.len, answer.data);
	cr_assert_not_null(response);
	size_t n = response->n_entries;
	snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
		(const char *)response->next_token.data);
	csi__v1__list_volumes_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	return n;
}

static size_t health_of(int32_t max_entries)
{
	Csi__V1__ControllerListVolumeHealthRequest req =
		CSI__V1__CONTROLLER_LIST_VOLUME_HEALTH_REQUEST__INIT;
	struct world_answer answer;
	req.max_entries = max_entries;
	req.starting_token = csi_bytes(token);
	cr_assert_eq(call("Controller/ControllerListVolumeHealth", &req.base, &answer), GRPC_OK);
	Csi__V1__ControllerListVolumeHealthResponse *response =
		csi__v1__controller_list_volume_health_response__unpack(
			NULL, answer.len, answer.data);
	cr_assert_not_null(response);
	size_t n = response->n_entries;
	snprintf(token, sizeof(token), "%.*s", (int)response->next_token.len,
		(const char *)response->next_token.data);
	csi__v1__controller_list_volume_health_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	return n;
}

/* A page from the token on; whether there is more. */
static void has_page(
	size_t (*of)(int32_t max_entries), int32_t max_entries, size_t entries, bool more)
{
	size_t n = of(max_entries);
	cr_expect_eq(n, entries, "%zu and not %zu", n, entries);
	cr_expect_eq(token[0] != '\0', more, "after %zu: %s", n, token);
}

Test(csi_lists, a_page_is_so_large, .timeout = 120)
{
	open_full(RECORD_VOLUME, PAGE_MAX + 1);
	has_page(volumes_of, 0, PAGE_MAX, true);
	has_page(volumes_of, 0, 1, false);
	has_page(volumes_of, PAGE_MAX + 1, PAGE_MAX, true);
	has_page(volumes_of, 1, 1, false);
	has_page(volumes_of, 3, 3, true);
	has_page(volumes_of, PAGE_MAX - 3, PAGE_MAX - 3, true);
	has_page(volumes_of, 7, 1, false);
	take_out(objects[--object_count]);
	has_page(volumes_of, 0, PAGE_MAX, false);
	objects[0]->rec->owner = "/pods/1"; /* its pod's, and nobody else's to look after */
	has_page(volumes_of, 0, PAGE_MAX - 1, false);
	has_page(volumes_of, 1, 1, true);
	cr_expect_not_null(strstr(token, ".o-00001."), "%s", token);
	objects[0]->rec->owner = "";
	close_full();
}

Test(csi_lists, a_page_of_health_is_smaller, .timeout = 120)
{
	open_full(RECORD_VOLUME, HEALTH_MAX + 1);
	struct pool *pool = pools_at(w->pools, 0);
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	has_page(health_of, 0, HEALTH_MAX, true);
	has_page(health_of, 0, 1, false);
	has_page(health_of, HEALTH_MAX + 1, HEALTH_MAX, true);
	token[0] = '\0';
	has_page(health_of, 2, 2, true);
	cr_expect_not_null(strstr(token, ".o-00001."), "%s", token);
	pool_enter(pool, POOL_SERVED, "%s", "");
	token[0] = '\0';
	has_page(health_of, 0, 0, false);
	close_full();
}

/* A call does not look at all there are for the few that it wants. */
Test(csi_lists, a_call_looks_at_so_many, .timeout = 120)
{
	open_full(RECORD_VOLUME, SCAN_MAX + 1);
	objects[SCAN_MAX]->image = POOL_IMAGE_MISSING;
	has_page(health_of, 0, 0, true);
	cr_expect_not_null(strstr(token, ".o-09999."), "%s", token);
	has_page(health_of, 0, 1, false);
	objects[1]->image = POOL_IMAGE_MISSING;
	has_page(health_of, 0, 1, true);
	has_page(health_of, 0, 1, false);
	objects[SCAN_MAX]->image = POOL_IMAGE_WHOLE;
	take_out(objects[--object_count]);
	has_page(health_of, 0, 1, false);
	close_full();
}

/* ---- pools that are not here ---- */

static const char *lists(void)
{
	Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	return ASK("Controller", ListVolumes, list_volumes);
}

static const char *lists_snapshots(const char *of_volume, const char *id)
{
	Csi__V1__ListSnapshotsRequest req = CSI__V1__LIST_SNAPSHOTS_REQUEST__INIT;
	req.source_volume_id = csi_bytes(of_volume);
	req.snapshot_id = csi_bytes(id);
	return ASK("Controller", ListSnapshots, list_snapshots);
}

static const char *gets_snapshot(const char *id)
{
	Csi__V1__GetSnapshotRequest req = CSI__V1__GET_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(id);
	return ASK("Controller", GetSnapshot, get_snapshot);
}

/* What exists is only known once every pool has been read; a disk that is dead keeps nobody. */
Test(csi_lists, while_a_pool_is_read, .timeout = 120)
{
	open_world(WORLD_EXT4, 1, true);
	w->two_pools = true;
	world_restart(w);
	static const char *const names[] = {"default", "other"};
	for (unsigned i = 0; i < 2; i++) {
		struct pool *pool = pools_at(w->pools, i);
		pool->life = POOL_NEW;
		char want[100];
		snprintf(
			want, sizeof(want), "14: pool %s is still being read; try again", names[i]);
		says(lists(), "%s", want);
		says(lists_snapshots("", ""), "%s", want);
		pool->life = POOL_SERVED;
		pool_enter(pool, POOL_AWAY, "it is gone");
		says(lists(), "%s", "");
		says(lists_snapshots("", ""), "%s", "");
		pool_enter(pool, POOL_SERVED, "%s", "");
	}
	world_close(w);
}

/* An empty answer says that something is gone for good: not while its pool is away. */
Test(csi_lists, of_what_is_away, .timeout = 120)
{
	char id[RECORD_ID_MAX], volume[RECORD_ID_MAX], want[300];
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_SNAPSHOT, "s");
	pool_object_id(o, id);
	snprintf(volume, sizeof(volume), "%s.v.0badcafe", pool_uuid8(o->pool));
	o->rec->source_id = volume;
	cr_expect_eq(strncmp(lists_snapshots("", id), "entries{", 8), 0);
	cr_expect_eq(strncmp(lists_snapshots(volume, ""), "entries{", 8), 0);
	cr_expect_eq(strncmp(gets_snapshot(id), "snapshot{", 9), 0);
	pool_enter(o->pool, POOL_AWAY, "it is gone");
	snprintf(want, sizeof(want), "14: snapshot %s: it is gone", id);
	says(lists_snapshots("", id), "%s", want);
	says(gets_snapshot(id), "%s", want);
	snprintf(want, sizeof(want), "14: volume %s: it is gone", volume);
	says(lists_snapshots(volume, ""), "%s", want);
	says(lists_snapshots(volume, id), "%s", want);
	pool_enter(o->pool, POOL_SERVED, "%s", "");
	o->rec->source_id = "";
	take_out(o);
	says(lists_snapshots("", id), "%s", "");
	says(lists_snapshots(volume, ""), "%s", "");
	snprintf(want, sizeof(want), "5: snapshot %s does not exist", id);
	says(gets_snapshot(id), "%s", want);
	world_close(w);
}
