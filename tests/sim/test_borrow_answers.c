/* SPDX-License-Identifier: Apache-2.0 */
/* Borrowed volumes: what is refused and what fails, by which status and in which words; and what is
 * told of their sizes and health. */
#include "answers.h"
#include "lender.h"

#include "node/health.h"
#include "pool/pool.h"
#include "probes/probes.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a helper's call fails ---- */

static int helper_res;
static unsigned helper_calls;

static int helper_fails(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	helper_calls++;
	return helper_res;
}

/* ---- paths ---- */

Test(borrow_answers, of_staging_paths, .timeout = 120)
{
	char right[96], other[96];
	open_far(1, false);
	strcpy(right, staging_path);
	snprintf(other, sizeof(other), "%s/other", w->dir);
	strcpy(staging_path, other);
	says_at(asks_stage(),
		"3: staging_target_path: %s does not exist; the orchestrator has to create it",
		other);
	sh("touch %s/other", w->dir);
	says_at(asks_stage(), "3: staging_target_path: %s is not a directory", other);
	cr_expect_eq(far.takes, 0);
	sh("rm %1$s/other; mkdir %1$s/other; mount -t tmpfs none %1$s/other", w->dir);
	says_at(asks_stage(),
		"9: staging_target_path: something else is mounted at %s; unmount it first", other);
	is_released();
	sh("umount %s/other", w->dir);
	strcpy(staging_path, right);
	says(asks_stage(), "%s", "");
	strcpy(staging_path, other);
	says_at(asks_stage(),
		"9: volume " ID
		" is staged at %s already, and a volume is staged at one path only; unstage it there first",
		right);
	strcpy(staging_path, right);
	access_read_only = true;
	says_at(asks_stage(), "6: volume " ID " is staged at %s already, but writable", right);
	access_read_only = false;
	/* Where its owner is not known any more, a call that says nothing of it is no use. */
	context_count = 0;
	says(asks_stage(), "3: publish_context: " ATTACH_TRANSPORT " is missing, and volume " ID
			   " is on another node");
	context_count = PAIRS;
	cr_expect(far.connected, "what is staged stays so");
	says(asks_stage(), "%s", "");
	says(asks_unstage(), "%s", "");
	is_released();
	access_read_only = true;
	says(asks_stage(), "%s", "");
	access_read_only = false;
	says_at(asks_stage(), "6: volume " ID " is staged at %s already, but read-only", right);
	says_at(asks_publish(),
		"9: volume " ID ": its file system is read-only, it cannot be published writable",
		"");
	says(asks_unstage(), "%s", "");
	close_far();
}

/* Unmounted by hand, it may be staged elsewhere, if the kernel says that it is mounted nowhere. */
Test(borrow_answers, of_a_staging_path_that_is_left, .timeout = 120)
{
	char left[96];
	open_far(1, false);
	strcpy(left, staging_path);
	says(asks_stage(), "%s", "");
	sh("umount %1$s/stage; mkdir %1$s/other", w->dir);
	snprintf(staging_path, sizeof(staging_path), "%s/other", w->dir);
	says(while_silent("node others", asks_stage), SILENT_MOUNTS);
	cr_expect_str_eq(entry()->staging, left);
	says(asks_stage(), "%s", "");
	cr_expect_str_eq(entry()->staging, staging_path);
	says(asks_unstage(), "%s", "");
	is_released();
	close_far();
}

Test(borrow_answers, of_targets, .timeout = 120)
{
	char right[96];
	open_far(1, false);
	strcpy(right, staging_path);
	static const char unstaged[] =
		"9: volume " ID " is not staged at %s; call NodeStageVolume first";
	says_at(asks_publish(), unstaged, staging_path);
	staging_path[0] = '\0';
	says(asks_publish(),
		"9: staging_target_path is missing; this driver needs NodeStageVolume first");
	strcpy(staging_path, right);
	says(asks_stage(), "%s", "");
	snprintf(staging_path, sizeof(staging_path), "%s/elsewhere", w->dir);
	says_at(asks_publish(), unstaged, staging_path);
	strcpy(staging_path, right);
	sh("ln -s . %s/target", w->dir);
	says_at(asks_publish(), "3: target_path: %s is a symbolic link", target_path);
	sh("rm %1$s/target; touch %1$s/target", w->dir);
	says_at(asks_publish(), "3: target_path: %s exists and is not a directory", target_path);
	sh("rm %1$s/target; mkdir %1$s/target; mount -t tmpfs none %1$s/target", w->dir);
	says_at(asks_publish(), "6: target_path: something else is mounted at %s", target_path);
	sh("umount %s/target", w->dir);
	says(asks_publish(), "%s", "");
	publish_read_only = true;
	says_at(asks_publish(), "6: volume " ID " is published at %s already, but writable",
		target_path);
	says(asks_unpublish(), "%s", "");
	says(asks_publish(), "%s", "");
	says(asks_publish(), "%s", "");
	publish_read_only = false;
	says_at(asks_publish(), "6: volume " ID " is published at %s already, but read-only",
		target_path);
	says_at(asks_unstage(), "9: volume " ID " is still published at %s; unpublish it first",
		target_path);
	says(asks_unpublish(), "%s", "");
	/* A path within a volume would go with it. */
	snprintf(target_path, sizeof(target_path), "%s/within", staging_path);
	says_at(asks_publish(),
		"3: target_path: %s lies inside the mount of a volume of another node; give a path outside of volumes",
		target_path);
	says(asks_unstage(), "%s", "");
	close_far();
}

static bool is_device_read_only(void)
{
	int fd = open(far.path, O_RDONLY | O_CLOEXEC), is = -1;
	cr_assert(fd >= 0 && ioctl(fd, BLKROGET, &is) == 0);
	close(fd);
	return is != 0;
}

/* The mount's flag does not protect a device node: the device is what it is published as. */
Test(borrow_answers, of_block_targets, .timeout = 120)
{
	open_far(1, true);
	says(asks_stage(), "%s", "");
	cr_expect_not(far.probe, "a block volume is not looked at");
	sh("mkdir %s/target", w->dir);
	says_at(asks_publish(), "3: target_path: %s exists and is not a file", target_path);
	sh("rmdir %s/target", w->dir);
	/* It has no file system to grow, and its staging path shows nothing of it. */
	w->calls[MNT_GROW] = helper_fails;
	helper_res = -EIO;
	says(expands_at(staging_path, 16 * MIB, 0), "capacity_bytes=16777216");
	for (unsigned i = 0; i < 4; i++) {
		publish_read_only = i % 2 == 0;
		says(asks_publish(), "%s", "");
		says(asks_publish(), "%s", "");
		cr_expect_eq(is_device_read_only(), publish_read_only);
		/* Its target shows what it is, also to a run that no call has told. */
		entry()->block = false;
		says(expands_at(target_path, 16 * MIB, 0), "capacity_bytes=16777216");
		entry()->block = true;
		says(asks_unpublish(), "%s", "");
		cr_expect_neq(access(target_path, F_OK), 0);
	}
	says(asks_unstage(), "%s", "");
	close_far();
}

/* SINGLE_NODE_SINGLE_WRITER: one place, until it is unpublished there. */
Test(borrow_answers, of_a_second_place, .timeout = 120)
{
	char first[96], second[96], want[300];
	for (unsigned whole = 0; whole < 2; whole++) {
		open_far(1, false);
		w->csi->config.staging = whole == 0;
		strcpy(first, target_path);
		snprintf(second, sizeof(second), "%s/second", w->dir);
		access_mode = 6;
		if (whole == 0)
			says(asks_stage(), "%s", "");
		says(asks_publish(), "%s", "");
		says(asks_publish(), "%s", ""); /* a repeat */
		cr_assert_not_null(entry()->writer);
		cr_expect_str_eq(entry()->writer, first);
		snprintf(want, sizeof(want),
			"9: volume " ID
			" is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
			first);
		strcpy(target_path, second);
		says(asks_publish(), "%s", want);
		access_mode = 0; /* the first one is still alone */
		says(asks_publish(), "%s", want);
		cr_expect_neq(access(second, F_OK), 0);
		strcpy(target_path, first);
		says(asks_unpublish(), "%s", "");
		if (whole == 0)
			cr_expect_null(entry()->writer);
		else
			is_released();
		says(asks_publish(), "%s", "");
		strcpy(target_path, second);
		says(asks_publish(), "%s", "");
		access_mode = 6; /* it would not be alone */
		says(asks_unpublish(), "%s", "");
		says(asks_publish(), "%s", want);
		access_mode = 0;
		strcpy(target_path, first);
		says(asks_unpublish(), "%s", "");
		if (whole == 0)
			says(asks_unstage(), "%s", "");
		close_far();
	}
}

struct failure {
	const char *(*ask)(void);
	enum mnt_call call;
	int res;
	const char *want; /* %s: the path */
};

static void fails_each(const struct failure *failures, unsigned count, const char *path)
{
	for (const struct failure *f = failures; f < failures + count; f++) {
		w->calls[f->call] = helper_fails;
		helper_res = f->res;
		helper_calls = 0;
		says_at(f->ask(), f->want, path);
		cr_expect_gt(helper_calls, 0, "failure %d", (int)(f - failures));
		w->calls[f->call] = mnt_calls[f->call];
		world_settle(w);
	}
}

#define FAILS(failures, path) fails_each(failures, sizeof(failures) / sizeof((failures)[0]), path)

Test(borrow_answers, of_helpers, .timeout = 120)
{
	static const struct failure staging[] = {
		{asks_stage, MNT_INSPECT, -EIO, "13: inspection of %s: Input/output error"},
		{asks_stage, MNT_INSPECT, -ETIMEDOUT, HANGS("inspection")},
		{asks_stage, MNT_MOUNT, -EIO, "13: mount of %s: Input/output error"},
		{asks_stage, MNT_MOUNT, -EEXIST, "13: mount of %s: File exists"},
		{asks_stage, MNT_MOUNT, -ENOENT, "13: mount of %s: No such file or directory"},
		{asks_stage, MNT_MOUNT, -ETIMEDOUT, HANGS("mount")},
	};
	static const struct failure staged[] = {
		{asks_publish, MNT_INSPECT, -EIO, "13: inspection of %s: Input/output error"},
	};
	static const struct failure publishing[] = {
		{asks_publish, MNT_BIND, -EIO, "13: bind mount of %s: Input/output error"},
		{asks_publish, MNT_BIND, -ENOENT,
			"3: target_path: the parent directory of %s does not exist; the orchestrator has to create it"},
		{asks_publish, MNT_BIND, -ETIMEDOUT, HANGS("bind mount")},
	};
	static const struct failure unpublishing[] = {
		{asks_unpublish, MNT_INSPECT, -EIO, "13: inspection of %s: Input/output error"},
		{asks_unpublish, MNT_UNMOUNT, -EIO, "13: unmount of %s: Input/output error"},
		{asks_unpublish, MNT_UNMOUNT, -EBUSY,
			"9: target_path: %s is in use: a process has files open or its working directory there"},
	};
	static const struct failure unstaging[] = {
		{asks_unstage, MNT_INSPECT, -EIO, "13: inspection of %s: Input/output error"},
		{asks_unstage, MNT_SYNC, -ETIMEDOUT, HANGS("sync")},
		{asks_unstage, MNT_UNMOUNT, -EIO, "13: unmount of %s: Input/output error"},
		{asks_unstage, MNT_UNMOUNT, -EBUSY,
			"9: staging_target_path: %s is in use: a process has files open or its working directory there"},
		{asks_unstage, MNT_SYNC, -EIO, ""}, /* its device may be gone */
	};
	open_far(1, false);
	FAILS(staging, staging_path);
	is_released();
	says(asks_stage(), "%s", "");
	FAILS(staged, staging_path);
	FAILS(publishing, target_path);
	says(asks_publish(), "%s", "");
	FAILS(unpublishing, target_path);
	cr_expect(far.connected);
	says(asks_unpublish(), "%s", "");
	cr_expect_neq(access(target_path, F_OK), 0);
	FAILS(unstaging, staging_path);
	is_released();
	close_far();
}

/* Without staging what is mounted is the target itself. */
Test(borrow_answers, of_helpers_of_a_whole_publish, .timeout = 120)
{
	static const struct failure publishing[] = {
		{asks_publish, MNT_INSPECT, -EIO, "13: inspection of %s: Input/output error"},
		{asks_publish, MNT_MOUNT, -EIO, "13: mount of %s: Input/output error"},
		{asks_publish, MNT_MOUNT, -ENOENT,
			"3: target_path: the parent directory of %s does not exist; the orchestrator has to create it"},
	};
	open_far(1, false);
	w->csi->config.staging = false;
	FAILS(publishing, target_path);
	is_released();
	sh("touch %s/target", w->dir);
	says_at(asks_publish(), "3: target_path: %s is not a directory", target_path);
	sh("rm %s/target", w->dir);
	says(asks_publish(), "%s", "");
	publish_read_only = true;
	says_at(asks_publish(), "6: volume " ID " is published at %s already, but writable",
		target_path);
	publish_read_only = false;
	says(asks_unpublish(), "%s", "");
	publish_read_only = true;
	says(asks_publish(), "%s", "");
	says(asks_publish(), "%s", "");
	publish_read_only = false;
	says_at(asks_publish(), "6: volume " ID " is published at %s already, but read-only",
		target_path);
	says(asks_unpublish(), "%s", "");
	is_released();
	close_far();
}

/* Two of one btrfs cannot be mounted by an older kernel. */
Test(borrow_answers, of_a_copy_of_a_btrfs, .timeout = 120)
{
	static const struct failure staging[] = {
		{asks_stage, MNT_MOUNT, -EEXIST,
			"9: volume " ID
			": a copy of this btrfs is mounted, and this kernel cannot mount both (6.7 and newer can): unstage that one first%s"},
		{asks_stage, MNT_MOUNT, -EIO, "13: mount of %s: Input/output error"},
	};
	open_far(1, false);
	pairs[MODE + 1].value = fs_type = "btrfs";
	for (unsigned i = 0; i < 2; i++) {
		far.errors = i == 1; /* nothing checks a btrfs before it is mounted */
		fails_each(staging, 1, "");
		fails_each(staging + 1, 1, staging_path);
	}
	is_released();
	close_far();
}

/* ---- its file system: checked before it is mounted, and grown behind ---- */

static unsigned grows, cleans;
static struct mnt_grow_req grow_req;
static int clean_res;
static bool has_grown;

static int grow_counts(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct mnt_result *result = resp;
	cr_assert_eq(req_len, sizeof(grow_req));
	memcpy(&grow_req, req, sizeof(grow_req));
	*resp_len = sizeof(*result);
	*result = (struct mnt_result){.grown = has_grown};
	grows++;
	return 0;
}

static int clean_counts(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_on_req *on = req;
	(void)req_len;
	cr_expect_str_eq(on->at.path, grow_req.on.at.path);
	*resp_len = sizeof(struct mnt_result);
	memset(resp, 0, *resp_len);
	cleans++;
	return clean_res;
}

static void count_growths(void)
{
	w->calls[MNT_GROW] = grow_counts;
	w->calls[MNT_CLEAN] = clean_counts;
	grows = cleans = 0;
}

/* Where its owner has made it larger by a whole MiB at least, and it is writable. */
Test(borrow_answers, a_stage_makes_its_file_system_grow, .timeout = 120)
{
	static const struct {
		uint64_t fs_bytes;
		bool reads, grown;
		int clean;
		unsigned grows, cleans;
		const char *want;
	} all[] = {
		{16 * MIB, false, true, 0, 0, 0, ""},
		{15 * MIB + 1, false, true, 0, 0, 0, ""},
		{15 * MIB, false, true, 0, 1, 1, ""},
		{8 * MIB, false, false, 0, 1, 0, ""},
		{8 * MIB, true, true, 0, 0, 0, ""},
		{8 * MIB, false, true, -EBUSY, 1, 1, ""},
		{8 * MIB, false, true, -EOPNOTSUPP, 1, 1, ""},
		{8 * MIB, false, true, -EIO, 1, 1, "13: freeze of %s: Input/output error"},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		open_far(1, false);
		count_growths();
		far.fs_bytes = all[i].fs_bytes;
		has_grown = all[i].grown;
		clean_res = all[i].clean;
		access_read_only = all[i].reads;
		says_at(asks_stage(), all[i].want, staging_path);
		cr_expect_eq(grows, all[i].grows, "%u", i);
		cr_expect_eq(cleans, all[i].cleans, "%u", i);
		if (grows != 0) {
			cr_expect_eq(grow_req.type, FSIMG_EXT4);
			cr_expect_eq(grow_req.size_bytes, 16 * MIB);
			cr_expect_str_eq(grow_req.on.at.path, staging_path);
		}
		says(asks_stage(), "%s", ""); /* what is mounted is not made to grow again */
		cr_expect_eq(grows, all[i].grows, "%u", i);
		access_read_only = false;
		says(asks_unstage(), "%s", "");
		close_far();
	}
}

static const char *expands(void)
{
	return expands_at(target_path, 17 * MIB, 0);
}

static const char *fails_to_grow(int res)
{
	w->calls[MNT_GROW] = helper_fails;
	helper_res = res;
	helper_calls = 0;
	const char *got = expands();
	cr_expect_eq(helper_calls, 1);
	return got;
}

Test(borrow_answers, of_growths, .timeout = 120)
{
	open_far(1, false);
	static const char absent[] =
		"5: volume " ID " is not staged or published at volume_path %s";
	says(asks_stage(), "%s", "");
	says_at(expands(), absent, target_path);
	sh("mkdir %s/target", w->dir);
	says_at(expands(), "9: volume " ID " is not staged or published at volume_path %s",
		target_path);
	sh("rmdir %s/target", w->dir);
	says(expands_at("relative", 17 * MIB, 0),
		"5: volume " ID " is not there: volume_path is not an absolute path: relative");
	says(asks_publish(), "%s", "");
	says(expands_at(target_path, 0, 15 * MIB),
		"11: capacity_range: limit_bytes (15728640) is too small, the least that serves is 16777216 bytes (sizes are multiples of 1 MiB)");
	says_at(fails_to_grow(-EPERM), "9: growth of %s: the file system is read-only",
		target_path);
	says_at(fails_to_grow(-EROFS), "9: growth of %s: the file system is read-only",
		target_path);
	says_at(fails_to_grow(-EIO), "13: growth of %s: Input/output error", target_path);
	says_at(fails_to_grow(-ETIMEDOUT), HANGS("growth"), target_path);
	count_growths();
	has_grown = true;
	clean_res = 0;
	says(expands(), "capacity_bytes=17825792");
	cr_expect_eq(grows, 1);
	cr_expect_eq(cleans, 1);
	cr_expect_eq(grow_req.size_bytes, 17 * MIB);
	cr_expect_eq(grow_req.type, FSIMG_NONE);
	cr_expect_str_eq(grow_req.on.at.path, target_path);
	cr_expect_eq(entry()->size_bytes, 17 * MIB);
	has_grown = false;
	says(expands(), "capacity_bytes=17825792");
	cr_expect_eq(grows, 2);
	cr_expect_eq(cleans, 1);
	says(asks_unpublish(), "%s", "");
	says(asks_unstage(), "%s", "");
	close_far();
}

/* What stands for e2fsck; NULL: there is none. */
static void checks_with(const char *script)
{
	static char path[4096], *kept;
	if (kept == NULL)
		kept = strdup(getenv("PATH"));
	cr_assert_eq(setenv("PATH", kept, 1), 0);
	sh("rm -rf %1$s/bin; mkdir %1$s/bin", w->dir);
	if (script != NULL) {
		snprintf(path, sizeof(path), "%s/bin/e2fsck", w->dir);
		FILE *f = fopen(path, "we");
		cr_assert(f != NULL && fprintf(f, "#!/bin/sh\n%s\n", script) > 0);
		cr_assert_eq(fclose(f), 0);
		cr_assert_eq(chmod(path, 0700), 0);
		snprintf(path, sizeof(path), "%s/bin:%s", w->dir, kept);
	} else {
		sh("ln -s $(command -v losetup) $(command -v blockdev) %s/bin", w->dir);
		snprintf(path, sizeof(path), "%s/bin", w->dir);
	}
	cr_assert_eq(setenv("PATH", path, 1), 0);
}

static void stages_checked(bool reads, const char *script, const char *want)
{
	char path[96];
	struct stat st;
	checks_with(script);
	access_read_only = reads;
	says(asks_stage(), want, entry() != NULL ? entry()->path : "");
	checks_with("exit 0");
	snprintf(path, sizeof(path), "%s/checked", w->dir);
	bool checked = stat(path, &st) == 0;
	cr_expect_eq(checked, far.errors && !reads && script != NULL, "%s", script);
	unlink(path);
	if (want[0] != '\0')
		is_released();
	else
		says(asks_unstage(), "%s", "");
	access_read_only = false;
}

/* What e2fsck has mended is mounted; what it could not mend is not. Where nobody writes nothing is
 * mended. */
Test(borrow_answers, of_checks, .timeout = 120)
{
	char script[160];
	static const struct {
		bool errors, reads;
		const char *does; /* NULL: there is no e2fsck */
		const char *want;
	} all[] = {
		{false, false, "exit 4", ""},
		{true, true, "exit 4", ""},
		{true, false, "exit 0", ""},
		{true, false, "exit 1", ""},
		{true, false, "exit 3", ""},
		{true, false, "exit 4",
			"15: volume " ID
			": e2fsck could not mend its file system (exit 4); run it by hand on the volume's own node"},
		{true, false, NULL,
			"9: volume " ID
			" needs a check and e2fsck is not installed (package e2fsprogs)"},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		open_far(1, false);
		far.errors = all[i].errors;
		snprintf(script, sizeof(script), "touch %s/checked; %s", w->dir,
			all[i].does != NULL ? all[i].does : "");
		stages_checked(all[i].reads, all[i].does != NULL ? script : NULL, all[i].want);
		close_far();
	}
}

Test(borrow_answers, of_a_check_that_cannot_be_run, .timeout = 120)
{
	static const char begins[] = "13: volume " ID ": e2fsck on /dev/";
	char path[96];
	open_far(1, false);
	snprintf(path, sizeof(path), "%s/bin/e2fsck", w->dir);
	far.errors = true;
	checks_with(NULL);
	cr_assert_eq(mkdir(path, 0700), 0);
	const char *told = asks_stage();
	cr_expect_eq(strncmp(told, begins, strlen(begins)), 0, "%s", told);
	cr_expect_not_null(strstr(told, ": Permission denied"), "%s", told);
	is_released();
	checks_with("exit 0");
	says(asks_stage(), "%s", "");
	says(asks_unstage(), "%s", "");
	close_far();
}
