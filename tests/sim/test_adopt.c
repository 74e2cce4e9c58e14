/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver says of volumes of which it does not know yet whether an earlier run attached
 * them: nothing is copied of them as if they were not, and the look is repeated until it succeeds.
 */
#include "csi_calls.h"

#include "blockio/boot_mark.h"
#include "csi/messages.h"
#include "node/adopt.h"
#include "node/volume.h"
#include "pool/departure.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void make(const char *name, const char *device)
{
	device_type = device;
	cr_assert_eq(create(name, EMPTY, volume_id), GRPC_OK);
}

static void stage(void)
{
	cr_assert_eq(do_stage(), GRPC_OK);
}

static void unstage(void)
{
	cr_assert_eq(undo_stage(), GRPC_OK);
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

/* A world after a restart, with a volume of before whose device so many looks do not find. */
static void open_unknown(bool as_block, unsigned scan_faults)
{
	open_world(WORLD_XFS, 1, as_block);
	make("base", "loop");
	stage();
	w->scan_faults = scan_faults;
	world_restart(w);
}

Test(adopt, a_look_that_fails_is_repeated, .timeout = 120)
{
	open_unknown(true, 2);
	for (int i = 0; i < 2; i++) {
		cr_expect_eq(do_snapshot(), GRPC_UNAVAILABLE,
			"look %d: it is attached, and not known", i);
		cr_expect_not(probe_says_ready());
		cr_expect_not(all_is_ready("still looked for"));
		world_settle(w);
	}
	cr_expect_eq(w->scan_faults, 0);
	cr_expect(probe_says_ready());
	cr_expect(all_is_ready(""));
	cr_expect_eq(do_snapshot(), GRPC_OK);
	unstage();
	world_close(w);
}

static struct pool_object *find_volume(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	return volume;
}

/* Or its device would stay as it is, and nobody be told to see to it. */
Test(adopt, what_may_have_a_device_does_not_grow_yet, .timeout = 120)
{
	open_unknown(true, 1);
	cr_expect_eq(expand(32 * MIB), GRPC_UNAVAILABLE);
	cr_expect_eq(find_volume()->rec->size_bytes, create_bytes);
	world_settle(w);
	cr_expect_eq(expand(32 * MIB), GRPC_OK);
	cr_expect_eq(node_volume_find(find_volume())->dev.size_bytes, 32 * MIB);
	unstage();
	world_close(w);
}

/* Each would hold it still, when it turns out to be mounted. */
Test(adopt, what_may_be_mounted_has_one_snapshot_at_a_time, .timeout = 120)
{
	open_unknown(false, 1);
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	struct world_answer answers[2];
	req.source_volume_id = csi_bytes(volume_id);
	req.name = csi_bytes("one");
	world_send(w, "Controller/CreateSnapshot", &req.base, &answers[0]);
	req.name = csi_bytes("two");
	world_send(w, "Controller/CreateSnapshot", &req.base, &answers[1]);
	for (unsigned i = 0; i < 2; i++)
		world_wait(w, &answers[i]);
	cr_expect_eq(answers[0].status, GRPC_UNAVAILABLE);
	cr_expect_eq(answers[1].status, GRPC_ABORTED, "%s", answers[1].message);
	for (unsigned i = 0; i < 2; i++)
		world_answer_free(&answers[i]);
	world_settle(w);
	unstage();
	world_close(w);
}

Test(adopt, a_pool_that_came_back_is_not_known_yet, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	make("base", "loop");
	struct pool *pool = pools_at(w->pools, 0);
	pool_enter(pool, POOL_READ_ONLY, "%s", "made so by a test");
	world_settle(w); /* it is well when it is looked after */
	cr_assert_eq(pool_state(pool), POOL_READY);
	cr_expect_eq(do_snapshot(), GRPC_UNAVAILABLE);
	cr_expect_not(probe_says_ready());
	cr_expect_not(all_is_ready("still looked for"));
	world_adopt(w);
	cr_expect_eq(do_snapshot(), GRPC_OK);
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
	open_world(WORLD_XFS, 1, true);
	make("other", "ublk");
	char ublk_id[RECORD_ID_MAX];
	memcpy(ublk_id, volume_id, sizeof(ublk_id));
	make("base", "loop");
	stage();
	mute_scans = 1;
	world_restart(w);
	cr_expect_eq(mute_scans, 0);
	cr_expect(probe_says_ready());
	cr_expect_not(all_is_ready("the data process says nothing"));
	cr_expect_eq(do_snapshot(), GRPC_OK);
	cr_expect_not_null(find_volume()->node, "the loop volume is adopted");
	unstage();
	memcpy(volume_id, ublk_id, sizeof(ublk_id));
	snapshot_name = "of-the-other";
	cr_expect_eq(do_snapshot(), GRPC_UNAVAILABLE);
	world_settle(w);
	cr_expect(all_is_ready(""));
	cr_expect_eq(do_snapshot(), GRPC_OK);
	world_close(w);
	backend_remove(&mute);
}

static const struct backend mute_disk = {.type = BACKEND_DISK, .name = "disk", .scan = mute_scan};

static enum grpc_status list(void)
{
	Csi__V1__ListVolumesRequest req = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	return call_status("Controller/ListVolumes", &req.base);
}

/* A volume that is not in the list would be taken for one that is not there. */
Test(adopt, a_pool_that_is_slow_to_read_is_waited_for, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	make("base", "loop");
	struct pool *pool = pools_at(w->pools, 0);
	pool->life = POOL_UNREAD_MUTE; /* as if its load had taken long */
	pool->state_since_ns = ring_now_ns(w->reactor.ring);
	cr_expect_eq(list(), GRPC_UNAVAILABLE);
	pool->state_since_ns -= POOL_UNREAD_WAIT_MS * UINT64_C(1000000);
	cr_expect_eq(list(), GRPC_OK, "others have volumes, too");
	pool->life = POOL_MUTE;
	cr_expect_eq(list(), GRPC_OK, "it is known what it has");
	world_settle(w); /* it is well when it is looked after */
	world_close(w);
}

/* Its device would not lock the image. */
Test(adopt, what_may_have_a_device_on_raw_disks_is_not_deleted_yet, .timeout = 120)
{
	backend_add(&mute_disk);
	open_world(WORLD_XFS, 1, true);
	make("base", "loop");
	((struct record *)find_volume()->rec)->device = BACKEND_DISK;
	pool_enter(pools_at(w->pools, 0), POOL_READ_ONLY, "%s", "made so by a test");
	world_settle(w); /* it is well when it is looked after */
	cr_expect_eq(delete (volume_id), GRPC_UNAVAILABLE);
	cr_assert_not_null(find_volume());
	world_adopt(w);
	cr_expect_eq(delete (volume_id), GRPC_OK);
	world_close(w);
	backend_remove(&mute_disk);
}

/* Whether it is on raw disks is not known while it is away. */
Test(adopt, a_pool_that_is_away_refuses_no_parameter, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	pool_enter(pools_at(w->pools, 0), POOL_READ_ONLY, "%s", "made so by a test");
	device_type = "disk";
	cr_expect_eq(create("base", EMPTY, volume_id), GRPC_UNAVAILABLE);
	world_settle(w);
	cr_expect_eq(create("base", EMPTY, volume_id), GRPC_FAILED_PRECONDITION);
	world_close(w);
}

/* ---- beside what is being done to a volume ---- */

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
	struct stat st;
	cr_assert_eq(fstatat(req->dirfd, req->image, &st, AT_SYMLINK_NOFOLLOW), 0);
	slow_dev.image_dev = st.st_dev;
	slow_dev.image_ino = st.st_ino;
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
	open_world(WORLD_XFS, 1, true);
	make("base", "ublk");
	stage();
	w->on_step = see_resume;
	node_adopt(w->csi->node, NULL, NULL);
	while (!beside)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_eq(undo_stage(), GRPC_ABORTED);
	cr_expect_eq(slow_attaches, 2);
	world_settle(w);
	unstage();
	world_settle(w);
	cr_expect_not(slow_dev.attached);
	cr_expect_null(find_volume()->node);
	world_close(w);
	backend_remove(&slow);
}

static const char *look_in = "NodeUnstageVolume", *look_at;

static void look_beside_it(const char *op_name, const char *step_name)
{
	if (look_at == NULL || strcmp(op_name, look_in) != 0 || strcmp(step_name, look_at) != 0)
		return;
	look_at = NULL;
	node_adopt(w->csi->node, NULL, NULL);
}

/* The look saw the device, which is detached before, or right after, it is matched: it is not to be
 * the volume's again, nor to be made anew. */
Test(adopt, a_device_that_went_meanwhile_is_not_taken_over, .timeout = 120)
{
	backend_add(&slow);
	open_world(WORLD_XFS, 1, true);
	make("base", "ublk");
	static const char *const steps[] = {"detach", "forget"};
	for (unsigned i = 0; i < 2; i++) {
		stage();
		slow_attaches = 0;
		look_at = steps[i];
		w->on_step = look_beside_it;
		unstage();
		w->on_step = NULL;
		cr_assert_null(look_at);
		world_settle(w);
		cr_expect_eq(slow_attaches, 0, "at %s: it was made anew", steps[i]);
		cr_expect_not(slow_dev.attached);
		cr_expect_null(find_volume()->node, "at %s", steps[i]);
		cr_expect(node_knows_volume(w->csi->node, find_volume()));
	}
	world_close(w);
	backend_remove(&slow);
}

/* It is left to another look, which finds it known and has the marks of the earlier run to read all
 * the same. What was attached by nobody before is held for no such thing. */
Test(adopt, what_is_staged_meanwhile_is_thawed, .timeout = 120)
{
	open_world(WORLD_XFS, 1, false);
	make("base", "loop");
	stage();
	cr_expect(node_volume_find(find_volume())->marks_read);
	leave_frozen();
	/* As after a restart: nothing is known. */
	node_volume_free(find_volume()->node);
	find_volume()->node = NULL;
	pool_enter(pools_at(w->pools, 0), POOL_READ_ONLY, "%s", "made so by a test");
	world_settle(w);
	cr_assert_not(node_knows_volume(w->csi->node, find_volume()));
	look_in = "NodeStageVolume";
	look_at = "inspect";
	w->on_step = look_beside_it;
	stage();
	w->on_step = NULL;
	cr_assert_null(look_at);
	/* It looks whether it has to grow, and so thaws it. What is frozen after it waits. */
	cr_assert_not(is_frozen());
	leave_frozen();
	world_settle(w);
	cr_expect(node_knows_volume(w->csi->node, find_volume()));
	cr_assert(!is_frozen());
	unstage();
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Its devices cannot be looked for, so nobody waits for them: what it holds can be copied away. */
Test(adopt, what_has_a_backend_that_is_off_is_waited_for_by_nobody, .timeout = 120)
{
	backend_add(&slow);
	open_world(WORLD_XFS, 1, true);
	make("base", "ublk");
	backend_remove(&slow);
	world_restart(w);
	cr_expect(probe_says_ready());
	cr_expect(node_knows_volume(w->csi->node, find_volume()));
	cr_expect_eq(do_snapshot(), GRPC_OK);
	world_close(w);
}

/* ---- marks ---- */

static unsigned refusals;

static int refuse_marks(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	if (refusals == 0 || strcmp(step_name, "look for our marks") != 0)
		return 0;
	refusals--;
	return -EIO;
}

/* Or what a run cut short left frozen would stay so. */
Test(adopt, marks_that_could_not_be_read_are_looked_for_again, .timeout = 120)
{
	open_world(WORLD_XFS, 1, false);
	make("base", "loop");
	stage();
	leave_frozen();
	w->observer.before_call = refuse_marks;
	refusals = 1;
	world_restart(w);
	cr_expect_eq(refusals, 0);
	cr_expect(is_frozen());
	world_adopt(w);
	cr_expect_not(is_frozen());
	unstage();
	world_close(w);
}

/* ---- devices that are suspended ---- */

/* Loop devices that are told as suspended until they are let go on. */
static struct {
	const struct backend *loop;
	struct backend backend;
	bool suspended;
	unsigned scans, wakes, wake_faults;
	void (*each)(void *arg, const struct backend_dev *dev);
} sleepy;

static void tell_suspended(void *arg, const struct backend_dev *dev)
{
	struct backend_dev told = *dev;
	told.suspended = sleepy.suspended && strncmp(dev->tag, "ringvol:", 8) == 0;
	sleepy.each(arg, &told);
}

static int sleepy_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	sleepy.each = each;
	sleepy.scans++;
	return sleepy.loop->scan(sleepy.loop, tell_suspended, arg, err);
}

static int sleepy_wake(const struct backend_dev *dev, struct err *err)
{
	cr_assert(sleepy.suspended);
	if (sleepy.wake_faults > 0) {
		sleepy.wake_faults--;
		return err_sys(err, -EIO, "resuming %s", dev->path);
	}
	sleepy.wakes++;
	sleepy.suspended = false;
	return 0;
}

/* A world with a mounted volume. */
static void open_sleepy(void)
{
	open_world(WORLD_XFS, 1, false);
	make("base", "loop");
	stage();
	sleepy.loop = backend_get(BACKEND_LOOP);
	sleepy.backend = *sleepy.loop;
	sleepy.backend.scan = sleepy_scan;
	sleepy.backend.look = NULL; /* all are looked at for one */
	sleepy.backend.wake = sleepy_wake;
	backend_add(&sleepy.backend);
}

static void close_sleepy(void)
{
	unstage();
	world_close(w);
	backend_add(sleepy.loop);
}

/* And only then a file system is thawed: that is I/O. */
Test(adopt, what_was_left_suspended_goes_on, .timeout = 120)
{
	open_sleepy();
	leave_frozen();
	sleepy.suspended = true;
	sleepy.wake_faults = 1;
	world_restart(w);
	cr_expect(sleepy.suspended);
	cr_expect(is_frozen());
	cr_expect_not(probe_says_ready());
	world_settle(w);
	cr_expect_eq(sleepy.wakes, 1);
	cr_expect_not(is_frozen());
	cr_expect(probe_says_ready());
	close_sleepy();
}

/* A snapshot holds it still: whoever looks for a device of another volume lets nothing go on. */
Test(adopt, what_an_operation_has_suspended_stays_so, .timeout = 120)
{
	char first[RECORD_ID_MAX], elsewhere[128];
	open_sleepy();
	memcpy(first, volume_id, sizeof(first));
	make("other", "loop");
	sleepy.suspended = true;
	sleepy.scans = 0;
	Csi__V1__NodeUnstageVolumeRequest req = CSI__V1__NODE_UNSTAGE_VOLUME_REQUEST__INIT;
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", w->dir);
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(elsewhere);
	cr_expect_eq(call_status("Node/NodeUnstageVolume", &req.base), GRPC_OK, "it is not staged");
	cr_expect_eq(sleepy.scans, 1);
	cr_expect_eq(delete (volume_id), GRPC_OK);
	cr_expect_eq(sleepy.wakes, 0);
	cr_expect(sleepy.suspended);
	/* A pool that comes meanwhile has all looked for: the operation has the volume alone. */
	memcpy(volume_id, first, sizeof(first));
	struct node_lock lock;
	node_lock_init(&lock, NODE_EXCLUSIVE, "volume", find_volume()->key);
	node_lock_take(&w->csi->node->locks, &lock);
	node_adopt(w->csi->node, NULL, NULL);
	while (node_adopting(w->csi->node))
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_eq(sleepy.wakes, 0);
	node_lock_release(&w->csi->node->locks, &lock);
	world_adopt(w);
	cr_expect_eq(sleepy.wakes, 1);
	close_sleepy();
}

static enum grpc_status publish_to_one(const char *path)
{
	Csi__V1__NodePublishVolumeRequest req = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.staging_target_path = csi_bytes(staging_path);
	req.target_path = csi_bytes(path);
	req.volume_capability = capability();
	req.volume_capability->access_mode->mode =
		CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_SINGLE_WRITER;
	return call_status("Node/NodePublishVolume", &req.base);
}

static void mark_as_grown(void)
{
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_GROWN, ""), 0);
	close(fd);
}

/* Who was to stay the only writer does, and a log that is not clean after a growth is known. */
static void check_marks(bool as_block)
{
	open_world(WORLD_EXT4, 1, as_block);
	make("base", "loop");
	stage();
	char second[128];
	snprintf(second, sizeof(second), "%s/second", w->dir);
	cr_assert_eq(publish_to_one(target_path), GRPC_OK);
	mark_as_grown();
	world_restart(w);
	const struct node_volume *nv = node_volume_find(find_volume());
	unsigned writers = 0, mounts = 0;
	list_for_each (link, &nv->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		bool is_target = strcmp(mount->path, target_path) == 0;
		cr_expect_eq(mount->single_writer, is_target, "%s", mount->path);
		writers += mount->single_writer;
		mounts++;
	}
	cr_expect_eq(writers, 1);
	cr_expect_eq(mounts, as_block ? 1 : 2);
	cr_expect_eq(nv->grown, !as_block, "of a raw block volume it is nobody's mark");
	cr_expect_eq(publish_to_one(second), GRPC_FAILED_PRECONDITION);
	cr_expect_eq(undo_publish(), GRPC_OK);
	unstage();
	world_close(w);
}

Test(adopt, marks_of_a_mounted_volume, .timeout = 120)
{
	check_marks(false);
}

Test(adopt, marks_of_a_block_volume, .timeout = 120)
{
	check_marks(true);
}

/* ---- volumes that have moved ---- */

static void look_for_devices(void)
{
	node_adopt(w->csi->node, NULL, NULL);
	world_settle(w);
}

/* Its device says the id's pool, which is not here, and its image says which it is. */
Test(adopt, a_volume_that_has_moved_here_is_known_again, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	make("base", "loop");
	bear_elsewhere("base", volume_id);
	stage();
	cr_expect_eq(strncmp(node_volume_find(find_volume())->dev.tag, "ringvol:deadbeef:", 17), 0);
	world_restart(w);
	world_settle(w);
	const struct node_volume *nv = node_volume_find(find_volume());
	cr_assert_not_null(nv);
	cr_expect(nv->dev.attached);
	stage(); /* it is */
	unstage();
	cr_expect_null(find_volume()->node);
	cr_expect_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

static void put_strange_device(const char *uuid8)
{
	slow_dev = (struct backend_dev){
		.attached = true, .major = 259, .minor = 7, .path = "/dev/ublkb7", .image_ino = 1};
	snprintf(slow_dev.tag, sizeof(slow_dev.tag), "ringvol:%s:0badcafe", uuid8);
	slow_seen = slow_dev;
}

/* Of a volume that was deleted it would be cleared. */
Test(adopt, a_device_of_a_volume_that_has_left_is_kept, .timeout = 120)
{
	backend_add(&slow);
	open_world(WORLD_XFS, 1, true);
	struct pool *pool = pools_at(w->pools, 0);
	struct pool_departure *left = calloc(1, sizeof(*left));
	strcpy(left->key, "gone");
	snprintf(left->id, sizeof(left->id), "%s.gone.0badcafe", pool_uuid8(pool));
	pool_departure_enter(pool, left);
	put_strange_device(pool_uuid8(pool));
	look_for_devices();
	cr_expect(slow_dev.attached);
	pool_departure_put_aside(left);
	look_for_devices();
	cr_expect_not(slow_dev.attached);
	put_strange_device("deadbeef"); /* a pool that is not here */
	look_for_devices();
	cr_expect(slow_dev.attached);
	world_close(w);
}

/* Not of the one it is in: by the random part alone a device is no volume's. */
/* So many that each slot has some. */
Test(adopt, any_name_can_be_locked)
{
	enum { NAMES = 16 * NODE_LOCK_SLOTS };
	static struct node_locks locks;
	static struct node_lock taken[NAMES];
	char key[16];
	node_locks_init(&locks);
	for (unsigned i = 0; i < NAMES; i++) {
		snprintf(key, sizeof(key), "%u", i);
		node_lock_init(&taken[i], NODE_EXCLUSIVE, "volume", key);
		cr_assert_null(node_lock_conflict(&locks, &taken[i]));
		node_lock_take(&locks, &taken[i]);
		cr_assert_eq(node_lock_conflict(&locks, &taken[i]), &taken[i]);
	}
	for (unsigned i = 0; i < NAMES; i++) {
		node_lock_release(&locks, &taken[i]);
		cr_assert_null(node_lock_conflict(&locks, &taken[i]));
	}
	cr_assert_eq(locks.releases, NAMES);
}

Test(adopt, a_tag_is_of_the_pool_that_a_volume_was_born_in, .timeout = 120)
{
	backend_add(&slow);
	open_world(WORLD_XFS, 1, true);
	make("base", "ublk");
	bear_elsewhere("base", volume_id);
	struct pool *pool = pools_at(w->pools, 0);
	put_strange_device(pool_uuid8(pool));
	strcpy(slow_dev.tag + strlen("ringvol:01234567:"), find_volume()->rec->random);
	slow_seen = slow_dev;
	look_for_devices();
	cr_expect_not(slow_dev.attached, "it is of none that was born here");
	world_close(w);
}
