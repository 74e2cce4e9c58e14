/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots: every field of the answers, and the words of refusals. */
#include "answers.h"

#include "node/volume.h"
#include "pool/group.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { IDS_MAX = POOL_GROUP_MEMBERS_MAX + 1 };

static char a[RECORD_ID_MAX], b[RECORD_ID_MAX], group_id[RECORD_ID_MAX];
static char members[2][RECORD_ID_MAX];

static size_t put_ids(ProtobufCBinaryData ids[IDS_MAX], const char *const *list)
{
	size_t n = 0;
	for (; list[n] != NULL; n++)
		ids[n] = csi_bytes(list[n]);
	return n;
}

/* The list ends with NULL. */
static const char *asks_group(const char *name, const char *const *volumes)
{
	Csi__V1__CreateVolumeGroupSnapshotRequest req =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[IDS_MAX];
	req.name = csi_bytes(name);
	req.n_source_volume_ids = put_ids(ids, volumes);
	req.source_volume_ids = ids;
	return ASK("GroupController", CreateVolumeGroupSnapshot, create_volume_group_snapshot);
}

static const char *gets_group(const char *id, const char *const *snapshots)
{
	Csi__V1__GetVolumeGroupSnapshotRequest req =
		CSI__V1__GET_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[IDS_MAX];
	req.group_snapshot_id = csi_bytes(id);
	req.n_snapshot_ids = put_ids(ids, snapshots);
	req.snapshot_ids = ids;
	return ASK("GroupController", GetVolumeGroupSnapshot, get_volume_group_snapshot);
}

static const char *deletes_group(const char *id, const char *const *snapshots)
{
	Csi__V1__DeleteVolumeGroupSnapshotRequest req =
		CSI__V1__DELETE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[IDS_MAX];
	req.group_snapshot_id = csi_bytes(id);
	req.n_snapshot_ids = put_ids(ids, snapshots);
	req.snapshot_ids = ids;
	return ASK("GroupController", DeleteVolumeGroupSnapshot, delete_volume_group_snapshot);
}

#define IDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_IDS   ((const char *const[]){NULL})

static struct pool_object *volume_of(const char *id)
{
	struct pool_object *object;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, id, &object, &err), 0);
	return object;
}

static void open_two(enum world_fs fs)
{
	open_world(fs, 1, true);
	cr_assert_eq(create("a", EMPTY, a), GRPC_OK);
	cr_assert_eq(create("b", EMPTY, b), GRPC_OK);
}

/* Of the volumes a and b. */
static void make_group(void)
{
	take_id(asks_group("g", IDS(a, b)), "group_snapshot_id", group_id);
	const struct pool_group *group = pools_find_group_name(w->pools, "g");
	cr_assert_not_null(group);
	cr_assert_eq(group->count, 2);
	for (unsigned i = 0; i < 2; i++)
		memcpy(members[i], group->members[i], sizeof(members[i]));
}

static void close_two(void)
{
	cr_assert_eq(delete_patiently(a), GRPC_OK);
	cr_assert_eq(delete_patiently(b), GRPC_OK);
	world_close(w);
}

/* ---- what is there ---- */

/* The same by each call that tells of it, whatever the order of what is asked for. */
Test(csi_groups, every_field, .timeout = 120)
{
	char want[1400];
	const char *const of[] = {a, b};
	open_two(WORLD_XFS);
	make_group();
	const struct pool_group *group = pools_find_group_name(w->pools, "g");
	uint64_t s = group->created_ns / 1000000000, ns = group->created_ns % 1000000000;
	int n = snprintf(want, sizeof(want), "group_snapshot{group_snapshot_id='%s' ", group_id);
	for (unsigned i = 0; i < 2; i++)
		n += snprintf(want + n, sizeof(want) - (size_t)n,
			"snapshots{size_bytes=16777216 snapshot_id='%s' source_volume_id='%s' creation_time{seconds=%" PRIu64
			" nanos=%" PRIu64 "} ready_to_use=1 group_snapshot_id='%s' " TOPOLOGY "} ",
			members[i], of[i], s, ns, group_id);
	snprintf(want + n, sizeof(want) - (size_t)n,
		"creation_time{seconds=%" PRIu64 " nanos=%" PRIu64 "} ready_to_use=1}", s, ns);
	says(asks_group("g", IDS(a, b)), "%s", want);
	says(asks_group("g", IDS(b, a)), "%s", want);
	says(gets_group(group_id, IDS(members[0], members[1])), "%s", want);
	says(gets_group(group_id, IDS(members[1], members[0])), "%s", want);
	strcpy(snapshot_id, members[0]);
	Csi__V1__DeleteSnapshotRequest req = CSI__V1__DELETE_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	const struct pool_object *member = pool_group_member(group, 0, &(const char *){NULL});
	says(ASK("Controller", DeleteSnapshot, delete_snapshot),
		"3: snapshot %s is a member of group snapshot %s, and is deleted with it alone",
		member->rec->name, group_id);
	says(deletes_group(group_id, IDS(members[1], members[0])), "%s", "");
	cr_expect_null(pools_find_group_name(w->pools, "g"));
	says(deletes_group(group_id, IDS(members[0], members[1])), "%s", ""); /* a repeat */
	says(gets_group(group_id, IDS(members[0], members[1])),
		"5: group snapshot %s does not exist", group_id);
	close_two();
}

/* The ids that a caller has of its members have to be those of all of them. */
Test(csi_groups, its_members_are_named, .timeout = 120)
{
	char want[400], strange[RECORD_ID_MAX];
	open_two(WORLD_XFS);
	make_group();
	memcpy(strange, members[0], sizeof(strange));
	strange[0] = strange[0] == '0' ? '1' : '0';
	static const char few[] = "3: snapshot_ids: %zu are given, group snapshot g has 2 members";
	for (unsigned deletes = 0; deletes < 2; deletes++) {
		const char *(*calls)(const char *, const char *const *) =
			deletes ? deletes_group : gets_group;
		says(calls(group_id, NO_IDS), few, (size_t)0);
		says(calls(group_id, IDS(members[1])), few, (size_t)1);
		snprintf(want, sizeof(want), "3: snapshot_ids: %s is no member of group snapshot g",
			strange);
		says(calls(group_id, IDS(strange)), "%s", want);
		says(calls(group_id, IDS(members[0], strange)), "%s", want);
		says(calls(group_id, IDS(members[0], members[1], strange)), "%s", want);
		snprintf(want, sizeof(want), "3: snapshot_ids: %s is given twice", members[1]);
		says(calls(group_id, IDS(members[1], members[1])), "%s", want);
		says(calls(group_id, IDS(members[0], members[1], members[1])), "%s", want);
	}
	cr_expect_not_null(pools_find_group_name(w->pools, "g"));
	says(deletes_group(group_id, IDS(members[0], members[1])), "%s", "");
	close_two();
}

/* Of one whose pool is away nothing is said to be gone; one that cannot be written has it still. */
Test(csi_groups, its_pool_is_away, .timeout = 120)
{
	char away[300];
	open_two(WORLD_XFS);
	make_group();
	struct pool *pool = pools_at(w->pools, 0);
	const char *const *ids = IDS(members[0], members[1]);
	snprintf(away, sizeof(away), "14: group snapshot %s: it is gone", group_id);
	pool_enter(pool, POOL_AWAY, "it is gone");
	says(gets_group(group_id, ids), "%s", away);
	says(deletes_group(group_id, ids), "%s", away);
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	says(deletes_group(group_id, ids), "14: it cannot be written");
	says(asks_group("g", IDS(a, b)), "14: it cannot be written");
	says(asks_group("h", IDS(a, b)), "14: it cannot be written");
	cr_expect_eq(strncmp(gets_group(group_id, ids), "group_snapshot{", 15), 0);
	pool_enter(pool, POOL_SERVED, "%s", "");
	world_adopt(w);
	says(deletes_group(group_id, ids), "%s", "");
	says(deletes_group("nonsense", NO_IDS), "%s", "");
	close_two();
}

/* A removal that no sync has covered is not acknowledged. */
Test(csi_groups, a_deletion_is_durable_first, .timeout = 120)
{
	open_two(WORLD_XFS);
	make_group();
	const char *const *ids = IDS(members[0], members[1]);
	unsigned failed = 0;
	for (int n = 0;; n++) {
		w->fault_hit = false;
		w->work_fault_after = n;
		const char *got = deletes_group(group_id, ids);
		bool ok = got[0] == '\0';
		w->work_fault_after = -1;
		if (!w->fault_hit && ok)
			break;
		failed += !ok;
		cr_assert_lt(n, 50);
	}
	cr_expect_gt(failed, 0);
	cr_expect_null(pools_find_group_name(w->pools, "g"));
	close_two();
}

/* ---- what cannot be made ---- */

Test(csi_groups, volumes_that_make_no_group, .timeout = 120)
{
	char want[400], many[IDS_MAX][RECORD_ID_MAX];
	const char *list[IDS_MAX + 1] = {NULL};
	open_two(WORLD_XFS);
	says(asks_group("g", IDS(a, "")), "3: source_volume_ids: one is empty");
	snprintf(want, sizeof(want), "3: source_volume_ids: %s is given twice", b);
	says(asks_group("g", IDS(a, b, b)), "%s", want);
	says(asks_group("g", IDS(b, a, b)), "%s", want);
	for (unsigned i = 0; i < IDS_MAX; i++) {
		snprintf(many[i], sizeof(many[i]), "%.8s.none-%u.0badcafe", a, i);
		list[i] = many[i];
	}
	says(asks_group("g", list),
		"3: source_volume_ids: 129 volumes, a group snapshot has 128 at most");
	list[IDS_MAX - 1] = NULL;
	snprintf(want, sizeof(want), "5: volume %s does not exist", many[0]);
	says(asks_group("g", list), "%s", want);
	snprintf(want, sizeof(want), "5: volume %s does not exist", many[7]);
	says(asks_group("g", IDS(a, many[7], b)), "%s", want);
	volume_of(b)->image = POOL_IMAGE_MISSING;
	cr_expect_eq(strncmp(asks_group("g", IDS(a, b)), "15: ", 4), 0);
	volume_of(b)->image = POOL_IMAGE_WHOLE;
	volume_of(b)->rec->owner = "/pods/1";
	volume_of(b)->rec->claim = "ci/pod";
	cr_expect_eq(strncmp(asks_group("g", IDS(a, b)), "9: ", 3), 0);
	volume_of(b)->rec->owner = volume_of(b)->rec->claim = "";
	cr_expect_null(pools_find_group_name(w->pools, "g"));
	close_two();
}

/* A name that is taken: by a group of others, of fewer, of more, or by one that nobody can read. */
Test(csi_groups, names_that_are_taken, .timeout = 120)
{
	char c[RECORD_ID_MAX], want[300];
	open_two(WORLD_XFS);
	cr_assert_eq(create("c", EMPTY, c), GRPC_OK);
	make_group();
	snprintf(want, sizeof(want), "6: group snapshot g exists, of other volumes (one is %s)", a);
	says(asks_group("g", IDS(a)), "%s", want);
	says(asks_group("g", IDS(a, b, c)), "%s", want);
	says(asks_group("g", IDS(c, b)), "%s", want);
	snprintf(want, sizeof(want), "6: group snapshot g exists, of other volumes (one is %s)", b);
	says(asks_group("g", IDS(c, a)), "%s", want);
	struct pool_group *group = pools_find_group_name(w->pools, "g");
	const char *why;
	struct pool_object *member = pool_group_member(group, 1, &why);
	member->image = POOL_IMAGE_TRUNCATED;
	cr_expect_eq(strncmp(asks_group("g", IDS(a, b)), "15: ", 4), 0);
	member->image = POOL_IMAGE_WHOLE;
	group->why = "its file is damaged";
	says(asks_group("g", IDS(a, b)),
		"6: name g is taken in pool default by a group snapshot that cannot be told: its file is damaged; look at it with ringvol check");
	group->why = NULL;
	says(deletes_group(group_id, IDS(members[0], members[1])), "%s", "");
	cr_assert_eq(delete_patiently(c), GRPC_OK);
	close_two();
}

/* A name, and a volume, are one call's at a time. */
Test(csi_groups, made_at_once, .timeout = 120)
{
	char c[RECORD_ID_MAX];
	open_two(WORLD_XFS);
	cr_assert_eq(create("c", EMPTY, c), GRPC_OK);
	Csi__V1__CreateVolumeGroupSnapshotRequest req =
		CSI__V1__CREATE_VOLUME_GROUP_SNAPSHOT_REQUEST__INIT;
	ProtobufCBinaryData ids[2] = {csi_bytes(a), csi_bytes(b)};
	struct world_answer first;
	req.name = csi_bytes("g");
	req.n_source_volume_ids = 2;
	req.source_volume_ids = ids;
	world_send(w, "GroupController/CreateVolumeGroupSnapshot", &req.base, &first);
	cr_assert_not(first.ended);
	const char *got = asks_group("g", IDS(c));
	cr_expect(strncmp(got, "10: ", 4) == 0 && strstr(got, "/g") != NULL, "%s", got);
	cr_expect_eq(strncmp(asks_group("h", IDS(c)), "group_snapshot{", 15), 0);
	world_wait(w, &first);
	cr_assert_eq(first.status, GRPC_OK, "%s", first.message);
	world_answer_free(&first);
	for (unsigned i = 0; i < 2; i++) {
		const struct pool_group *group =
			pools_find_group_name(w->pools, i == 0 ? "g" : "h");
		cr_assert_not_null(group);
		pool_group_id(group, group_id);
		for (unsigned m = 0; m < group->count; m++)
			memcpy(members[m], group->members[m], sizeof(members[m]));
		says(deletes_group(
			     group_id, i == 0 ? IDS(members[0], members[1]) : IDS(members[0])),
			"%s", "");
	}
	cr_assert_eq(delete_patiently(c), GRPC_OK);
	close_two();
}

/* Volumes of two pools have no moment in common. */
Test(csi_groups, of_two_pools, .timeout = 120)
{
	open_world(WORLD_EXT4, 1, true);
	w->two_pools = true;
	world_restart(w);
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair *parameters[2] = {pair(0, "device", "loop"), NULL};
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = 2;
	req.parameters = parameters;
	static const char *const pools[] = {"default", "other"};
	for (unsigned i = 0; i < 2; i++) {
		parameters[1] = pair(1, "pool", pools[i]);
		req.name = csi_bytes(i == 0 ? "a" : "b");
		take_id(ASK("Controller", CreateVolume, create_volume), "volume_id",
			i == 0 ? a : b);
	}
	says(asks_group("g", IDS(a, b)),
		"9: source_volume_ids: volume a is in pool default and volume b in pool other; a group snapshot is of the volumes of one pool");
	says(asks_group("g", IDS(b, a)),
		"9: source_volume_ids: volume b is in pool other and volume a in pool default; a group snapshot is of the volumes of one pool");
	close_two();
}

static const char *drain_op, *drain_step;

static void drain_there(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, drain_op) != 0 || strcmp(step_name, drain_step) != 0)
		return;
	w->on_step = NULL;
	csi_drain(w->csi, NULL, NULL);
}

/* The copies of a group are not waited for, whether they have begun or not; the client asks the
 * next run for it. */
Test(csi_groups, are_stopped_at_a_shutdown, .timeout = 120)
{
	static const char *const at[][2] = {{"CreateVolumeGroupSnapshot", "measure"},
		{"CreateVolumeGroupSnapshot", "make"}, {"pool_group", "copy"}};
	char left[INVENTORY_BYTES];
	for (unsigned i = 0; i < 3; i++) {
		open_two(WORLD_EXT4);
		drain_op = at[i][0];
		drain_step = at[i][1];
		w->on_step = drain_there;
		const char *told = asks_group("g", IDS(a, b));
		cr_expect_eq(strncmp(told, "14: ", 4), 0, "%s: %s", at[i][1], told);
		cr_expect_null(w->on_step, "%s", at[i][1]);
		world_restart(w);
		cr_expect_null(pools_find_group_name(w->pools, "g"));
		world_inventory(w, left, sizeof(left));
		cr_expect_null(strstr(left, "snapshots "), "%s", left);
		make_group();
		says(deletes_group(group_id, IDS(members[0], members[1])), "%s", "");
		close_two();
	}
}
