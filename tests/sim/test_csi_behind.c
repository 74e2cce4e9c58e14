/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody has unmounted or detached behind the driver's back: memory of it goes when a call
 * meets it, the call goes on, and what is still there stays known. */
#include "answers.h"

#include "backends/loop/lodev.h"
#include "backends/loop/loop.h"
#include "node/volume.h"
#include "pool/index.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { SINGLE_WRITER = 6, MULTI_WRITER = 7, PLACES = 3 }; /* SINGLE_NODE_ both */

static char places[PLACES][112];

static void open_with_volume(bool as_block, bool staging)
{
	open_world(WORLD_XFS, 1, as_block);
	w->csi->config.staging = staging;
	for (unsigned i = 0; i < PLACES; i++)
		snprintf(places[i], sizeof(places[i]), "%s/place-%u", w->dir, i);
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
}

static void at(unsigned place)
{
	strcpy(target_path, places[place]);
}

static const char *publish_at(unsigned place)
{
	at(place);
	return asks_publish();
}

static const char *unpublish_at(unsigned place)
{
	at(place);
	return asks_unpublish();
}

static struct node_volume *in_use(void)
{
	struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, "base");
	cr_assert_not_null(volume);
	return node_volume_find(volume);
}

/* Memory has mounts at these alone: places by their digits, 's' for the staging path. */
static void knows(const char *which)
{
	unsigned count = 0;
	const struct node_volume *node = in_use();
	if (node != NULL)
		list_for_each (link, &node->mounts)
			count++;
	cr_expect_eq(count, strlen(which), "%u of '%s'", count, which);
	for (; *which != '\0'; which++)
		cr_expect_not_null(node_volume_mount_at(node,
					   *which == 's' ? staging_path : places[*which - '0']),
			"%c", *which);
}

static bool is_read_only(unsigned place)
{
	struct statvfs st;
	cr_assert_eq(statvfs(places[place], &st), 0);
	return (st.f_flag & ST_RDONLY) != 0;
}

static void close_unused(void)
{
	no_device();
	cr_expect_null(in_use());
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- published ---- */

/* Who was the only writer is not there any more. */
Test(csi_behind, a_single_writer_that_is_gone, .timeout = 300)
{
	open_with_volume(false, true);
	says(asks_stage(), "%s", "");
	access_mode = MULTI_WRITER;
	says(publish_at(0), "%s", "");
	says(publish_at(1), "%s", "");
	knows("s01");
	access_mode = SINGLE_WRITER;
	cr_assert_eq(umount(places[0]), 0);
	says(publish_at(2),
		"9: volume base is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
		places[1]);
	knows("s01");
	cr_assert_eq(umount(places[1]), 0);
	says(publish_at(2), "%s", "");
	knows("s2");
	cr_expect(node_volume_mount_at(in_use(), places[2])->single_writer);
	says(unpublish_at(2), "%s", "");
	says(asks_unstage(), "%s", "");
	close_unused();
}

/* A look at the kernel's mounts that fails is the call's. */
Test(csi_behind, mounts_that_cannot_be_looked_at, .timeout = 300)
{
	open_with_volume(false, true);
	says(asks_stage(), "%s", "");
	access_mode = SINGLE_WRITER;
	says(publish_at(0), "%s", "");
	w->work_fault_after = -1;
	for (int n = 0;; n++) {
		w->fault_hit = false;
		w->work_fault_after = n;
		at(1);
		enum grpc_status status = do_publish();
		w->work_fault_after = -1;
		if (!w->fault_hit)
			break;
		cr_expect(status == GRPC_INTERNAL || status == GRPC_FAILED_PRECONDITION, "%s: %d",
			w->fault_at, status);
		cr_expect_neq(access(places[1], F_OK), 0, "%s", w->fault_at);
		knows("s0");
	}
	says(unpublish_at(0), "%s", "");
	says(asks_unstage(), "%s", "");
	close_unused();
}

/* ---- published without staging ---- */

/* A publish is bound from a place that is still there, a writable one rather than another; and is
 * mounted anew if there is none. */
Test(csi_behind, places_to_bind_from, .timeout = 300)
{
	open_with_volume(false, false);
	publish_read_only = true;
	says(publish_at(0), "%s", "");
	publish_read_only = false;
	says(publish_at(1), "%s", "");
	cr_expect(is_read_only(0) && !is_read_only(1));
	/* The writable one is asked first. */
	cr_assert_eq(umount(places[1]), 0);
	says(publish_at(2), "%s", "");
	cr_expect_not(is_read_only(2));
	knows("02");
	says(unpublish_at(1), "%s", "");
	cr_expect_neq(access(places[1], F_OK), 0);
	cr_assert_eq(umount(places[0]), 0);
	cr_assert_eq(umount(places[2]), 0);
	says(publish_at(1), "%s", "");
	cr_expect_not(is_read_only(1));
	knows("1");
	for (unsigned i = 0; i < PLACES; i++)
		says(unpublish_at(i), "%s", "");
	close_unused();
}

static int second_inspect;

static int inspect_fails_second(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_path_req *asked = req;
	if (strcmp(asked->path, places[0]) != 0)
		return mnt_calls[MNT_INSPECT](req, req_len, resp, resp_len);
	second_inspect++;
	*resp_len = 0;
	return -EIO;
}

Test(csi_behind, a_place_that_cannot_be_looked_at, .timeout = 300)
{
	open_with_volume(false, false);
	says(publish_at(0), "%s", "");
	w->calls[MNT_INSPECT] = inspect_fails_second;
	says(publish_at(1), "13: inspection of %s: Input/output error", places[0]);
	cr_expect_eq(second_inspect, 1);
	knows("0");
	w->calls[MNT_INSPECT] = mnt_calls[MNT_INSPECT];
	says(publish_at(1), "%s", "");
	knows("01");
	says(unpublish_at(0), "%s", "");
	says(unpublish_at(1), "%s", "");
	close_unused();
}

/* What an earlier run has staged goes with the last place, also when that is gone already; and by
 * the number of its device. */
static struct mnt_unmount_req unmounted[4];
static unsigned unmounts;
static int unmount_res;

static int note_unmount(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_unmount_req *asked = req;
	cr_assert_lt(unmounts, 4);
	unmounted[unmounts++] = *asked;
	if (unmount_res == 0 || strcmp(asked->target, staging_path) != 0)
		return mnt_calls[MNT_UNMOUNT](req, req_len, resp, resp_len);
	*resp_len = 0;
	return unmount_res;
}

Test(csi_behind, the_last_place_of_what_is_staged, .timeout = 300)
{
	open_with_volume(false, true);
	says(asks_stage(), "%s", "");
	says(publish_at(0), "%s", "");
	world_restart(w);
	w->csi->config.staging = false;
	const struct backend_dev dev = in_use()->dev;
	cr_assert_eq(umount(places[0]), 0);
	cr_assert_eq(rmdir(places[0]), 0);
	w->calls[MNT_UNMOUNT] = note_unmount;
	unmount_res = -EIO;
	says(unpublish_at(0), "13: unmount of %s: Input/output error", staging_path);
	cr_expect_eq(unmounts, 1);
	cr_expect_not_null(in_use(), "it is attached");
	unmount_res = 0;
	says(unpublish_at(0), "%s", "");
	cr_assert_eq(unmounts, 2);
	for (unsigned i = 0; i < unmounts; i++) {
		cr_expect_str_eq(unmounted[i].target, staging_path);
		cr_expect_eq(unmounted[i].dev_major, dev.major);
		cr_expect_eq(unmounted[i].dev_minor, dev.minor);
		cr_expect_not(unmounted[i].remove);
	}
	cr_expect_eq(access(staging_path, F_OK), 0, "it is the orchestrator's");
	w->calls[MNT_UNMOUNT] = mnt_calls[MNT_UNMOUNT];
	close_unused();
}

/* ---- unstaged ---- */

Test(csi_behind, unstaged_when_its_places_are_gone, .timeout = 300)
{
	open_with_volume(false, true);
	says(asks_stage(), "%s", "");
	for (unsigned i = 0; i < PLACES; i++)
		says(publish_at(i), "%s", "");
	cr_assert_eq(umount(places[0]), 0);
	cr_assert_eq(umount(places[2]), 0);
	says(asks_unstage(), "9: volume %s is still published at %s; unpublish it first", volume_id,
		places[1]);
	cr_assert_eq(umount(places[1]), 0);
	says(asks_unstage(), "%s", "");
	close_unused();
}

static void clear_device(void)
{
	char device[64];
	snprintf(device, sizeof(device), "%s", in_use()->dev.path);
	int fd = open(device, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ioctl(fd, LOOP_CLR_FD), 0);
	close(fd);
}

/* The device is gone as well: each of its places is asked for by itself. */
Test(csi_behind, unstaged_when_its_device_is_gone, .timeout = 300)
{
	open_with_volume(false, true);
	says(asks_stage(), "%s", "");
	for (unsigned i = 0; i < PLACES; i++)
		says(publish_at(i), "%s", "");
	for (unsigned i = 0; i < PLACES; i++)
		cr_assert_eq(umount(places[i]), 0);
	cr_assert_eq(umount(staging_path), 0);
	clear_device();
	says(asks_unstage(), "%s", "");
	close_unused();
}

/* ---- a node that leads to nothing ---- */

static int nothing_bound(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	(void)dev;
	(void)ret;
	return -ENXIO;
}

static int none_there(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	(void)each;
	(void)arg;
	(void)err;
	return 0;
}

static struct backend dead;

/* As if the device had been freed; a real one's number may be another's at once, on a machine where
 * others make devices, too. */
static void die(bool restart)
{
	if (in_use()->dev.major != LODEV_MAJOR) {
		says(unpublish_at(0), "%s", "");
		says(asks_unstage(), "%s", "");
		close_unused();
		cr_skip_test("its node is not a loop device's here");
	}
	dead = backend_loop;
	dead.look = nothing_bound;
	dead.scan = none_there;
	backend_remove(&backend_loop);
	backend_add(&dead);
	if (!restart)
		return;
	world_restart(w);
	cr_expect_null(in_use());
}

static void come_to_life(void)
{
	backend_remove(&dead);
	backend_add(&backend_loop);
	says(asks_unstage(), "%s", "");
	close_unused();
}

/* It is the block volume's whose path it is, whether memory knows of it or not. */
static void unpublish_dead_node(bool restart)
{
	open_with_volume(true, true);
	says(asks_stage(), "%s", "");
	says(publish_at(0), "%s", "");
	die(restart);
	says(unpublish_at(0), "%s", "");
	cr_expect_neq(access(places[0], F_OK), 0);
	come_to_life();
}

Test(csi_behind, a_node_that_leads_to_nothing, .timeout = 300)
{
	unpublish_dead_node(false);
}

Test(csi_behind, a_node_that_leads_to_nothing_since_an_earlier_run, .timeout = 300)
{
	unpublish_dead_node(true);
}

/* Of a volume with a file system it is something else's. */
Test(csi_behind, a_dead_node_at_a_mount_volumes_path, .timeout = 300)
{
	char its[RECORD_ID_MAX];
	struct stat st;
	open_with_volume(true, true);
	memcpy(its, volume_id, sizeof(its));
	block = false;
	take_id(asks_create("other", EMPTY), "volume_id", other_id);
	block = true;
	says(asks_stage(), "%s", "");
	says(publish_at(0), "%s", "");
	die(true);
	cr_assert_eq(stat(places[0], &st), 0);
	memcpy(volume_id, other_id, sizeof(its));
	says(unpublish_at(0),
		"9: target_path: what is mounted at %s (device %u:%u) is not volume %s; it is not touched, unmount it by hand if it should go",
		places[0], major(st.st_rdev), minor(st.st_rdev), volume_id);
	cr_expect_eq(delete_patiently(volume_id), GRPC_OK);
	memcpy(volume_id, its, sizeof(its));
	says(unpublish_at(0), "%s", "");
	come_to_life();
}
