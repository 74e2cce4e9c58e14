/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver says of volumes of which it does not know yet whether an earlier run attached
 * them: nothing is copied of them as if they were not, and the look is repeated until it succeeds.
 */
#include "world.h"

#include "csi/fields.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct world *w;
static char volume_id[RECORD_ID_MAX];
static const char *snapshot_name = "snap";

static bool open_world(void)
{
	const char *why = NULL;
	w = world_open(WORLD_XFS, 1, &why);
	if (w == NULL)
		cr_skip_test("%s", why);
	return w != NULL;
}

static void create(const char *name, const char *device)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability cap = CSI__V1__VOLUME_CAPABILITY__INIT, *caps[1] = {&cap};
	Csi__V1__VolumeCapability__BlockVolume block =
		CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
	Csi__V1__VolumeCapability__AccessMode mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	Csi__V1__StringPair param = CSI__V1__STRING_PAIR__INIT, *params[1] = {&param};
	struct world_answer answer;
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	cap.access_mode = &mode;
	cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
	cap.block = &block;
	range.required_bytes = 16 << 20;
	param.key = csi_bytes("device");
	param.value = csi_bytes(device);
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.volume_capabilities = caps;
	req.n_volume_capabilities = 1;
	req.parameters = params;
	req.n_parameters = 1;
	cr_assert_eq(world_call(w, "Controller/CreateVolume", &req.base, &answer), GRPC_OK, "%s",
		answer.message);
	Csi__V1__CreateVolumeResponse *response =
		csi__v1__create_volume_response__unpack(NULL, answer.len, answer.data);
	snprintf(volume_id, sizeof(volume_id), "%.*s", (int)response->volume->volume_id.len,
		(char *)response->volume->volume_id.data);
	csi__v1__create_volume_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
}

static enum grpc_status simple(const char *method, const ProtobufCMessage *request)
{
	struct world_answer answer;
	enum grpc_status status = world_call(w, method, request, &answer);
	world_answer_free(&answer);
	return status;
}

static void stage(void)
{
	Csi__V1__NodeStageVolumeRequest req = CSI__V1__NODE_STAGE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability cap = CSI__V1__VOLUME_CAPABILITY__INIT;
	Csi__V1__VolumeCapability__BlockVolume block =
		CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
	Csi__V1__VolumeCapability__AccessMode mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	char path[96];
	snprintf(path, sizeof(path), "%s/stage", w->dir);
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	cap.access_mode = &mode;
	cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
	cap.block = &block;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(path);
	req.volume_capability = &cap;
	cr_assert_eq(simple("Node/NodeStageVolume", &req.base), GRPC_OK);
}

static enum grpc_status do_unstage(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	char path[96];
	snprintf(path, sizeof(path), "%s/stage", w->dir);
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(path);
	return simple("Node/NodeUnstageVolume", &req.base);
}

static void unstage(void)
{
	cr_assert_eq(do_unstage(), GRPC_OK);
}

static enum grpc_status snapshot(void)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes(snapshot_name);
	req.source_volume_id = csi_bytes(volume_id);
	return simple("Controller/CreateSnapshot", &req.base);
}

static bool probe_says_ready(void)
{
	Csi__V1__ProbeRequest req = CSI__V1__PROBE_REQUEST__INIT;
	struct world_answer answer;
	cr_assert_eq(world_call(w, "Identity/Probe", &req.base, &answer), GRPC_OK);
	Csi__V1__ProbeResponse *response =
		csi__v1__probe_response__unpack(NULL, answer.len, answer.data);
	bool ready = response->ready->value;
	csi__v1__probe_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	return ready;
}

static bool all_is_ready(const char *word)
{
	struct err why = {0};
	bool ready = csi_check_ready(w->csi, &why) == 0;
	cr_expect(ready || strstr(why.message, word) != NULL, "%s", why.message);
	return ready;
}

Test(adopt, a_look_that_fails_is_repeated, .timeout = 120)
{
	if (!open_world())
		return;
	create("base", "loop");
	stage();
	w->scan_faults = 2;
	world_restart(w);
	for (int i = 0; i < 2; i++) {
		cr_expect_eq(
			snapshot(), GRPC_UNAVAILABLE, "look %d: it is attached, and not known", i);
		cr_expect_not(probe_says_ready());
		cr_expect_not(all_is_ready("still looked for"));
		world_settle(w);
	}
	cr_expect_eq(w->scan_faults, 0);
	cr_expect(probe_says_ready());
	cr_expect(all_is_ready(""));
	cr_expect_eq(snapshot(), GRPC_OK);
	unstage();
	world_close(w);
}

Test(adopt, a_pool_that_came_back_is_not_known_yet, .timeout = 120)
{
	if (!open_world())
		return;
	create("base", "loop");
	struct pool *pool = pools_at(w->pools, 0);
	pool_set_state(pool, POOL_SICK, "%s", "made so by a test");
	world_settle(w); /* it is well when it is looked after */
	cr_assert_eq(pool_state(pool), POOL_READY);
	cr_expect_eq(snapshot(), GRPC_UNAVAILABLE);
	cr_expect_not(probe_says_ready());
	cr_expect_not(all_is_ready("still looked for"));
	world_adopt(w);
	cr_expect_eq(snapshot(), GRPC_OK);
	cr_expect(probe_says_ready());
	cr_expect(all_is_ready(""));
	world_close(w);
}

/* ---- two backends ---- */

static unsigned mute_scans; /* that end as those of a data process that does not answer */

static int mute_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	(void)each;
	(void)arg;
	if (mute_scans == 0)
		return 0;
	mute_scans--;
	return err_set(err, ERR_TIMEOUT, "the data process says nothing");
}

static const struct backend mute = {.type = BACKEND_UBLK, .name = "ublk", .scan = mute_scan};

/* Who does not answer keeps its own volumes from being known and nobody else's. */
Test(adopt, a_backend_that_is_mute_is_alone_with_it, .timeout = 120)
{
	backend_add(&mute);
	if (!open_world())
		return;
	create("other", "ublk");
	char ublk_id[RECORD_ID_MAX];
	memcpy(ublk_id, volume_id, sizeof(ublk_id));
	create("base", "loop");
	stage();
	mute_scans = 1;
	world_restart(w);
	cr_expect_eq(mute_scans, 0);
	cr_expect(probe_says_ready());
	cr_expect_not(all_is_ready("the data process says nothing"));
	cr_expect_eq(snapshot(), GRPC_OK);
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	cr_expect_not_null(volume->node, "the loop volume is adopted");
	unstage();
	memcpy(volume_id, ublk_id, sizeof(ublk_id));
	snapshot_name = "of-the-other";
	cr_expect_eq(snapshot(), GRPC_UNAVAILABLE);
	world_settle(w);
	cr_expect(all_is_ready(""));
	cr_expect_eq(snapshot(), GRPC_OK);
	world_close(w);
	backend_remove(&mute);
}

/* ---- beside what is being done to a volume ---- */

static struct pool_object *find_volume(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	return volume;
}

static struct backend_dev slow_dev, slow_seen; /* what is there, what a look under way saw */
static unsigned slow_attaches;

static int slow_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	(void)err;
	if (slow_seen.attached)
		each(arg, &slow_seen);
	slow_seen = slow_dev;
	return 0;
}

/* A device that is there takes longer. */
static int slow_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	bool there = slow_dev.attached;
	slow_dev = (struct backend_dev){
		.attached = true, .major = 259, .minor = 7, .path = "/dev/ublkb7"};
	memcpy(slow_dev.tag, req->tag, sizeof(slow_dev.tag));
	req->dev = slow_seen = slow_dev;
	slow_attaches++;
	return op_sleep(op, there ? 100 : 1);
}

static int slow_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	slow_dev.attached = req->dev.attached = false;
	return op_sleep(op, 1);
}

static const struct backend slow = {
	.type = BACKEND_UBLK,
	.name = "ublk",
	.needs_image_again = true,
	.scan = slow_scan,
	.attach = slow_attach,
	.detach = slow_detach,
};

static bool beside;

static void see_resume(const char *op_name, const char *step_name)
{
	(void)step_name;
	beside = beside || strcmp(op_name, "resume device") == 0;
}

/* A device that is taken over is nobody's to detach meanwhile, or the take-over would make it anew.
 */
Test(adopt, a_device_that_is_taken_over_is_held, .timeout = 120)
{
	backend_add(&slow);
	if (!open_world())
		return;
	create("base", "ublk");
	stage();
	w->on_step = see_resume;
	csi_adopt(w->csi, NULL, NULL);
	while (!beside)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_eq(do_unstage(), GRPC_ABORTED);
	cr_expect_eq(slow_attaches, 2);
	world_settle(w);
	unstage();
	world_settle(w);
	cr_expect_not(slow_dev.attached);
	cr_expect_null(find_volume()->node);
	world_close(w);
	backend_remove(&slow);
}

static const char *look_at;

static void look_before_it_goes(const char *op_name, const char *step_name)
{
	if (look_at == NULL || strcmp(op_name, "NodeUnstageVolume") != 0 ||
		strcmp(step_name, look_at) != 0)
		return;
	look_at = NULL;
	csi_adopt(w->csi, NULL, NULL);
}

/* The look saw the device, which is detached before, or right after, it is matched: it is not to be
 * the volume's again, nor to be made anew. */
Test(adopt, a_device_that_went_meanwhile_is_not_taken_over, .timeout = 120)
{
	backend_add(&slow);
	if (!open_world())
		return;
	create("base", "ublk");
	static const char *const steps[] = {"detach", "answer"};
	for (unsigned i = 0; i < 2; i++) {
		stage();
		slow_attaches = 0;
		look_at = steps[i];
		w->on_step = look_before_it_goes;
		unstage();
		w->on_step = NULL;
		cr_assert_null(look_at);
		world_settle(w);
		cr_expect_eq(slow_attaches, 0, "at %s: it was made anew", steps[i]);
		cr_expect_not(slow_dev.attached);
		cr_expect_null(find_volume()->node, "at %s", steps[i]);
		cr_expect(csi_knows_volume(w->csi, find_volume()));
	}
	world_close(w);
	backend_remove(&slow);
}
