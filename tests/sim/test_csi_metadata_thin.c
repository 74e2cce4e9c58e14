/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of SnapshotMetadata over a raw pool: what its thin pool says of blocks (the test's own,
 * in the place of pool/thin_snapshots.h), and what becomes of it when it says nothing. */
#include "answers.h"
#include "as_raw.h"

#include "pool/thin_snapshots.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the thin pool ---- */

enum { WINDOW = 4 * MIB };

static char base_id[RECORD_ID_MAX];
static const struct pool_object *base, *target;
static unsigned taken, released, windows;
static int take_res, window_res; /* of the second window; the first one tells */
static bool no_thread;           /* takes the job */

static int nothing(struct work_job *job)
{
	(void)job;
	return 0;
}

static void nothing_on_end(struct work_job *job, int res)
{
	(void)job;
	(void)res;
}

static void take_all_threads(void)
{
	static struct work_job jobs[WORK_QUEUE_MAX];
	for (unsigned i = 0; i < WORK_QUEUE_MAX; i++) {
		jobs[i] = (struct work_job){
			.run = nothing, .on_end = nothing_on_end, .lane = pool_lane(target->pool)};
		(void)work_submit(w->reactor.work, &jobs[i]);
	}
}

int __wrap_pool_thin_snapshots_take(struct pool_thin_snapshots *s, const struct pool_object *b,
	const struct pool_object *t, struct err *err);
int __wrap_pool_thin_snapshots_take(struct pool_thin_snapshots *s, const struct pool_object *b,
	const struct pool_object *t, struct err *err)
{
	cr_assert_null(s->disk, "it was let go before");
	base = b;
	target = t;
	if (take_res < 0)
		return err_set(err, ERR_UNAVAILABLE, "the thin pool is not active");
	taken++;
	s->disk = (void *)s;
	if (no_thread)
		take_all_threads();
	return 0;
}

/* All of each window but its last 64 KiB. */
int __wrap_pool_thin_snapshots_window(const struct pool_thin_snapshots *s, uint64_t from,
	uint64_t to, struct extent_ranges *ret, uint64_t *ret_to);
int __wrap_pool_thin_snapshots_window(const struct pool_thin_snapshots *s, uint64_t from,
	uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	cr_assert_not_null(s->disk);
	if (windows++ > 0 && window_res < 0)
		return window_res;
	*ret_to = from + WINDOW < to ? from + WINDOW : to;
	extent_ranges_add(ret, from, *ret_to - (64 << 10));
	return 0;
}

void __wrap_pool_thin_snapshots_release(struct pool_thin_snapshots *s);
void __wrap_pool_thin_snapshots_release(struct pool_thin_snapshots *s)
{
	released += s->disk != NULL;
	s->disk = NULL;
}

/* ---- asking ---- */

static const char *path_of(const char *snapshot)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/snapshots/%s", w->pool_path, snapshot);
	return path;
}

static void open_snapshots(void)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snapshot_name = "one";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	strcpy(base_id, snapshot_id);
	snapshot_name = "two";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	world_settle(w);
	/* Their files have no bytes there. */
	cr_assert_eq(truncate(path_of("one"), 0), 0);
	cr_assert_eq(truncate(path_of("two"), 0), 0);
	is_raw = true;
}

static void close_snapshots(void)
{
	is_raw = false;
	world_close(w);
}

static const char *asks_delta(void)
{
	Csi__V1__GetMetadataDeltaRequest req = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	req.base_snapshot_id = csi_bytes(base_id);
	req.target_snapshot_id = csi_bytes(snapshot_id);
	windows = 0;
	return ASK("SnapshotMetadata", GetMetadataDelta, get_metadata_delta);
}

static const char *asks_allocated(void)
{
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	windows = 0;
	return ASK("SnapshotMetadata", GetMetadataAllocated, get_metadata_allocated);
}

/* Each window is asked for anew, and let go. The answer's last message is the last window's. */
Test(csi_metadata_thin, is_told_window_by_window, .timeout = 60)
{
	static const char last[] =
		"block_metadata_type=2 volume_capacity_bytes=16777216 block_metadata{byte_offset=12582912 size_bytes=4128768}";
	open_snapshots();
	for (unsigned delta = 0; delta < 2; delta++) {
		taken = released = 0;
		says(delta ? asks_delta() : asks_allocated(), "%s", last);
		cr_expect_eq(windows, 4);
		cr_expect_eq(taken, 4);
		cr_expect_eq(released, 4);
		cr_expect_str_eq(target->rec->name, "two");
		cr_expect_str_eq(base != NULL ? base->rec->name : "", delta ? "one" : "");
	}
	close_snapshots();
}

/* Whatever becomes of a look, nothing is held, and the next one is answered. */
Test(csi_metadata_thin, that_cannot_be_told, .timeout = 60)
{
	static const struct {
		int take, window;
		const char *want;
	} table[] = {
		{-EBUSY, 0, "14: the thin pool is not active"},
		{0, -EAGAIN,
			"14: pool default: the metadata of its thin pool changed whenever they were read; try again"},
		{0, -EBADMSG,
			"15: pool default: the metadata of its thin pool are damaged, and do not tell of snapshot two: look at them with ringvol check"},
		{0, -ENXIO,
			"15: pool default: the metadata of its thin pool do not know snapshot two: look at them with ringvol check"},
		{0, -EIO, "13: finding the blocks of snapshot two: Input/output error"},
	};
	open_snapshots();
	for (unsigned i = 0; i < 2 * sizeof(table) / sizeof(table[0]); i++) {
		taken = released = 0;
		take_res = table[i / 2].take;
		window_res = table[i / 2].window;
		says(i % 2 != 0 ? asks_delta() : asks_allocated(), "%s", table[i / 2].want);
		world_settle(w);
		cr_expect_eq(released, taken);
		cr_expect_eq(w->csi->task_count, 0);
	}
	take_res = window_res = 0;
	cr_expect_neq(asks_delta()[0], '1');
	close_snapshots();
}

/* What was taken for it is let go. */
Test(csi_metadata_thin, no_thread_looks, .timeout = 60)
{
	open_snapshots();
	taken = released = 0;
	no_thread = true;
	cr_expect_eq(strncmp(asks_delta(), "8: ", 3), 0);
	no_thread = false;
	world_settle(w);
	cr_expect_eq(taken, 1);
	cr_expect_eq(released, 1);
	close_snapshots();
}
