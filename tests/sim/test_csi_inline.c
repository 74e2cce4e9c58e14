/* SPDX-License-Identifier: Apache-2.0 */
/* Inline volumes: publish and unpublish failed at every step, what is refused, and the sweep. */
#include "inline_calls.h"
#include "trials.h"

#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "node/sweep.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static void fail_all(enum world_fs fs)
{
	open_inline(fs, 1);
	masks_tags = true;
	cr_assert_gt(fail_each_step(&(struct trial){
			     "NodePublishVolume, inline", publish, unpublish_wholly, false}),
		10);
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){
			     "NodeUnpublishVolume, inline", undo_publish, publish, false}),
		4);
	cr_assert_eq(undo_publish(), GRPC_OK);
	nothing_left();
}

Test(csi_inline, fails_at_every_step, .timeout = 300)
{
	fail_all(WORLD_XFS);
}

Test(csi_inline, fails_at_every_step_without_reflink, .timeout = 300)
{
	fail_all(WORLD_EXT4);
}

/* It is mounted without suid and devices, is there again after a restart and after its mount and
 * device went as in a reboot, with what was written; and its unpublish ends it. */
Test(csi_inline, lives_as_long_as_its_publish, .timeout = 300)
{
	char file[160];
	struct statvfs st;
	open_inline(WORLD_XFS, 1);
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(publish(), GRPC_OK, "a repeat");
	cr_assert_eq(statvfs(target_path, &st), 0);
	cr_assert_eq(st.f_flag & (ST_NOSUID | ST_NODEV), ST_NOSUID | ST_NODEV);
	cr_assert_eq(do_stats(), GRPC_OK);
	snprintf(file, sizeof(file), "%s/kept", target_path);
	cr_assert_eq(mknod(file, S_IFREG | 0600, 0), 0);
	restart();
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(umount(target_path), 0);
	restart();
	cr_assert_neq(access(file, F_OK), 0);
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(access(file, F_OK), 0, "what was written is there again");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK, "a repeat");
	nothing_left();
}

/* After a restart memory has the mount by the name that the kernel has it by. */
Test(csi_inline, has_one_place_of_two_names, .timeout = 300)
{
	char link[64];
	open_inline(WORLD_XFS, 1);
	snprintf(link, sizeof(link), "/run/ringvol-sim-%d", (int)getpid());
	cr_assert_eq(symlink(w->dir, link), 0);
	snprintf(target_path, sizeof(target_path), "%s/pods/%s/v/scratch/mount", link, uid);
	cr_assert_eq(publish(), GRPC_OK);
	restart();
	cr_assert_eq(publish(), GRPC_OK, "a repeat");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(publish(), GRPC_OK);
	restart();
	snprintf(target_path, sizeof(target_path), "%s/pods/%s/v/other", link, uid);
	cr_assert_eq(publish(), GRPC_ALREADY_EXISTS, "it has no other place");
	snprintf(target_path, sizeof(target_path), "%s/pods/%s/v/scratch/mount", link, uid);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(unlink(link), 0);
	nothing_left();
}

static const char *asks_volume(void)
{
	Csi__V1__ControllerGetVolumeRequest req = CSI__V1__CONTROLLER_GET_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	return ASK("Controller", ControllerGetVolume, controller_get_volume);
}

static const char *asks_capabilities(void)
{
	Csi__V1__ValidateVolumeCapabilitiesRequest req =
		CSI__V1__VALIDATE_VOLUME_CAPABILITIES_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	req.volume_id = csi_bytes(volume_id);
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	return ASK("Controller", ValidateVolumeCapabilities, validate_volume_capabilities);
}

static const char *asks_take(void)
{
	Ringvol__V1__TakeVolumeRequest req = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_name = csi_bytes(id);
	req.pool = csi_bytes("default");
	return ask("/ringvol.v1.Member/TakeVolume", &req,
		&ringvol__v1__take_volume_response__descriptor);
}

Test(csi_inline, has_no_other_calls, .timeout = 300)
{
	static const char with_its_pod[] =
		"9: volume csi-0a1b2c is an inline volume of ci/build: it is made, published and deleted with its pod, and there are no other calls for it";
	open_inline(WORLD_XFS, 1);
	cr_assert_eq(publish(), GRPC_OK);
	struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, id);
	cr_assert_not_null(volume);
	cr_assert_eq(volume->rec->limits.read_iops, 5000, "the operator's, as it said none");
	for (unsigned i = 0; i < 2; i++) {
		says(asks_delete(), "%s", with_its_pod);
		says(asks_stage(), "%s", with_its_pod);
		says(asks_modify("iops", "100"), "%s", with_its_pod);
		says(asks_volume(), "%s", with_its_pod);
		says(asks_capabilities(), "%s", with_its_pod);
		cr_assert_eq(do_snapshot(), GRPC_FAILED_PRECONDITION);
		cr_assert_eq(create("other", FROM_VOLUME, other_id), GRPC_FAILED_PRECONDITION);
		cr_assert_eq(expand(48 * MIB), GRPC_FAILED_PRECONDITION);
		cr_assert_eq(node_expand(48 * MIB), GRPC_FAILED_PRECONDITION);
		cr_assert_eq(do_publish(), GRPC_FAILED_PRECONDITION);
		pool_object_id(volume, volume_id); /* nor by the id that a CO might learn */
	}
	says(asks_take(), "%s", with_its_pod);
	cr_assert_eq(create(id, EMPTY, other_id), GRPC_ALREADY_EXISTS);
	Csi__V1__ListVolumesRequest list = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	struct world_answer answer;
	cr_assert_eq(call("Controller/ListVolumes", &list.base, &answer), GRPC_OK);
	cr_assert_eq(answer.len, 0, "nobody is told of it");
	world_answer_free(&answer);
	snprintf(volume_id, sizeof(volume_id), "%s", id);
	cr_assert_eq(undo_publish(), GRPC_OK);
	nothing_left();
}

Test(csi_inline, is_bounded_by_the_operator, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	namespace = "prod";
	refuses("9: pods of namespace prod may not have inline volumes on this node (--inline namespaces)");
	namespace = "ci";
	size = "65Mi";
	refuses("3: volume_context: the volume would have 68157440 bytes, and inline volumes have 67108864 at most on this node (--inline max-size)");
	size = "much";
	refuses("3: volume_context: size takes bytes, as 1073741824 or 1Gi");
	size = "32Mi";
	more_key = "iops";
	more_value = "6k";
	refuses("3: volume_context: readIops is 6000, and inline volumes have 5000 at most on this node (--inline)");
	more_key = "pool";
	more_value = "fast";
	refuses("9: volume_context: pool fast is not for inline volumes on this node (--inline pools)");
	more_key = "encryption";
	refuses("3: volume_context: encryption is no attribute of inline volumes; size, fstype, pool, source, iops, readIops, writeIops, bandwidth, readBandwidth and writeBandwidth are");
	more_key = NULL;
	block = true;
	refuses("3: volume_capability: an inline volume is mounted, never a block device");
	block = false;
	w->csi->config.inlines.n_pools = 0;
	refuses("9: inline volumes are not allowed on this node (--inline); use a PersistentVolumeClaim, or an ephemeral volume with a volumeClaimTemplate");
	allow();
	cr_assert_eq(create(id, EMPTY, volume_id), GRPC_OK);
	snprintf(other_id, sizeof(other_id), "%s", volume_id);
	snprintf(volume_id, sizeof(volume_id), "%s", id);
	says(asks(), "6: volume csi-0a1b2c exists and is no inline volume");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert(has("volumes "), "the unpublish of another's name deletes nothing");
	cr_assert_eq(delete (other_id), GRPC_OK);
	nothing_left();
}

/* ---- golden images ---- */

static void fail_all_of_image(enum world_fs fs)
{
	open_inline(fs, 1);
	masks_tags = true;
	make_image("root");
	allow_image("root");
	more_key = "source";
	more_value = "root";
	cr_assert_gt(fail_each_step(&(struct trial){"NodePublishVolume, inline, of an image",
			     publish, unpublish_wholly, false}),
		10);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	nothing_left();
}

Test(csi_inline, of_an_image_fails_at_every_step, .timeout = 300)
{
	fail_all_of_image(WORLD_XFS);
}

Test(csi_inline, of_an_image_fails_at_every_step_without_reflink, .timeout = 300)
{
	fail_all_of_image(WORLD_EXT4);
}

/* As large as the image where no size is said, or a smaller one; it lives when the image is gone.
 */
Test(csi_inline, begins_as_an_image, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	create_bytes = 48 * MIB;
	make_image("root");
	w->csi->config.inlines.any_source = true;
	more_key = "source";
	more_value = "root";
	cr_assert_eq(publish(), GRPC_OK);
	const struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, id);
	cr_assert_not_null(volume);
	cr_assert_eq(volume->rec->size_bytes, 48 * MIB);
	cr_assert_str_eq(volume->rec->source_id, snapshot_id);
	cr_assert(volume->rec->shares_extents);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	restart();
	cr_assert_eq(publish(), GRPC_OK, "it is made already");
	cr_assert_eq(undo_publish(), GRPC_OK);
	nothing_left();
}

Test(csi_inline, begins_as_what_is_allowed, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	more_key = "source";
	more_value = "root";
	refuses("9: volume_context: source: golden image root is not for inline volumes on this node (--inline sources)");
	allow_image("root");
	refuses("9: volume_context: source: golden image root is not on node node-1: import it there, too (ringvol import), or use an ephemeral volume with a volumeClaimTemplate: a class that names the image has it copied from another node");
	more_value = "a/b";
	refuses("3: volume_context: source is 'a/b', but takes the name of a golden image");
	more_value = "root";
	create_bytes = 65 * MIB;
	make_image("root");
	refuses("3: volume_context: the volume would have 68157440 bytes, and inline volumes have 67108864 at most on this node (--inline max-size)");
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	create_bytes = 16 * MIB;
	make_image("root");
	fs_type = "xfs";
	refuses("3: volume_context: golden image root holds ext4, and xfs is asked for");
	fs_type = "ext4";
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	block = true;
	make_image("root");
	block = false;
	refuses("9: volume_context: source: golden image root has no file system, and inline volumes are mounted without a key");
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	nothing_left();
}

/* A pool that was not read yet is in nobody's way whose volume cannot be in it. */
Test(csi_inline, waits_for_its_own_pool_alone, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	struct pool *pool = pools_at(w->pools, 0);
	pool->life = POOL_NEW;
	snprintf(pool->why, sizeof(pool->why), "it is being read");
	const char *const waits =
		"14: pool default may have this pod's inline volume, and was not read yet: it is being read";
	refuses(waits);
	w->csi->config.inlines.n_pools = 2;
	w->csi->config.inlines.pools[1] = "fast";
	refuses(waits);
	more_key = "pool";
	more_value = "default";
	refuses(waits);
	more_value = "fast";
	refuses("9: this node has no pool fast");
	more_key = NULL;
	w->csi->config.inlines.pools[0] = "fast";
	w->csi->config.inlines.n_pools = 1;
	refuses("9: this node has no pool fast");
	w->csi->config.inlines.n_pools = 0; /* one of before that was changed */
	refuses(waits);
	pool->life = POOL_SERVED;
	allow();
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	nothing_left();
}

/* ---- the sweep ---- */

static void sweep(void)
{
	cr_assert_eq(node_sweep_open(w->csi->node), 0);
	ring_sim_settle(w->reactor.ring, NODE_SWEEP_MS / 2);
	cr_assert(node_sweep_idle(w->csi->node->sweep));
	node_sweep_close(w->csi->node);
}

static void remove_pods_dir(const char *what)
{
	char command[160];
	snprintf(command, sizeof(command), "rm -r %s", what);
	cr_assert_eq(system(command), 0);
}

Test(csi_inline, goes_when_its_pod_is_gone, .timeout = 300)
{
	char pods[96], other[160];
	open_inline(WORLD_XFS, 1);
	snprintf(pods, sizeof(pods), "%s/pods", w->dir);
	snprintf(other, sizeof(other), "%s/another", pods);
	cr_assert_eq(publish(), GRPC_OK);
	sweep();
	cr_assert(has("mount "), "its pod is there");
	cr_assert_eq(umount(target_path), 0);
	restart();
	sweep();
	cr_assert(has("volumes "), "its pod is there, and not mounted yet");
	remove_pods_dir(pods);
	sweep();
	cr_assert(has("volumes "), "kubelet's directory is not there");
	mkdirs(pods);
	sweep();
	cr_assert(has("volumes "), "kubelet's directory is empty: is it mounted?");
	mkdirs(other);
	sweep();
	cr_assert(!has("volumes "));
	nothing_left();
}

/* Its pod does not wait for a pool that is away, nor for who has the image open: what it leaves
 * goes with the sweep. */
Test(csi_inline, does_not_keep_its_pod, .timeout = 300)
{
	char pods[96], other[160], image[160];
	open_inline(WORLD_XFS, 1);
	snprintf(pods, sizeof(pods), "%s/pods", w->dir);
	snprintf(other, sizeof(other), "%s/another", pods);
	mkdirs(other);
	struct pool *pool = pools_at(w->pools, 0);
	for (unsigned opened = 0; opened < 2; opened++) {
		cr_assert_eq(publish(), GRPC_OK);
		snprintf(image, sizeof(image), "%s/volumes/%s", pool_path(pool), id);
		int fd = opened == 1 ? open(image, O_RDONLY | O_CLOEXEC) : -1;
		cr_assert(opened == 0 || fd >= 0, "%s", image);
		if (opened == 0)
			pool_enter(pool, POOL_READ_ONLY, "it is gone");
		cr_assert_eq(undo_publish(), GRPC_OK);
		pool_enter(pool, POOL_SERVED, "%s", "");
		cr_assert(has("volumes ") && !has("mount ") && !has("device "));
		close(fd);
		restart();
		pool = pools_at(w->pools, 0);
		sweep();
		cr_assert(has("volumes "), "its pod is there");
		remove_pods_dir(pod_dir);
		sweep();
		cr_assert(!has("volumes "));
		mkdirs(pod_dir);
		char parent[120];
		snprintf(parent, sizeof(parent), "%.60s/v/scratch", pod_dir);
		mkdirs(parent);
	}
	nothing_left();
}

/* A driver that has just started knows devices of earlier runs a moment later, and waits for no
 * whole round with it. */
Test(csi_inline, goes_soon_after_a_start, .timeout = 300)
{
	char other[160];
	open_inline(WORLD_XFS, 1);
	snprintf(other, sizeof(other), "%s/pods/another", w->dir);
	mkdirs(other);
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(umount(target_path), 0);
	remove_pods_dir(pod_dir);
	w->scan_faults = 1;
	restart();
	sweep();
	cr_assert(!has("volumes "));
	nothing_left();
}

/* Somebody has it mounted elsewhere: in doubt it stays. */
Test(csi_inline, stays_where_it_is_mounted, .timeout = 300)
{
	char pods[96], other[160];
	open_inline(WORLD_XFS, 1);
	snprintf(pods, sizeof(pods), "%s/pods", w->dir);
	snprintf(other, sizeof(other), "%s/another", pods);
	mkdirs(other);
	mkdirs(staging_path);
	cr_assert_eq(publish(), GRPC_OK);
	cr_assert_eq(mount(target_path, staging_path, NULL, MS_BIND, NULL), 0);
	cr_assert_eq(umount(target_path), 0);
	remove_pods_dir(pod_dir);
	sweep();
	cr_assert(has("volumes "));
	cr_assert(has("device "));
	cr_assert_eq(umount(staging_path), 0);
	/* Whoever looks into a device on this machine keeps it for a moment. */
	for (unsigned i = 0; i < 20 && has("volumes "); i++)
		sweep();
	nothing_left();
}
