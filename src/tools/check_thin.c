/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be wrong with a thin pool: its two images, its metadata, and what these know against
 * what the maps of images say. The metadata are read from the disks, so no device is needed, and
 * nothing is changed.
 *
 * Beside a driver ids come and go while the files are read. An id is read before and after; what
 * seems to be wrong is looked at once more, and said only if it was wrong both times.
 */
#include "tools/check_thin.h"

#include "base/fd.h"
#include "disk/thin_pool.h"
#include "pool/raw_load.h"
#include "tools/check_thin_files.h"
#include "tools/check_thin_repair.h"
#include "tools/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { METADATA_FULL_PCT = 90 };

#define REPAIR_REMEDY                                                                              \
	"end the pods with thin volumes of the pool and stop the driver; then 'ringvol check "     \
	"--repair'"

/* ---- its images ---- */

struct images {
	struct image_map metadata, data;
	bool there;
};

static int read_map(struct check *c, int dirfd, enum thin_device which, struct image_map *ret)
{
	const char *name = thin_file_name(which);
	*ret = (struct image_map){0};
	int r = pool_raw_map(dirfd, name, ret);
	if (r == 0 && ret->thin_id == 0 && ret->count > 0)
		return 0;
	if (r < 0 && r != -ENODATA)
		return r; /* said with the other maps */
	check_add(c, .kind = "MapDamaged", .path = tool_text(c->args, THIN_DIR "/%s", name),
		.message =
			"its map says where on the disks the thin pool lies, and is missing or "
			"damaged: the pool gives nothing out and overwrites nothing until that is "
			"known",
		.remedy = "look for errors of the first disk in the kernel log; restore the "
			  "records");
	return -EBADMSG;
}

static bool is_there(int dirfd, enum thin_device which)
{
	return faccessat(dirfd, thin_file_name(which), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void read_images(struct check *c, size_t files, struct images *ret)
{
	_cleanup_fd_ int dirfd = check_thin_open(c);
	ret->there = false;
	if (dirfd >= 0 && is_there(dirfd, THIN_DATA)) {
		ret->there = read_map(c, dirfd, THIN_METADATA, &ret->metadata) == 0 &&
			     read_map(c, dirfd, THIN_DATA, &ret->data) == 0;
		return;
	}
	if (files > 0)
		check_add(c, .kind = "ThinPoolMissing", .path = THIN_DIR "/" THIN_DATA_FILE,
			.message = tool_text(c->args,
				"the image of the thin pool is not there, and %zu images have "
				"their bytes in it: the pool gives nothing out and overwrites "
				"nothing",
				files),
			.remedy = "look for it in lost+found of the records, and move it back");
	else if (dirfd >= 0 && is_there(dirfd, THIN_METADATA))
		check_add(c, .severity = c->survey.served ? CHECK_NOTE : CHECK_LEFTOVER,
			.kind = "ThinPoolHalf", .path = THIN_DIR "/" THIN_METADATA_FILE,
			.message = "a thin pool that was made half, or taken away half; no volume "
				   "is in it",
			.remedy = "the driver's next start gives it back");
}

/* ---- its metadata ---- */

static void add_damaged(struct check *c, const char *kind, const char *message)
{
	check_add(c, .kind = kind, .path = THIN_DIR "/" THIN_METADATA_FILE, .message = message,
		.remedy = REPAIR_REMEDY, .repair = check_thin_repair);
}

static void look_at_commit(struct check *c, const struct thin_commit *commit)
{
	uint64_t used = commit->metadata_used, total = commit->metadata_total;
	if (commit->needs_check)
		add_damaged(c, "ThinNeedsCheck",
			"a commit of the thin pool's metadata has failed, and dm-thin takes no "
			"change until they were checked and repaired");
	if (total > 0 && used >= total / 100 * METADATA_FULL_PCT)
		check_add(c, .kind = "ThinMetadataFull", .path = THIN_DIR "/" THIN_METADATA_FILE,
			.message = tool_text(c->args,
				"%llu of the %llu blocks of the thin pool's metadata are in use: "
				"when they are full, no thin volume of it can be written to",
				(unsigned long long)used, (unsigned long long)total),
			.remedy = "the driver gives them more while the pool has room: delete "
				  "volumes or snapshots, or add a disk");
}

/* What the kernel says, which the disks need not have been told. */
static void look_at_status(struct check *c, const struct thin_commit *commit)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct thin_status status;
	/* That devices cannot be asked is said elsewhere. */
	if (dm_open(&dm, DM_CONTROL_PATH) < 0 || thin_pool_status(&dm, c->survey.uuid, &status) < 0)
		return;
	if (!commit->needs_check && (status.mode >= THIN_READ_ONLY || status.needs_check))
		add_damaged(c, "ThinNeedsCheck",
			status.mode == THIN_FAILED
				? "dm-thin has given the thin pool up, as it cannot read or write "
				  "its metadata: every request fails"
				: "dm-thin takes no change of the thin pool any more, as it could "
				  "not write its metadata");
	if (status.mode == THIN_DATA_FULL)
		check_add(c, .kind = "ThinDataFull", .path = THIN_DIR "/" THIN_DATA_FILE,
			.message = "the thin pool is full: who writes to a new block of a thin "
				   "volume waits, or gets 'no space left on device'",
			.remedy = "delete volumes or snapshots, or add a disk");
}

/* ---- ids ---- */

struct ids {
	struct check *c;
	const struct images *images;
	struct check_thin_files files;
	struct thin_ids before, after;
};

static void ids_free(struct ids *i)
{
	free(i->files.at);
	thin_ids_free(&i->before);
	thin_ids_free(&i->after);
}

static int ids_read(struct ids *i)
{
	const struct disk *disk = i->c->survey.disk;
	int r = thin_ids_read(disk, &i->images->metadata, &i->before);
	if (r == 0)
		r = check_thin_collect(i->c, &i->files);
	return r == 0 ? thin_ids_read(disk, &i->images->metadata, &i->after) : r;
}

static bool is_unknown(const struct ids *i, const struct check_thin_file *file)
{
	return !check_thin_is_trash(file) && thin_ids_find(&i->before, file->id) == NULL &&
	       thin_ids_find(&i->after, file->id) == NULL;
}

static bool is_left(const struct ids *i, const struct thin_id *id)
{
	return thin_ids_find(&i->after, id->id) != NULL && !check_thin_has(&i->files, id->id);
}

static bool is_in_doubt(const struct ids *i)
{
	for (size_t k = 0; k < i->files.count; k++)
		if (is_unknown(i, &i->files.at[k]))
			return true;
	for (size_t k = 0; k < i->before.count; k++)
		if (is_left(i, &i->before.at[k]))
			return true;
	return false;
}

static void add_unknown(struct check *c, const struct check_thin_file *file)
{
	check_add(c, .kind = "ThinIdUnknown",
		.path = tool_text(c->args, "%s/%s", survey_dir_names[file->dir], file->name),
		.message = tool_text(c->args,
			"its map says that it is %u in the thin pool, which knows none of that "
			"number: its bytes are lost, or the metadata are of an earlier time",
			(unsigned)file->id),
		.remedy = "if the metadata are a copy, bring the latest; else restore it from a "
			  "snapshot, and delete it");
}

static void add_left(struct check *c, const struct thin_id *id, const struct thin_commit *commit)
{
	char size[TEXT_NUMBER_BYTES], name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	text_size(id->blocks * commit->block_bytes, size);
	thin_names(THIN_POOL, c->survey.uuid, name, uuid);
	check_add(c, .kind = "ThinIdLeft", .path = THIN_DIR "/" THIN_METADATA_FILE,
		.message = tool_text(c->args,
			"the thin pool knows the number %u, which no image has; it has %s, shared "
			"or its own",
			(unsigned)id->id, size),
		.remedy = tool_text(c->args,
			"if no image of the pool was lost: start the driver, and 'dmsetup message "
			"%s 0 \"delete %u\"'",
			name, (unsigned)id->id));
}

/* other: what was read another time; NULL: nothing. */
static void compare(struct ids *i, const struct ids *other)
{
	for (size_t k = 0; k < i->files.count; k++)
		if (is_unknown(i, &i->files.at[k]) &&
			(other == NULL || is_unknown(other, &i->files.at[k])))
			add_unknown(i->c, &i->files.at[k]);
	for (size_t k = 0; k < i->before.count; k++)
		if (is_left(i, &i->before.at[k]) &&
			(other == NULL || is_left(other, &i->before.at[k])))
			add_left(i->c, &i->before.at[k], &i->before.commit);
}

static void look_at_ids(struct check *c, const struct images *images)
{
	struct ids first = {.c = c, .images = images}, second = {.c = c, .images = images};
	int r = ids_read(&first);
	if (r == 0 && c->survey.served && is_in_doubt(&first))
		r = ids_read(&second);
	if (r == 0)
		compare(&first,
			second.before.at != NULL || second.files.at != NULL ? &second : NULL);
	if (r == -EBADMSG || r == -ERANGE)
		add_damaged(c, "ThinMetadataDamaged",
			"the metadata of the thin pool are damaged: what has its bytes in it may "
			"not be readable");
	else if (r == -ENOMEM)
		c->args->failed = true;
	else if (r < 0 && r != -EAGAIN)
		check_add(c, .kind = "ThinMetadataDamaged", .path = THIN_DIR "/" THIN_METADATA_FILE,
			.message = tool_text(c->args,
				"the metadata of the thin pool cannot be read (%s)",
				strerrordesc_np(-r)),
			.remedy = "look for errors of the disk in the kernel log");
	ids_free(&first);
	ids_free(&second);
}

void check_thin(struct check *c)
{
	struct images images;
	struct check_thin_files files = {0};
	struct thin_commit commit;
	int r = check_thin_collect(c, &files);
	size_t count = files.count;
	free(files.at);
	if (r < 0)
		return; /* that one cannot be listed was said with its names */
	read_images(c, count, &images);
	if (!images.there)
		return;
	r = thin_commit_read(c->survey.disk, &images.metadata, &commit);
	if (r == 0 && commit.blank && count > 0) {
		add_damaged(c, "ThinMetadataDamaged",
			"the first block of the thin pool's metadata reads as zeros, and images "
			"have their bytes in it: none of them can be read");
		return;
	}
	if (r == 0) {
		look_at_commit(c, &commit);
		look_at_status(c, &commit);
	}
	look_at_ids(c, &images);
}

/* ---- what an image holds ---- */

int check_thin_read(const struct check *c, uint32_t id, void *buf, size_t bytes)
{
	struct image_map metadata, data;
	struct thin_commit commit;
	_cleanup_fd_ int dirfd = check_thin_open(c);
	if (dirfd < 0 || pool_raw_map(dirfd, THIN_METADATA_FILE, &metadata) < 0 ||
		pool_raw_map(dirfd, THIN_DATA_FILE, &data) < 0 ||
		thin_commit_read(c->survey.disk, &metadata, &commit) < 0 || commit.blank)
		return -ENODATA;
	uint32_t step = commit.block_bytes < bytes ? commit.block_bytes : (uint32_t)bytes;
	for (size_t at = 0; at < bytes; at += step) {
		uint64_t offset;
		int r = thin_block_find(
			c->survey.disk, &metadata, id, at / commit.block_bytes, &offset);
		if (r == 0)
			r = thin_image_read(c->survey.disk, &data, offset, (char *)buf + at, step);
		else if (r == -ENODATA)
			r = (memset((char *)buf + at, 0, step), 0);
		if (r < 0)
			return r == -ENXIO || r == -EBADMSG || r == -EAGAIN ? -ENODATA : r;
	}
	return 0;
}
