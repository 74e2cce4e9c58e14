/* SPDX-License-Identifier: Apache-2.0 */
/* What is in the way of a stage or a delete, and what was done behind the driver's back. */
#include "csi_calls.h"

#include "backends/loop/lodev.h"
#include "csi/messages.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void open_with_a_volume(void)
{
	open_world(WORLD_XFS, 1, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
}

static void close_empty(void)
{
	char left[INVENTORY_BYTES];
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_inventory(w, left, sizeof(left));
	cr_assert_null(strstr(left, "device "));
	cr_assert_null(strstr(left, "mount "));
	cr_assert_null(strstr(left, "volumes "));
	world_close(w);
}

/* Names another staging path, whose directory is there. Returns the one before. */
static const char *move_staging(void)
{
	static char before[96];
	strcpy(before, staging_path);
	snprintf(staging_path, sizeof(staging_path), "%.80s-2", before);
	cr_assert_eq(mkdir(staging_path, 0700), 0);
	return before;
}

static void move_staging_back(const char *before)
{
	cr_assert(rmdir(staging_path) == 0 || errno == ENOENT);
	strcpy(staging_path, before);
}

Test(csi_misuse, a_staging_path_that_is_none, .timeout = 300)
{
	open_with_a_volume();
	cr_assert_eq(rmdir(staging_path), 0);
	cr_assert_eq(do_stage(), GRPC_INVALID_ARGUMENT, "nothing is there");
	int fd = open(staging_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	close(fd);
	cr_assert_eq(do_stage(), GRPC_INVALID_ARGUMENT, "a file is there");
	cr_assert_eq(unlink(staging_path), 0);
	cr_assert_eq(mkdir(staging_path, 0700), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_empty();
}

/* At one path at a time. The mount at the first counts as long as it is there, not as long as
 * memory has it. */
Test(csi_misuse, staged_elsewhere, .timeout = 300)
{
	open_with_a_volume();
	cr_assert_eq(do_stage(), GRPC_OK);
	const char *first = move_staging();
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION, "it was only looked at");
	cr_assert_eq(umount(first), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	struct pool_object *volume = pool_index_find(w->pools->at[0], RECORD_VOLUME, "base");
	cr_assert_not_null(volume);
	unsigned mounts = 0;
	list_for_each (link, &node_volume_find(volume)->mounts) {
		mounts++;
		cr_expect_str_eq(container_of(link, struct node_mount, link)->path, staging_path);
	}
	cr_assert_eq(mounts, 1);
	cr_assert_eq(undo_stage(), GRPC_OK);
	move_staging_back(first);
	close_empty();
}

/* What was mounted writable is not had read-only by staging again, nor the other way round. */
Test(csi_misuse, staged_the_other_way, .timeout = 300)
{
	open_with_a_volume();
	cr_assert_eq(do_stage(), GRPC_OK);
	access_read_only = true;
	cr_assert_eq(do_stage(), GRPC_ALREADY_EXISTS);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	access_read_only = false;
	cr_assert_eq(do_stage(), GRPC_ALREADY_EXISTS);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_empty();
}

/* Something else was mounted over it. */
Test(csi_misuse, something_else_at_the_staging_path, .timeout = 300)
{
	open_with_a_volume();
	cr_assert_eq(mount("tmpfs", staging_path, "tmpfs", 0, "size=64k"), 0);
	cr_assert_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_assert_eq(umount(staging_path), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_empty();
}

/* Unmounted and detached by hand: memory has mounts that are no more, and the delete goes on. With
 * one that is still there it does not. */
Test(csi_misuse, deleted_after_its_device_was_taken_away, .timeout = 300)
{
	open_with_a_volume();
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	struct pool_object *volume = pool_index_find(w->pools->at[0], RECORD_VOLUME, "base");
	char device[64];
	snprintf(device, sizeof(device), "%s", node_volume_find(volume)->dev.path);
	cr_assert_eq(umount(target_path), 0);
	cr_assert_eq(umount(staging_path), 0);
	cr_assert_eq(delete (volume_id), GRPC_FAILED_PRECONDITION, "it is attached");
	int fd = open(device, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ioctl(fd, LOOP_CLR_FD), 0);
	close(fd);
	close_empty();
}

/* What a killed publish has left, while it is not known whose it is. */
Test(csi_misuse, a_target_is_left_and_its_pool_is_not_here, .timeout = 300)
{
	char its[RECORD_ID_MAX], uuid8[9];
	struct stat st;
	open_with_a_volume();
	struct pool *pool = pools_at(w->pools, 0);
	close(open(target_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	memcpy(its, volume_id, sizeof(its));
	memcpy(uuid8, pool->uuid8, sizeof(uuid8));
	strcpy(volume_id, "fedcba98.far.0badcafe");
	pool->uuid8[0] = '\0';
	cr_assert_eq(undo_publish(), GRPC_UNAVAILABLE);
	memcpy(pool->uuid8, uuid8, sizeof(uuid8));
	cr_assert_eq(stat(target_path, &st), 0);
	cr_assert_eq(undo_publish(), GRPC_OK, "it is no volume of ours, and no file either");
	cr_assert_eq(stat(target_path, &st), 0);
	memcpy(volume_id, its, sizeof(its));
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(stat(target_path, &st), -1);
	close_empty();
}
