/* SPDX-License-Identifier: Apache-2.0 */
/* NodeStageVolume and what comes after it, of volumes that something happened to behind our back,
 * and with tools that end otherwise than they should. */
#include "two_places.h"

#include "backends/backend.h"
#include "backends/loop/loop.h"
#include "node/volume.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool grows_online;

bool __wrap_mnt_can_grow_ext4(void);
bool __wrap_mnt_can_grow_ext4(void)
{
	return grows_online;
}

static enum mnt_call refused_call;
static int refused_with; /* -errno of that call; 0: none is refused */

int __wrap_op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	if (refused_with < 0 && fn == refused_call)
		return refused_with;
	return __real_op_helper(op, fn, key, req, req_len, resp, resp_cap, timeout_ms);
}

/* ---- the kernel does not say ---- */

static unsigned mounts_known(void)
{
	const struct node_volume *node = node_volume_find(volume_of("base"));
	unsigned count = 0;
	if (node != NULL)
		list_for_each (link, &node->mounts)
			count++;
	return count;
}

/* What is not known to be free is not taken for free. */
Test(csi_stage, where_else_it_is_used_is_not_said, .timeout = 300)
{
	char first[96];
	open_with_volume(WORLD_EXT4, false);
	strcpy(first, staging_path);
	says(asks_stage(), "%s", "");
	snprintf(staging_path, sizeof(staging_path), "%s/stage-2", w->dir);
	cr_assert_eq(mkdir(staging_path, 0700), 0);
	says(while_silent("node others", asks_stage), SILENT_MOUNTS);
	cr_expect_eq(mounts_known(), 1);
	/* Unmounted behind our back, it can be staged elsewhere. */
	cr_assert_eq(umount(first), 0);
	says(while_silent("node others", asks_stage), SILENT_MOUNTS);
	cr_expect_eq(mounts_known(), 1);
	says(asks_stage(), "%s", "");
	cr_expect_eq(mounts_known(), 1);
	cr_expect_not_null(node_volume_mount_at(node_volume_find(volume_of("base")), staging_path));
	says(asks_unstage(), "%s", "");
	cr_assert_eq(rmdir(staging_path), 0);
	close_unused();
}

#define EXT4 "mkfs.ext4 -q -F -b 4096 -O ^metadata_csum $i 16M"

static void unpublished_by_hand(const char *path)
{
	cr_assert_eq(umount(path), 0);
	cr_assert_eq(unlink(path), 0);
}

/* A volume that is used in no mode any more may be used in the other one. */
Test(csi_stage, the_other_mode_after_an_unmount_by_hand, .timeout = 300)
{
	open_with_volume(WORLD_XFS, true);
	volume_of("base")->rec->allow_mode_change = true;
	fill_image(EXT4);
	says(asks_stage(), "%s", "");
	says(publish_at(second_path), "%s", "");
	says(publish_at(first_path), "%s", "");
	cr_expect_eq(mounts_known(), 2);
	unpublished_by_hand(second_path);
	block = false;
	says(asks_stage(),
		"9: volume base is in use as a block volume at %s and cannot be a mount volume meanwhile; unpublish and unstage it there first",
		first_path);
	cr_expect_eq(mounts_known(), 2);
	unpublished_by_hand(first_path);
	says(while_silent("node others", asks_stage), SILENT_MOUNTS);
	cr_expect_eq(mounts_known(), 2);
	says(asks_stage(), "%s", "");
	cr_expect_eq(mounts_known(), 1);
	cr_expect_not_null(node_volume_mount_at(node_volume_find(volume_of("base")), staging_path));
	let_go();
}

/* ---- tools of an earlier run ---- */

static int held = -1;
static unsigned looks, looks_until_free;

/* On a work thread. */
static int counts_looks(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	if (strcmp(step_name, "wait for tools") != 0)
		return 0;
	if (++looks == looks_until_free) {
		close(held);
		held = -1;
	}
	return 0;
}

/* A device of an earlier run, which somebody has for itself. */
static void hold_device(void)
{
	looks = 0;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(umount(staging_path), 0);
	world_restart(w);
	world_settle(w);
	cr_assert_eq(mounts_known(), 0);
	held = open(node_volume_find(volume_of("base"))->dev.path, O_RDONLY | O_EXCL | O_CLOEXEC);
	cr_assert_geq(held, 0);
}

Test(csi_stage, a_tool_that_ends, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, false);
	hold_device();
	int (*hook)(void *, const char *, const char *) = w->observer.before_call;
	w->observer.before_call = counts_looks;
	looks_until_free = 5;
	says(asks_stage(), "%s", "");
	cr_expect_eq(looks, 5);
	/* Mounted, it is the file system's. */
	says(asks_stage(), "%s", "");
	cr_expect_eq(looks, 5);
	w->observer.before_call = hook;
	let_go();
}

/* Whoever has it for longer is told of. */
Test(csi_stage, a_tool_that_does_not_end, .timeout = 300)
{
	char begins[128];
	open_with_volume(WORLD_EXT4, false);
	hold_device();
	int (*hook)(void *, const char *, const char *) = w->observer.before_call;
	w->observer.before_call = counts_looks;
	looks_until_free = UINT32_MAX;
	uint64_t began_ns = ring_now_ns(w->reactor.ring);
	const char *told = asks_stage();
	snprintf(begins, sizeof(begins), "10: volume base: %s is in use by ",
		node_volume_find(volume_of("base"))->dev.path);
	cr_expect_eq(strncmp(told, begins, strlen(begins)), 0, "%s", told);
	cr_expect_eq(looks, 61, "60 pauses of 50 ms");
	cr_expect_geq(ring_now_ns(w->reactor.ring) - began_ns, 3 * UINT64_C(1000000000));
	w->observer.before_call = hook;
	close(held);
	says(asks_stage(), "%s", "");
	let_go();
}

/* ---- tools that end badly ---- */

static const char *device_of_volume(void)
{
	const struct node_volume *node = node_volume_find(volume_of("base"));
	return node != NULL ? node->dev.path : "";
}

/* What was said of a device, with its name replaced. */
static const char *without_device(const char *told)
{
	static char text[1024];
	const char *at = strstr(told, "/dev/");
	if (at == NULL)
		return told;
	snprintf(text, sizeof(text), "%.*sDEVICE%s", (int)(at - told), told,
		at + strcspn(at, ":; "));
	return text;
}

Test(csi_stage, a_check_that_cannot_be_run, .timeout = 300)
{
	char path[128];
	open_with_volume(WORLD_XFS, true);
	volume_of("base")->rec->allow_mode_change = true;
	block = false;
	fill_image(EXT4 "; printf '\\3' | dd of=$i bs=1 seek=1082 conv=notrunc"); /* s_state */
	put_tool("e2fsck", "exit 0");
	snprintf(path, sizeof(path), "%s/tools/e2fsck", w->dir);
	cr_assert_eq(chmod(path, 0600), 0);
	tools_alone(true);
	says(without_device(asks_stage()), "13: volume base: e2fsck on DEVICE: Permission denied");
	tools_alone(false);
	no_device();
	says(asks_stage(), "%s", "");
	let_go();
}

/* Where ext4 does not grow while it is mounted. */
Test(csi_stage, a_growth_before_the_mount, .timeout = 300)
{
	static const struct {
		const char *script, *want;
		bool runs;
	} table[] = {
		{"echo it is no good; exit 3",
			"13: volume base: resize2fs failed (exit 3): it is no good\n", true},
		{"exit 0", "13: volume base: resize2fs: Permission denied", false},
	};
	char path[128], check[200];
	open_with_volume(WORLD_EXT4, false);
	cr_assert_eq(expand(20 * MIB), GRPC_OK);
	snprintf(check, sizeof(check), "echo \"$@\" >%s/checked", w->dir);
	put_tool("e2fsck", check);
	for (unsigned i = 0; i < 2; i++) {
		put_tool("resize2fs", table[i].script);
		snprintf(path, sizeof(path), "%s/tools/resize2fs", w->dir);
		cr_assert_eq(chmod(path, table[i].runs ? 0700 : 0600), 0);
		tools_alone(true);
		says(asks_stage(), "%s", table[i].want);
		tools_alone(false);
		no_device();
		/* resize2fs insists on a full one. */
		snprintf(path, sizeof(path), "grep -q '^-p -f /dev/[^ ]*$' %s/checked", w->dir);
		cr_expect_eq(system(path), 0);
	}
	snprintf(path, sizeof(path), "%s/checked", w->dir);
	cr_assert_eq(unlink(path), 0);
	says(asks_stage(), "%s", "");
	cr_expect_eq(node_volume_find(volume_of("base"))->fitted_bytes, 20 * MIB);
	let_go();
}

/* ---- no helper is to be had ---- */

static void no_helper(enum mnt_call call, const char *(*asks)(void))
{
	refused_call = call;
	refused_with = -EAGAIN;
	says(asks(), "8: too many calls wait for a helper process");
	refused_with = -EIO;
	says(asks(), "13: volume %s: helper process: Input/output error", volume_id);
	refused_with = 0;
}

Test(csi_stage, too_many_calls_wait, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, false);
	no_helper(MNT_INSPECT, asks_stage);
	no_helper(MNT_MOUNT, asks_stage);
	no_device();
	says(asks_stage(), "%s", "");
	no_helper(MNT_BIND, asks_publish);
	cr_expect_neq(access(target_path, F_OK), 0);
	says(asks_publish(), "%s", "");
	refused_call = MNT_STATS;
	refused_with = -EAGAIN;
	says(asks_stats(), "8: too many calls wait for a helper process");
	refused_with = 0;
	cr_expect_eq(do_stats(), GRPC_OK);
	no_helper(MNT_UNMOUNT, asks_unpublish);
	cr_expect_eq(mounts_known(), 2);
	let_go();
}

/* ---- a copy of a btrfs ---- */

static int mount_res;
static char mount_device[64];

static int mount_fails(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_mount_req *mount = req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	snprintf(mount_device, sizeof(mount_device), "%.60s", mount->device);
	return mount_res;
}

static void uuid_in_image(uint8_t uuid[16])
{
	enum { BTRFS_FSID = 65536 + 32 };
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pread(fd, uuid, 16, BTRFS_FSID), 16);
	close(fd);
}

/* It gets an id of its own before it is mounted, so that it can be mounted beside its source. */
Test(csi_stage, a_btrfs_gets_its_own_id, .timeout = 300)
{
	uint8_t was[16], want[16], is[16];
	char image[128];
	open_with_volume(WORLD_XFS, false);
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	cr_assert_eq(truncate(image, 128 * MIB), 0);
	volume_of("base")->rec->size_bytes = 128 * MIB;
	volume_of("base")->rec->fs = FSIMG_BTRFS;
	fs_type = "btrfs";
	fill_image("mkfs.btrfs -q -f $i");
	uuid_in_image(was);
	fsimg_uuid_of(volume_id, want);
	cr_assert_neq(memcmp(was, want, 16), 0);
	w->calls[MNT_MOUNT] = mount_fails;
	mount_res = -EEXIST;
	says(asks_stage(),
		"9: volume base: a copy of this btrfs is mounted, and this kernel cannot mount both (6.7 and newer can): unstage that one first");
	no_device();
	cr_expect_eq(strncmp(mount_device, "/dev/", 5), 0);
	uuid_in_image(is);
	cr_expect_eq(memcmp(is, want, 16), 0);
	/* Which it has then: nothing is changed again. */
	put_tool("btrfstune", "exit 1");
	tools_alone(true);
	mount_res = -EIO;
	cr_expect_eq(strncmp(asks_stage(), "13: mount of ", 13), 0);
	tools_alone(false);
	uuid_in_image(is);
	cr_expect_eq(memcmp(is, want, 16), 0);
	w->calls[MNT_MOUNT] = mnt_calls[MNT_MOUNT];
	volume_of("base")->rec->size_bytes = 16 * MIB;
	close_unused();
}

/* What is no btrfs keeps the one it has, if it is another's, too. */
Test(csi_stage, an_ext4_keeps_its_id, .timeout = 300)
{
	char script[128], ran[112];
	open_with_volume(WORLD_XFS, true);
	volume_of("base")->rec->allow_mode_change = true;
	block = false;
	fill_image(EXT4);
	snprintf(ran, sizeof(ran), "%s/ran", w->dir);
	snprintf(script, sizeof(script), ": >%s", ran);
	put_tool("btrfstune", script);
	tools_alone(true);
	says(asks_stage(), "%s", "");
	tools_alone(false);
	cr_expect_neq(access(ran, F_OK), 0);
	let_go();
}

/* ---- publishes without staging ---- */

Test(csi_stage, a_mount_at_the_target, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, false);
	w->calls[MNT_MOUNT] = mount_fails;
	mount_res = -ENOENT;
	says(asks_stage(), "13: mount of %s: No such file or directory", staging_path);
	w->csi->config.staging = false;
	says(publish_at(first_path),
		"3: target_path: the parent directory of %s does not exist; the orchestrator has to create it",
		first_path);
	no_device();
	w->calls[MNT_MOUNT] = mnt_calls[MNT_MOUNT];
	says(publish_at(first_path), "%s", "");
	/* Made read-only behind our back: no writer gets a place in it, a reader does. */
	cr_assert_eq(mount(NULL, first_path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0, "%m");
	says(publish_at(second_path),
		"9: volume base: its file system is read-only, it cannot be published writable");
	cr_expect_neq(access(second_path, F_OK), 0);
	publish_read_only = true;
	says(publish_at(second_path), "%s", "");
	publish_read_only = false;
	cr_assert_eq(undo_publish(), GRPC_OK);
	snprintf(target_path, sizeof(target_path), "%s", first_path);
	cr_assert_eq(undo_publish(), GRPC_OK);
	w->csi->config.staging = true;
	close_unused();
}

/* ---- a mount that was found is not grown ---- */

Test(csi_stage, a_growth_that_is_not_allowed, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, false);
	grows_online = true;
	cr_assert_eq(expand(20 * MIB), GRPC_OK);
	/* mount_fails() is any call that fails. */
	w->calls[MNT_GROW] = mount_fails;
	mount_res = -EPERM;
	says(asks_stage(), "13: growth of %s: Operation not permitted", staging_path);
	cr_expect_eq(mounts_known(), 1, "the mount stays");
	mount_res = -EIO;
	says(asks_stage(), "13: growth of %s: Input/output error", staging_path);
	mount_res = -EPERM;
	says(asks_stage(), "%s", ""); /* NodeExpandVolume says so */
	w->calls[MNT_GROW] = mnt_calls[MNT_GROW];
	cr_assert_eq(undo_stage(), GRPC_OK);
	grows_online = false;
	says(asks_stage(), "%s", "");
	let_go();
}

/* ---- it is not known yet what there is of earlier runs ---- */

#define LOOKED_FOR                                                                                 \
	"14: volume base: devices of an earlier run are still being looked for; try again"

Test(csi_stage, too_early, .timeout = 300)
{
	open_with_volume(WORLD_XFS, true);
	w->scan_faults = 1;
	world_restart(w);
	says(asks_stage(), "%s", ""); /* it has one mode alone */
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_settle(w);
	volume_of("base")->rec->allow_mode_change = true;
	says(asks_stage(), "%s", "");
	w->scan_faults = 1;
	world_restart(w);
	volume_of("base")->rec->allow_mode_change = true;
	says(asks_stage(), LOOKED_FOR);
	cr_expect_null(node_volume_find(volume_of("base")));
	world_settle(w);
	says(asks_stage(), "%s", "");
	volume_of("base")->rec->allow_mode_change = false;
	w->scan_faults = 1;
	world_restart(w);
	w->csi->config.staging = false;
	says(publish_at(first_path), LOOKED_FOR);
	cr_expect_neq(access(first_path, F_OK), 0);
	world_settle(w);
	says(publish_at(first_path), "%s", "");
	let_go();
}

/* ---- what the volume is not for ---- */

Test(csi_stage, an_access_that_is_not_had, .timeout = 300)
{
	static const struct {
		unsigned mode;
		const char *name;
	} modes[] = {{3, "MULTI_NODE_READER_ONLY (ReadOnlyMany)"},
		{5, "MULTI_NODE_MULTI_WRITER (ReadWriteMany)"}};
	open_with_volume(WORLD_EXT4, false);
	for (unsigned i = 0; i < 4; i++) {
		access_mode = modes[i / 2].mode;
		says(i % 2 == 0 ? asks_stage() : publish_at(first_path),
			"3: volume_capability: access_mode %s cannot be served, a volume lives on one node; ask for a SINGLE_NODE mode (ReadWriteOnce), or, with --attach, for a class with attach: remote",
			modes[i / 2].name);
	}
	access_mode = 0;
	mount_flag = "data=nonsense,";
	says(asks_stage(), "3: mount_flags: flag 1 is not allowed for ext4");
	mount_flag = NULL;
	no_device();
	says(asks_stage(), "%s", "");
	let_go();
}

/* ---- devices of earlier versions, and that were taken away ---- */

static bool is_bare;

static int attach_bare_job(void *arg)
{
	struct backend_req *req = arg;
	int r = backend_loop.attach_call(req);
	req->dev.bare = is_bare;
	return r;
}

static int attach_bare(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, attach_bare_job, req);
}

Test(csi_stage, a_loop_node_is_not_published_again, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, true);
	struct backend earlier = backend_loop;
	earlier.attach = attach_bare;
	backend_remove(&backend_loop);
	backend_add(&earlier);
	says(asks_stage(), "%s", "");
	says(publish_at(first_path), "%s", "");
	is_bare = true;
	says(publish_at(first_path), "%s", ""); /* it is there */
	for (unsigned i = 0; i < 2; i++) {
		says(publish_at(second_path),
			"9: volume base: its loop node %s is published elsewhere, by an earlier version, and loop nodes are not published any more: delete the pods that have it, so that it is unstaged and staged again",
			device_of_volume());
		/* Whether there is a file for it already or not. */
		cr_assert(i == 0 ? mknod(second_path, S_IFREG | 0600, 0) == 0
				 : unlink(second_path) == 0);
	}
	is_bare = false;
	says(publish_at(second_path), "%s", "");
	let_go();
	backend_remove(&earlier);
	backend_add(&backend_loop);
}

static void take_device_away(void)
{
	char line[128];
	snprintf(line, sizeof(line), "losetup -d %s", device_of_volume());
	cr_assert_eq(system(line), 0);
}

Test(csi_stage, a_volume_whose_device_was_taken_away_is_not_deleted, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, true);
	says(asks_stage(), "%s", "");
	says(while_silent("node owner", asks_delete),
		"13: node owner: scan devices: Input/output error");
	says(asks_delete(), "9: volume base is in use: attached as %s; unstage it first",
		device_of_volume());
	says(publish_at(second_path), "%s", "");
	says(publish_at(first_path), "%s", "");
	take_device_away();
	for (unsigned i = 0; i < 2; i++) {
		says(asks_delete(),
			"9: volume base is in use: its device was taken away, and is still published at %s; unpublish and unstage it first",
			i == 0 ? second_path : first_path);
		says(while_silent("node others", asks_delete), SILENT_MOUNTS);
		cr_expect_eq(access(i == 0 ? second_path : first_path, F_OK), 0);
		unpublished_by_hand(i == 0 ? second_path : first_path);
	}
	says(asks_delete(), "%s", "");
	cr_expect_null(pools_find_name(w->pools, RECORD_VOLUME, "base"));
	no_device();
	world_close(w);
}
