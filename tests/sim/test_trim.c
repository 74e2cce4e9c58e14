/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes in use that are trimmed by schedule: what comes back, what is left out, how it goes when
 * that does not go well; and how many volumes the node can have. */
#include "csi_calls.h"

#include "../unit/sim_time.h"
#include "node/devices.h"
#include "node/health.h"
#include "node/trim.h"
#include "node/volume.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INTERVAL_S = 3600, PASS_S = INTERVAL_S + 20 };

static struct pool_object *volume(void)
{
	struct pool_object *found;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &found, &err), 0);
	return found;
}

static struct node_volume *in_use(void)
{
	return node_volume_find(volume());
}

static struct node_trim_stats stats(void)
{
	return node_trim_stats(w->csi->node->trim);
}

static void open_staged(void)
{
	open_world(WORLD_XFS, 1, false);
	create_bytes = 64 * MIB;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(node_trim_open(w->csi->node, INTERVAL_S), 0);
}

static void close_staged(void)
{
	node_trim_close(w->csi->node);
	w->calls[MNT_TRIM] = mnt_calls[MNT_TRIM];
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Until it is trimmed, or must have been. */
static void pass_an_interval(void)
{
	uint64_t trims = stats().done + stats().failed;
	for (unsigned s = 0; s < PASS_S && stats().done + stats().failed == trims; s++)
		sim_pass_ms(w->reactor.ring, 1000);
}

static uint64_t allocated(void)
{
	char path[128];
	struct stat st;
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	cr_assert_eq(stat(path, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* Writes so much into the volume, and takes the file away again. */
static void write_and_remove(uint64_t bytes)
{
	char path[160];
	static char some[1 << 20];
	memset(some, 0x5a, sizeof(some));
	snprintf(path, sizeof(path), "%s/file", staging_path);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	for (uint64_t at = 0; at < bytes; at += sizeof(some))
		cr_assert_eq(write(fd, some, sizeof(some)), (ssize_t)sizeof(some));
	cr_assert_eq(syncfs(fd), 0);
	cr_assert_geq(allocated(), bytes);
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(syncfs(fd), 0);
	close(fd);
	fd = open(staging_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(syncfs(fd), 0);
	close(fd);
}

/* ---- the schedule ---- */

Test(trim, it_gives_back_what_files_gave_back, .timeout = 300)
{
	open_staged();
	write_and_remove(16 * MIB);
	cr_assert_geq(allocated(), 16 * MIB);
	pass_an_interval();
	cr_assert_eq(stats().done, 1);
	cr_assert_eq(stats().failed, 0);
	cr_assert_geq(stats().returned_bytes, 15 * MIB);
	cr_assert_lt(allocated(), 8 * MIB);
	pass_an_interval();
	cr_assert_eq(stats().done, 2, "once an interval");
	close_staged();
}

static unsigned calls;
static int call_res;
static uint64_t expected_start;

static int answer(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_trim_req *trim = req;
	struct mnt_result *result = resp;
	cr_assert_eq(req_len, sizeof(*trim));
	calls++;
	if (call_res < 0) {
		*resp_len = 0;
		return call_res;
	}
	cr_assert(trim->start_bytes == 0 || trim->start_bytes == expected_start);
	*resp_len = sizeof(*result);
	*result = (struct mnt_result){.next_bytes = trim->start_bytes + trim->len_bytes};
	expected_start = result->next_bytes;
	return 0;
}

static void answer_with(int res)
{
	calls = 0;
	call_res = res;
	expected_start = 0;
	w->calls[MNT_TRIM] = answer;
}

/* One behind the other, each quick and so twice as large as the one before. */
Test(trim, a_large_file_system_is_trimmed_in_windows, .timeout = 300)
{
	open_staged();
	answer_with(0);
	in_use()->dev.size_bytes = 15ULL << 30;
	pass_an_interval();
	cr_assert_eq(stats().done, 1);
	cr_assert_eq(calls, 4);
	cr_assert_eq(expected_start, 15ULL << 30);
	close_staged();
}

/* ---- what does not go well ---- */

Test(trim, a_device_without_discards_is_asked_once, .timeout = 300)
{
	open_staged();
	answer_with(-EOPNOTSUPP);
	for (unsigned i = 0; i < 3; i++)
		pass_an_interval();
	cr_assert_eq(calls, 1);
	cr_assert_eq(stats().failed, 1);
	cr_assert_eq(stats().done, 0);
	/* Another device may take them. */
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	answer_with(0);
	pass_an_interval();
	cr_assert_eq(calls, 1);
	close_staged();
}

Test(trim, one_that_fails_is_followed_by_the_next, .timeout = 300)
{
	static const int errors[] = {-EIO, -ETIMEDOUT, -EPIPE};
	open_staged();
	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		uint64_t failed = stats().failed, done = stats().done;
		answer_with(errors[i]);
		pass_an_interval();
		cr_assert_eq(stats().failed, failed + 1, "%d", errors[i]);
		cr_assert_eq(calls, 1);
		answer_with(0);
		pass_an_interval();
		cr_assert_eq(stats().done, done + 1, "%d", errors[i]);
	}
	/* Something else is mounted there by now. */
	answer_with(-EXDEV);
	pass_an_interval();
	cr_assert_eq(calls, 1);
	cr_assert_eq(stats().failed, 3);
	close_staged();
}

static const char *fault_step;

static int step_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (fault_step == NULL || strcmp(op_name, "trim") != 0 ||
		strcmp(step_name, fault_step) != 0)
		return 0;
	fault_step = NULL;
	return -EIO;
}

Test(trim, each_step_may_fail, .timeout = 300)
{
	static const char *const steps[] = {"measure", "trim", "measure again"};
	open_staged();
	w->observer.before = step_fails;
	for (unsigned i = 0; i < 3; i++) {
		uint64_t failed = stats().failed;
		fault_step = steps[i];
		pass_an_interval();
		cr_assert_null(fault_step, "%s did not run", steps[i]);
		cr_assert_eq(stats().failed, failed + 1, "%s", steps[i]);
		cr_assert(node_trim_idle(w->csi->node->trim));
	}
	w->observer.before = NULL;
	pass_an_interval();
	cr_assert_eq(stats().done, 1);
	close_staged();
}

static int unstaged_meanwhile(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	calls++;
	in_use()->detaching = true;
	*resp_len = sizeof(struct mnt_result);
	*(struct mnt_result *)resp = (struct mnt_result){.next_bytes = 1};
	return 0;
}

static int goes_meanwhile(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	calls++;
	struct node_volume *nv = in_use();
	(void)req;
	(void)req_len;
	nv->dev.attached = false;
	*resp_len = sizeof(struct mnt_result);
	*(struct mnt_result *)resp = (struct mnt_result){.next_bytes = 1};
	return 0;
}

Test(trim, a_volume_that_goes_ends_it, .timeout = 300)
{
	open_staged();
	calls = 0;
	w->calls[MNT_TRIM] = goes_meanwhile;
	pass_an_interval();
	cr_assert_eq(calls, 1);
	cr_assert(node_trim_idle(w->csi->node->trim));
	in_use()->dev.attached = true;
	w->calls[MNT_TRIM] = unstaged_meanwhile;
	pass_an_interval();
	cr_assert_eq(calls, 2, "%u calls", calls);
	in_use()->detaching = false;
	close_staged();
}

/* ---- somebody works on the volume ---- */

Test(trim, an_operation_on_the_volume_goes_first, .timeout = 300)
{
	struct node_lock lock;
	open_staged();
	answer_with(0);
	/* The intervals are those of the clock on the wall: after a trim one has just begun. */
	pass_an_interval();
	answer_with(0);
	node_lock_init(&lock, NODE_SHARED, "volume", volume()->key);
	node_lock_take(&w->csi->node->locks, &lock);
	pass_an_interval();
	cr_assert_eq(calls, 0);
	node_lock_release(&w->csi->node->locks, &lock);
	sim_pass_ms(w->reactor.ring, 60 * 1000);
	cr_assert_eq(calls, 1, "it is still due, once: %u calls", calls);
	cr_assert_eq(stats().done, 2);
	close_staged();
}

static struct node_lock taken;

/* The second window finds somebody at work. */
static int taken_meanwhile(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	int r = answer(req, req_len, resp, resp_len);
	if (calls == 1) {
		node_lock_init(&taken, NODE_EXCLUSIVE, "volume", volume()->key);
		node_lock_take(&w->csi->node->locks, &taken);
	}
	return r;
}

Test(trim, an_operation_between_two_windows_is_waited_for_and_not_for_ever, .timeout = 300)
{
	open_staged();
	for (unsigned i = 0; i < 2; i++) {
		answer_with(0);
		w->calls[MNT_TRIM] = taken_meanwhile;
		in_use()->dev.size_bytes = 2ULL << 30;
		while (calls == 0)
			cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
		sim_pass_ms(w->reactor.ring, 5 * NODE_TRIM_REST_MS);
		cr_assert_eq(calls, 1);
		cr_assert_not(node_trim_idle(w->csi->node->trim));
		if (i == 0)
			node_lock_release(&w->csi->node->locks, &taken);
		sim_pass_ms(w->reactor.ring, (NODE_TRIM_RESTS_MAX + 2) * NODE_TRIM_REST_MS);
		cr_assert(node_trim_idle(w->csi->node->trim));
		cr_assert_eq(calls, i == 0 ? 2 : 1);
		cr_assert_eq(stats().done, 1);
		cr_assert_eq(stats().failed, i);
	}
	node_lock_release(&w->csi->node->locks, &taken);
	close_staged();
}

static bool quiet;

static void on_quiet(void *arg)
{
	(void)arg;
	quiet = node_quiet(w->csi->node);
}

static int drains_meanwhile(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	node_drain(w->csi->node, on_quiet, NULL);
	cr_assert_not(node_quiet(w->csi->node));
	return answer(req, req_len, resp, resp_len);
}

Test(trim, a_shutdown_waits_for_one_window, .timeout = 300)
{
	open_staged();
	answer_with(0);
	w->calls[MNT_TRIM] = drains_meanwhile;
	in_use()->dev.size_bytes = 64ULL << 30;
	while (calls == 0)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	sim_pass_ms(w->reactor.ring, 60 * 1000);
	cr_assert_eq(calls, 1);
	cr_assert(quiet);
	world_restart(w);
	close_staged();
}

/* ---- what is left out ---- */

static void is_left_out(const char *what)
{
	answer_with(0);
	pass_an_interval();
	cr_assert_eq(calls, 0, "%s", what);
}

Test(trim, what_cannot_give_anything_back_is_left_out, .timeout = 300)
{
	static const enum node_condition_kind kinds[] = {NODE_DEVICE_GONE, NODE_HANGING,
		NODE_FS_SHUT_DOWN, NODE_FS_READ_ONLY, NODE_IO_ERRORS};
	open_staged();
	struct node_volume *nv = in_use();
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		nv->health.since_ns[kinds[i]] = 1;
		is_left_out(node_condition_names[kinds[i]]);
		nv->health.since_ns[kinds[i]] = 0;
	}
	nv->dev.read_only = true;
	is_left_out("a read-only device");
	nv->dev.read_only = false;
	list_for_each (link, &nv->mounts)
		container_of(link, struct node_mount, link)->read_only = true;
	is_left_out("mounted read-only");
	list_for_each (link, &nv->mounts)
		container_of(link, struct node_mount, link)->read_only = false;
	pass_an_interval();
	cr_assert_eq(calls, 1);
	close_staged();
}

Test(trim, a_thick_volume_keeps_its_room, .timeout = 300)
{
	provisioning = "thick";
	open_staged();
	is_left_out("thick");
	close_staged();
}

Test(trim, nothing_is_trimmed_unless_asked_for, .timeout = 300)
{
	open_staged();
	node_trim_close(w->csi->node);
	cr_assert_eq(node_trim_open(w->csi->node, 0), 0);
	cr_assert_null(w->csi->node->trim);
	is_left_out("off");
	cr_assert_eq(stats().done, 0);
	close_staged();
}

/* ---- how many volumes the node can have ---- */

enum { ALL = 1 << 20 };

static int none_left(struct backend_req *req)
{
	return err_set(&req->err, ERR_NO_ROOM, "all loop devices are in use");
}

static struct backend without;

static enum grpc_status capacity(void)
{
	struct world_answer answer = {0};
	Csi__V1__GetCapacityRequest req = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	enum grpc_status status = call("Controller/GetCapacity", &req.base, &answer);
	Csi__V1__GetCapacityResponse *r =
		csi__v1__get_capacity_response__unpack(NULL, answer.len, answer.data);
	cr_assert_not_null(r);
	create_bytes = (uint64_t)r->available_capacity;
	csi__v1__get_capacity_response__free_unpacked(r, NULL);
	world_answer_free(&answer);
	return status;
}

Test(devices, a_node_without_a_device_left_says_so, .timeout = 300)
{
	open_world(WORLD_XFS, 1, false);
	create_bytes = 16 * MIB;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(node_allocatable(w->csi->node, 0), ALL);
	cr_assert_eq(node_allocatable(w->csi->node, 12), 12);

	without = backend_loop;
	without.attach_call = none_left;
	backend_add(&without);
	cr_assert_eq(do_stage(), GRPC_RESOURCE_EXHAUSTED);
	cr_assert_eq(node_allocatable(w->csi->node, 0), 1, "0 would mean no limit");
	cr_assert_eq(capacity(), GRPC_OK);
	cr_assert_eq(create_bytes, 0, "a scheduler looks elsewhere");
	sim_pass_ms(w->reactor.ring, NODE_NO_DEVICE_MS);
	cr_assert_eq(node_allocatable(w->csi->node, 0), ALL, "others may have let one go");

	/* What helps is heard of at once. */
	cr_assert_eq(do_stage(), GRPC_RESOURCE_EXHAUSTED);
	backend_add(&backend_loop);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(node_allocatable(w->csi->node, 0), ALL);
	cr_assert_eq(capacity(), GRPC_OK);
	cr_assert_gt(create_bytes, 0);
	/* Never below what is in use. */
	node_devices_note(w->csi->node, BACKEND_LOOP, ERR_NO_ROOM);
	cr_assert_eq(node_allocatable(w->csi->node, 0), 1);
	cr_assert_eq(node_allocatable(w->csi->node, 1), 1);
	node_devices_note(w->csi->node, BACKEND_LOOP, ERR_INTERNAL);
	cr_assert_not(node_devices_left(w->csi->node, BACKEND_LOOP), "that tells nothing");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(node_allocatable(w->csi->node, 0), ALL);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}
