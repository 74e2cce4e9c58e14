/* SPDX-License-Identifier: Apache-2.0 */
/* I/O limits: ControllerModifyVolume with each of its steps failed, and what becomes of it in the
 * cgroups of pods. A directory stands for the node's cgroups. */
#include "csi_calls.h"

#include "backends/backend.h"
#include "backends/loop/loop.h"
#include "base/fd.h"
#include "csi/messages.h"
#include "node/limit.h"
#include "node/limits.h"
#include "node/volume.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define POD_A "aaaaaaaa-0000-4000-8000-000000000001"
#define POD_B "bbbbbbbb-0000-4000-8000-000000000002"

enum { STEPS_MAX = 200 };

static char root[96];

static void put_dir(const char *path)
{
	char made[256];
	snprintf(made, sizeof(made), "%s", path);
	for (char *at = strchr(made + 1, '/');; at = strchr(at + 1, '/')) {
		if (at != NULL)
			*at = '\0';
		cr_assert(mkdir(made, 0755) == 0 || errno == EEXIST, "%s", made);
		if (at == NULL)
			return;
		*at = '/';
	}
}

static void put_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");
	cr_assert_not_null(file, "%s", path);
	fputs(text, file);
	fclose(file);
}

static void pod_path(char ret[256], const char *uid, const char *name)
{
	snprintf(ret, 256, "%s/kubepods/burstable/pod%s%s%s", root, uid, name[0] ? "/" : "", name);
}

static void put_pod(const char *uid)
{
	char path[256];
	pod_path(path, uid, "");
	put_dir(path);
	pod_path(path, uid, "io.max");
	put_file(path, "");
}

/* What the pod's io.max says behind the device's number; "": nothing was ever written. */
static const char *line_of(const char *uid)
{
	static char text[256];
	char path[256], device[32];
	pod_path(path, uid, "io.max");
	cr_assert_geq(fd_read_file(AT_FDCWD, path, text, sizeof(text)), 0);
	if (text[0] == '\0')
		return text;
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	const struct node_volume *nv = node_volume_find(volume);
	cr_assert_not_null(nv);
	int len = snprintf(device, sizeof(device), "%u:%u ", nv->dev.major, nv->dev.minor);
	cr_assert_eq(strncmp(text, device, (size_t)len), 0, "%s is not of %s", text, device);
	return text + len;
}

#define NO_LIMITS "rbps=max wbps=max riops=max wiops=max"

static struct node_volume *in_use(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	return node_volume_find(volume);
}

/* Why the limits are not in force; "": they are. */
static const char *why(void)
{
	const struct node_volume *nv = in_use();
	bool wrong = nv != NULL && nv->health.since_ns[NODE_LIMIT_NOT_ENFORCED] != 0;
	const char *text = nv == NULL || nv->limit == NULL ? "" : nv->limit->why;
	cr_assert_eq(wrong, text[0] != '\0', "%s", text);
	return text;
}

/* "" for an empty value: the limit goes. NULL ends the pairs. */
static enum grpc_status modify(
	const char *key, const char *value, const char *key2, const char *value2)
{
	Csi__V1__ControllerModifyVolumeRequest req =
		CSI__V1__CONTROLLER_MODIFY_VOLUME_REQUEST__INIT;
	Csi__V1__StringPair pairs[2], *list[2] = {&pairs[0], &pairs[1]};
	csi__v1__string_pair__init(&pairs[0]);
	csi__v1__string_pair__init(&pairs[1]);
	pairs[0].key = csi_bytes(key);
	pairs[0].value = csi_bytes(value);
	if (key2 != NULL) {
		pairs[1].key = csi_bytes(key2);
		pairs[1].value = csi_bytes(value2);
	}
	req.volume_id = csi_bytes(volume_id);
	req.n_mutable_parameters = key2 != NULL ? 2 : 1;
	req.mutable_parameters = list;
	return call_status("Controller/ControllerModifyVolume", &req.base);
}

static struct io_limits recorded(void)
{
	char path[128], text[RECORD_BYTES_MAX];
	struct record *rec = NULL;
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	ssize_t len = getxattr(path, RECORD_XATTR, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(record_parse(text, (size_t)len, "base", &rec), 0);
	struct io_limits limits = rec->limits;
	record_free(rec);
	return limits;
}

static bool is_recorded(uint64_t read_iops, uint64_t write_iops)
{
	struct io_limits limits = recorded();
	return limits.read_iops == read_iops && limits.write_iops == write_iops;
}

static void publish_to(const char *uid)
{
	snprintf(target_path, sizeof(target_path), "%s/pods/%s", w->dir, uid);
	put_dir(target_path);
	snprintf(target_path, sizeof(target_path), "%s/pods/%s/vol", w->dir, uid);
	cr_assert_eq(do_publish(), GRPC_OK);
}

static void unpublish_from(const char *uid)
{
	snprintf(target_path, sizeof(target_path), "%s/pods/%s/vol", w->dir, uid);
	cr_assert_eq(undo_publish(), GRPC_OK);
}

/* Turns for so long, by the simulated clock. */
static void pass(uint64_t ms)
{
	(void)ring_sim_settle(w->reactor.ring, ms);
}

static void open_limited(bool with_cgroups)
{
	char path[256];
	open_world(WORLD_XFS, 1, false);
	snprintf(root, sizeof(root), "%s/cgroup", w->dir);
	if (with_cgroups) {
		put_dir(root);
		snprintf(path, sizeof(path), "%s/cgroup.controllers", root);
		put_file(path, "cpuset cpu io memory\n");
	}
	w->cgroup_root = root;
	world_restart(w);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
}

static void close_limited(void)
{
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- the record ---- */

static void nothing_applied(
	const char *key, const char *value, const char *key2, const char *value2)
{
	cr_expect_eq(modify(key, value, key2, value2), GRPC_INVALID_ARGUMENT, "%s=%s %s=%s", key,
		value, key2, value2);
	cr_expect(is_recorded(100, 200));
}

Test(limits, all_or_nothing, .timeout = 300)
{
	open_limited(true);
	cr_assert_eq(modify("readIops", "100", "writeIops", "200"), GRPC_OK);
	nothing_applied("readIops", "500", "writeIops", "9");
	nothing_applied("readIops", "500", "colour", "red");
	nothing_applied("readIops", "500", "pool", "default");
	nothing_applied("readIops", "500", "eraseOnDelete", "perhaps");
	/* What is not named stays. */
	cr_assert_eq(modify("writeIops", "300", NULL, NULL), GRPC_OK);
	cr_expect(is_recorded(100, 300));
	cr_assert_eq(modify("iops", "none", NULL, NULL), GRPC_OK);
	cr_expect(is_recorded(0, 0));
	cr_assert_eq(modify("iops", "1000", NULL, NULL), GRPC_OK);
	cr_assert_eq(modify("iops", "1000", NULL, NULL), GRPC_OK, "again");
	/* A snapshot has none, nor has what is made of it or of the volume. */
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(do_clone(), GRPC_OK);
	struct pool_object *object;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_SNAPSHOT, snapshot_id, &object, &err), 0);
	cr_expect_not(io_limits_any(&object->rec->limits));
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, other_id, &object, &err), 0);
	cr_expect_not(io_limits_any(&object->rec->limits));
	/* And one that shares its blocks is not erased later. */
	cr_expect_eq(modify("eraseOnDelete", "zero", NULL, NULL), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(undo_create(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	world_restart(w);
	cr_expect(is_recorded(1000, 1000));
	cr_assert_eq(modify("snapshotFreeze", "false", NULL, NULL), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* A deleted snapshot has the volume's blocks until the trash is empty. */
Test(limits, what_is_being_deleted_shares_blocks, .timeout = 300)
{
	open_limited(true);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_expect_eq(modify("eraseOnDelete", "discard", NULL, NULL), GRPC_FAILED_PRECONDITION);
	Csi__V1__DeleteSnapshotRequest req = CSI__V1__DELETE_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	cr_assert_eq(call_status("Controller/DeleteSnapshot", &req.base), GRPC_OK);
	cr_expect_eq(modify("eraseOnDelete", "discard", NULL, NULL), GRPC_UNAVAILABLE);
	world_settle(w);
	cr_expect_eq(modify("eraseOnDelete", "discard", NULL, NULL), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Each step of it fails once: the record is the old one or the new one, as the answer says, and the
 * retry makes it the new one. */
static void fail_each_step_of_modify(void)
{
	for (unsigned n = 0; n < STEPS_MAX; n++) {
		cr_assert_eq(modify("iops", "100", NULL, NULL), GRPC_OK);
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = modify("iops", "200", NULL, NULL);
		w->fault_after = -1;
		if (!w->fault_hit) {
			cr_assert_eq(status, GRPC_OK);
			cr_assert_gt(n, 4);
			return;
		}
		cr_assert(status == GRPC_OK || status == GRPC_INTERNAL, "%s: %d", w->fault_at,
			status);
		cr_assert(is_recorded(200, 200) || (status != GRPC_OK && is_recorded(100, 100)),
			"%s", w->fault_at);
		cr_assert_eq(modify("iops", "200", NULL, NULL), GRPC_OK, "after %s", w->fault_at);
		cr_assert(is_recorded(200, 200));
	}
	cr_assert_fail("it never ended without a fault");
}

Test(limits, modify_fails_at_each_step, .timeout = 300)
{
	open_limited(true);
	fail_each_step_of_modify();
	cr_assert_eq(do_stage(), GRPC_OK);
	put_pod(POD_A);
	publish_to(POD_A);
	fail_each_step_of_modify();
	pass(NODE_LIMITS_MS + 1000); /* what a fault left out, the next look does */
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=max riops=200 wiops=200");
	unpublish_from(POD_A);
	close_limited();
}

/* Whatever fails where limits are taken away, there is none in force that no record has: nobody
 * would take it back after a crash. */
Test(limits, no_limit_without_a_record, .timeout = 300)
{
	open_limited(true);
	cr_assert_eq(do_stage(), GRPC_OK);
	put_pod(POD_A);
	publish_to(POD_A);
	unsigned n = 0;
	for (; n < STEPS_MAX; n++) {
		cr_assert_eq(modify("iops", "100", NULL, NULL), GRPC_OK);
		cr_assert_str_eq(line_of(POD_A), "rbps=max wbps=max riops=100 wiops=100");
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = modify("iops", "none", NULL, NULL);
		w->fault_after = -1;
		if (is_recorded(0, 0))
			cr_assert_str_eq(line_of(POD_A), NO_LIMITS, "%s", w->fault_at);
		cr_assert(is_recorded(0, 0) || status != GRPC_OK, "%s", w->fault_at);
		pass(NODE_LIMITS_MS + 1000);
		cr_expect_str_eq(line_of(POD_A),
			is_recorded(0, 0) ? NO_LIMITS : "rbps=max wbps=max riops=100 wiops=100",
			"%s", w->fault_at);
		if (!w->fault_hit)
			break;
	}
	cr_assert(n > 4 && n < STEPS_MAX);
	unpublish_from(POD_A);
	close_limited();
}

/* ---- in the pods' cgroups ---- */

Test(limits, divided_among_pods, .timeout = 300)
{
	open_limited(true);
	cr_assert_eq(modify("iops", "1000", "writeBandwidth", "1Mi"), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	put_pod(POD_A);
	put_pod(POD_B);
	publish_to(POD_A);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=1048576 riops=1000 wiops=1000");
	publish_to(POD_B);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=524288 riops=500 wiops=500");
	cr_expect_str_eq(line_of(POD_B), "rbps=max wbps=524288 riops=500 wiops=500");
	/* A change reaches what is in use. */
	cr_assert_eq(modify("readIops", "none", "writeIops", "301"), GRPC_OK);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=524288 riops=max wiops=150");
	/* A pod that goes leaves its part to the others, and no line. */
	unpublish_from(POD_A);
	cr_expect_str_eq(line_of(POD_A), NO_LIMITS);
	cr_expect_str_eq(line_of(POD_B), "rbps=max wbps=1048576 riops=max wiops=301");
	cr_assert_eq(modify("bandwidth", "0", "iops", ""), GRPC_OK);
	cr_expect_str_eq(line_of(POD_B), NO_LIMITS);
	cr_expect_str_eq(why(), "");
	unpublish_from(POD_B);
	close_limited();
}

/* Publish may come first; and a cgroup that is made anew has no line. */
Test(limits, a_cgroup_that_comes_later, .timeout = 300)
{
	char path[256];
	open_limited(true);
	cr_assert_eq(modify("iops", "1000", NULL, NULL), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	publish_to(POD_A);
	cr_expect_str_eq(why(), "", "it is waited for");
	pass(1000);
	put_pod(POD_A);
	pass(1000);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=max riops=1000 wiops=1000");
	pod_path(path, POD_A, "io.max");
	put_file(path, "");
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=max riops=1000 wiops=1000");
	/* One that never comes is a condition, until it does. */
	publish_to(POD_B);
	pass(NODE_LIMITS_GRACE_MS + 1000);
	cr_expect_not_null(strstr(why(), "pod " POD_B " has no cgroup below "), "%s", why());
	put_pod(POD_B);
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_str_eq(why(), "");
	cr_expect_str_eq(line_of(POD_B), "rbps=max wbps=max riops=500 wiops=500");
	unpublish_from(POD_B);
	unpublish_from(POD_A);
	close_limited();
}

Test(limits, a_restart_puts_them_in_force_again, .timeout = 300)
{
	char path[256];
	open_limited(true);
	cr_assert_eq(modify("iops", "1000", NULL, NULL), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	put_pod(POD_A);
	publish_to(POD_A);
	pod_path(path, POD_A, "io.max");
	put_file(path, "");
	world_restart(w);
	pass(1000);
	cr_expect_str_eq(line_of(POD_A), "rbps=max wbps=max riops=1000 wiops=1000");
	unpublish_from(POD_A);
	close_limited();
}

/* ---- what cannot be enforced is said ---- */

Test(limits, never_silently_unlimited, .timeout = 300)
{
	char path[256];
	open_limited(false);
	cr_assert_eq(modify("iops", "1000", NULL, NULL), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_expect_str_eq(why(), "", "nobody uses it yet");
	publish_to(POD_A);
	cr_expect_not_null(strstr(why(), "cannot be opened"), "%s", why());
	put_dir(root);
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_not_null(strstr(why(), "not the top of cgroup v2"), "%s", why());
	snprintf(path, sizeof(path), "%s/cgroup.controllers", root);
	put_file(path, "cpu memory\n");
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_not_null(strstr(why(), "no io controller"), "%s", why());
	put_file(path, "cpu io memory\n");
	pod_path(path, POD_A, "");
	put_dir(path);
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_not_null(strstr(why(), "has no io.max"), "%s", why());
	put_pod(POD_A);
	pass(NODE_LIMITS_MS + 1000);
	cr_expect_str_eq(why(), "");
	unpublish_from(POD_A);
	/* Who is no pod's cannot be limited. */
	snprintf(target_path, sizeof(target_path), "%s/target", w->dir);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_expect_not_null(strstr(why(), "names no pod"), "%s", why());
	cr_assert_eq(modify("iops", "none", NULL, NULL), GRPC_OK);
	cr_expect_str_eq(why(), "");
	cr_assert_eq(undo_publish(), GRPC_OK);
	close_limited();
}

/* ---- in the device ---- */

static struct io_limits in_force;
static unsigned limit_calls;
static struct err limit_fails; /* ERR_OK: it does not */
static unsigned good_calls;    /* before those that fail */
static bool wrong_device;

/* As a data process does it, elsewhere. */
static int limit_job(void *arg)
{
	struct backend_req *req = arg;
	if (limit_fails.code != ERR_OK && limit_calls > good_calls) {
		req->err = limit_fails;
		return -EIO;
	}
	in_force = req->limits;
	req->dev.limits = req->limits;
	req->dev.throttled.requests[0] = limit_calls;
	return 0;
}

static int limit_device(const struct backend *backend, struct op *op, struct backend_req *req)
{
	cr_assert_eq(backend->type, BACKEND_LOOP);
	wrong_device |= strcmp(req->image, "base") != 0;
	limit_calls++;
	return op_work(op, limit_job, req);
}

static void open_device_limits(struct backend *limiting)
{
	open_limited(true);
	*limiting = backend_loop;
	limiting->limit = limit_device;
	backend_remove(&backend_loop);
	backend_add(limiting);
}

static void close_device_limits(const struct backend *limiting)
{
	cr_expect_not(wrong_device);
	backend_remove(limiting);
	backend_add(&backend_loop);
	close_limited();
}

/* What the record has, the device has, and memory of it. */
static void all_have(uint64_t read_iops, uint64_t write_iops, const char *where)
{
	const struct io_limits want = {.read_iops = read_iops, .write_iops = write_iops};
	cr_expect(is_recorded(read_iops, write_iops), "%s", where);
	cr_expect(io_limits_equal(&in_force, &want), "%s", where);
	cr_expect(io_limits_equal(&in_use()->dev.limits, &want), "%s", where);
}

/* The look at the limits that follows a change puts them in force once more; here that fails, so
 * that what is told is the change's own doing. */
static void change(const char *key, const char *value, unsigned calls)
{
	limit_calls = 0;
	good_calls = calls;
	cr_assert_eq(modify(key, value, NULL, NULL), GRPC_OK, "%s=%s", key, value);
	cr_assert_eq(limit_calls, calls + 1, "%s=%s", key, value);
}

Test(limits, of_a_device_that_has_them_itself, .timeout = 300)
{
	struct backend limiting;
	open_device_limits(&limiting);
	cr_assert_eq(modify("iops", "50", NULL, NULL), GRPC_OK);
	cr_assert_eq(modify("iops", "none", NULL, NULL), GRPC_OK);
	cr_assert_eq(limit_calls, 0, "there is no device");
	cr_assert_eq(do_stage(), GRPC_OK);
	put_pod(POD_A);
	publish_to(POD_A);
	err_set(&limit_fails, ERR_INTERNAL, "not now");
	change("iops", "100", 1);
	all_have(100, 100, "limited");
	cr_expect_eq(in_use()->dev.throttled.requests[0], 1);
	change("iops", "100", 0); /* it has them */
	change("writeIops", "200", 1);
	all_have(100, 200, "more");
	change("iops", "none", 1);
	all_have(0, 0, "lifted");
	cr_expect_str_eq(line_of(POD_A), "", "its cgroup is left alone");
	unpublish_from(POD_A);
	err_clear(&limit_fails);
	close_device_limits(&limiting);
}

/* One that is too old for it says so; whatever fails, the old limits are in force. */
Test(limits, of_a_device_that_cannot_have_them, .timeout = 300)
{
	static const struct {
		enum err_code code;
		enum grpc_status status;
	} table[] = {{ERR_UNIMPLEMENTED, GRPC_FAILED_PRECONDITION},
		{ERR_PRECONDITION, GRPC_FAILED_PRECONDITION}, {ERR_TIMEOUT, GRPC_DEADLINE_EXCEEDED},
		{ERR_INTERNAL, GRPC_INTERNAL}};
	struct backend limiting;
	open_device_limits(&limiting);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(modify("iops", "100", NULL, NULL), GRPC_OK);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		err_clear(&limit_fails);
		err_set(&limit_fails, table[i].code, "not now");
		good_calls = limit_calls = 0;
		cr_expect_eq(modify("iops", "200", NULL, NULL), table[i].status, "line %zu", i);
		all_have(100, 100, "refused");
	}
	err_clear(&limit_fails);
	unsigned n = 0;
	for (bool hit = true; hit && n < STEPS_MAX; n++) {
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = modify("iops", "200", NULL, NULL);
		w->fault_after = -1;
		hit = w->fault_hit;
		uint64_t has = is_recorded(200, 200) ? 200 : 100;
		cr_expect(status != GRPC_OK || has == 200, "%s", w->fault_at);
		all_have(has, has, hit ? w->fault_at : "without a fault");
		cr_assert_eq(modify("iops", "100", NULL, NULL), GRPC_OK);
		all_have(100, 100, "again");
	}
	cr_assert(n > 4 && n < STEPS_MAX);
	close_device_limits(&limiting);
}
