/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted volumes, but for the cipher (fake_crypt.h): they are made without a file system, and
 * get it, at their first stage, by an exchange of two images; every step of that fails once.
 */
#include "answers.h"
#include "csi_calls.h"
#include "fake_crypt.h"

#include "backends/backend.h"
#include "base/secret.h"
#include "blockio/luks_room.h"
#include "csi/messages.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/room.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static const char right_key[] = "correct horse battery staple";

static void open_crypt_world(enum world_fs fs, bool as_block)
{
	open_world(fs, 1, as_block);
	fake_crypt_use();
	encryption = "luks2";
	stage_key = right_key;
}

static struct pool_object *object_of(const char *id)
{
	struct pool_object *volume = NULL;
	struct err err = {0};
	cr_assert_eq(
		pools_find_id(w->pools, RECORD_VOLUME, id, &volume, &err), 0, "%s", err.message);
	return volume;
}

static struct stat image_of(const char *dir, const char *key)
{
	char path[256];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s/%s", w->pool_path, dir, key);
	cr_assert_eq(stat(path, &st), 0, "%s", path);
	return st;
}

/* What the disk says, and memory with it. */
static bool is_unformatted(const char *id)
{
	char path[256], text[RECORD_BYTES_MAX + 1] = "";
	const struct pool_object *volume = object_of(id);
	struct stat st = image_of("volumes", volume->key);
	cr_assert_eq(st.st_ino, volume->image_ino);
	cr_assert_eq((uint64_t)st.st_size, record_image_bytes(volume->rec));
	snprintf(path, sizeof(path), "%s/volumes/%s", w->pool_path, volume->key);
	cr_assert_gt(getxattr(path, "trusted.ringvol", text, RECORD_BYTES_MAX), 0);
	cr_assert_not_null(strstr(text, "\nencryption=luks2\n"));
	bool unformatted = strstr(text, "\nunformatted=true\n") != NULL;
	cr_assert_eq(unformatted, volume->rec->unformatted);
	return unformatted;
}

static unsigned trash_count(void)
{
	char path[128];
	unsigned count = 0;
	snprintf(path, sizeof(path), "%s/trash", w->pool_path);
	DIR *dir = opendir(path);
	cr_assert_not_null(dir);
	for (const struct dirent *entry; (entry = readdir(dir)) != NULL;)
		count += entry->d_name[0] != '.';
	closedir(dir);
	return count;
}

static unsigned devices(void)
{
	return fake_crypt_count(pool_uuid8(pools_at(w->pools, 0)));
}

/* A device that was let go lives on for a moment. */
static unsigned devices_left(void)
{
	unsigned left = devices();
	for (int i = 0; left != 0 && i < 100; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		left = devices();
	}
	return left;
}

static void write_mark(const char *path, const char *text)
{
	char file[128];
	snprintf(file, sizeof(file), "%s/mark", path);
	FILE *f = fopen(file, "w");
	cr_assert_not_null(f, "%s", file);
	cr_assert_geq(fputs(text, f), 0);
	cr_assert_eq(fclose(f), 0);
}

static void has_mark(const char *path, const char *text)
{
	char file[128], got[64] = "";
	snprintf(file, sizeof(file), "%s/mark", path);
	FILE *f = fopen(file, "r");
	cr_assert_not_null(f, "%s", file);
	cr_assert_not_null(fgets(got, sizeof(got), f));
	fclose(f);
	cr_assert_str_eq(got, text);
}

static uint64_t device_bytes(const char *id)
{
	return node_volume_find(object_of(id))->dev.size_bytes;
}

static enum grpc_status stage_with(const char *key)
{
	stage_key = key;
	enum grpc_status status = do_stage();
	stage_key = right_key;
	return status;
}

static void life(const char *type, uint64_t size)
{
	fs_type = type;
	create_bytes = size;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK, "the same once more");
	cr_assert(is_unformatted(volume_id));
	uint64_t before = object_of(volume_id)->image_ino;
	cr_assert_eq(stage_with(NULL), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(stage_with(""), GRPC_INVALID_ARGUMENT);
	cr_assert(is_unformatted(volume_id));
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_not(is_unformatted(volume_id));
	cr_assert_neq(object_of(volume_id)->image_ino, before);
	cr_assert_eq(device_bytes(volume_id), size, "the size asked is the size had: %llu",
		(unsigned long long)device_bytes(volume_id));
	cr_assert_eq(do_stage(), GRPC_OK, "what is staged is found");
	world_settle(w);
	cr_assert_eq(trash_count(), 0);
	if (!block)
		write_mark(staging_path, "kept");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(devices_left(), 0);

	cr_assert_eq(stage_with("another"), GRPC_UNAUTHENTICATED);
	cr_assert_eq(devices_left(), 0);
	cr_assert_eq(do_stage(), GRPC_OK);
	if (!block)
		has_mark(staging_path, "kept");
	cr_assert_eq(do_publish(), GRPC_OK);
	/* A live device stays, whatever key comes. */
	cr_assert_eq(stage_with("another"), GRPC_OK);
	cr_assert_eq(devices(), 1);
	cr_assert_eq(do_stats(), GRPC_OK);
	char total[48];
	snprintf(total, sizeof(total), " total=%llu ", (unsigned long long)size);
	const char *told = asks_stats();
	cr_expect(!block || strstr(told, total) != NULL, "without its header: %s", told);

	/* A driver that starts has no key, and needs none for what is there. */
	world_restart(w);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(devices_left(), 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_settle(w);
	cr_assert_eq(trash_count(), 0);
}

Test(encrypted, life_of_ext4, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	life("ext4", 32 * MIB);
	world_close(w);
}

Test(encrypted, life_of_xfs_without_reflink, .timeout = 300)
{
	open_crypt_world(WORLD_EXT4, false);
	life("xfs", 300 * MIB);
	world_close(w);
}

Test(encrypted, life_of_btrfs, .timeout = 300)
{
	open_crypt_world(WORLD_EXT4, false);
	life("btrfs", 256 * MIB);
	world_close(w);
}

Test(encrypted, life_of_a_block_volume, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, true);
	life("ext4", 32 * MIB);
	world_close(w);
}

Test(encrypted, life_of_a_thick_volume, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	provisioning = "thick";
	life("ext4", 64 * MIB);
	world_close(w);
}

/* A publish without staging is what opens it: it needs the key that a stage would. */
Test(encrypted, published_without_staging, .timeout = 300)
{
	struct world_answer answer;
	Csi__V1__StringPair key = CSI__V1__STRING_PAIR__INIT, *secrets[1] = {&key};
	open_crypt_world(WORLD_XFS, false);
	w->csi->config.staging = false;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	for (unsigned i = 0; i < 2; i++) {
		Csi__V1__NodePublishVolumeRequest req = publish_request();
		key.key = csi_bytes(i == 0 ? "lock" : "key");
		key.value = csi_bytes(right_key);
		req.secrets = secrets;
		req.n_secrets = 1;
		enum grpc_status status = call("Node/NodePublishVolume", &req.base, &answer);
		cr_expect_eq(status, i == 0 ? GRPC_INVALID_ARGUMENT : GRPC_OK, "%d: %s", status,
			answer.message);
		if (i == 0)
			cr_expect_not_null(
				strstr(answer.message, "node-publish"), "%s", answer.message);
		world_answer_free(&answer);
		cr_expect_eq(devices(), i);
		cr_expect_eq(is_unformatted(volume_id), i == 0);
	}
	write_mark(target_path, "kept");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(devices_left(), 0);
	w->csi->config.staging = true;
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- every step of the first stage ---- */

/* Whatever fails, the volume has one image, which is either the old one or the new, whole; and what
 * the retry makes of it works. */
static void fail_first_stage(bool as_block)
{
	enum { STEPS_MAX = 120 };
	unsigned n = 0, formatted = 0, refused = 0;
	for (bool hit = true; hit; n++) {
		cr_assert_lt(n, STEPS_MAX);
		cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
		cr_assert(is_unformatted(volume_id));
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = do_stage();
		w->fault_after = -1;
		hit = w->fault_hit;
		cr_assert(status == GRPC_INTERNAL || status == GRPC_OK, "failed at %s: status %d",
			w->fault_at, status);
		world_settle(w);
		refused += status != GRPC_OK;
		formatted += !is_unformatted(volume_id);
		if (status != GRPC_OK && is_unformatted(volume_id))
			cr_assert_eq(devices_left(), 0, "after %s", w->fault_at);
		/* A parked image that a failure leaves is trash at the next load. */
		world_restart(w);
		cr_assert_eq(do_stage(), GRPC_OK, "the retry after %s", w->fault_at);
		cr_assert_not(is_unformatted(volume_id));
		if (!as_block)
			write_mark(staging_path, "kept");
		cr_assert_eq(undo_stage(), GRPC_OK);
		cr_assert_eq(devices_left(), 0, "after %s", w->fault_at);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
		for (int i = 0; trash_count() != 0 && i < 100; i++) {
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
			world_settle(w);
		}
		cr_assert_eq(trash_count(), 0, "after %s", w->fault_at);
	}
	cr_assert_gt(refused, 12);
	cr_assert_gt(formatted, 5);
	cr_assert_gt(n, 20);
}

Test(encrypted, each_step_of_the_first_stage_fails, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	fail_first_stage(false);
	world_close(w);
}

Test(encrypted, each_step_of_the_first_stage_of_a_block_volume_fails, .timeout = 300)
{
	open_crypt_world(WORLD_EXT4, true);
	fail_first_stage(true);
	world_close(w);
}

static struct backend stubborn;
static int (*true_detach)(const struct backend *backend, struct op *op, struct backend_req *req);
static unsigned refusals;

static int refuse_job(void *arg)
{
	struct backend_req *req = arg;
	return err_sys(&req->err, -ENOMEM, "letting go of %s", req->dev.path);
}

static int stubborn_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	if (refusals == 0)
		return true_detach(backend, op, req);
	refusals--;
	return op_work(op, refuse_job, req);
}

/* The device that it was formatted through is nobody's: only the stage itself takes it away. */
Test(encrypted, a_device_that_does_not_go_at_once, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	stubborn = *backend_get(BACKEND_LOOP);
	true_detach = stubborn.detach;
	stubborn.detach = stubborn_detach;
	backend_add(&stubborn);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	refusals = 1;
	cr_assert_neq(do_stage(), GRPC_OK);
	cr_assert_eq(refusals, 0);
	cr_assert(is_unformatted(volume_id));
	cr_assert_eq(devices_left(), 0);
	world_settle(w);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

/* As a driver leaves it that is killed while mkfs runs: an image in the trash, a device over it. */
Test(encrypted, what_a_killed_first_stage_leaves_is_swept, .timeout = 300)
{
	char path[256];
	open_crypt_world(WORLD_XFS, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snprintf(path, sizeof(path), "%s/trash/new-0123456789abcdef", w->pool_path);
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	cr_assert_eq(ftruncate(fd, 48 << 20), 0);
	close(fd);
	snprintf(path, sizeof(path), "%s/trash", w->pool_path);
	int trash = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct secret *key = secret_new("x", 1);
	struct backend_req req = {.dirfd = trash,
		.image = "new-0123456789abcdef",
		.block_size = 512,
		.encrypted = true,
		.format = true,
		.secret = key};
	node_tag(pool_uuid8(pools_at(w->pools, 0)), "0badcafe", req.tag);
	cr_assert_eq(backend_get(BACKEND_LOOP)->attach_call(&req), 0, "%s", req.err.message);
	secret_free(key);
	close(trash);
	cr_assert_eq(devices(), 1);
	world_restart(w);
	cr_assert_eq(devices_left(), 0);
	for (int i = 0; trash_count() != 0 && i < 100; i++)
		world_settle(w);
	cr_assert_eq(trash_count(), 0);
	cr_assert(is_unformatted(volume_id));
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

static bool scanned;

static void scan_while_formatting(const char *op_name, const char *step_name)
{
	if (scanned || strcmp(op_name, "first stage") != 0 || strcmp(step_name, "mkfs") != 0)
		return;
	scanned = true;
	node_adopt(w->csi->node, NULL, NULL);
}

/* Its device is bound to no volume's image, and is left alone. */
Test(encrypted, a_scan_leaves_what_is_being_formatted, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	w->on_step = scan_while_formatting;
	cr_assert_eq(do_stage(), GRPC_OK);
	w->on_step = NULL;
	cr_assert(scanned);
	world_settle(w);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

/* ---- copies ---- */

static void copies(enum world_fs fs)
{
	char first[RECORD_ID_MAX];
	open_crypt_world(fs, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	/* Of one that has nothing yet: one that has nothing yet. */
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(create("of-nothing", FROM_SNAPSHOT, other_id), GRPC_OK);
	cr_assert(is_unformatted(other_id));
	cr_assert_not(object_of(other_id)->rec->shares_extents);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	cr_assert_eq(delete (other_id), GRPC_OK);

	cr_assert_eq(do_stage(), GRPC_OK);
	write_mark(staging_path, "copied");
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	strcpy(first, volume_id);
	encryption = "none";
	cr_assert_eq(create("plain", FROM_SNAPSHOT, other_id), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(create("plain", FROM_VOLUME, other_id), GRPC_INVALID_ARGUMENT);
	cr_assert_eq(create("base", EMPTY, other_id), GRPC_ALREADY_EXISTS);
	encryption = "luks2";
	create_bytes += 16 * MIB;
	for (unsigned i = 0; i < 2; i++) {
		strcpy(volume_id, first);
		cr_assert_eq(
			create("copy", i == 0 ? FROM_SNAPSHOT : FROM_VOLUME, other_id), GRPC_OK);
		cr_assert_not(is_unformatted(other_id));
		strcpy(volume_id, other_id);
		cr_assert_eq(stage_with("another"), GRPC_UNAUTHENTICATED);
		cr_assert_eq(do_stage(), GRPC_OK, "with the source's key");
		has_mark(staging_path, "copied");
		cr_assert_eq(device_bytes(volume_id), create_bytes);
		cr_assert_eq(undo_stage(), GRPC_OK);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	}
	world_close(w);
}

Test(encrypted, copies_on_reflink_pool, .timeout = 300)
{
	copies(WORLD_XFS);
}

Test(encrypted, copies_without_reflink, .timeout = 300)
{
	copies(WORLD_EXT4);
}

/* Whether there is a file system in it cannot be seen. */
Test(encrypted, a_block_volume_becomes_no_mount_volume, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, true);
	mode_change = true;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	block = false;
	cr_assert_eq(create("other", FROM_VOLUME, other_id), GRPC_INVALID_ARGUMENT);
	world_close(w);
}

/* ---- growth ---- */

Test(encrypted, grows_in_use, .timeout = 300)
{
	struct statfs before, after;
	open_crypt_world(WORLD_EXT4, false);
	fs_type = "xfs"; /* ext4's online growth needs CAP_SYS_RESOURCE */
	create_bytes = 300 * MIB;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(statfs(target_path, &before), 0);
	cr_assert_eq(expand(400 * MIB), GRPC_OK);
	cr_assert_eq(node_expand(400 * MIB), GRPC_OK);
	cr_assert_eq(statfs(target_path, &after), 0);
	cr_assert_gt(after.f_blocks, before.f_blocks);
	cr_assert_eq(device_bytes(volume_id), 400 * MIB);
	cr_assert_eq((uint64_t)image_of("volumes", "base").st_size, 400 * MIB + LUKS_HEADER_BYTES);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	/* Grown while it is nowhere: the next stage has it. */
	cr_assert_eq(expand(420 * MIB), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(statfs(staging_path, &before), 0);
	cr_assert_gt(before.f_blocks, after.f_blocks);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

Test(encrypted, one_that_has_nothing_yet_grows, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, true);
	provisioning = "thick";
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(expand(64 * MIB), GRPC_OK);
	cr_assert(is_unformatted(volume_id));
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(device_bytes(volume_id), 64 * MIB);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}

/* ---- room ---- */

static uint64_t thick_room(void)
{
	struct pool_room room;
	pool_room(pools_at(w->pools, 0), &room);
	return room.available_thick_bytes;
}

/* What is promised to a thick volume is kept for it until its first stage takes it. */
Test(encrypted, the_room_of_a_thick_volume_is_kept, .timeout = 300)
{
	open_crypt_world(WORLD_XFS, false);
	provisioning = "thick";
	create_bytes = 200 * MIB;
	uint64_t empty = thick_room();
	cr_assert_gt(empty, 400 * MIB);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_leq(thick_room(), empty - 216 * MIB);
	cr_assert_gt(thick_room(), empty - 220 * MIB);
	cr_assert_lt(object_of(volume_id)->allocated_bytes, MIB, "nothing is allocated yet");
	create_bytes = empty - 216 * MIB;
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_RESOURCE_EXHAUSTED);
	uint64_t promised = thick_room();
	world_restart(w);
	cr_assert_leq(thick_room(), promised + 4 * MIB, "after a restart, too");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_geq(object_of(volume_id)->allocated_bytes, 200 * MIB);
	cr_assert_leq(thick_room(), promised + 4 * MIB);
	cr_assert_gt(thick_room(), promised - 24 * MIB);
	cr_assert_eq(undo_stage(), GRPC_OK);
	world_close(w);
}
