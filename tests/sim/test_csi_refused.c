/* SPDX-License-Identifier: Apache-2.0 */
/* What calls of the Node service refuse, in which words, and that it changes nothing: a volume that
 * is used elsewhere or otherwise, and a path or a device that is another's. */
#include "two_places.h"

#include "backends/backend.h"
#include "backends/loop/loop.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/private.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SINGLE_WRITER = 6, MULTI_WRITER = 7 }; /* SINGLE_NODE_ both */

/* ---- published elsewhere ---- */

/* Who asks for one place alone gets it alone, and nobody gets a second one beside him. */
Test(csi_refused, a_second_place_of_a_single_writer, .timeout = 300)
{
	static const unsigned modes[][2] = {{SINGLE_WRITER, SINGLE_WRITER},
		{SINGLE_WRITER, MULTI_WRITER}, {MULTI_WRITER, SINGLE_WRITER}};
	open_with_volume(WORLD_EXT4, false);
	cr_assert_eq(do_stage(), GRPC_OK);
	for (unsigned i = 0; i < 3; i++) {
		access_mode = modes[i][0];
		says(publish_at(first_path), "%s", "");
		says(publish_at(first_path), "%s", ""); /* a repeat is no second place */
		access_mode = modes[i][1];
		says(publish_at(second_path),
			"9: volume base is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
			first_path);
		cr_expect_neq(access(second_path, F_OK), 0);
		at(first_path);
		says(asks_unpublish(), "%s", "");
	}
	access_mode = MULTI_WRITER;
	says(publish_at(first_path), "%s", "");
	says(publish_at(second_path), "%s", "");
	let_go();
}

static int no_mode(const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	(void)dev;
	(void)read_only;
	return -EIO;
}

/* It is published in neither mode then. */
static void mode_fails(void)
{
	struct backend stubborn = backend_loop;
	stubborn.set_read_only = no_mode;
	backend_remove(&backend_loop);
	backend_add(&stubborn);
	for (unsigned i = 0; i < 2; i++) {
		publish_read_only = i == 0;
		says(publish_at(first_path), "13: making %s %s: Input/output error",
			node_volume_find(volume_of("base"))->dev.path,
			i == 0 ? "read-only" : "writable");
		cr_expect_neq(access(first_path, F_OK), 0);
	}
	backend_remove(&stubborn);
	backend_add(&backend_loop);
}

Test(csi_refused, another_mode_of_a_block_device, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, true);
	says(publish_at(first_path),
		"9: volume base is not staged as a block volume; call NodeStageVolume first");
	cr_assert_eq(do_stage(), GRPC_OK);
	mode_fails();
	for (unsigned i = 0; i < 2; i++) {
		publish_read_only = i == 0;
		says(publish_at(first_path), "%s", "");
		publish_read_only = i != 0;
		says(publish_at(second_path),
			"9: block volume base is published at %s already; a device is read-only for all or for none",
			first_path);
		cr_expect_neq(access(second_path, F_OK), 0);
		cr_expect_eq(node_volume_find(volume_of("base"))->dev.read_only, i == 0);
		publish_read_only = i == 0;
		says(publish_at(second_path), "%s", "");
		says(asks_unpublish(), "%s", "");
		at(first_path);
		says(asks_unpublish(), "%s", "");
	}
	cr_assert_eq(mkdir(first_path, 0700), 0);
	says(publish_at(first_path), "3: target_path: %s exists and is not a file", first_path);
	cr_assert_eq(rmdir(first_path), 0);
	let_go();
}

/* ---- paths that are none ---- */

Test(csi_refused, a_path_inside_of_a_volume, .timeout = 300)
{
	char inside[112], link_path[112], through[128];
	open_with_volume(WORLD_EXT4, false);
	snprintf(inside, sizeof(inside), "%s/lost+found", staging_path);
	snprintf(link_path, sizeof(link_path), "%s/link", w->dir);
	snprintf(through, sizeof(through), "%s/x", link_path);
	cr_assert_eq(do_stage(), GRPC_OK);
	says(publish_at(inside),
		"3: target_path: %s lies inside the mount of volume base; give a path outside of volumes",
		inside);
	cr_assert_eq(symlink(w->dir, link_path), 0);
	says(publish_at(through), "3: %s: a component is a symbolic link, which is refused",
		through);
	cr_assert_eq(unlink(link_path), 0);
	snprintf(through, sizeof(through), "%s/none/x", w->dir);
	says(publish_at(through),
		"3: target_path: the parent directory of %s does not exist; the orchestrator has to create it",
		through);
	strcpy(through, staging_path);
	staging_path[0] = '\0';
	says(publish_at(first_path),
		"9: staging_target_path is missing; this driver needs NodeStageVolume first");
	strcpy(staging_path, "stage");
	says(publish_at(first_path), "3: staging_target_path is not an absolute path: stage");
	strcpy(staging_path, through);
	let_go();
}

/* ---- staged otherwise ---- */

Test(csi_refused, a_second_staging_path, .timeout = 300)
{
	char first[96];
	open_with_volume(WORLD_EXT4, false);
	strcpy(first, staging_path);
	cr_assert_eq(rmdir(staging_path), 0);
	says(asks_stage(),
		"3: staging_target_path: %s does not exist; the orchestrator has to create it",
		first);
	cr_assert_eq(mknod(first, S_IFREG | 0600, 0), 0);
	says(asks_stage(), "3: staging_target_path: %s is not a directory", first);
	cr_assert_eq(unlink(first), 0);
	cr_assert_eq(mkdir(first, 0700), 0);
	cr_assert_eq(mount("tmpfs", first, "tmpfs", 0, "size=64k"), 0);
	says(asks_stage(),
		"9: staging_target_path: something else is mounted at %s; unmount it first", first);
	cr_assert_eq(umount(first), 0);
	says(asks_stage(), "%s", "");
	access_read_only = true;
	says(asks_stage(), "6: volume base is staged at %s already, but writable", first);
	access_read_only = false;
	snprintf(staging_path, sizeof(staging_path), "%s/stage-2", w->dir);
	cr_assert_eq(mkdir(staging_path, 0700), 0);
	says(asks_stage(),
		"9: volume base is staged at %s already, and a volume is staged at one path only; unstage it there first",
		first);
	cr_assert_eq(rmdir(staging_path), 0);
	strcpy(staging_path, first);
	says(asks_unstage(), "%s", "");
	access_read_only = true;
	says(asks_stage(), "%s", "");
	access_read_only = false;
	says(asks_stage(), "6: volume base is staged at %s already, but read-only", first);
	says(publish_at(first_path),
		"9: volume base: its file system is read-only, it cannot be published writable");
	let_go();
}

Test(csi_refused, a_device_or_a_mode_that_is_not_had, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, true);
	backend_remove(&backend_loop);
	says(asks_stage(), "9: volume base: its device type is not available on this node");
	backend_add(&backend_loop);
	block = false;
	says(asks_stage(),
		"9: volume base was made as a block volume and cannot be used as a mount volume, as its class did not say allowVolumeModeChange: \"true\" when it was made");
	volume_of("base")->rec->allow_mode_change = true;
	block = true;
	volume_of("base")->image = POOL_IMAGE_TRUNCATED;
	says(asks_stage(), "15: volume base: its image is shorter than its record says");
	no_device();
	volume_of("base")->image = POOL_IMAGE_WHOLE;
	cr_assert_eq(do_stage(), GRPC_OK);
	says(publish_at(first_path), "%s", "");
	block = false;
	says(asks_stage(),
		"9: volume base is in use as a block volume at %s and cannot be a mount volume meanwhile; unpublish and unstage it there first",
		first_path);
	volume_of("base")->rec->allow_mode_change = false;
	block = true;
	let_go();
}

/* ---- what is released is another's ---- */

static void is_strange(const char *got, const char *field, const char *path, const char *rest)
{
	struct stat st;
	cr_assert_eq(stat(path, &st), 0);
	says(got, "9: %s: what is mounted at %s (device %u:%u) is %s", field, path,
		major(st.st_dev), minor(st.st_dev), rest);
	cr_expect_eq(stat(path, &st), 0);
}

#define SILENT_OWNER "13: node owner: scan devices: Input/output error"

Test(csi_refused, what_is_mounted_there_is_not_the_volumes, .timeout = 300)
{
	char rest[400], its[RECORD_ID_MAX];
	open_with_volume(WORLD_EXT4, false);
	cr_assert_eq(mkdir(first_path, 0700), 0);
	cr_assert_eq(mount("tmpfs", first_path, "tmpfs", 0, "size=64k"), 0);
	snprintf(rest, sizeof(rest),
		"not volume %s; it is not touched, unmount it by hand if it should go", volume_id);
	is_strange(asks_unpublish(), "target_path", first_path, rest);
	/* Nobody knows this one: then its path says nothing of it. */
	memcpy(its, volume_id, sizeof(its));
	strcpy(volume_id, "nonsense");
	says(asks_unpublish(), "%s", "");
	memcpy(volume_id, its, sizeof(its));
	cr_assert_eq(umount(first_path), 0);
	cr_assert_eq(rmdir(first_path), 0);
	/* Another volume is staged and published there. */
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	take_id(asks_create("other", EMPTY), "volume_id", volume_id);
	snprintf(rest, sizeof(rest),
		"volume base's, not volume %s's; it is not touched, call with the id of that volume if it should go",
		volume_id);
	is_strange(asks_unpublish(), "target_path", first_path, rest);
	is_strange(asks_unstage(), "staging_target_path", staging_path, rest);
	/* Nor is it touched while nobody can tell whose it is. */
	says(while_silent("node owner", asks_unpublish), SILENT_OWNER);
	says(while_silent("node owner", asks_unstage), SILENT_OWNER);
	is_strange(asks_unpublish(), "target_path", first_path, rest);
	is_strange(asks_unstage(), "staging_target_path", staging_path, rest);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	memcpy(volume_id, its, sizeof(its));
	let_go();
}

static int unmount_is_busy(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return -EBUSY;
}

Test(csi_refused, what_is_still_published, .timeout = 300)
{
	open_with_volume(WORLD_EXT4, false);
	cr_assert_eq(do_stage(), GRPC_OK);
	says(publish_at(first_path), "%s", "");
	says(asks_unstage(), "9: volume %s is still published at %s; unpublish it first", volume_id,
		first_path);
	at(staging_path);
	says(asks_unpublish(),
		"9: target_path: volume %s is staged at %s, and still published at %s; unpublish it there, then unstage it",
		volume_id, staging_path, first_path);
	at(first_path);
	/* Those that look at it do so by themselves for a while, as it may be they. */
	uint64_t began_ns = ring_now_ns(w->reactor.ring);
	w->calls[MNT_UNMOUNT] = unmount_is_busy;
	says(asks_unpublish(),
		"9: target_path: %s is in use: a process has files open or its working directory there",
		first_path);
	w->calls[MNT_UNMOUNT] = mnt_calls[MNT_UNMOUNT];
	const uint64_t alone_ns = NODE_ALONE_MS * UINT64_C(1000000);
	uint64_t until_ns = node_volume_find(volume_of("base"))->alone_until_ns;
	cr_expect_geq(until_ns, began_ns + alone_ns);
	cr_expect_leq(until_ns, ring_now_ns(w->reactor.ring) + alone_ns);
	says(asks_unpublish(), "%s", "");
	Csi__V1__NodeGetVolumeStatsRequest req = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(first_path);
	says(ASK("Node", NodeGetVolumeStats, node_get_volume_stats),
		"5: volume base is not at volume_path %s", first_path);
	req.volume_path = csi_bytes("target");
	says(ASK("Node", NodeGetVolumeStats, node_get_volume_stats),
		"5: volume base is not there: volume_path is not an absolute path: target");
	let_go();
}

/* ---- a device that somebody has ---- */

static pid_t holder;
static char device[64];

/* As a tool of an earlier run has it. */
static int mount_is_held(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_mount_req *mount = req;
	int ready[2];
	char c;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	snprintf(device, sizeof(device), "%.60s", mount->device);
	cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
	holder = fork();
	if (holder == 0) {
		int fd = open(device, O_RDONLY | O_CLOEXEC);
		_exit(fd >= 0 && write(ready[1], "", 1) == 1 && pause() < 0);
	}
	close(ready[1]);
	cr_assert_eq(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return -EBUSY;
}

static int mount_is_busy(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_mount_req *mount = req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	snprintf(device, sizeof(device), "%.60s", mount->device);
	return -EBUSY;
}

static int no_look(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	return strcmp(step_name, "probe") == 0 ? -EIO : 0;
}

static int no_job(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	return strcmp(step_name, "mount") == 0 ? -ENOENT : 0;
}

Test(csi_refused, a_device_that_a_tool_has, .timeout = 300)
{
	char begins[128];
	open_with_volume(WORLD_EXT4, false);
	w->calls[MNT_MOUNT] = mount_is_held;
	const char *told = asks_stage();
	snprintf(begins, sizeof(begins), "10: volume base: %s is in use by ", device);
	cr_expect_eq(strncmp(told, begins, strlen(begins)), 0, "%s", told);
	cr_expect_not_null(
		strstr(told, "), perhaps a tool of an earlier run; try again when it has ended"),
		"%s", told);
	cr_assert_gt(holder, 0);
	cr_assert_eq(kill(holder, SIGKILL), 0);
	cr_assert_eq(waitpid(holder, NULL, 0), holder);
	w->calls[MNT_MOUNT] = mount_is_busy;
	int (*hook)(void *, const char *, const char *) = w->observer.before_call;
	w->observer.before_call = no_job;
	told = asks_stage();
	says(told,
		"10: volume base: %s is in use by somebody who is not seen from here (fuser -v %s on the node); try again later",
		device, device);
	w->observer.before_call = hook;
	w->calls[MNT_MOUNT] = mnt_calls[MNT_MOUNT];
	no_device();
	says(asks_stage(), "%s", "");
	let_go();
}

/* ---- what the image holds ---- */

#define EXT4  "mkfs.ext4 -q -F -b 4096 -O ^metadata_csum $i 16M"
#define BTRFS "mkfs.btrfs -q -f $i"
#define SWAP  "mkswap -f $i"
/* The superblock of one beside that of the other. */
#define BOTH                                                                                       \
	EXT4 "; sb=$(dd if=$i bs=1k skip=1 count=1 | base64 -w0); " BTRFS                          \
	     "; echo $sb | base64 -d | dd of=$i bs=1k seek=1 conv=notrunc"
#define MORE     "printf '\\1' | dd of=$i bs=1 seek=1252 conv=notrunc" /* s_journal_dev */
#define RESTORE  "restore it from a snapshot or delete it"
#define AS_BLOCK "9: volume base was made as a block volume and "

/* Nothing is attached, formatted or mounted because of any of it. */
Test(csi_refused, what_is_no_file_system_of_its_kind, .timeout = 300)
{
	static const struct {
		const char *holds, *asked, *flag;
		enum fsimg_type recorded;
		const char *words;
	} table[] = {
		{":", "ext4", NULL, FSIMG_NONE,
			AS_BLOCK
			"holds no file system, not ext4; what is to be mounted has to be written to it first"},
		{":", "", NULL, FSIMG_NONE,
			AS_BLOCK
			"holds no file system, not ext4, xfs or btrfs; what is to be mounted has to be written to it first"},
		{SWAP, "", NULL, FSIMG_NONE,
			AS_BLOCK
			"holds swap, not ext4, xfs or btrfs; what is to be mounted has to be written to it first"},
		{EXT4, "xfs", NULL, FSIMG_NONE,
			AS_BLOCK
			"holds ext4, not xfs; what is to be mounted has to be written to it first"},
		{EXT4 "; " MORE, "", NULL, FSIMG_NONE,
			AS_BLOCK "is not mounted: its file system needs another device besides"},
		{BOTH, "", NULL, FSIMG_NONE,
			"15: volume base: its image holds contradicting signatures; nothing is touched, look at it with blkid"},
		{BTRFS, "", "data=ordered", FSIMG_NONE,
			"3: mount_flags: flag 1 is not allowed for btrfs"},
		{":", "ext4", NULL, FSIMG_EXT4,
			"15: volume base: its record says ext4, its image holds no file system; nothing is formatted, " RESTORE},
		{BTRFS, "ext4", NULL, FSIMG_EXT4,
			"15: volume base: its record says ext4, its image holds btrfs; nothing is formatted, " RESTORE},
		{EXT4 "; " MORE, "ext4", NULL, FSIMG_EXT4,
			"15: volume base: its file system needs another device besides; nothing is mounted, " RESTORE},
	};
	create_bytes = 16 * MIB;
	open_with_volume(WORLD_XFS, true);
	struct record *rec = volume_of("base")->rec;
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	cr_assert_eq(truncate(image, 128 * MIB), 0); /* btrfs needs that */
	rec->allow_mode_change = true;
	block = false;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		fill_image(table[i].holds);
		rec->fs = table[i].recorded;
		fs_type = table[i].asked;
		mount_flag = table[i].flag;
		says(asks_stage(), "%s", table[i].words);
		no_device();
	}
	rec->fs = FSIMG_NONE;
	mount_flag = NULL;
	fill_image(EXT4);
	w->observer.before_call = no_look;
	says(asks_stage(), "13: volume base: reading its image: Input/output error");
	w->observer.before_call = NULL;
	no_device();
	says(asks_stage(), "%s", "");
	let_go();
}

/* ---- a check before the mount ---- */

Test(csi_refused, a_file_system_that_needs_a_check, .timeout = 300)
{
	static const struct {
		int status;
		const char *words;
	} table[] = {
		{-1, "9: volume base needs a check and e2fsck is not installed (package e2fsprogs)"},
		{4, "15: volume base: e2fsck could not mend its file system (exit 4); run it by hand on the image"},
		{8, "15: volume base: e2fsck could not mend its file system (exit 8); run it by hand on the image"},
	};
	char script[16];
	open_with_volume(WORLD_XFS, true);
	volume_of("base")->rec->allow_mode_change = true;
	block = false;
	fill_image(EXT4 "; printf '\\3' | dd of=$i bs=1 seek=1082 conv=notrunc"); /* s_state */
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		snprintf(script, sizeof(script), "exit %d", table[i].status);
		put_tool("e2fsck", table[i].status < 0 ? NULL : script);
		tools_alone(true);
		says(asks_stage(), "%s", table[i].words);
		tools_alone(false);
		no_device();
	}
	says(asks_stage(), "%s", ""); /* the real one mends it */
	let_go();
}
